"""What a rollout will do is decided before anything starts, from the package and what the caller asks for."""

import pytest

from benchflow.errors import PackageError, UnsupportedError
from benchflow.rollout import DocumentNudgeUser, ModelDocumentNudgeUser, RolloutConfig
from benchflow.rollout.plan import make_user, plan_rollout
from benchflow.sandbox.protocol import NetworkPolicy
from benchflow.task.package import load_package


def planned(folder, agent="model:m", **options):
    package = load_package(folder)
    assert package.valid, package.issues
    return plan_rollout(package, RolloutConfig(package, agent, **options), {})


def test_a_plain_task_is_one_nameless_step(make_package):
    plan = planned(make_package("agent: {timeout_sec: 9}\n"))
    (step,) = plan.steps
    assert (plan.mode, step.name, step.timeout_sec, step.prompt) == (
        "single-shot",
        None,
        9,
        "Write done into answer.txt.",
    )
    assert step.network == NetworkPolicy("public")
    assert plan.record()["steps"][0]["turns"] == [{"scene": None, "role": "agent", "agent": "model:m", "model": None}]
    assert "Write done" not in str(plan.record())


@pytest.mark.parametrize(
    ("agent", "seconds"), [("oracle", 5), ("nop", 9), ("model:m", 9)], ids=["oracle", "nop", "model"]
)
def test_the_oracle_has_its_own_time(make_package, agent, seconds):
    folder = make_package("agent: {timeout_sec: 9}\noracle: {timeout_sec: 5}\n")
    assert planned(folder, agent).steps[0].timeout_sec == seconds
    assert planned(folder, agent, agent_timeout_sec=2).steps[0].timeout_sec == 2


def test_networks_of_phases_and_steps(make_package):
    frontmatter = (
        "environment: {network_mode: public}\nagent: {network_mode: no-network}\n"
        "steps: [{name: a}, {name: b, agent: {network_mode: allowlist, allowed_hosts: [example.org]}}]\n"
    )
    files = {f"steps/{name}/instruction.md": "Go." for name in "ab"} | {
        f"steps/{name}/verifier/test.sh": "true\n" for name in "ab"
    }
    first, second = planned(make_package(frontmatter, files)).steps
    assert first.network == NetworkPolicy("none")
    assert second.network == NetworkPolicy("allowlist", ("example.org",))


def test_an_agent_that_may_reach_only_its_model_reaches_the_gateway_and_declared_hosts(make_package):
    policy = "benchflow:\n  runtime_policy: {network: {agent_egress: model-only%s}}\n"
    closed = make_package(policy % "")
    for agent in ("model:m", "claude"):
        assert planned(closed, agent).steps[0].network == NetworkPolicy("none")
    named = make_package(policy % ", allowed_hosts: [api.example]", name="named")
    assert planned(named, "claude").steps[0].network == NetworkPolicy("allowlist", ("api.example",))


def test_the_users_of_documents(make_package):
    scripted = make_package("user: {model: scripted, stop_rule: satisfied-or-3-rounds, private_facts: {a_key: b}}\n")
    config = RolloutConfig(scripted, "model:m")
    plan = planned(scripted)
    assert (plan.mode, plan.max_rounds) == ("simulated-user", 3)
    first, second = (make_user(load_package(scripted), plan, config, {}) for _ in range(2))
    assert isinstance(first, DocumentNudgeUser)
    assert first is not second
    assert make_user(load_package(scripted), planned(scripted, "oracle"), config, {}) is None
    played = make_package("user: {model: gpt-5, persona: Terse.}\n", name="played")
    assert isinstance(make_user(load_package(played), planned(played), config, {}), ModelDocumentNudgeUser)
    assert "Terse." not in str(planned(played).record())


def test_services_cannot_be_branched(make_package):
    folder = make_package(
        "user: {model: scripted, private_facts: {a_key: b}}\nbenchflow:\n"
        "  environment: {manifest: environment.toml}\n"
        "  nudges: {branchable: true, branch_execution: forked-snapshot}\n",
        {"environment.toml": "[environment]\nname = 'w'\nbase_image = 'x'\nowns_lifecycle = false\n"
         "[[environment.services]]\nname = 'w'\ncommand = 'sleep 9'\n"},
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="cannot be forked"):
        planned(folder)
    assert not planned(folder, "oracle").branches


def test_a_step_without_a_scene_of_its_own_is_refused(make_package):
    frontmatter = (
        "agents: {roles: {a: {agent: nop}}}\nscenes: [{name: one, turns: [a]}]\nsteps: [{name: one}, {name: two}]\n"
    )
    files = {
        f"steps/{name}/{file}": "Go.\n" for name in ("one", "two") for file in ("instruction.md", "verifier/test.sh")
    }
    with pytest.raises(PackageError, match="'two'"):
        planned(make_package(frontmatter, files))
