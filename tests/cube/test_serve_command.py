"""`cube serve` as a process: what it prints, whom it lets in, and that it leaves nothing behind."""

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest

from cube.cli import main
from cube.client import TaskClient
from cube.core import Action

pytestmark = pytest.mark.slow

STUCK = """
import os, subprocess, time
from pathlib import Path
from typing import Any
from counter_cube.task import CounterTask, CounterTaskConfig, CounterTaskMetadata
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.tool import Tool, ToolConfig, tool_action
print("imported")

class StuckTool(Tool):
    value = 0
    def __init__(self):
        self.child = subprocess.Popen(["sleep", "300"])
        Path(os.environ["CHILD"]).write_text(str(self.child.pid))
    @tool_action
    def hang(self) -> str:
        "Never return."
        print("hanging")
        while True:
            time.sleep(1)
    def close(self):
        self.child.kill()
        self.child.wait()

class StuckToolConfig(ToolConfig):
    def make(self, container=None):
        print("made")
        return StuckTool()

class StuckTask(CounterTask):
    counter = property(lambda self: self.tool)

class StuckTaskConfig(CounterTaskConfig):
    def make(self, runtime_context=None, container_backend=None):
        return StuckTask(metadata=self.metadata, tool_config=StuckToolConfig())

class StuckBenchmark(Benchmark["StuckBenchmarkConfig"]):
    def _setup(self):
        if os.environ.get("SLOW"):
            Path(os.environ["CHILD"]).write_text("starting")
            time.sleep(60)
    def close(self):
        Path(os.environ["CHILD"] + ".closed").write_text("closed")

class StuckBenchmarkConfig(BenchmarkConfig[CounterTaskMetadata]):
    benchmark_metadata = BenchmarkMetadata(name="stuck", version="1", description="d", num_tasks=1)
    task_metadata = {"t": CounterTaskMetadata(id="t", target=9)}
    task_config_class = StuckTaskConfig
    benchmark_class = StuckBenchmark
"""


@pytest.fixture
def stuck(tmp_path):
    """The environment of a command that finds a benchmark whose action never ends."""
    (tmp_path / "stuck_cube.py").write_text(STUCK)
    info = tmp_path / "stuck-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cube.benchmarks]\nstuck = stuck_cube:StuckBenchmarkConfig\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "CHILD": str(tmp_path / "child")}


def command(*arguments):
    return [sys.executable, "-m", "cube.cli", "serve", *arguments]


@contextmanager
def serving(*arguments, **options):
    """A running command and its address; it is ended however the test ends."""
    process = subprocess.Popen(
        command(*arguments, "--port", "0", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def refused(capsys):
    """The sentence with which a command is refused as wrong usage; it needs no process of its own."""

    def run(*arguments):
        assert main(["serve", *arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err.partition("\n")[0]

    return run


def rpc(address, method, **params):
    headers = {"Authorization": f"Bearer {address['token']}"} if address["token"] else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(address["url"], json=body, headers=headers, timeout=60).json()["result"]


def gone(pid):
    for _ in range(200):
        if (
            not Path(f"/proc/{pid}").exists()
            or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        ):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("arguments", [[], ["--task", "up-1"]])
def test_it_prints_one_document_serves_and_ends_cleanly(number, arguments):
    with serving("counter-cube", *arguments) as (process, address):
        assert list(address) == ["protocol", "url", "token", "agent_url", "agent_token"]
        assert address["url"].rpartition(":")[2] != address["agent_url"].rpartition(":")[2].partition("/")[0]
        assert min(len(address["token"]), len(address["agent_token"])) >= 32
        assert address["token"] != address["agent_token"]
        assert rpc(address, "cube/info")["name"] == "counter-cube"
        assert rpc(address, "cube/reset", task_id="up-1")["info"] == {}
        process.send_signal(number)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 0


def test_the_line_for_people_names_both_ports_and_the_tokens_that_are_in_no_file(tmp_path):
    (tmp_path / "token").write_text("secret-token")
    arguments = ["counter-cube", "--port", "0", "--token-file", str(tmp_path / "token")]
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert (line.count("(token "), line.count("http://127.0.0.1:"), rest) == (2, 2, "")
    assert "secret-token" not in line


def test_tokens_come_from_files(tmp_path):
    (tmp_path / "harness").write_text("harness-token\n")
    (tmp_path / "agent").write_text("agent-token")
    files = ["--token-file", tmp_path / "harness", "--agent-token-file", tmp_path / "agent"]
    with serving("counter-cube", *map(str, files)) as (_, address):
        assert (address["token"], address["agent_token"]) == ("harness-token", "agent-token")
        assert rpc(address, "cube/info")["name"] == "counter-cube"


def test_wrong_tokens_hosts_and_ports_are_refused_in_one_sentence(refused, tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "two").write_text("a b")
    (tmp_path / "same").write_text("same")
    (tmp_path / "long").write_text("x" * 5000)
    port = ["--port", "0"]
    for name in ("empty", "two", "long"):
        assert "must contain one token" in refused("counter-cube", *port, "--token-file", str(tmp_path / name))
    assert "cannot be read: No such file" in refused("counter-cube", *port, "--agent-token-file", str(tmp_path / "no"))
    same = str(tmp_path / "same")
    assert "must differ" in refused("counter-cube", *port, "--token-file", same, "--agent-token-file", same)
    for host in ("0.0.0.0", ""):
        assert "--no-token works on loopback only" in refused("counter-cube", *port, "--no-token", "--host", host)
    assert "ports of the harness and the agent must differ" in refused(
        "counter-cube", "--port", "8123", "--agent-port", "8123"
    )
    assert "set --agent-port" in refused("counter-cube", "--port", "65535")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_without_tokens_a_stock_client_plays_on_loopback(host):
    from mcp.client import Client

    async def drive(url):
        async with Client(url) as client:
            return [block.text for block in (await client.call_tool("increment", {})).content]

    with serving("counter-cube", "--task", "up-1", "--no-token", "--host", host) as (_, address):
        assert (address["token"], address["agent_token"]) == (None, None)
        with TaskClient(address["url"]) as harness:
            harness.reset()
            assert anyio.run(drive, address["agent_url"])[0] == "1"
            assert harness.evaluate() == (1.0, {"value": 1})


def test_without_tokens_the_port_of_the_harness_is_no_use_to_who_finds_it():
    with serving("counter-cube", "--task", "up-1", "--no-token") as (_, address):
        found = address["url"].rpartition("/")[0]
        body = {"jsonrpc": "2.0", "id": 1, "method": "cube/privileged_info"}
        assert httpx.post(found, json=body).status_code == 404
        assert httpx.post(f"{found}/mcp", json=body).status_code == 404


def test_without_tokens_other_hosts_and_web_pages_are_refused():
    names = ["evil.invalid", "127.0.0.1.evil.invalid", "localhost.evil.invalid", "[::1.evil.invalid]", "10.0.0.1", "0"]
    with serving("counter-cube", "--task", "up-1", "--no-token") as (_, address):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for url in (address["url"], address["agent_url"]):
            port = url.split(":")[2].partition("/")[0]
            for name in names:
                assert httpx.post(url, json=body, headers={"Host": f"{name}:{port}"}).status_code == 421, name
            for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
                answer = httpx.post(url, json=body, headers={"Host": f"{name}:{port}"}, timeout=60)
                assert answer.status_code != 421, name
            for origin in ("http://localhost:3000", "null", address["url"]):
                assert httpx.post(url, json=body, headers={"Origin": origin}).status_code == 403
            base = url.rpartition("/")[0]
            for method, path in itertools.product(
                ("GET", "POST", "OPTIONS", "DELETE"), ("/", "/mcp", "/.well-known/x")
            ):
                evil = httpx.request(method, f"{base}{path}", headers={"Host": f"evil.invalid:{port}"})
                assert (evil.status_code, evil.text) == (421, "The host must be loopback.\n"), (method, path)


def test_a_token_file_keeps_the_harness_closed_when_agents_have_no_token(tmp_path):
    (tmp_path / "token").write_text("harness-token")
    with serving("counter-cube", "--no-token", "--token-file", str(tmp_path / "token")) as (_, address):
        assert (address["token"], address["agent_token"]) == ("harness-token", None)
        assert httpx.post(address["url"], json={}).status_code == 401


def test_an_action_that_never_ends_keeps_nothing_alive(stuck):
    with serving("stuck", "--task", "t", env=stuck) as (process, address):
        child = int(Path(stuck["CHILD"]).read_text())
        rpc(address, "cube/reset")
        with TaskClient(address["url"], token=address["token"], timeout=1) as harness:
            with pytest.raises(httpx.ReadTimeout):
                harness.step(Action(name="hang"))
            assert harness.episode()["state"] == "running"
            harness.end("the time is up")
            assert harness.episode()["state"] == "over"
        process.terminate()
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, output) == (0, "")
        assert {"imported", "made", "hanging"} <= set(errors.split())
        assert gone(child)
        assert Path(stuck["CHILD"] + ".closed").exists()


def test_a_signal_while_it_starts_closes_what_was_started(stuck):
    process = subprocess.Popen(command("stuck"), env={**stuck, "SLOW": "1"}, stderr=subprocess.PIPE, text=True)
    for _ in range(400):
        if Path(stuck["CHILD"]).exists():
            break
        time.sleep(0.05)
    process.terminate()
    assert process.communicate(timeout=20)[1].endswith("cube: interrupted\n")
    assert process.returncode == 130
    assert Path(stuck["CHILD"] + ".closed").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_spawned_servers_end_with_the_command(number):
    with serving("counter-cube") as (process, address):
        (config,) = rpc(address, "cube/task_configs", task_id="up-1")
        spawned = rpc(address, "cube/spawn", task_config=config)
        assert rpc(spawned, "cube/reset")["info"] == {}
        threads = Path(f"/proc/{process.pid}/task").iterdir()
        children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
        process.send_signal(number)
        process.wait(20)
        assert len(children) == 1
        assert gone(children[0])


def test_a_spawned_server_that_nobody_uses_ends():
    with serving("counter-cube") as (process, address):
        (config,) = rpc(address, "cube/task_configs", task_id="up-1")
        rpc(address, "cube/spawn", task_config=config, idle_sec=1)
        threads = Path(f"/proc/{process.pid}/task").iterdir()
        children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
        assert all(gone(pid) for pid in children)
        again = rpc(address, "cube/spawn", task_config=config)
        assert rpc(again, "cube/reset")["info"] == {}


def test_an_agent_that_opens_ever_more_connections_does_not_lock_the_harness_out():
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (512, 512))
    with serving("counter-cube", preexec_fn=limit) as (_, address), ExitStack() as stack:
        port = int(address["agent_url"].split(":")[2].partition("/")[0])
        for _ in range(600):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        assert rpc(address, "cube/info")["name"] == "counter-cube"
