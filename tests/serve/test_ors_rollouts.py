"""Environments that others serve over ORS, as packages: imported, played by models and ACP agents, and scored."""

import json
import os
import re
import subprocess
from contextlib import contextmanager

import pytest
from peers import PeerUnavailable, peer_environment

from benchflow.cli import main
from benchflow.errors import EnvironmentFailure
from benchflow.ors.ors_client import read_prompt
from benchflow.testing import Answer, ModelServer, ToolCall
from episode_server import serving
from loaded_commands import bench

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("models")]

SDK_SERVER = """
import socket
import uvicorn
from openreward.environments import Environment, ImageBlock, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel

class Guess(BaseModel):
    n: int

class HiLo(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]
    @classmethod
    def list_tasks(cls, split):
        return [{"id": f"{split}-{i}", "target": i} for i in range(3)]
    def get_prompt(self):
        shown = [ImageBlock(data="iVBORw0KGgo=", mimeType="image/png")] if self.task_spec["target"] == 2 else []
        return [TextBlock(text="Guess the number.\\n## prompt\\nIt is small."), *shown]
    @tool
    async def guess(self, params: Guess) -> ToolOutput:
        if params.n > 99:
            raise RuntimeError("the sandbox is gone")
        right = params.n == self.task_spec["target"]
        said = [TextBlock(text="yes" if right else "no")]
        return ToolOutput(blocks=said, reward=1.0 if right else 0.25, finished=right)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(Server([HiLo]).app, log_level="error")).run([listener])
"""
ACP_AGENT = """
import json, subprocess, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

class Tools:
    def __init__(self, server):
        self.process = subprocess.Popen(
            [server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.last = 0

    def ask(self, method, **params):
        self.last += 1
        message = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message) + "\\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["result"]

for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            send(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
        case "session/new":
            tools = Tools(asked["params"]["mcpServers"][0])
            send(id=asked["id"], result={"sessionId": "s"})
        case "session/prompt":
            tools.ask("initialize", protocolVersion="1", capabilities={}, clientInfo={"name": "a", "version": "1"})
            names = [tool["name"] for tool in tools.ask("tools/list")["tools"]]
            said = [tools.ask("tools/call", name=names[0], arguments={"n": n})["content"][0]["text"] for n in (5, 1, 1)]
            chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": " / ".join(said)}}
            send(method="session/update", params={"sessionId": "s", "update": chunk})
            send(id=asked["id"], result={"stopReason": "end_turn"})
"""


@contextmanager
def sdk_server():
    """A server made with the official SDK; its URL."""
    try:
        python = peer_environment("openreward==0.1.167") / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))
    process = subprocess.Popen([python, "-c", SDK_SERVER], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def imported(module_tmp):
    """The environment of the SDK's server as packages; the server still runs."""
    with sdk_server() as (url, process):
        assert main(["tasks", "import-ors", url, str(module_tmp / "hilo")]) == 0
        yield module_tmp / "hilo", process


def run(package, out, agent, script=None, **env):
    """A rollout: its result, and what the model was asked."""
    command = ["run", package, "--agent", agent, "--sandbox", "local", "--out", out]
    with ModelServer(script or []) as server:
        environ = {**os.environ, **server.environment, **env}
        done = bench(*command, cwd=package, env=environ, load=["litellm"])
        asked = server.requests
    return result_of(out, done), asked


def result_of(out, done):
    found = list(out.rglob("result.json"))
    assert len(found) == 1, done.stderr
    return json.loads(found[0].read_text())


def guesses(*numbers):
    return [Answer(tool_calls=[ToolCall("guess", {"n": number})]) for number in numbers]


def events(out):
    (found,) = out.rglob("trajectory/ors-rewards.jsonl")
    return [json.loads(line) for line in found.read_text().splitlines()]


def test_imported_tasks_are_valid_packages_pinned_to_their_specification(imported, capsys):
    packages, _ = imported
    assert sorted(path.name for path in packages.iterdir()) == [f"hilo-train-{number}" for number in range(3)]
    assert main(["tasks", "check", str(packages), "--sandbox", "local"]) == 0
    assert "spec_digest: sha256:" in (packages / "hilo-train-1/task.md").read_text()
    capsys.readouterr()
    assert main(["tasks", "show", str(packages / "hilo-train-1"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "It is small." in json.dumps(shown), "a heading in a prompt must not cut it"


def test_a_model_plays_with_the_tools_of_the_environment_until_it_is_finished(imported, tmp_path):
    result, asked = run(imported[0] / "hilo-train-1", tmp_path / "out", "model:openai/m", guesses(7, 1, 1))
    assert (result["status"], result["reward"]) == ("scored", 1.0)
    assert [request.tools for request in asked] == [["guess"]] * 2, "it is not asked again after the end"
    found = events(tmp_path / "out")
    assert [(each["tool"], each["reward"], each["finished"], each["step"]) for each in found] == [
        ("guess", 0.25, False, 1), ("guess", 1.0, True, 2)]  # fmt: skip


def test_an_acp_agent_inside_the_sandbox_has_them_as_an_mcp_server(imported, tmp_path):
    package = tmp_path / "package"
    source = imported[0] / "hilo-train-1"
    for path in source.rglob("*.md"):
        (package / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        (package / path.relative_to(source)).write_text(path.read_text())
    (package / "environment").mkdir()
    (package / "environment/Dockerfile").write_text("FROM debian\nCOPY agent.py /opt/agent.py\n")
    (package / "environment/agent.py").write_text(ACP_AGENT)
    out = tmp_path / "out"
    command = ["run", package, "--agent", "acp:python3 /opt/agent.py", "--sandbox", "local", "--out", out]
    result = result_of(out, bench(*command, "--base-image", "host", cwd=tmp_path))
    (trajectory,) = out.rglob("trajectory.jsonl")
    assert (result["status"], result["reward"]) == ("scored", 1.0), (result, trajectory.read_text())
    assert [each["reward"] for each in events(out)] == [0.25, 1.0]
    assert "no / yes / The episode is over" in trajectory.read_text()


def test_an_environment_that_fails_leaves_the_rollout_without_a_score(imported, tmp_path):
    result, _ = run(imported[0] / "hilo-train-1", tmp_path / "out", "model:openai/m", guesses(100, 1))
    assert (result["status"], result["reward"]) == ("unscored", None)
    assert (result["error"]["category"], result["error"]["code"]) == ("environment", "ors-tool-failed")
    changed = tmp_path / "changed"
    changed.mkdir()
    text = (imported[0] / "hilo-train-1/task.md").read_text()
    (changed / "task.md").write_text(text.replace("index: 1", "index: 2"))
    (changed / "verifier").mkdir()
    (changed / "verifier/verifier.md").write_text((imported[0] / "hilo-train-1/verifier/verifier.md").read_text())
    result, _ = run(changed, tmp_path / "second", "model:openai/m", guesses(2))
    assert (result["error"]["category"], result["error"]["code"]) == ("environment", "ors-changed")
    (changed / "task.md").write_text(re.sub(r"url: .*", "url: http://127.0.0.1:1", text))
    result, _ = run(changed, tmp_path / "third", "model:openai/m", guesses(2))
    assert (result["error"]["category"], result["error"]["code"]) == ("environment", "ors-connection")


def test_images_of_a_prompt_are_files_in_the_sandbox(imported, tmp_path):
    package = imported[0] / "hilo-train-2"
    assert main(["tasks", "check", str(package)]) == 0
    assert "[Image: /prompt-images/image-1.png]" in (package / "task.md").read_text()
    (tmp_path / "agent.sh").write_text("wc -c /prompt-images/*\n")
    run(package, tmp_path / "out", f"script:{tmp_path / 'agent.sh'}")
    assert "8 /prompt-images/image-1.png" in next(tmp_path.rglob("script.txt")).read_text()


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/../../x"}, "ors-prompt"),
        ({"type": "image", "data": "<svg>", "mimeType": "image/png"}, "ors-protocol"),
        ({"type": "reasoning", "text": "x"}, "ors-prompt"),
        ("text", "ors-protocol"),
    ],
)
def test_what_a_package_cannot_hold_is_not_imported(block, code):
    with pytest.raises(EnvironmentFailure) as caught:
        read_prompt([{"type": "text", "text": "x"}, block])
    assert caught.value.code == code


def test_a_package_that_is_served_and_imported_gives_the_same_reward(tmp_path):
    from episode_server import write_package

    write_package(tmp_path / "set/plain", "set/plain")
    with serving(tmp_path, tmp_path / "set", "--sandbox", "memory") as server:
        assert main(["tasks", "import-ors", server.url, str(tmp_path / "back")]) == 0
        package = tmp_path / "back/set-test-0"
        assert "Write done to /app/answer.txt." in (package / "task.md").read_text()
        script = [
            Answer(tool_calls=[ToolCall("bash", {"command": "echo half > /app/answer.txt"})]),
            Answer(tool_calls=[ToolCall("submit", {})]),
        ]
        result, asked = run(package, tmp_path / "out", "model:openai/m", script)
        assert result["reward"] == 0.5
        assert asked[0].tools == ["bash", "read_file", "write_file", "edit_file", "submit"]
