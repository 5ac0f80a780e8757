"""OpenEnv over real WebSockets: what is answered and refused, and that nothing runs on for a client that is gone."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from episode_server import serving, write_package
from wire_clients import Talk, talking

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def openenv(module_tmp, packages):
    """Packages in memory and a cube, for at most eight episodes."""
    wanted = (packages, "cube:counter-cube", "--sandbox", "memory", "--max-sessions", "8")
    with serving(module_tmp, *wanted, wire="openenv") as running:
        yield running


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_an_episode_is_reset_stepped_and_scored(openenv):
    with talking(openenv) as talk:
        first = talk.reset(task="set/plain", episode_id="mine", seed=3)
        assert (first["reward"], first["done"]) == (None, False)
        assert first["observation"]["prompt"] == "Write done to /app/answer.txt."
        assert first["observation"]["task"].keys() == {"id", "digest", "index", "environment", "split"}
        tools = talk.ask({"type": "step", "data": {"type": "list_tools"}})["data"]["observation"]["tools"]
        assert [tool["name"] for tool in tools][-1] == "submit"
        written = talk.step("bash", command="echo half > /app/answer.txt")
        assert (written["reward"], written["done"], written["metadata"]) == (None, False, {"exit_code": 0})
        ended = talk.step("submit")
        assert (ended["reward"], ended["done"], ended["metadata"]["status"]) == (0.5, True, "scored")
        state = talk.state()
        assert (state["episode_id"], state["step_count"], state["reward"], state["done"]) == ("mine", 3, 0.5, True)
        assert talk.step("submit")["code"] == "EXECUTION_ERROR"
        assert (talk.reset(task="set/plain")["done"], talk.state()["step_count"]) == (False, 0)


def test_a_seed_selects_the_task_and_reaches_the_package(openenv):
    with talking(openenv) as talk:
        seen = [talk.reset(seed=seed, split="test")["observation"]["task"]["id"] for seed in (1, 2, 1)]
        assert (seen[0], seen[0] == seen[1]) == (seen[2], False)
        talk.reset(seed=41, task="set/plain")
        assert "41" in talk.step("bash", command="echo $BENCHCUBE_SEED")["observation"]["result"]
        assert talk.reset(index=0, split="train")["observation"]["task"]["id"] == "set/train"
        assert talk.reset(environment="counter-cube", task_id="up-1", seed=1)["done"] is False
        assert talk.step("increment")["reward"] == 1.0


def test_rewards_on_the_way_come_where_a_package_declares_them(openenv):
    with talking(openenv) as talk:
        talk.reset(task="set/dense")
        assert talk.step("bash", command="echo half > /app/answer.txt")["reward"] == 0.5


def test_an_end_without_a_score_is_null_with_its_reason(openenv):
    with talking(openenv) as talk:
        talk.reset(task="set/crash")
        ended = talk.step("submit")
        assert (ended["reward"], ended["done"]) == (None, True)
        assert (ended["metadata"]["status"], ended["metadata"]["error"]["category"]) == ("unscored", "verifier")
        assert (talk.state()["reward"], talk.state()["done"]) == (None, True)
        refused = talk.reset(task="set/broken")
        assert (refused["code"], refused["status"], refused["error"]["category"]) == (
            "EXECUTION_ERROR", "unscored", "package",
        )  # fmt: skip
        assert talk.reset(task="set/plain")["done"] is False


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ("", "INVALID_JSON", "Expecting value"),
        (b"\x00\xff", "INVALID_JSON", "Expecting value"),
        ("[" * 100_000, "INVALID_JSON", "recursion"),
        ('{"type": "state", "data": {"x": NaN}}', "INVALID_JSON", "NaN"),
        ("[]", "VALIDATION_ERROR", "JSON object"),
        ({"type": "rest"}, "UNKNOWN_TYPE", "rest"),
        ({"type": "state", "extra": 1}, "VALIDATION_ERROR", "no key 'extra'"),
        ({"type": "reset", "data": []}, "VALIDATION_ERROR", "'data' must be an object"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR", "0 or more"),
        ({"type": "reset", "data": {"seed": True}}, "VALIDATION_ERROR", "an integer"),
        ({"type": "reset", "data": {"sead": 1}}, "VALIDATION_ERROR", "takes no 'sead'"),
        ({"type": "reset", "data": {"task": "../plain"}}, "VALIDATION_ERROR", "no task"),
        ({"type": "reset", "data": {"task": "set/plain", "index": 0}}, "VALIDATION_ERROR", "not both"),
        ({"type": "reset", "data": {"task": "a", "task_id": "b"}}, "VALIDATION_ERROR", "different tasks"),
        ({"type": "reset", "data": {"index": 99}}, "VALIDATION_ERROR", "no index 99"),
        ({"type": "reset", "data": {"split": "dev"}}, "VALIDATION_ERROR", "no split 'dev'"),
        ({"type": "reset", "data": {"environment": "other"}}, "VALIDATION_ERROR", "Unknown environment"),
        ({"type": "reset", "data": {"episode_id": "x" * 256}}, "VALIDATION_ERROR", "255"),
        ({"type": "step", "data": {"tool_name": "bash"}}, "EXECUTION_ERROR", "send a reset first"),
        ({"type": "step", "data": {"message": "hi"}}, "VALIDATION_ERROR", "no 'message'"),
        ({"type": "step", "data": {"type": "dance"}}, "VALIDATION_ERROR", "call_tool"),
        ({"type": "step", "data": {"tool_name": 3}}, "VALIDATION_ERROR", "a string"),
    ],
)
def test_a_bad_message_gets_one_sentence_and_the_connection_stays(openenv, message, code, words):
    with talking(openenv) as talk:
        refused = talk.ask(message)
        assert (refused["type"], refused["data"]["code"]) == ("error", code)
        assert words in refused["data"]["message"]
        assert len(refused["data"]["message"]) < 500
        assert talk.state()["step_count"] == 0


def test_a_call_that_cannot_be_made_is_no_step(openenv):
    with talking(openenv) as talk:
        talk.reset(task="set/plain")
        assert talk.step("dance")["code"] == "VALIDATION_ERROR"
        assert talk.step("bash")["code"] == "VALIDATION_ERROR"
        assert talk.step("bash", command=3)["code"] == "VALIDATION_ERROR"
        assert talk.state()["step_count"] == 0


def test_of_two_submits_at_once_one_is_verified(openenv):
    with talking(openenv) as talk:
        talk.reset(task="set/plain")
        for _ in range(2):
            talk.socket.send(json.dumps({"type": "step", "data": {"tool_name": "submit"}}))
        assert (talk.heard()["data"]["reward"], talk.heard()["data"]["code"]) == (0.0, "EXECUTION_ERROR")


def test_messages_that_are_too_large_or_too_many_end_the_connection(openenv):
    with talking(openenv) as talk, pytest.raises(ConnectionClosed):
        talk.ask("x" * (17 << 20))
    with talking(openenv) as talk:
        talk.reset(task="set/plain")
        with pytest.raises(ConnectionClosed, match="1008"):
            flood(talk)


def flood(talk):
    """Send without ever reading, then read."""
    for _ in range(10_000):
        talk.socket.send(json.dumps({"type": "step", "data": {"tool_name": "bash", "arguments": {"command": "true"}}}))
    while True:
        talk.heard()


def test_a_server_that_is_full_says_so_and_has_room_again(tmp_path, packages):
    with serving(tmp_path, packages, "--sandbox", "memory", "--max-sessions", "2", wire="openenv") as server:
        with talking(server) as one, talking(server) as two, talking(server) as three:
            assert not one.reset(task="set/plain")["done"]
            assert not two.reset(task="set/plain")["done"]
            assert three.reset(task="set/plain")["code"] == "CAPACITY_REACHED"
        until(lambda: server.metrics()["benchcube_sessions"] == 0)
        with talking(server) as talk:
            assert not talk.reset(task="set/plain")["done"]


def test_a_silent_client_loses_its_session(tmp_path, packages):
    wanted = (packages, "--sandbox", "memory", "--reap-after", "0.5")
    with serving(tmp_path, *wanted, wire="openenv") as server, talking(server) as talk:
        talk.reset(task="set/plain")
        until(lambda: server.metrics()["benchcube_sessions_reaped_total"] == 1)
        assert talk.step("submit")["code"] == "SESSION_ERROR"
        assert not talk.reset(task="set/plain")["done"]


def test_web_pages_and_other_hosts_do_not_get_in(openenv):
    with pytest.raises(InvalidStatus, match="403"), talking(openenv, Origin="http://evil.example"):
        pass
    host, port = openenv.url.removeprefix("http://").split(":")
    rebound = {"address": (host, int(port)), "proxy": None}
    with pytest.raises(InvalidStatus, match="421"), connect(f"ws://evil.example:{port}/ws", **rebound):
        pass


def test_a_token_is_demanded_and_may_be_the_password_of_the_url(tmp_path, packages):
    with serving(tmp_path, packages, "--sandbox", "memory", wire="openenv", no_token=False) as server:
        with talking(server) as talk:
            assert not talk.reset(task="set/plain")["done"]
        for headers in (
            {"Authorization": "Bearer no"},
            {"Authorization": "Basic bm86bm8="},
            {"Authorization": "Basic %"},
        ):
            with pytest.raises(InvalidStatus, match="401"), talking(server, **headers):
                pass
        url = server.url.replace("http://", f"ws://any:{server.address['token']}@")
        with connect(f"{url}/ws", proxy=None) as socket:
            assert not Talk(socket).reset(task="set/plain")["done"]


def test_tools_are_called_in_a_session_without_a_connection(openenv):
    def rpc(method, **params):
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return openenv.http.post("/mcp", json=asked).json()

    created = rpc("openenv/session/create")["result"]["session_id"]
    assert "session_id" in rpc("tools/list")["error"]["message"]
    with talking(openenv, f"/ws?session_id={created}") as talk:
        talk.reset(task="set/plain")
        with talking(openenv, f"/ws?session_id={created}") as second:
            assert second.heard()["data"]["code"] == "SESSION_ERROR"
        assert rpc("tools/call", session_id=created, name="bash", arguments={"command": "echo hi"})["result"]["data"]
        assert rpc("tools/call", session_id=created, name="dance")["error"]["code"] == -32602
        assert rpc("openenv/session/close", session_id=created)["error"]["code"] == -32600
        assert talk.state()["step_count"] == 1
    until(lambda: "error" in rpc("tools/list", session_id=created))
    assert openenv.http.post("/mcp", content=b"{").json()["error"]["code"] == -32700
    with talking(openenv, "/ws?session_id=guess") as talk:
        assert talk.heard()["data"]["code"] == "SESSION_ERROR"


def test_tasks_are_listed_and_a_step_without_a_session_is_refused(openenv):
    http = openenv.http
    assert http.get("/list_environments").json() == ["set", "counter-cube"]
    assert {"name": "train", "type": "train"} in http.get("/set/splits").json()
    tasks = http.post("/set/tasks", json={"split": "test"}).json()["tasks"]
    assert http.post("/set/num_tasks", json={"split": "test"}).json() == {"num_tasks": len(tasks)}
    assert http.post("/set/task", json={"split": "test", "index": 1}).json() == {"task": tasks[1]}
    assert http.post("/set/task_range", json={"split": "test", "start": 1, "stop": 2}).json() == {"tasks": tasks[1:2]}
    assert http.post("/no/tasks", json={"split": "test"}).status_code == 404
    assert http.post("/set/tasks", json={"split": 3}).status_code == 422
    assert http.post("/step", json={"action": {}}).status_code == 409
    assert http.post("/reset", json={"task": "set/plain"}).json()["observation"]["prompt"]
    assert http.post("/reset", content=b"x" * (17 << 20)).status_code == 413


@pytest.mark.sandbox
@pytest.mark.parametrize("end", ["client", signal.SIGTERM, signal.SIGKILL])
def test_what_ran_in_a_step_ends_with_the_client_and_with_the_server(tmp_path, end):
    write_package(tmp_path / "set/plain", "set/plain")
    wanted = (tmp_path / "set", "--sandbox", "local", "--base-image", "host")
    mark = f"served-{os.getpid()}-{end if end == 'client' else end.name}"
    with serving(tmp_path, *wanted, wire="openenv") as server, talking(server) as talk:
        talk.reset(task="set/plain")
        command = {"tool_name": "bash", "arguments": {"command": f"exec -a {mark} sleep 300"}}
        talk.socket.send(json.dumps({"type": "step", "data": command}))
        until(lambda: named(mark))
        if end == "client":
            talk.socket.socket.shutdown(socket.SHUT_RDWR)
        else:
            server.process.send_signal(end)
            server.process.wait(60)
        until(lambda: not named(mark))


def named(mark):
    """The processes of this machine with that name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(mark.encode() + b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found
