"""Servers in processes of their own, driven over loopback by real clients."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from counter_cube.benchmark import CounterBenchmarkConfig
from counter_cube.tool import CounterToolConfig
from cube.client import BenchmarkClient, RpcError, TaskClient, wait_for_server
from cube.core import Action, Observation, StepError
from cube.server import _dump_runtime_context, _load_runtime_context, make_benchmark_rpc_server, make_task_rpc_server

pytestmark = pytest.mark.slow


def config(name="up-3", **values):
    return next(iter(CounterBenchmarkConfig(**values).subset_from_list([name]).get_task_configs()))


@pytest.fixture(scope="module")
def server():
    """The address of a served task."""
    process, _ = make_task_rpc_server(config("far-100"))
    with process:
        yield process.address


@pytest.fixture
def client(server):
    with TaskClient(server.url, token=server.token) as client:
        yield client


@pytest.fixture(scope="module")
def benchmark_client():
    process, url = make_benchmark_rpc_server(CounterBenchmarkConfig())
    with process, BenchmarkClient(url, token=process.address.token) as client:
        yield client


def post(address, **arguments):
    headers = {"Authorization": f"Bearer {address.token}", **arguments.pop("headers", {})}
    return httpx.post(address.url, headers=headers, **arguments)


def test_a_task_is_played_over_json_rpc(server):
    with TaskClient(server.url, token=server.token) as task:
        obs, info = task.reset()
        assert (obs.to_markdown(), info) == ("Bring the counter from 0 to 100.", {})
        assert [action.name for action in task.tools_list()] == ["add", "decrement", "increment", "read"]
        assert task.step(Action(name="increment")).obs == Observation.from_text("1")
        assert task.tools_call(Action(id="c", name="increment")).contents[0].tool_call_id == "c"
        output = task.step([Action(name="increment"), Action(name="add", arguments={"amount": 97})])
        assert (output.reward, output.done) == (1.0, True)
        assert task.evaluate(output.obs) == (1.0, {"value": 100})
        assert task.privileged_info().data == {"target": 100}
        assert task.status() == ""
        longest = Action(name="add", arguments={"amount": 9 * 10**4299})
        task.tools_call(longest)
        assert isinstance(task.tools_call(longest), StepError), "more digits than Python prints"
        task.close()
        task.close()


def test_a_server_says_whether_it_lives():
    process, url = make_task_rpc_server(config())
    with process, TaskClient(url, token=process.address.token) as task:
        task.reset()
        assert process.is_alive()
    assert not process.is_alive()


def test_errors_reach_the_client_as_errors_and_the_server_goes_on(client):
    with pytest.raises(RpcError, match="Unknown method 'cube/fly'") as caught:
        client.rpc("cube/fly")
    assert caught.value.code == -32601
    with pytest.raises(RpcError, match="'name' is missing"):
        client.rpc("cube/step")
    client.reset()
    for action, reason in (
        (Action(name="fly"), "Unknown action 'fly'; available: add, decrement, increment, read."),
        (Action(name="add"), "'amount' is missing"),
        (Action(name="add", arguments={"amount": 1.5}), "'amount' must be an integer, not 1.5"),
        (Action(name="read", arguments={"more": 1}), "unknown argument"),
    ):
        for send in (client.tools_call, client.step, lambda one: client.step([Action(name="increment"), one])):
            with pytest.raises(RpcError, match=reason) as caught:
                send(action)
            assert caught.value.code == -32602
    assert client.evaluate() == (0.0, {"value": 0}), "nothing of a request that is refused is executed"
    with pytest.raises(RpcError, match="Parameter 'obs"):
        client.rpc("cube/evaluate", obs={"contents": 3})
    with pytest.raises(RpcError, match="serves only the task 'far-100'"):
        client.reset("up-1")
    with pytest.raises(RpcError, match="'task_id' must be a string"):
        client.rpc("cube/reset", task_id=3)
    for params in ({"port": True}, {"port": -1}, {"host": 3}, {"idle_sec": True}):
        with pytest.raises(RpcError) as caught:
            client.rpc("cube/spawn", task_config={}, **params)
        assert caught.value.code == -32601, "a server of one task spawns none"


def test_batches_and_notifications_over_http(server):
    call = {"jsonrpc": "2.0", "method": "cube/status"}
    batch = post(server, json=[{**call, "id": 1}, call, {**call, "id": 2}])
    assert [answer["id"] for answer in batch.json()] == [1, 2]
    assert post(server, json=call).status_code == 204
    assert post(server, content=b"{").json()["error"]["code"] == -32700
    assert post(server, json=call, headers={"Origin": "http://evil.invalid"}).status_code == 403


def test_a_request_that_is_too_large_is_refused(server, client):
    def body():
        for _ in range(65):
            yield b" " * 1024 * 1024

    assert post(server, content=body()).status_code == 413
    assert post(server, content=b" " * 66 * 1024 * 1024).status_code == 413
    assert client.status() == ""


def test_an_action_id_that_is_no_text_is_a_wrong_parameter(client):
    with pytest.raises(RpcError, match="'action_id' must be a string") as caught:
        client.rpc("cube/step", name="read", action_id=3)
    assert caught.value.code == -32602


def test_a_task_that_was_closed_is_made_again_by_a_reset(client):
    client.reset()
    client.step(Action(name="increment"))
    client.close()
    assert client.episode()["state"] == "closed"
    assert client.reset()[0].to_markdown() == "Bring the counter from 0 to 100."
    assert client.episode()["state"] == "running"


LOUD = """
import subprocess
from counter_cube.task import CounterTask, CounterTaskConfig
from cube.tool import Tool, ToolConfig, tool_action
print("imported")

class LoudTool(Tool):
    value = 0
    @tool_action
    def shout(self) -> str:
        "Fill any pipe that nobody reads, and ask whether somebody speaks."
        print("x" * 200_000)
        return subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout or "silence"

class LoudToolConfig(ToolConfig):
    def make(self, container=None):
        print("made")
        return LoudTool()

class LoudTask(CounterTask):
    counter = property(lambda self: self.tool)

class LoudTaskConfig(CounterTaskConfig):
    def make(self, runtime_context=None, container_backend=None):
        return LoudTask(metadata=self.metadata, tool_config=LoudToolConfig())
"""


def test_what_a_task_prints_and_reads_does_not_disturb_its_server(tmp_path, monkeypatch):
    (tmp_path / "loud_cube.py").write_text(LOUD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    from loud_cube import LoudTaskConfig

    process, url = make_task_rpc_server(LoudTaskConfig(metadata=config().metadata))
    with process, TaskClient(url, token=process.address.token, timeout=20) as task:
        assert task.step(Action(name="shout")).obs == Observation.from_text("silence")
        assert task.status() == ""


def test_a_benchmark_serves_one_task_after_the_other(benchmark_client):
    with TaskClient(benchmark_client.url, token=benchmark_client.token) as task:
        with pytest.raises(RpcError, match="'task_id' is missing"):
            task.reset()
        with pytest.raises(RpcError, match="No task has been selected"):
            task.step(Action(name="increment"))
        with pytest.raises(RpcError, match="Task 'fly' is not in benchmark"):
            task.reset("fly")
        for name, action in (("up-1", "increment"), ("down-2", "decrement"), ("up-1", "increment")):
            task.reset(name)
            assert task.episode()["task_id"] == name
            task.step(Action(name=action))
        assert task.evaluate() == (1.0, {"value": 1})
        task.reset()
        assert task.evaluate() == (0.0, {"value": 0})


def test_a_benchmark_spawns_tasks_for_its_client(benchmark_client):
    assert benchmark_client.info().name == "counter-cube"
    assert [task.id for task in benchmark_client.tasks(offset=1, limit=2)] == ["up-3", "down-2"]
    assert benchmark_client.tasks(limit=0) == []
    (task_config,) = benchmark_client.task_configs("down-2")
    assert task_config == config("down-2")
    with benchmark_client.spawn(task_config) as task:
        task.reset()
        assert task.step([Action(name="decrement"), Action(name="decrement")]).reward == 1.0
        url = task.url
    with pytest.raises(RpcError, match="is not in benchmark"):
        benchmark_client.spawn(task_config.model_copy(update={"sub_bench_name": "other"}))
    with pytest.raises(RpcError, match=r"Parameter 'task_config.*must be a subclass"):
        benchmark_client.rpc("cube/spawn", task_config={"_type": "cube.core.Action", "name": "x"})
    with pytest.raises(RpcError, match="'offset' must be"):
        benchmark_client.tasks(offset=-1)
    with pytest.raises(RpcError, match="'port' a number up to 65535"):
        benchmark_client.spawn(task_config, port=70_000)
    benchmark_client.shutdown()
    benchmark_client.shutdown()
    with pytest.raises(RpcError, match="has been shut down"):
        benchmark_client.spawn(task_config)
    with pytest.raises(httpx.TransportError):
        httpx.post(url, json={})


def test_a_server_that_cannot_start_says_why():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RuntimeError, match="Address already in use"):
        make_task_rpc_server(config(), port=taken.getsockname()[1])


def test_the_server_ends_when_whoever_started_it_is_killed():
    script = (
        "import time; from counter_cube.benchmark import CounterBenchmarkConfig as C\n"
        "from cube.server import make_task_rpc_server\n"
        "process, url = make_task_rpc_server(next(iter(C().get_task_configs())))\n"
        "print(process.pid, url, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid, url = parent.stdout.readline().split()
    wait_for_server(url)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(200):
        if not alive(int(pid)):
            break
        time.sleep(0.05)
    assert not alive(int(pid))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_nobody_at_an_address_is_a_timeout():
    with pytest.raises(TimeoutError, match="No server responds"):
        wait_for_server("http://127.0.0.1:9", retries=2, delay=0.01)


def test_a_runtime_context_crosses_with_its_models():
    context = {"url": "x", "tool": CounterToolConfig(start=4), "list": [{"deep": CounterToolConfig()}]}
    assert _load_runtime_context(_dump_runtime_context(context)) == context
    assert _dump_runtime_context({}) is None
    assert _load_runtime_context(None) is None
    with pytest.raises(TypeError, match="not JSON-serializable"):
        _dump_runtime_context({"x": object()})
