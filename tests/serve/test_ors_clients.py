"""Stock ORS clients, each in an environment of its own, play packages and a cube to the rewards that rollouts get.

All bytes go through a recording relay: nothing of a verifier or an oracle may be among them.
"""

import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from peers import PeerUnavailable, peer_environment

from episode_server import serving, write_package
from loaded_commands import bench

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
NAMES = ("count-words", "rotate-logs", "two-step-release")
PLAY = """
import json, sys
CLIENT
asked, told = json.load(sys.stdin), []
for environment, split, task_id, calls in asked["plays"]:
    served = environment_of(environment)
    assert split in served.list_splits()
    task = next(task for task in served.list_tasks(split) if task.task_spec["id"] == task_id)
    with served.session(task=task) as session:
        prompt, names = session.get_prompt(), [tool.name for tool in session.list_tools()]
        assert prompt[0].text and "submit" in names
        outputs = []
        for name, arguments in calls:
            try:
                output = session.call_tool(name, arguments)
                outputs.append([output.reward, output.finished, output.metadata])
            except Exception as error:
                outputs.append([type(error).__name__, str(error), None])
    told.append(outputs)
print(json.dumps(told))
"""
CLIENTS = {
    "openreward==0.1.167": """
from openreward import OpenReward
client = OpenReward(api_key="TOKEN", base_url="URL")
environment_of = lambda name: client.environments.get(name, base_url="URL")
""",
    "ors-sdk==0.1.0": """
from ors.client import ORS
client = ORS(base_url="URL", api_key="TOKEN")
environment_of = client.environment
""",
}


class Relay:
    """Passes connections on to a server and keeps every byte."""

    def __init__(self, port):
        self._port, self.seen, self._guard = port, bytearray(), threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one, other):
        try:
            while data := one.recv(65536):
                with self._guard:
                    self.seen += data
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()

    def close(self):
        self._listener.close()


@pytest.fixture(scope="module")
def served(module_tmp):
    """The examples with marks in what nobody may see, and a package whose verifier says such a mark and fails."""
    root = module_tmp / "examples"
    for name in NAMES:
        shutil.copytree(EXAMPLES / name, root / name)
        for place in ("verifier", "oracle"):
            (root / name / place / "mark.txt").write_text(f"{place.upper()}-CANARY\n")
    crash = "#!/bin/sh\necho VERIFIER-CANARY > /logs/verifier/reward.txt\nexit 3\n"
    write_package(root / "crash", "examples/crash", tests=crash)
    arguments = (root, "cube:counter-cube", "--sandbox", "local", "--base-image", "host")
    with serving(module_tmp, *arguments, no_token=False) as server:
        relay = Relay(int(server.url.rpartition(":")[2]))
        yield server, relay, root
        relay.close()


@pytest.fixture(scope="module")
def expected(served, module_tmp):
    """The rewards of rollouts with an oracle and with an agent that does nothing."""
    rewards = {}
    for agent in ("oracle", "nop"):
        asked = [
            "eval",
            "run",
            str(served[2]),
            "--agent",
            agent,
            "--jobs-dir",
            str(module_tmp / "jobs"),
            "--name",
            agent,
        ]
        settings = ["--sandbox", "local", "--base-image", "host", "--concurrency", "2"]
        bench(*asked, *settings, cwd=module_tmp, timeout=600)
        for line in (module_tmp / "jobs" / agent / "results.jsonl").read_text().splitlines():
            result = json.loads(line)
            result = result.get("result", result)
            rewards[agent, result["task"]["name"]] = result["reward"]
    return rewards


def plays(root):
    """The oracle's script through `bash`, then nothing at all, then what goes wrong."""
    looks = ["bash", {"command": "ls -R / 2>/dev/null | grep -i mark.txt; grep -rl CANARY /app /logs /tmp; env"}]
    done = ["submit", {}]
    for name in NAMES:
        folder = root / name
        scripts = sorted(folder.glob("steps/*/oracle/solve.sh")) or [folder / "oracle/solve.sh"]
        texts = [script.read_text() for script in scripts]
        yield "examples", "test", f"examples/{name}", [[*each] for text in texts for each in (
            looks, ["bash", {"command": text}], done)]  # fmt: skip
        yield "examples", "test", f"examples/{name}", [done, done]
    yield "examples", "test", "examples/crash", [looks, done]
    yield "counter-cube", "train", "up-3", [["increment", {}], ["increment", {}], ["increment", {}], done]
    yield "examples", "test", "examples/count-words", [["nope", {}], ["bash", {}], done]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stock_client_gets_the_rewards_of_rollouts(client, served, expected):
    server, relay, root = served
    try:
        python = peer_environment(client) / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))
    code = CLIENTS[client].replace("URL", relay.url).replace("TOKEN", server.address["token"])
    asked = list(plays(root))
    done = subprocess.run(
        [python, "-c", PLAY.replace("CLIENT", code)],
        input=json.dumps({"plays": asked}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    ends = [next((each for each in outputs if each[1] is True), None) for outputs in told]
    for number, name in enumerate(NAMES):
        assert ends[2 * number][0] == expected["oracle", f"examples/{name}"] == 1.0
        assert ends[2 * number + 1][0] == expected["nop", f"examples/{name}"]
        assert told[2 * number + 1][1][2] is None, "a second submit was accepted"
    crash, _, wrong = told[6:]
    assert crash[1][:2] == [None, True]
    assert crash[1][2]["error"]["category"] == "verifier"
    assert expected["nop", "examples/crash"] is None
    assert ends[7][0] == 1.0
    assert ["Error" in str(each[0]) for each in wrong] == [True, True, False]
    assert wrong[2][:2] == [0.0, True]
    assert b"CANARY" not in bytes(relay.seen).replace(b"grep -rl CANARY", b"")
    assert str(root).encode() not in bytes(relay.seen)
