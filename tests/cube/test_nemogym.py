"""A cube as a resources server of NeMo Gym: sessions by cookie, tools as paths, and rewards that are never invented."""

import json
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from counter_cube.benchmark import CounterBenchmarkConfig
from cube.core import ActionSchema
from cube.integrations import nemogym
from cube.integrations.nemo_episodes import Refusal, Verdict
from cube.integrations.nemo_metrics import aggregate
from cube.integrations.nemogym import CubeResourcesServer

pytestmark = pytest.mark.anyio


class Play:
    """An episode that says what a test wants."""

    def __init__(self, task_id, verdict=None, tools=("look",)):
        self.task_id, self.outcome, self.names = task_id, verdict or Verdict(0.25), tools
        self.calls, self.closed, self.gone = [], 0, anyio.Event()

    def prompt(self):
        return [{"role": "user", "content": "Look."}]

    def tools(self):
        return [ActionSchema(name=name, description="Look.", parameters={}) for name in self.names]

    async def call(self, name, arguments):
        if name not in self.names:
            raise Refusal(404, f"Unknown tool '{name}'.")
        self.calls.append((name, arguments))
        return "seen"

    async def verdict(self):
        return self.outcome

    async def close(self):
        self.closed += 1
        self.gone.set()


class Plays:
    """Begins one of them for each session."""

    def __init__(self, **settings):
        self.settings, self.begun, self.seeds = settings, [], []

    def task_ids(self):
        return ("one", "two")

    async def begin(self, task_id, seed):
        self.seeds.append(seed)
        self.begun.append(Play(task_id, **self.settings))
        return self.begun[-1]

    async def close(self):
        self.settings["closed"] = True


@asynccontextmanager
async def client_of(server):
    async with (
        server.running(),
        httpx.AsyncClient(transport=httpx.ASGITransport(server.app()), base_url="http://server", timeout=60) as client,
    ):
        yield client


async def test_a_cube_is_played_by_cookie_to_its_reward():
    async with client_of(CubeResourcesServer(CounterBenchmarkConfig())) as client:
        listed = (await client.get("/tasks")).json()
        assert {"task_idx": 0, "task_id": "up-1"} in listed
        begun = (await client.post("/seed_session", json={"task_id": "up-3", "seed": 5})).json()
        assert begun["observation"][0]["content"] == "Bring the counter from 0 to 3."
        assert {tool["function"]["name"] for tool in begun["tools"]} == {"add", "increment", "decrement", "read"}
        assert (await client.post("/add", json={"amount": 2})).text == "2"
        refused = await client.post("/jump", json={})
        assert (refused.status_code, "available: add" in refused.text) == (404, True)
        assert refused.cookies, "the next request takes its cookie from this reply"
        ended = await client.post("/increment", json={})
        assert "The episode is over: the task is finished." in ended.text
        assert (await client.post("/increment", json={})).status_code == 409
        asked = {"responses_create_params": {"input": []}, "response": {"id": "r"}, "mine": 1}
        verified = (await client.post("/verify", json=asked)).json()
        assert verified == {**asked, "task_id": "up-3", "rewards": {}, "reward": 1.0}
        assert (await client.post("/verify", json=asked)).json() == verified


async def test_an_agent_that_stops_is_scored_by_verify():
    async with client_of(CubeResourcesServer(CounterBenchmarkConfig())) as client:
        await client.post("/seed_session", json={"task_idx": 1})
        assert (await client.post("/verify", json={})).json()["reward"] == 0.0


async def test_a_client_without_cookies_names_its_episode():
    async with client_of(CubeResourcesServer(CounterBenchmarkConfig())) as client:
        begun = (await client.post("/seed_session", json={"task_id": "far-100"})).json()
        client.cookies.clear()
        call = {"id": "c1", "function": {"name": "add", "arguments": '{"amount": 100}'}}
        stepped = (await client.post("/step", json={"env_id": begun["env_id"], "action": call})).json()
        assert stepped["observation"][0]["tool_call_id"] == "c1"
        assert (await client.post("/verify", json={"env_id": begun["env_id"]})).json()["reward"] == 1.0
        client.cookies.clear()
        assert (await client.post("/close", json={"env_id": begun["env_id"]})).json()["closed"] is True
        assert (await client.post("/verify", json={"env_id": begun["env_id"]})).status_code == 404


async def test_rows_are_a_dataset_with_prompts_and_tools():
    async with client_of(CubeResourcesServer(CounterBenchmarkConfig())) as client:
        rows = [json.loads(line) for line in (await client.get("/rows")).text.splitlines()]
    assert [row["task_id"] for row in rows] == ["up-1", "up-3", "down-2", "far-100"]
    params = rows[0]["responses_create_params"]
    assert params["input"] == [{"role": "user", "content": "Bring the counter from 0 to 1."}]
    assert {"type": "function", "name": "increment"}.items() <= params["tools"][2].items()


async def test_a_verdict_without_a_score_has_no_reward_unless_a_marked_placeholder_is_asked_for():
    verdict = Verdict(None, {"category": "verifier", "code": "reward-missing", "reason": "It wrote none."})
    async with client_of(CubeResourcesServer(Plays(verdict=verdict))) as client:
        await client.post("/seed_session", json={"task_id": "one"})
        refused = await client.post("/verify", json={"response": {}})
        assert (refused.status_code, refused.json()["reward"]) == (500, None)
        assert "It wrote none." in refused.json()["error"]
    async with client_of(CubeResourcesServer(Plays(verdict=verdict), mask_unscored=True)) as client:
        await client.post("/seed_session", json={"task_id": "one"})
        marked = (await client.post("/verify", json={"response": {}})).json()
    assert (marked["_ng_failure_class"], marked["instance_config"]) == ("unscored", {"mask_sample": True})
    assert marked["unscored"]["code"] == "reward-missing"
    assert aggregate([marked])["agent_metrics"] == {"scored": 0, "unscored": 1}


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        ("/seed_session", b"{", 400, "not valid JSON"),
        ("/seed_session", b'{"task_id": NaN}', 400, "not valid JSON"),
        ("/seed_session", b"[" * 100_000, 400, "not valid JSON"),
        ("/seed_session", b"[]", 422, "JSON object"),
        ("/seed_session", b"{}", 400, "from 0 to 1"),
        ("/seed_session", b'{"task_idx": 2}', 400, "from 0 to 1"),
        ("/seed_session", b'{"task_idx": true}', 400, "from 0 to 1"),
        ("/seed_session", b'{"task_id": "../one"}', 404, "Unknown task"),
        ("/seed_session", b'{"task_id": "one", "seed": "x"}', 422, "'seed' must be an integer"),
        ("/verify", b"{}", 404, "Unknown session"),
        ("/look", b"{}", 404, "Unknown session"),
        ("/step", b'{"env_id": 3}', 404, "Unknown session"),
        ("/aggregate_metrics", b'{"verify_responses": [1]}', 422, "list of objects"),
    ],
)
async def test_a_bad_request_gets_one_sentence_and_starts_nothing(path, content, status, words):
    plays = Plays()
    async with client_of(CubeResourcesServer(plays)) as client:
        refused = await client.post(path, content=content)
    assert (refused.status_code, words in refused.text) == (status, True), refused.text
    assert plays.begun == []


async def test_a_body_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(nemogym, "MAX_BODY", 1000)
    async with client_of(CubeResourcesServer(Plays())) as client:
        assert (await client.post("/seed_session", content=b" " * 1001)).status_code == 413


async def test_a_tool_with_the_name_of_a_path_is_refused_and_nothing_stays():
    plays = Plays(tools=("verify",))
    async with client_of(CubeResourcesServer(plays)) as client:
        refused = await client.post("/seed_session", json={"task_id": "one"})
        assert (refused.status_code, "'verify'" in refused.text) == (422, True)
        assert plays.begun[0].closed == 1


async def test_a_second_seed_ends_the_first_episode_and_the_end_closes_all():
    plays = Plays()
    async with client_of(CubeResourcesServer(plays)) as client:
        await client.post("/seed_session", json={"task_id": "one"})
        await client.post("/seed_session", json={"task_id": "two", "seed": 3})
        assert ([play.closed for play in plays.begun], plays.seeds) == ([1, 0], [None, 3])
    assert [play.closed for play in plays.begun] == [1, 1]
    assert plays.settings["closed"] is True


async def test_a_full_server_says_so_and_silent_clients_make_room():
    plays = Plays()
    async with client_of(CubeResourcesServer(plays, max_sessions=1, idle_sec=0.2)) as client:
        await client.post("/seed_session", json={"task_id": "one"})
        client.cookies.clear()
        assert (await client.post("/seed_session", json={"task_id": "one"})).status_code == 503
        with anyio.fail_after(60):
            await plays.begun[0].gone.wait()
        assert (await client.post("/seed_session", json={"task_id": "one"})).status_code == 200
    assert plays.begun[0].closed == 1
