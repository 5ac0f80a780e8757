"""Agents as npm has them, in whole rollouts: installed by their presets, asked over ACP, in a box without a network,
through the model gateway to the local model server, each in its own dialect.

What their presets install is a layer of the environment, so that it is downloaded once per machine.
"""

import json
import os
import subprocess
import tarfile
from dataclasses import dataclass

import pytest

from benchflow.agents import create_agent
from benchflow.record import RolloutFolder, read_model_calls
from benchflow.record.model_calls import CallParts
from benchflow.testing import Answer, ModelServer, ToolCall
from loaded_commands import BENCH

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("npm")]

KEY = "sk-canary-0123456789"
TASK_MD = """---
task: {name: acme/hello}
agent: {user: root, timeout_sec: 600}
environment: {network_mode: no-network}
---
Write the word hello into `/app/hello.txt`.
"""
VERIFIER = """\
cat /app/found.txt
printf '%s\\n' /proc/PID/environ /tmp/planted | cmp - /app/found.txt && grep -qx hello /app/hello.txt && reward=1
echo ${reward:-0} > /logs/verifier/reward.txt
"""
COMMAND = """\
cd /app
echo hello > hello.txt
echo "sk-can""ary" > /tmp/planted
key='sk-can[a]ry'
env A="sk-can""ary" grep -als $key /proc/[0-9]*/environ /proc/[0-9]*/cmdline | sed 's/[0-9][0-9]*/PID/' > found.txt
find / /tmp /run /dev/shm -xdev -type f -newer /instruction.md -exec grep -als $key {} + | sort -u >> found.txt
curl -sm 5 https://example.org > /dev/null && echo online || echo offline
"""
"""Writes the answer, and looks for the key in every process and in every file that was written since the start. It
finds what it planted there itself, and nothing else. `env` runs the real grep, for which Claude has a function."""


@dataclass(frozen=True)
class Case:
    """An agent, its model, and how its shell is called."""

    name: str
    model: str
    provider: str
    dialect: str
    shell: str
    argument: str = "command"
    replayed: bool = False
    """Whether its rollout is replayed strictly as well."""

    def machine(self, server):
        """The variables of a machine with a key and a server for this provider alone."""
        base = {"OPENAI": "OPENAI_BASE_URL", "ANTHROPIC": "ANTHROPIC_BASE_URL", "GEMINI": "GOOGLE_GEMINI_BASE_URL"}
        others = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
        url = server.url if self.provider == "OPENAI" else server.root
        own = {f"{self.provider}_API_KEY": KEY, base[self.provider]: url}
        return {**others, **own, "BENCHCUBE_PERMITTED_NETWORKS": "0.0.0.0/0"}  # registries at private addresses


CASES = [
    Case("opencode", "test-model", "OPENAI", "chat", "bash"),
    Case("pi", "test-model", "OPENAI", "chat", "bash"),
    Case("codex", "test-model", "OPENAI", "responses", "exec_command", "cmd", replayed=True),
    Case("claude", "claude-sonnet-4-5", "ANTHROPIC", "messages", "Bash"),
    Case("gemini", "gemini-2.5-flash", "GEMINI", "gemini", "run_shell_command", replayed=True),
]


@pytest.fixture
def make_package(tmp_path):
    """A package in whose environment an agent is installed, by the script of its preset."""

    def make(name):
        program = create_agent(name)._launch
        dockerfile = (
            "FROM an-image-that-nobody-has\n"
            "COPY install.sh /tmp/install.sh\n"
            "RUN sh /tmp/install.sh && rm /tmp/install.sh\n"
            f"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/agents/{name}/bin\n"
            "WORKDIR /app\n"
        )
        files = {
            "task.md": TASK_MD,
            "verifier/test.sh": VERIFIER,
            "environment/Dockerfile": dockerfile,
            "environment/install.sh": program.install_script,
        }
        for path, text in files.items():
            (tmp_path / "hello" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "hello" / path).write_text(text)
        return tmp_path / "hello"

    return make


def run(folder, case, environ, *more):
    """The record of a run, and its folder."""
    place = ["--sandbox", "local", "--base-image", "host"]
    command = [*BENCH, "run", folder, "--agent", case.name, "--model", case.model, *place, "--json", *more]
    done = subprocess.run(
        command, cwd=folder.parent, env=environ, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    assert record["error"] is None, record["error"]["message"]
    return record, folder.parent / "jobs" / record["rollout"]


def contents(rollout):
    """Every byte of a record, those of the kept workspace included."""
    for path in rollout.rglob("*"):
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as kept:
                yield from (kept.extractfile(member).read() for member in kept if member.isfile())
        elif path.is_file():
            yield path.read_bytes()


def answers(rollout):
    """The bytes of all answers, in order."""
    calls = list(read_model_calls(rollout / "model_calls.jsonl"))
    parts = CallParts(RolloutFolder(rollout))
    return [parts.answer(call) for call in calls]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_agent_of_npm_solves_a_package_through_the_gateway_without_a_key(make_package, case):
    def model(request):
        """Calls the agent's shell once, and is done when it has heard of it."""
        if case.shell not in request.tools:
            return "A title"
        if request.tool_results:
            return "It is written."
        return Answer(tool_calls=[ToolCall(case.shell, {case.argument: COMMAND, "description": "write"})])

    folder = make_package(case.name)
    with ModelServer(model, api_key=KEY) as server:
        machine = case.machine(server)
        record, rollout = run(folder, case, machine)
        asked = server.requests
    assert (record["reward"], record["usage"]["tool_calls"]) == (1.0, 1)
    assert {(request.dialect, request.model, request.authorized) for request in asked} == {
        (case.dialect, case.model, True)
    }
    calls = [json.loads(line) for line in (rollout / "model_calls.jsonl").read_text().splitlines()]
    assert len(calls) == record["usage"]["model_calls"] == len(asked)
    ended = {(call["outcome"], call["status"]) for call in calls}
    assert ("answered", 200) in ended
    assert ended <= {("answered", 200), ("aborted", None)}, ended  # an agent may drop a call that it no longer needs
    assert "offline" in asked[-1].tool_results[-1]
    assert not any(KEY.encode() in content for content in contents(rollout))
    if case.replayed:
        without_key = {name: value for name, value in machine.items() if value != KEY}
        again, replayed = run(folder, case, without_key, "--replay", rollout)  # the server has ended
        assert (again["reward"], again["usage"]["model_calls"]) == (1.0, len(asked))
        assert answers(replayed) == answers(rollout)
