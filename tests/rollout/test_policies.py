"""Secrets in their scope only and nowhere on disk; tools, skills and networks as the package says."""

import pytest

from benchflow.rollout.policies import SEARCH_TOOLS, audit, forbidden_tools, gather_secrets, normal_tool
from benchflow.task.config.namespace import AgentPolicy, TrajectoryAudit
from benchflow.task.package import load_package

pytestmark = pytest.mark.anyio

OFFLINE = "environment: {network_mode: no-network}\n"
SECRETS = (
    OFFLINE
    + """\
verifier: {env: {FROM_MACHINE: '${SOME_TOKEN}'}}
artifacts: [answer.txt]
benchflow:
  secrets:
    - {name: agent-key, env: AGENT_KEY, scope: agent}
    - {name: oracle-key, env: ORACLE_KEY, scope: oracle}
    - {name: grader-key, env: GRADER_KEY, scope: verifier}
    - {name: box-key, env: BOX_KEY, scope: environment}
    - {name: spare, env: SPARE_KEY, scope: agent, required: false}
"""
)
KEYS = {
    "AGENT_KEY": "agent-0123456789",
    "ORACLE_KEY": "oracle-0123456789",
    "GRADER_KEY": "grader-0123456789",
    "BOX_KEY": "box-0123456789",
    "SOME_TOKEN": "token-0123456789",
}
SHOW = "echo agent:$AGENT_KEY oracle:$ORACLE_KEY grader:$GRADER_KEY box:$BOX_KEY token:$FROM_MACHINE"
COUNT = (
    'echo "$GRADER_KEY $BOX_KEY $FROM_MACHINE" | wc -w > /tmp/n; echo "$AGENT_KEY$ORACLE_KEY" | wc -c > /tmp/m\n'
    'env; [ "$(cat /tmp/n)" = 3 ] && [ "$(cat /tmp/m)" = 1 ] && echo 1 > /logs/verifier/reward.txt\n'
)


def on_disk(folder):
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(k.encode() in path.read_bytes() for k in KEYS.values())
    ]


async def test_secrets_are_there_in_their_scope_only(run, make_package, tmp_path, events):
    package = make_package(SECRETS, verifier=COUNT)
    command = f"{SHOW} | tee answer.txt; echo $AGENT_KEY$BOX_KEY | wc -c"
    result = await run(package, commands=[command], machine=KEYS)
    assert result.reward == 1.0
    assert events()[1]["text"] == (
        f"agent:[redacted] oracle: grader: box:[redacted] token:\n{len(KEYS['AGENT_KEY'] + KEYS['BOX_KEY']) + 1}\n"
    )
    assert (tmp_path / "out" / "artifacts" / "app" / "answer.txt").read_text().startswith("agent:[redacted] oracle: ")
    assert "GRADER_KEY=[" in (tmp_path / "out" / "verifier" / "test-stdout.txt").read_text()
    assert on_disk(tmp_path / "out") == []


async def test_the_oracle_has_its_own_secrets(run, make_package, tmp_path):
    package = make_package(SECRETS, {"oracle/solve.sh": f"{SHOW} > answer.txt\ncat answer.txt\n"}, verifier=COUNT)
    result = await run(package, "oracle", machine={key: value for key, value in KEYS.items() if key != "AGENT_KEY"})
    assert result.reward == 1.0
    log = (tmp_path / "out" / "agent" / "oracle.txt").read_text()
    assert log == "agent: oracle:[redacted] grader: box:[redacted] token:\n"
    assert on_disk(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("machine", "code"), [({}, "variable-missing"), ({**KEYS, "AGENT_KEY": "abc"}, "secret-too-short")]
)
async def test_a_secret_that_cannot_be_given_stops_the_launch(run, make_package, machine, code):
    result = await run(make_package(SECRETS), machine=machine)
    assert (result.error.category, result.error.code, result.error.phase) == ("environment", code, "plan")


async def test_secrets_in_messages_of_errors_are_redacted(run, make_package, tmp_path):
    async def fail(context):
        raise RuntimeError(f"cannot log in with {context.env['AGENT_KEY']}")

    result = await run(make_package(SECRETS), commands=[fail], machine=KEYS)
    assert "[redacted]" in result.error.message
    assert on_disk(tmp_path / "out") == []


@pytest.mark.sandbox
async def test_each_phase_has_its_own_network(run, make_package, events):
    frontmatter = (
        "environment: {network_mode: public}\nagent: {network_mode: no-network}\n"
        "verifier: {network_mode: allowlist, allowed_hosts: [example.org]}\n"
    )
    verifier = (
        "curl -s -o /dev/null -w '%{http_code}' http://blocked.example/ > /tmp/code; cat /tmp/code\n"
        "grep -q egress0 /proc/net/dev && grep -q 403 /tmp/code && echo 1 > /logs/verifier/reward.txt\n"
    )
    result = await run(make_package(frontmatter, verifier=verifier), commands=["grep -c egress0 /proc/net/dev; true"])
    assert events()[1]["text"] == "0\n"
    assert result.reward == 1.0


@pytest.mark.sandbox
async def test_an_agent_without_network_reaches_nothing(run, make_package, events):
    package = make_package("environment: {network_mode: public}\nagent: {network_mode: no-network}\n")
    probe = "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 2)\" 2>&1 | tail -n1"
    await run(package, commands=[probe])
    assert "unreachable" in events()[1]["text"]


@pytest.mark.parametrize(
    "rest",
    [
        "environment: {cpus: 1}\n%s{task_default: no-network}",
        "verifier: {network_mode: public}\n%s{phase_overrides: {agent: no-network, verifier: no-network}}",
    ],
    ids=["default", "overrides"],
)
@pytest.mark.sandbox
async def test_the_runtime_policy_closes_the_agents_phase_and_the_verifiers(run, make_package, events, rest):
    links = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
    verifier = f'[ "$({links})" = lo ] && echo 1 > /logs/verifier/reward.txt\n'
    frontmatter = rest % "benchflow:\n  runtime_policy:\n    network: " + "\n"
    result = await run(make_package(frontmatter, verifier=verifier), commands=[links])
    assert events()[1]["text"] == "lo\n"
    assert result.reward == 1.0


POLICY = OFFLINE + "benchflow:\n  agent_policy: {forbidden_tools: [deploy], %s}\n"


async def use(context, *tools):
    for tool in tools:
        context.events("tool_call", tool=tool, arguments={})
    await context.sandbox.exec("echo done > answer.txt")
    return "true"


async def test_a_forbidden_tool_call_is_never_scored_where_proof_is_demanded(run, make_package):
    async def deploys(context):
        return await use(context, "bash", "Deploy")

    package = make_package(POLICY % "trajectory_audit: {require_no_forbidden_tool_calls: true}")
    result = await run(package, commands=[deploys])
    assert (result.error.category, result.error.code, result.error.phase) == ("agent", "forbidden-tool", "agent")
    assert "Deploy (1)" in result.error.message
    assert result.to_dict()["audit"] == {"forbidden_tool_calls": {"Deploy": 1}, "passed": False}


async def test_without_that_demand_it_is_recorded(run, make_package):
    async def deploys(context):
        assert context.forbidden_tools == {"deploy"}
        return await use(context, "deploy")

    result = await run(make_package(POLICY % "skill_access: installed"), commands=[deploys])
    assert (result.reward, result.to_dict()["audit"]["passed"]) == (1.0, False)


async def test_disabled_search_is_a_launch_policy_and_an_audit(run, make_package):
    async def searches(context):
        assert {"deploy", "web_search"} <= context.forbidden_tools
        return await use(context, "WebSearch")

    async def works(context):
        return await use(context, "bash")

    package = make_package(POLICY % "search: disabled")
    assert (await run(package, commands=[searches])).error.code == "forbidden-tool"
    assert (await run(package, commands=[works], out="clean")).to_dict()["audit"]["passed"] is True


async def test_skills_are_hidden_where_they_are_not_allowed(run, make_package, new_script):
    frontmatter = (
        "environment: {network_mode: no-network, skills_dir: /usr/share/doc}\nbenchflow:\n  agent_policy: {%s}\n"
    )
    hidden, shown = new_script("ls /usr/share/doc | wc -l"), new_script("ls /usr/share/doc | wc -l")
    await run(make_package(frontmatter % "skill_access: none"), script=hidden)
    assert hidden.contexts[0].skills_dir is None
    allowed = "skill_access: declared, allowed_skill_roots: [/usr/share]"
    await run(make_package(frontmatter % allowed, name="b"), script=shown, out="b")
    assert shown.contexts[0].skills_dir == "/usr/share/doc"
    refused = await run(make_package(frontmatter % "skill_access: declared", name="c"), out="c")
    assert (refused.error.category, refused.error.code) == ("unsupported", "skills-refused")


def test_tools_are_compared_by_meaning():
    assert {normal_tool(name) for name in ("WebSearch", "web-search", "web_search", "Web Search")} == {"web_search"}
    policy = AgentPolicy(search="disabled", forbidden_tools=("deploy",), trajectory_audit=TrajectoryAudit())
    assert forbidden_tools(policy) == SEARCH_TOOLS | {"deploy"}
    assert forbidden_tools(None) == frozenset()
    assert audit(None, {}) is None
    found = audit(policy, {frozenset({"fetch", "Read a page"}): 2, frozenset({"search", "grep"}): 5})
    assert dict(found.forbidden) == {"fetch": 2}


def test_variables_that_a_compose_file_takes_are_redacted_whatever_they_are_called(tmp_path):
    (tmp_path / "environment").mkdir()
    (tmp_path / "task.md").write_text("---\ntask: {name: acme/a}\n---\nDo it.\n")
    (tmp_path / "environment/compose.yaml").write_text(
        "services: {db: {image: x, command: '${MOTTO} ${FLAG:-on} $HOME $TEST_DIR', environment: [LISTED]}}\n"
    )
    machine = {"MOTTO": "open sesame", "FLAG": "true", "HOME": "/home/somebody", "LISTED": "another one"}
    machine |= {"TEST_DIR": "not of the machine", "UNUSED": "ordinary text"}
    found = gather_secrets(load_package(tmp_path).view, machine, ())
    assert found.redacted == {"open sesame", "another one"}
