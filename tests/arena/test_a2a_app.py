"""An A2A server of ours: who may use it, what it refuses and how, and that answers end when they should."""

import json

import anyio
import httpx
import pytest

from a2a_peers import Says, served
from benchflow.arena.a2a_types import Reply

pytestmark = pytest.mark.anyio


def plain_http(**settings):
    """A client that loads no certificates."""
    return httpx.AsyncClient(verify=False, **settings)


def call(method, params=None, **more):
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}, **more}


def message(text="hi", **more):
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **more}}


class Waits:
    """A task that ends when it is told to."""

    def __init__(self):
        self.go, self.cancelled = anyio.Event(), []

    async def answer(self, message, context_id, updates):
        await updates.status("waiting")
        await self.go.wait()
        return Reply.text("done", "input-required" if message.text == "ask" else "completed")

    async def cancel(self, context_id):
        self.cancelled.append(context_id)


async def test_a_server_lets_in_only_who_has_the_token_and_no_web_page():
    async with served(Says("x"), token="secret") as url, plain_http(base_url=url) as http:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer secret", "Origin": "http://evil.example"}, 403),
            ({"Authorization": "Bearer secret"}, 200),
        ):
            for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
                assert (await http.get(path, headers=headers)).status_code == status
    async with served(Says("x")) as url, plain_http(base_url=url) as http:
        rebound = await http.post("/", json=call("SendMessage", message()), headers={"Host": "evil.example"})
        assert rebound.status_code == 421


async def test_a_path_that_cannot_be_guessed_is_the_only_way_in():
    async with served(Says("x"), prefix="/s3cret") as url, plain_http() as http:
        assert (await http.get(f"{url}/.well-known/agent-card.json")).json()["url"] == f"{url}/"
        for address in (url, f"{url}/"):
            assert "result" in (await http.post(address, json=call("SendMessage", message()))).json()
        root = url.removesuffix("/s3cret")
        assert (await http.get(f"{root}/.well-known/agent-card.json")).status_code == 404
        assert (await http.post(f"{root}/", json=call("SendMessage", message()))).status_code == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "id": 2}', -32700),
        (b"[" * 200, -32700),
        (b"[]", -32600),
        (b'{"id": 1, "method": "SendMessage"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "SendMessage"}', -32600),
        (b"x" * 5000, -32600),
        (call("Fly"), -32601),
        (call("tasks/pushNotificationConfig/set"), -32004),
        (call("GetExtendedAgentCard"), -32004),
        (call("SendMessage", []), -32602),
        (call("SendMessage", {"message": {"role": "king", "parts": []}}), -32602),
        (call("SendMessage", {"message": {"role": "ROLE_USER", "parts": []}}), -32602),
        (call("SendMessage", {"message": {"role": "ROLE_USER", "parts": [{"text": 3}]}}), -32602),
        (call("SendMessage", message(taskId="unknown")), -32001),
        (call("GetTask", {"id": "unknown"}), -32001),
        (call("tasks/cancel", {"id": ["x"]}), -32001),
        (call("ListTasks"), -32602),
    ],
)
async def test_a_wrong_request_gets_its_code_and_a_sentence(body, code):
    async with served(Says("x"), max_body=4000) as url, plain_http() as http:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = (await http.post(url, content=content)).json()
        assert answer["error"]["code"] == code
        assert answer["error"]["message"].endswith(".")


async def test_other_versions_and_unknown_paths_are_refused():
    async with served(Says("x")) as url, plain_http(base_url=url) as http:
        newer = await http.post("/", json=call("SendMessage", message()), headers={"A2A-Version": "2.0"})
        assert newer.json()["error"]["code"] == -32009
        assert (await http.post("/message:shout", json=message())).status_code == 404
        missing = await http.get("/tasks/unknown")
        assert (missing.status_code, missing.json()["error"]["details"][0]["reason"]) == (404, "TASK_NOT_FOUND")
        assert (await http.post("/tasks/unknown:get", json={})).status_code == 404


async def test_a_task_can_be_asked_for_joined_listed_and_cancelled():
    waiting = Waits()
    async with served(waiting) as url, plain_http(base_url=url, timeout=30) as http:
        config = {"configuration": {"returnImmediately": True}}
        begun = (await http.post("/", json=call("SendMessage", message(contextId="c") | config))).json()["result"][
            "task"
        ]
        assert begun["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        busy = await http.post("/", json=call("SendMessage", message(taskId=begun["id"])))
        assert busy.json()["error"]["code"] == -32004
        listed = (await http.get("/tasks", params={"contextId": "c"})).json()
        assert [task["id"] for task in listed["tasks"]] == [begun["id"]]
        assert (await http.get("/tasks", params={"contextId": "other"})).json()["tasks"] == []
        joined = []
        async with anyio.create_task_group() as group:
            began = anyio.Event()
            group.start_soon(_join, http, begun["id"], joined, began)
            await began.wait()
            cancelled = (await http.post(f"/tasks/{begun['id']}:cancel", json={})).json()
        assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
        assert waiting.cancelled == ["c"]
        assert "TASK_STATE_CANCELED" in joined[-1]
        again = (await http.post("/", json=call("tasks/cancel", {"id": begun["id"]}))).json()
        assert again["error"]["code"] == -32002


async def _join(http, task_id, lines, began):
    async with http.stream("GET", f"/tasks/{task_id}:subscribe") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                lines.append(line)
                began.set()


async def test_a_task_that_waits_for_its_client_takes_another_message():
    waiting = Waits()
    waiting.go.set()
    async with served(waiting) as url, plain_http(base_url=url, timeout=30) as http:
        first = (await http.post("/", json=call("SendMessage", message("ask")))).json()["result"]["task"]
        assert first["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        more = message("go on", taskId=first["id"], contextId=first["contextId"])
        second = (await http.post("/", json=call("SendMessage", more))).json()["result"]["task"]
        assert (second["id"], second["status"]["state"]) == (first["id"], "TASK_STATE_COMPLETED")


async def test_a_failing_agent_tells_its_client_nothing_and_its_owner_everything():
    told = []

    class Crashes:
        def __init__(self, *, begin):
            self.begin = begin

        async def answer(self, message, context_id, updates):
            if self.begin:
                await updates.status("working")
            raise RuntimeError("secret-canary")

        async def cancel(self, context_id):
            pass

    for begin in (True, False):
        async with served(Crashes(begin=begin), told=told.append) as url, plain_http() as http:
            for method in ("SendMessage", "SendStreamingMessage", "message/send"):
                answer = await http.post(url, json=call(method, message()))
                assert "failed" in answer.text.lower()
                assert "canary" not in answer.text
    assert len(told) == 6


async def test_answers_have_a_limit_in_time_and_in_number():
    async with served(Waits(), time_limit=0.2) as url, plain_http() as http:
        answer = (await http.post(url, json=call("SendMessage", message()))).json()["result"]["task"]["status"]
        assert answer["state"] == "TASK_STATE_FAILED"
        assert "exceeded its limit of 0.2 s" in answer["message"]["parts"][0]["text"]
    waiting = Waits()
    async with served(waiting, most_running=1) as url, plain_http() as http:
        config = {"configuration": {"returnImmediately": True}}
        await http.post(url, json=call("SendMessage", message() | config))
        crowded = (await http.post(url, json=call("SendMessage", message()))).json()
        assert "as many messages as it may" in crowded["error"]["message"]
        waiting.go.set()


async def test_a_task_with_too_many_updates_still_tells_how_it_ended(monkeypatch):
    monkeypatch.setattr("benchflow.arena.a2a_tasks.MAX_EVENTS", 5)

    class Chatters:
        async def answer(self, message, context_id, updates):
            for number in range(20):
                await updates.status(str(number))
            return Reply.text("done")

        async def cancel(self, context_id):
            pass

    async with served(Chatters()) as url, plain_http() as http:
        streamed = await http.post(url, json=call("SendStreamingMessage", message()))
        assert "TASK_STATE_COMPLETED" in streamed.text.strip().splitlines()[-1]
