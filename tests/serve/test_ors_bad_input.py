"""What servers refuse, survive and clean up: bad requests, clients that vanish, sandboxes and servers that die."""

import base64
import contextlib
import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from episode_server import answered, processes, serving, solve, sse, until, write_package

pytestmark = pytest.mark.slow

SID = {"X-Session-ID": "s"}


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "words"),
    [
        ("POST", "/tasks", b"{", {}, 400, "not JSON"),
        ("POST", "/tasks", b"[" * 100_000, {}, 400, "not JSON"),
        ("POST", "/tasks", b"[]", {}, 422, "must be a JSON object"),
        ("POST", "/tasks", b"\xff\xfe", {}, 400, "not JSON"),
        ("POST", "/tasks", b"{}", {}, 422, "split"),
        ("POST", "/tasks", b'{"split": "dev"}', {}, 400, "available: test, train"),
        ("POST", "/task", b'{"split": "test", "index": 99}', {}, 400, "there is no index 99"),
        ("POST", "/task", b'{"split": "test", "index": true}', {}, 422, "whole number"),
        ("POST", "/create", b'{"split": "test", "index": 0}', {}, 400, "X-Session-ID"),
        ("POST", "/create", b"{}", SID, 422, "either task_spec"),
        ("POST", "/create", b'{"task_spec": {"id": "set/plain"}, "split": "test"}', SID, 422, "either task_spec"),
        ("POST", "/create", b'{"task_spec": {"id": "../plain"}}', SID, 400, "no task with the id"),
        ("POST", "/create", b'{"task_spec": {"id": "set/plain", "digest": "x"}}', SID, 400, "it has changed"),
        ("POST", "/create", b'{"env_name": "no", "split": "test", "index": 0}', SID, 404, "Unknown environment"),
        ("POST", "/create", b'{"split": "test", "index": 0}', {**SID, "X-Secrets": "%"}, 400, "base64"),
        ("POST", "/create", b'{"split": "test", "index": 0}', {"X-Session-ID": "x" * 300}, 400, "visible"),
        ("POST", "/call", b'{"name": "bash"}', SID, 404, "Unknown session"),
        ("GET", "/prompt", b"", {"X-Session-ID": "gone"}, 404, "Unknown session"),
        ("GET", "/call", b"", SID, 405, "not a method"),
        ("GET", "/../../etc/passwd", b"", {}, 404, "Unknown route"),
        ("GET", "/health", b"", {"Origin": "http://evil.example"}, 403, "web pages"),
        ("GET", "/health", b"", {"Host": "evil.example"}, 421, "loopback"),
    ],
)
def test_a_bad_request_gets_one_sentence(server, method, path, content, headers, status, words):
    answer = server.http.request(method, path, content=content, headers=headers)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert len(answer.text) < 1000
    assert "Traceback" not in server.log.read_text()


def test_bodies_that_are_too_large_are_not_read(server):
    def endless():
        for _ in range(40):
            yield b" " * (1 << 20)

    for body in (b" " * (17 << 20), endless()):
        with contextlib.suppress(httpx.TransportError):  # the server may close while the client still sends
            assert server.http.post("/tasks", content=body).status_code == 413
    assert server.http.get("/health").status_code == 200


def test_a_session_begins_once_and_calls_need_an_object(server):
    sid = server.session()
    again = server.post("/create", sid, {"split": "test", "index": 0})
    assert (again.status_code, "has already begun" in again.text) == (400, True)
    for body in ({}, {"name": 3, "input": {}}, {"name": "bash", "input": []}):
        assert server.post("/call", sid, body).status_code == 422
    server.post("/delete", sid)


def test_a_request_that_stops_half_way_does_no_harm(server):
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /tasks HTTP/1.1\r\nHost: {host}\r\nContent-Length: 17\r\n\r\n"
    for sent in (b"", b"GE", b"GET /health HTTP/1.1\r\nHost:", head.encode(), head.encode() + b'{"split"', b"\0" * 99):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            with contextlib.suppress(ConnectionError):
                while connection.recv(65536):
                    pass
    assert server.http.get("/health").status_code == 200
    assert len(server.events()) == len(server.log.read_text().splitlines()), "the log has more than JSON"


def test_tokens_are_demanded_in_the_headers_of_the_protocol(tmp_path):
    write_package(tmp_path / "set/plain", "set/plain")
    (tmp_path / "token").write_text("a-token-of-the-test\n")
    arguments = (tmp_path / "set", "--sandbox", "memory", "--token-file", tmp_path / "token")
    with serving(tmp_path, *arguments, no_token=False) as server:
        assert server.address["token"] == "a-token-of-the-test"
        bare = httpx.Client(base_url=server.url)
        with bare:
            assert bare.get("/splits").status_code == 401
            assert bare.get("/splits", headers={"X-API-Key": "a-token"}).status_code == 401
            assert bare.get("/splits", headers={"X-API-Key": "a-token-of-the-test"}).status_code == 200
        assert server.http.get("/splits").status_code == 200
        assert "a-token-of-the-test" not in server.log.read_text()


def test_a_clients_secrets_reach_only_packages_that_declare_them(tmp_path):
    declared = "benchflow: {document_version: '0.6', secrets: [{name: KEY_ONE, scope: agent, required: false}]}\n"
    write_package(tmp_path / "set/declares", "set/declares", front=declared)
    write_package(tmp_path / "set/not", "set/not")
    given = {"KEY_ONE": {"value": "secret-of-one"}, "api_key": {"value": "secret-of-client"}}
    header = {"X-Secrets": base64.b64encode(json.dumps(given).encode()).decode()}
    with serving(tmp_path, tmp_path / "set", "--sandbox", "local") as server:
        server.http.headers.update(header)
        seen = []
        for index in (0, 1):
            sid = server.session(split="test", index=index)
            seen.append(server.call(sid, "bash", command="env")["output"]["blocks"][0]["text"])
        assert ["KEY_ONE=secret-of-one" in text for text in seen] == [True, False]
        assert not any("secret-of-client" in text for text in seen)
        assert "secret-of" not in server.log.read_text()


def test_a_client_that_vanishes_finds_its_result_and_an_unused_session_ends(tmp_path):
    write_package(tmp_path / "set/plain", "set/plain")
    with serving(tmp_path, tmp_path / "set", "--sandbox", "local", "--reap-after", "4") as server:
        sid = server.session()
        server.get("/prompt", sid)
        with server.http.stream(
            "POST", "/call", headers={"X-Session-ID": sid}, json={"name": "bash", "input": {"command": "echo here"}}
        ) as stream:
            task_id = next(line for line in stream.iter_lines() if line.startswith("data:")).split(": ")[1]
        assert "here" in answered(server.post("/call", sid, {"task_id": task_id}))["output"]["blocks"][0]["text"]
        until(lambda: server.metrics()["benchcube_sessions"] == 0)
        assert server.metrics()["benchcube_sessions_reaped_total"] == 1
        assert server.post("/ping", sid).status_code == 404
        assert [event["reason"] for event in server.events() if event["event"] == "session_closed"] == ["unused"]


def test_a_server_that_is_full_says_so_and_has_room_again(tmp_path):
    write_package(tmp_path / "set/plain", "set/plain")
    with serving(tmp_path, tmp_path / "set", "--sandbox", "memory", "--max-sessions", "2") as server:
        first, _ = server.session(), server.session()
        asked = {"split": "test", "index": 0}
        full = server.post("/create", "third", asked)
        assert (full.status_code, full.headers["Retry-After"]) == (503, "2")
        assert full.headers["X-Backend-State"] == "starting"
        server.post("/delete", first)
        assert server.post("/create", "third", asked).status_code == 200


def sleeping(server, sid, mark):
    """Start a process in the sandbox of a session that would run for hours; its pid here."""
    server.call(sid, "bash", command=f"nohup sleep {mark} >/dev/null 2>&1 &")
    until(lambda: processes(mark))
    return processes(mark)[0]


@pytest.mark.sandbox
def test_a_sandbox_that_dies_ends_its_session_only(tmp_path):
    write_package(tmp_path / "set/plain", "set/plain")
    with serving(tmp_path, tmp_path / "set", "--sandbox", "local") as server:
        sid, other, mark = server.session(), server.session(), f"1{os.getpid()}.25"
        pid = sleeping(server, sid, mark)
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        until(lambda: not processes(mark))
        answer = server.call(sid, "bash", command="true")
        assert isinstance(answer, str), answer
        assert answer.startswith("sandbox/")
        assert server.call(sid, "submit")["reason"] == "episode_finished"
        assert server.metrics()['benchcube_rollouts_unscored_total{category="sandbox"}'] == 1
        solve(server, other)
        assert server.call(other, "submit")["output"]["reward"] == 1.0


@pytest.mark.sandbox
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_however_a_server_ends_nothing_of_it_runs_on(tmp_path, number):
    write_package(tmp_path / "set/plain", "set/plain")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    arguments = (tmp_path / "set", "--sandbox", "local")
    with serving(tmp_path, *arguments, TMPDIR=str(scratch)) as server:
        sid, mark = server.session(), f"2{os.getpid()}.{number.value}"
        sleeping(server, sid, mark)
        code = server.stop(number)
        assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL)
        until(lambda: not processes(mark))
        if number == signal.SIGTERM:
            assert [event["reason"] for event in server.events() if event["event"] == "session_closed"] == ["shutdown"]
    with serving(tmp_path, *arguments, TMPDIR=str(scratch)) as server:
        solve(server, server.session())
        assert server.stop() == 0
    left = [path for path in scratch.rglob("*") if path.is_file()]
    assert left == []


def test_ids_of_sessions_are_not_guessable_and_not_logged_whole(server):
    sids = {sse(server.http.post("/create_session", json={}))[0][1] for _ in range(20)}
    assert len(sids) == 20
    assert min(map(len, sids)) >= 24
    sid = server.session()
    assert sid not in server.log.read_text()
