"""OpenCode as npm has it: installed into a sandbox, asked over ACP, with the local model server for its model."""

import json
import os
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress

import pytest

from benchflow.testing import Answer, ModelServer, ToolCall
from loaded_commands import BENCH

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

OUTSIDE = "127.0.0.2"
"""An address of this machine that inside of a sandbox is not the sandbox itself."""
TASK_MD = f"""---
task: {{name: acme/hello}}
agent: {{network_mode: allowlist, allowed_hosts: ["{OUTSIDE}"]}}
environment: {{network_mode: no-network}}
---
Write the word hello into `/app/hello.txt`.
"""
VERIFIER = "grep -qx hello /app/hello.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
COMMAND = "echo hello > /app/hello.txt; curl -sm 5 https://example.org >/dev/null && echo online || echo offline"


def model(request):
    """Calls the agent's shell once, and is done when it has heard of it."""
    if "bash" not in request.tools:
        return "A title"
    if any(message["role"] == "tool" for message in request.messages):
        return "It is written."
    return Answer(tool_calls=[ToolCall("bash", {"command": COMMAND, "description": "write"})])


@contextmanager
def reachable(port):
    """The port of this machine's loopback, offered at `OUTSIDE` as well."""

    def pump(source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(listening):
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server((OUTSIDE, port)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://{OUTSIDE}:{port}/v1"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_real_agent_solves_a_package_with_the_model_server(tmp_path):
    folder = tmp_path / "hello"
    for name, text in {"task.md": TASK_MD, "verifier/test.sh": VERIFIER}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with ModelServer(model) as server, reachable(int(server.url.rpartition(":")[2].partition("/")[0])) as url:
        environ = {
            **os.environ,
            "OPENAI_API_KEY": "sk-of-the-model-server",
            "OPENAI_BASE_URL": url,
            "BENCHCUBE_PERMITTED_NETWORKS": "0.0.0.0/0",
        }
        done = subprocess.run(
            [*BENCH, "run", folder, "--agent", "opencode", "--model", "test-model", "--sandbox", "local", "--json"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        asked = server.requests
    record = json.loads(done.stdout)
    assert record["error"] is None, record["error"]["message"]
    assert (record["reward"], record["usage"]["tool_calls"]) == (1.0, 1)
    assert {request.model for request in asked} == {"test-model"}
    assert {request.headers["authorization"] for request in asked} == {"Bearer sk-of-the-model-server"}
    rollout = tmp_path / "jobs" / record["rollout"]
    events = [json.loads(line) for line in (rollout / "trajectory.jsonl").read_text().splitlines()]
    told = {event["type"]: event for event in events}
    assert told["agent_started"]["info"]["name"] == "OpenCode"
    assert told["tool_call"]["input"]["command"] == COMMAND
    assert "offline" in json.dumps(told["tool_result"]["output"])
    assert told["agent_message"]["text"] == "It is written."
    kept = b"".join(path.read_bytes() for path in rollout.rglob("*") if path.is_file())
    assert b"sk-of-the-model-server" not in kept
