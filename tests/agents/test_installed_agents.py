"""Presets installed and started for real, with a package manager and an agent that stand in for theirs."""

import json
from dataclasses import replace

import anyio
import pytest

from benchflow.agents import create_agent
from benchflow.agents.acp.acp_launch import Launch
from benchflow.agents.running import Installations
from benchflow.errors import AgentFailure
from benchflow.models.gateway import Access, find_upstreams
from benchflow.record import CallPlace

pytestmark = pytest.mark.anyio

NPM = """#!/bin/sh
[ "$1" = config ] && { echo "/etc/$3"; exit 0; }
echo "$@" >> /var/npm-calls
env > /var/npm-env
[ -e /etc/npm-fails ] && { echo "npm error: no network" >&2; exit 1; }
mkdir -p "$4/bin"
printf '#!/bin/sh\\nexec %s -S -E /opt/tests/raw_agent.py env auth config\\n' PYTHON > "$4/bin/PROGRAM"
chmod +x "$4/bin/PROGRAM"
"""


def access(machine):
    """What the gateway of a machine with these variables gives a role."""
    return Access(None, CallPlace("solver"), 41999, find_upstreams(machine).families)


@pytest.fixture
def with_npm(sandbox):
    """Puts a package manager into the sandbox that installs the stand-in agent."""
    from sys import version_info

    async def put(program):
        python = f"/opt/python/bin/python{version_info.major}.{version_info.minor}"
        text = NPM.replace("PYTHON", python).replace("PROGRAM", program)
        await sandbox.write_file("/usr/local/bin/npm", text.encode(), mode=0o755)

    return put


@pytest.mark.parametrize(("name", "program"), [("codex", "codex-acp"), ("gemini", "gemini")])
async def test_a_preset_installs_signs_in_and_runs(opened, sandbox, with_npm, inside, name, program):
    await with_npm(program)
    key = "GEMINI_API_KEY" if name == "gemini" else "OPENAI_API_KEY"
    machine = {key: "k-secret", "UNRELATED": "x"}
    agent = create_agent(name, environ=machine)
    await agent.install(sandbox)
    assert "install --global --prefix" in await inside("cat /var/npm-calls")
    models = access(machine)
    [result] = await opened(agent, "", env={"FROM_TASK": "y", key: "k-of-the-package"}, models=models)
    env = json.loads(result.text)
    assert (env[key], env["FROM_TASK"]) == (models.token, "y")
    assert "UNRELATED" not in env
    assert "k-secret" not in result.text
    assert await inside("cat /tmp/signed-in") == ("gemini-api-key" if name == "gemini" else "api-key")


async def test_a_model_is_told_by_variable_or_by_the_protocol(opened, sandbox, with_npm, tmp_path):
    await with_npm("gemini")
    agent = create_agent("gemini", "gemini-large", environ={"GEMINI_API_KEY": "k"})
    await agent.install(sandbox)
    [result] = await opened(agent, "", models=access({"GEMINI_API_KEY": "k"}))
    assert json.loads(result.text)["GEMINI_MODEL"] == "gemini-large"
    await with_npm("pi-acp")
    agent = create_agent("pi", environ={"OPENAI_API_KEY": "k"})
    await agent.install(sandbox)
    await opened(agent, "", model="large", models=access({"OPENAI_API_KEY": "k"}))
    assert '"configId": "m"' in (tmp_path / "agent" / "stderr.txt").read_text()


async def test_what_is_there_already_is_not_installed_again(sandbox, with_npm, inside):
    await with_npm("gemini")
    await sandbox.write_file("/usr/local/bin/gemini", b"#!/bin/sh\n", mode=0o755)
    await create_agent("gemini").install(sandbox)
    assert "No such file" in await inside("cat /var/npm-calls")


async def test_an_installation_that_fails_is_one_sentence(sandbox, with_npm):
    await with_npm("gemini")
    await sandbox.write_file("/etc/npm-fails", b"")
    with pytest.raises(AgentFailure, match="'gemini' could not be installed: npm error: no network") as caught:
        await create_agent("gemini").install(sandbox)
    assert caught.value.code == "install-failed"


async def test_npm_keeps_the_settings_of_the_environment_and_leaves_nothing_behind(sandbox, with_npm, inside):
    await with_npm("gemini")
    await create_agent("gemini").install(sandbox)
    assert "--userconfig /etc/userconfig --globalconfig /etc/globalconfig" in await inside("cat /var/npm-calls")
    seen = dict(line.split("=", 1) for line in (await inside("cat /var/npm-env")).splitlines())
    assert seen["npm_config_cache"].startswith(seen["HOME"])
    assert await inside(f"ls {seen['HOME']}") == f"ls: cannot access '{seen['HOME']}': No such file or directory\n"
    trusted = await inside("ls /etc/ssl/certs/ca-certificates.crt")
    assert seen.get("NODE_EXTRA_CA_CERTS", "missing") in trusted or "No such file" in trusted


async def test_an_agent_trusts_what_the_environment_trusts_and_shadows_none_of_its_programs(opened, sandbox, with_npm):
    await with_npm("codex-acp")
    agent = create_agent("codex", environ={"OPENAI_API_KEY": "k"})
    await agent.install(sandbox)
    await sandbox.write_file("/etc/ssl/certs/ca-certificates.crt", b"")
    models = access({"OPENAI_API_KEY": "k"})
    [result] = await opened(agent, "", models=models)
    env = json.loads(result.text)
    assert env["NODE_EXTRA_CA_CERTS"] == "/etc/ssl/certs/ca-certificates.crt"
    assert env["PATH"].endswith(":/opt/agents/codex/bin")
    [result] = await opened(agent, "", env={"NODE_EXTRA_CA_CERTS": "/etc/own.crt"}, models=models)
    assert json.loads(result.text)["NODE_EXTRA_CA_CERTS"] == "/etc/own.crt"


async def test_an_installation_that_may_not_leave_the_sandbox_says_how_it_may(sandbox):
    refused = (
        "echo 'npm error 403 Forbidden' >&2; echo 'egress to example.org port 80 refused: 10.0.0.1 is private' >&2"
    )
    with pytest.raises(
        AgentFailure, match="installed: egress to example.org .* BENCHCUBE_PERMITTED_NETWORKS"
    ) as caught:
        await Launch("true", install_script=f"{refused}; exit 1").install("test", sandbox)
    assert "npm error" not in str(caught.value)


async def test_an_environment_without_the_python_of_an_agent_is_one_sentence(sandbox):
    script = create_agent("deepagents")._launch.install_script.replace("3.13 3.12 3.11", "3.99")
    with pytest.raises(AgentFailure, match="the environment has no Python of the versions 3.99"):
        await Launch("true", install_script=script).install("deepagents", sandbox)


def test_names_of_models_are_no_secrets_and_addresses_are():
    assert "GOOSE_MODEL" not in create_agent("goose").variables()
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_CONFIG"} <= set(create_agent("codex").variables())


@pytest.mark.parametrize(
    ("name", "said"),
    [("claude", "one of the variables ANTHROPIC_API_KEY"), ("codex", "one of the variables OPENAI_API_KEY")],
)
async def test_a_preset_without_its_key_is_one_sentence(opened, name, said):
    with pytest.raises(AgentFailure, match=said) as caught:
        await opened(create_agent(name, environ={}), "", models=access({}))
    assert (caught.value.code, caught.value.category) == ("variable-missing", "agent")


async def test_a_preset_does_not_start_where_the_gateway_cannot_be_reached(opened):
    with pytest.raises(AgentFailure, match="'claude' calls models through the gateway") as caught:
        await opened(create_agent("claude", environ={"ANTHROPIC_API_KEY": "k"}), "")
    assert caught.value.code == "gateway-unreachable"


class Installed:
    """An agent that counts how often it is installed."""

    def __init__(self, key="k"):
        self.launch = Launch("true", install_script="echo here > /opt/agent-was-here; sleep 0.2")
        self.key = key
        self.times = 0

    def install_key(self):
        return self.key

    async def install(self, sandbox):
        self.times += 1
        await self.launch.install("test", sandbox)


async def test_an_agent_is_installed_once_per_environment_and_reused(backend, spec):
    plain = replace(spec, mounts=())
    agent, installations = Installed(), Installations(backend)
    snapshots = []

    async def prepare(of):
        snapshots.append(await installations.prepare(agent, of))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(prepare, plain)
    assert agent.times == 1
    async with backend.create(plain, snapshot=snapshots[0]) as sandbox:
        assert (await sandbox.exec("cat /opt/agent-was-here")).stdout == b"here\n"
    await prepare(replace(plain, workdir="/work"))
    assert agent.times == 2
    await installations.close()


async def test_an_agent_that_needs_nothing_is_not_installed(backend, spec):
    assert await Installations(backend).prepare(create_agent("nop"), spec) is None
    assert await Installations(backend).prepare(create_agent("acp:x"), spec) is None


async def test_a_failed_installation_is_tried_again_by_the_next(backend, spec):
    agent, installations = Installed(), Installations(backend)
    agent.launch = Launch("true", install_script="echo broken >&2; exit 1")
    with pytest.raises(AgentFailure, match="broken"):
        await installations.prepare(agent, replace(spec, mounts=()))
    agent.launch = Launch("true", install_script="true")
    assert await installations.prepare(agent, replace(spec, mounts=())) is not None
    await installations.close()
