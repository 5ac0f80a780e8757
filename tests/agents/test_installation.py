"""Presets installed and started for real, with a package manager and an agent that stand in for theirs."""

import json
from dataclasses import replace

import anyio
import pytest

from benchflow.agents import create_agent
from benchflow.agents.acp.launch import Launch
from benchflow.agents.installation import Installations
from benchflow.errors import AgentFailure

pytestmark = pytest.mark.anyio

NPM = """#!/bin/sh
echo "$@" >> /var/npm-calls
[ -e /etc/npm-fails ] && { echo "npm error: no network" >&2; exit 1; }
mkdir -p "$4/bin"
printf '#!/bin/sh\\nexec %s -S -E /opt/tests/raw_agent.py env auth config\\n' PYTHON > "$4/bin/PROGRAM"
chmod +x "$4/bin/PROGRAM"
"""


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
    agent = create_agent(name, environ={key: "k-secret", "UNRELATED": "x"})
    await agent.install(sandbox)
    assert "install --global --prefix" in await inside("cat /var/npm-calls")
    [result] = await opened(agent, "", env={"FROM_TASK": "y"})
    env = json.loads(result.text)
    assert (env[key], env["FROM_TASK"]) == ("k-secret", "y")
    assert "UNRELATED" not in env
    assert await inside("cat /tmp/signed-in") == ("gemini-api-key" if name == "gemini" else "api-key")


async def test_a_model_is_told_by_variable_or_by_the_protocol(opened, sandbox, with_npm, tmp_path):
    await with_npm("gemini")
    agent = create_agent("gemini", "gemini-large", environ={"GEMINI_API_KEY": "k"})
    await agent.install(sandbox)
    [result] = await opened(agent, "")
    assert json.loads(result.text)["GEMINI_MODEL"] == "gemini-large"
    await with_npm("codex-acp")
    agent = create_agent("codex", environ={"OPENAI_API_KEY": "k"})
    await agent.install(sandbox)
    await opened(agent, "", model="large")
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


@pytest.mark.parametrize(
    ("name", "said"),
    [("claude", "one of the variables ANTHROPIC_API_KEY"), ("codex", "one of the variables OPENAI_API_KEY")],
)
async def test_a_preset_without_its_key_is_one_sentence(opened, name, said):
    with pytest.raises(AgentFailure, match=said) as caught:
        await opened(create_agent(name, environ={}), "")
    assert (caught.value.code, caught.value.category) == ("variable-missing", "agent")


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
