"""The port of the agent: played with the official MCP client, attacked with plain sockets."""

import json
import socket

import anyio
import httpx
import pytest

from counter_cube.benchmark import CounterBenchmarkConfig
from cube.client import RpcError, TaskClient, UnscoredError
from cube.core import Action
from cube.server import make_benchmark_rpc_server, make_task_rpc_server
from mcp_players import mcp_error, mcp_player

pytestmark = pytest.mark.slow

ODD = '''
import math
from typing import Any
from counter_cube.task import CounterTask, CounterTaskConfig
from counter_cube.tool import CounterTool, CounterToolConfig
from cube.tool import tool_action
from cube.task import UnscoredError

class OddTool(CounterTool):
    @tool_action
    def speak(self, kind: str) -> Any:
        """Say something odd.

        Args:
            kind: what
        """
        if kind == "exit":
            raise SystemExit("the answer is 42")
        return {"surrogate": "\\udc80", "nan": {"x": math.nan}, "object": {"x": object()}, "deep": {"\\udc80": 1}}[kind]

class OddToolConfig(CounterToolConfig):
    def make(self, container=None):
        return OddTool(self.start)

class OddTask(CounterTask):
    def filter_actions(self, actions):
        if self.counter.value == 8:
            raise ValueError("the answer is 42")
        return [action for action in actions if action.name != "decrement"]

    def evaluate(self, obs=None):
        if self.counter.value == 1:
            raise UnscoredError("The judge is away.", category="judge", code="judge-failed")
        if self.counter.value == 2:
            return math.nan, {}
        if self.counter.value == 3:
            raise ValueError("the answer is 42")
        return 0.5, {}

    def finished(self, obs=None):
        if self.counter.value == 7:
            raise ValueError("the answer is 42")
        return self.counter.value == 3

class OddTaskConfig(CounterTaskConfig):
    def make(self, runtime_context=None, container_backend=None):
        return OddTask(metadata=self.metadata, tool_config=OddToolConfig())
'''


def config(name):
    return next(iter(CounterBenchmarkConfig().subset_from_list([name]).get_task_configs()))


@pytest.fixture(scope="module")
def server():
    process, _ = make_benchmark_rpc_server(CounterBenchmarkConfig())
    with process:
        yield process.address


@pytest.fixture
def harness(server):
    with TaskClient(server.url, token=server.token) as client:
        yield client


@pytest.fixture(scope="module")
def odd_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_cube.py").write_text(ODD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        from odd_cube import OddTaskConfig

        process, _ = make_task_rpc_server(OddTaskConfig(metadata=config("up-3").metadata))
        with process:
            yield process.address


def connected(address):
    return mcp_player(address.agent_url, address.agent_token, timeout=30)


def play(address, *calls):
    """Call actions over MCP in one session; the texts of each result, and whether it is an error."""

    async def drive():
        async with connected(address) as client:
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [([block.text for block in result.content], result.is_error) for result in results]

    return anyio.run(drive)


OVER = "The episode is over: {}. No further actions are accepted."


def test_a_stock_mcp_client_learns_the_objective_acts_and_learns_the_end(server, harness):
    async def drive():
        async with connected(server) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["add", "decrement", "increment", "read", "final_step"]
            schema = tools["add"].input_schema["properties"]["amount"]
            assert schema == {"type": "integer", "description": "what to add; may be negative"}
            assert client.instructions.startswith("Bring the counter from 0 to 3.\n\n")
            assert "Call final_step when you are done." in client.instructions
            objective = await client.read_resource("task://objective")
            assert objective.contents[0].text == "Bring the counter from 0 to 3."
            prompt = await client.get_prompt("objective")
            assert prompt.messages[0].content.text == "Bring the counter from 0 to 3."
            first = await client.call_tool("add", {"amount": 2})
            assert ([block.text for block in first.content], first.is_error) == (["2"], False)
            assert first.meta["cube/episode"]["over"] is False
            assert (await client.read_resource("task://observation")).contents[0].text == "2"
            last = await client.call_tool("increment", {})
            assert [block.text for block in last.content] == ["3", OVER.format("the task is finished")]
            assert last.meta["cube/episode"]["reason"] == "the task is finished"
            refused = await client.call_tool("read", {})
            assert (refused.is_error, refused.content[0].text) == (True, OVER.format("the task is finished"))
            for wrong in (client.read_resource("task://solution"), client.get_prompt("solution")):
                with pytest.raises(mcp_error(), match="Unknown"):
                    await wrong

    harness.reset("up-3")
    anyio.run(drive)
    episode = harness.episode()
    assert (episode["state"], episode["reason"], episode["steps"]) == ("over", "the task is finished", 2)
    assert harness.evaluate() == (1.0, {"value": 3})


def test_a_second_episode_is_played_over_the_same_session(server, harness):
    async def drive():
        async with connected(server) as client:
            for name, goal in (("up-1", "to 1."), ("down-2", "to -2.")):
                await anyio.to_thread.run_sync(harness.reset, name)
                assert (await client.read_resource("task://objective")).contents[0].text.endswith(goal)
                stopped = await client.call_tool("final_step", {})
                assert [block.text for block in stopped.content] == [
                    "Task finished by the agent.",
                    OVER.format("the agent stopped"),
                ]

    before = harness.episode()["number"]
    anyio.run(drive)
    assert harness.episode()["number"] == before + 2
    assert harness.evaluate() == (0.0, {"value": 0})


def test_what_ends_an_episode_is_said_and_latched(server, harness):
    harness.reset("up-3")
    assert play(server, ("fly", {}), ("cube/reset", {}), ("evaluate", {}))[2] == (
        ["Action 'evaluate' is not available; available: add, decrement, increment, read, final_step."],
        True,
    )
    unfit = play(server, ("add", {"amount": "many"}), ("add", {"amount": True}), ("read", {"now": 1}), ("read", {}))
    assert unfit == [
        (["Action 'add' was not executed: 'amount' must be an integer, not \"many\"."], True),
        (["Action 'add' was not executed: 'amount' must be an integer, not true."], True),
        (["Action 'read' was not executed: unknown argument \"now\"; it takes none."], True),
        (["0"], False),
    ]
    assert harness.episode()["state"] == "running"
    harness.reset("up-3")
    harness.end("the time is up")
    assert play(server, ("increment", {})) == [([OVER.format("the time is up")], True)]
    harness.end("another reason")
    assert harness.episode()["reason"] == "the time is up"
    harness.close()
    assert play(server, ("increment", {})) == [(["The harness has closed the task."], True)]


def test_before_the_first_reset_an_agent_is_told_to_wait():
    process, _ = make_task_rpc_server(config("up-1"))
    with process:
        refusal = "The episode has not begun: the harness has to reset the task first."
        assert play(process.address, ("increment", {})) == [([refusal], True)]

        async def drive():
            async with connected(process.address) as client:
                assert client.instructions.startswith(refusal)
                return (await client.read_resource("task://objective")).contents[0].text

        assert anyio.run(drive) == refusal


def test_filtered_actions_are_refused_over_every_way_in(odd_server):
    with TaskClient(odd_server.url, token=odd_server.token) as harness:
        harness.reset()
        sentence = "Action 'decrement' is not offered by this task; available: add, increment, read, speak."
        for refuse in (harness.tools_call, harness.step, lambda action: harness.step([Action(name="add"), action])):
            with pytest.raises(RpcError, match="Action 'decrement' is not offered|'amount' is missing") as caught:
                refuse(Action(name="decrement"))
            assert caught.value.code == -32602
        batch = [
            {"jsonrpc": "2.0", "id": n, "method": m, "params": {"name": "decrement"}} for n, m in enumerate(HIDDEN)
        ]
        answers = httpx.post(odd_server.url, json=batch, headers={"Authorization": f"Bearer {odd_server.token}"}).json()
        assert all(answer["error"] == {"code": -32602, "message": sentence} for answer in answers)
        harness.reset()
        assert "decrement" not in [action.name for action in harness.tools_list()]
        ((text,), is_error), read = play(odd_server, ("decrement", {}), ("read", {}))
        assert (is_error, text) == (
            True,
            "Action 'decrement' is not available; available: add, increment, read, speak, final_step.",
        )
        assert read == (["0"], False)


HIDDEN = ("cube/step", "tools/call")


def test_unscored_is_null_with_its_reason_and_the_observation_is_kept(odd_server):
    def rpc(method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Authorization": f"Bearer {odd_server.token}"}
        return httpx.post(odd_server.url, json=body, headers=headers).json()["result"]

    with TaskClient(odd_server.url, token=odd_server.token) as harness:
        harness.reset()
        assert harness.evaluate() == (0.5, {})
        harness.step(Action(name="increment"))
        judge = {"category": "judge", "phase": "verify", "code": "judge-failed", "reason": "The judge is away."}
        assert rpc("cube/evaluate") == {"reward": None, "info": {"unscored": judge}}
        with pytest.raises(UnscoredError, match="The judge is away") as caught:
            harness.evaluate()
        assert caught.value.unscored == judge
        harness.step(Action(name="increment"))
        assert rpc("cube/evaluate")["info"]["unscored"]["code"] == "reward-invalid"
        output = rpc("cube/step", name="increment")
        assert (output["reward"], output["done"], output["obs"]["contents"][0]["data"]) == (None, True, "3")
        assert output["info"]["unscored"]["reason"] == "ValueError: the answer is 42"
        with pytest.raises(UnscoredError, match="42"):
            harness.step(Action(name="read"))


@pytest.mark.parametrize(
    ("call", "kind"), [(("add", {"amount": 7}), "ValueError"), (("speak", {"kind": "exit"}), "RuntimeError")]
)
def test_a_failure_of_the_environment_tells_the_agent_nothing_else(odd_server, call, kind):
    with TaskClient(odd_server.url, token=odd_server.token) as harness:
        harness.reset()
        failed, refused = play(odd_server, call, ("read", {}))
        assert failed == refused == ([OVER.format(f"the environment failed ({kind})")], True)
        assert harness.episode()["state"] == "over"


def test_actions_that_cannot_be_listed_tell_the_agent_nothing_else(odd_server):
    with TaskClient(odd_server.url, token=odd_server.token) as harness:
        harness.reset()
        harness.step(Action(name="add", arguments={"amount": 8}))

        async def drive():
            async with connected(odd_server) as client:
                await client.list_tools()

        with pytest.RaisesGroup(
            pytest.RaisesExc(mcp_error(), match="^The environment failed to list its actions.$"), flatten_subgroups=True
        ):
            anyio.run(drive)


def test_odd_observations_reach_the_agent_as_text(odd_server):
    with TaskClient(odd_server.url, token=odd_server.token) as harness:
        harness.reset()
        kinds = ("surrogate", "nan", "object", "deep")
        results = play(odd_server, *(("speak", {"kind": kind}) for kind in kinds))
        assert [is_error for _, is_error in results] == [False] * 4
        assert results[0][0] == ["?"]
        assert results[1][0] == ['{"x": NaN}']


def test_a_server_that_was_shut_down_answers_and_does_not_hang():
    process, url = make_benchmark_rpc_server(CounterBenchmarkConfig())
    with process, TaskClient(url, token=process.address.token, timeout=10) as harness:
        harness.reset("up-1")
        harness.rpc("cube/shutdown")
        with pytest.raises(RpcError, match="shut down"):
            harness.status()
        with pytest.raises(RpcError, match="shut down"):
            harness.reset("up-3")
        assert play(process.address, ("increment", {}))[0][1]


def raw(url, request):
    """Send bytes as they are, and return all that comes back."""
    host, port = url.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        connection.settimeout(3)
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except TimeoutError:
            pass
        return received


PRIVILEGED = [
    f"cube/{name}"
    for name in ("privileged_info", "reset", "evaluate", "step", "close", "end", "episode", "spawn", "shutdown")
]


def request(method, target, token, body, headers=()):
    lines = [f"{method} {target} HTTP/1.1", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"Authorization: Bearer {token}", *headers]
    if not any(line.lower().startswith("host:") for line in headers):
        lines.append("Host: 127.0.0.1")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_no_path_method_or_content_type_on_the_agents_port_reaches_a_method_of_the_harness(server, harness):
    harness.reset("far-100")
    before = harness.episode()
    accept = "Accept: application/json, text/event-stream"
    harness_host = server.url.removeprefix("http://")
    targets = ["/", "/mcp", "/mcp/", "//", "/mcp/../", "/%2e%2e/", "/./", "/rpc", "*", server.url, f"{server.url}/"]
    kinds = ["application/json", "text/plain", "application/json-rpc", "application/x-www-form-urlencoded"]
    tricks = [
        (),
        (f"Host: {harness_host}",),
        (f"X-Forwarded-Host: {harness_host}", "X-Original-URL: /", "X-Rewrite-URL: /"),
        ("X-HTTP-Method-Override: POST", "Mcp-Session-Id: harness"),
        ("MCP-Protocol-Version: 2026-07-28", "Mcp-Method: cube/privileged_info"),
    ]
    for name in PRIVILEGED:
        call = {"jsonrpc": "2.0", "id": 1, "method": name, "params": {}}
        for target in targets if name == "cube/privileged_info" else targets[:2]:
            for kind in kinds if target in ("/", "/mcp") else kinds[:1]:
                for extra in tricks if kind == kinds[0] else tricks[:1]:
                    for body in (json.dumps(call).encode(), json.dumps([call, call]).encode()):
                        headers = (f"Content-Type: {kind}", accept, *extra)
                        answer = raw(server.agent_url, request("POST", target, server.agent_token, body, headers))
                        assert not answer.startswith(b"HTTP/1.1 200"), (name, target, kind, extra, answer)
                        assert b"100" not in answer.partition(b"\r\n\r\n")[2]
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT"):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "cube/privileged_info"}).encode()
        answer = raw(server.agent_url, request(method, "/", server.agent_token, body))
        assert not answer.startswith(b"HTTP/1.1 200"), (method, answer)
    assert harness.episode() == before


def test_an_mcp_session_has_no_method_of_the_harness(server, harness):
    harness.reset("far-100")
    headers = {
        "Authorization": f"Bearer {server.agent_token}",
        "Accept": "application/json, text/event-stream",
    }
    with httpx.Client(headers=headers, timeout=10) as http:
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "attacker", "version": "0"},
        }
        opened = http.post(server.agent_url, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
        assert opened.status_code == 200
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        http.post(server.agent_url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        for name in PRIVILEGED:
            answer = http.post(server.agent_url, json={"jsonrpc": "2.0", "id": 1, "method": name, "params": {}})
            assert '"error"' in answer.text
            assert '"result"' not in answer.text
            batch = http.post(server.agent_url, json=[{"jsonrpc": "2.0", "id": 2, "method": name, "params": {}}])
            assert '"result"' not in batch.text
            called = http.post(
                server.agent_url, json={"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": name}}
            )
            assert "is not available" in called.text
    assert harness.episode()["steps"] == 0


@pytest.mark.parametrize("door", ["url", "agent_url"])
def test_a_port_takes_its_own_token_and_no_other(server, door):
    url = getattr(server, door)
    own, other = (server.token, server.agent_token) if door == "url" else (server.agent_token, server.token)
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    wrong = [None, "", "Bearer", own, f"Bearer {other}", f"Basic {own}", f"Bearer {own}x", f"Bearer {own[:-1]}"]
    wrong += [f"Bearer {own} {own}", "Bearer \xff"]
    for value in wrong:
        headers = [] if value is None else [("Authorization", value.encode("latin-1"))]
        assert httpx.post(url, json=body, headers=headers).status_code == 401, value
    twice = [("Authorization", f"Bearer {own}"), ("Authorization", f"Bearer {other}")]
    assert httpx.post(url, json=body, headers=twice).status_code == 401
    assert httpx.post(f"{url}?token={own}", json=body).status_code == 401
    assert httpx.post(url, json=body, headers=[("Authorization", f"bearer {own}")]).status_code != 401
    origin = {"Authorization": f"Bearer {own}", "Origin": "http://localhost:3000"}
    assert httpx.post(url, json=body, headers=origin).status_code == 403


def test_a_websocket_is_refused(server):
    upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZQ==", "Sec-WebSocket-Version: 13")
    answer = raw(server.agent_url, request("GET", "/mcp", server.agent_token, b"", upgrade))
    assert not answer.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200"))
