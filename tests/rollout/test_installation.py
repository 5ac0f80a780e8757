"""Agents are installed once per environment, and every rollout starts from there."""

import pytest

from benchflow.agents.running import Installations

pytestmark = pytest.mark.anyio

OFFLINE = "environment: {network_mode: no-network}\n"


async def test_an_agent_is_installed_once_for_many_rollouts(run, make_package, new_script, backend, events):
    installed = []
    script = new_script("cat /opt/agent; echo done > answer.txt")

    def make(name, model):
        agent = script.make(name, model)

        async def install(sandbox):
            installed.append(sandbox.id)
            await sandbox.write_file("/opt/agent", b"here")

        agent.install, agent.install_key = install, lambda: "agent-1"
        return agent

    shared = Installations(backend)
    for number in range(3):
        result = await run(make_package(OFFLINE), make_agent=make, installations=shared, out=f"out{number or ''}")
        assert result.reward == 1.0
    await shared.close()
    assert len(installed) == 1
    assert events()[1]["text"] == "here"


async def test_an_installation_that_fails_is_the_agents_fault_and_leaves_nothing(run, make_package, new_script):
    from benchflow.errors import AgentFailure

    script = new_script("true")

    def make(name, model):
        agent = script.make(name, model)

        async def install(sandbox):
            raise AgentFailure("npm is missing", code="install-failed")

        agent.install, agent.install_key = install, lambda: "agent-1"
        return agent

    result = await run(make_package(OFFLINE), make_agent=make)
    assert (result.error.category, result.error.code) == ("agent", "install-failed")
