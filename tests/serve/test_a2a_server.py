"""`bench serve a2a`: stock clients and agents of both SDKs meet our assessor, and it calls only whom it may call."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
import pytest

from a2a_peers import Says, served, stock_agent, stock_ask
from benchflow.cli import main
from benchflow.errors import UsageError
from benchflow.serve.a2a.reachable import Reachable, read_hosts
from episode_server import serving

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"


@pytest.fixture(scope="module")
def module_tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("a2a")


@pytest.fixture(scope="module")
def haggle(module_tmp):
    with serving(module_tmp, EXAMPLES / "haggle-arena", wire="a2a", no_token=False) as running:
        yield running


@pytest.fixture(scope="module")
def stock_agents(module_tmp):
    """An echo made with a2a-sdk 1.x and a loop made with 0.3, which know nothing of the game."""
    with ExitStack() as stack:
        yield {
            "buyer": stack.enter_context(stock_agent("1.x", "echo", module_tmp)),
            "seller": stack.enter_context(stock_agent("0.3", "loop", module_tmp)),
        }


def rpc(method, text, **configuration):
    message = {"messageId": "m1", "role": "user", "parts": [{"kind": "text", "text": text}], "kind": "message"}
    params = {"message": message, "configuration": configuration}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def states(events):
    """The states of a task and its artifacts, of either version."""
    told = []
    for event in events:
        body = next(iter(event.values())) if "kind" not in event else event
        if "artifact" in body:
            told.append(body["artifact"])
        else:
            told.append(body["status"]["state"].removeprefix("TASK_STATE_").lower())
            told += body.get("artifacts", [])
    return told


def check(told):
    """Task, working, one artifact with the verdict, completed."""
    artifacts = [each for each in told if isinstance(each, dict)]
    (artifact,) = artifacts
    (data,) = [part["data"] for part in artifact["parts"] if "data" in part]
    assert data["rewards"] == {"buyer": 0, "seller": 0}
    assert data["winner"] is None
    assert data["participants"].keys() == {"buyer", "seller"}
    text = json.loads(next(part["text"] for part in artifact["parts"] if "text" in part))
    assert text == data
    assert text["details"]["seed"] == 5
    return [each for each in told if not isinstance(each, dict)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "options", "streamed"),
    [
        ("1.x", [], True),
        ("1.x", ["--rest"], True),
        ("1.x", ["--plain"], False),
        ("1.x", ["--plain", "--rest"], False),
        ("0.3", [], True),
        ("0.3", ["--plain"], False),
    ],
)
def test_a_stock_client_plays_two_stock_agents_to_a_verdict(haggle, stock_agents, version, options, streamed):
    text = json.dumps({"participants": stock_agents, "config": {"seed": 5}})
    events = stock_ask(version, haggle.url, text, "--token", haggle.address["token"], *options)
    said = check(states(events))
    assert said[-1] == "completed"
    if streamed:
        assert said[0] == "submitted"
        assert set(said[1:-1]) == {"working"}


@pytest.mark.slow
def test_plain_requests_read_the_same_verdict(haggle, stock_agents):
    text = json.dumps({"participants": stock_agents, "config": {"seed": 5}})
    whole = haggle.http.post("/", json=rpc("message/send", text)).json()["result"]
    assert check(states([whole])) == ["completed"]
    shown = haggle.http.post(
        "/", json={"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": whole["id"]}}
    )
    assert shown.json()["result"]["status"]["state"] == "completed"
    for path, body in (("/", rpc("message/stream", text)), ("/message:stream", rpc("", text)["params"])):
        answer = haggle.http.post(path, json=body)
        events = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]
        assert check(states([event.get("result", event) for event in events]))[-1] == "completed"


def test_the_line_names_two_ports_with_a_token_each(haggle):
    address = haggle.address
    assert address.keys() == {"protocol", "url", "token", "agent_url", "agent_token"}
    assert (address["protocol"], address["token"] == address["agent_token"]) == ("a2a", False)
    for url, token in ((address["url"], address["agent_token"]), (address["agent_url"], address["token"])):
        refused = httpx.get(f"{url}/.well-known/agent-card.json", headers={"Authorization": f"Bearer {token}"})
        assert refused.status_code == 401
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
        card = haggle.http.get(path).json()
        assert card["url"] == f"{address['url']}/"
        assert {each["protocolVersion"] for each in card["supportedInterfaces"]} == {"1.0", "0.3"}


def test_the_agents_port_tells_the_rules_and_begins_no_game(haggle):
    token = {"Authorization": f"Bearer {haggle.address['agent_token']}"}
    text = json.dumps({"participants": {"buyer": "http://127.0.0.1:1", "seller": "http://127.0.0.1:1"}})
    answer = httpx.post(haggle.address["agent_url"], json=rpc("message/send", text), headers=token).json()["result"]
    assert answer["kind"] == "message"
    told = answer["parts"][0]["text"]
    assert "OFFER <amount>" in told
    assert "You can spend" not in told, "what a role is told is not public"


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_server_calls_only_the_hosts_it_was_given(module_tmp):
    with serving(module_tmp, EXAMPLES / "haggle-arena", "--allow-host", "example.test:8080", wire="a2a") as server:
        assert len(server.url.rsplit("/", 1)[1]) > 40, "without a token, the path is the secret"
        for url, called in (
            ("http://169.254.169.254/latest", False),
            ("http://10.0.0.1", False),
            ("http://example.test", False),
            ("http://example.test.evil.test:8080", False),
            ("http://[::ffff:169.254.169.254]", False),
            ("http://2130706433:80", False),
            ("http://127.0.0.1:1", True),
            ("http://localhost:1", True),
            ("http://[::1]:1", True),
        ):
            text = json.dumps({"participants": {"buyer": url, "seller": url}})
            async with httpx.AsyncClient() as http:
                answer = (await http.post(server.url, json=rpc("message/send", text))).json()["result"]
            state = answer["status"]["state"]
            assert state == ("failed" if called else "rejected"), (url, answer["status"])
            if not called:
                assert "which this server does not call" in answer["status"]["message"]["parts"][0]["text"]


def test_a_server_for_other_machines_calls_its_own_only_if_told_to():
    assert Reachable(loopback=False).refusal("http://127.0.0.1:8080")
    named = Reachable(loopback=False, hosts=read_hosts(["Agents.Example.", "[::1]:99"]))
    assert named.refusal("https://agents.example/x") is None
    assert named.refusal("http://[::1]:99") is None
    assert named.refusal("http://[::1]:98")
    for wrong in ("", "http://x", "a/b", "*.example", "x:y", "u@h"):
        with pytest.raises(UsageError):
            read_hosts([wrong])


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_game_under_way_ends_with_the_server(module_tmp):
    asked = anyio.Event()

    class Sleeps(Says):
        async def answer(self, *_):
            asked.set()
            await anyio.sleep_forever()

    with serving(module_tmp, EXAMPLES / "haggle-arena", wire="a2a") as server:
        async with served(Sleeps()) as url, httpx.AsyncClient(timeout=60) as http, anyio.create_task_group() as group:
            text = json.dumps({"participants": {"buyer": url, "seller": url}})
            group.start_soon(_post, http, server.url, rpc("message/send", text))
            with anyio.fail_after(30):
                await asked.wait()
            code = await anyio.to_thread.run_sync(server.stop, signal.SIGTERM)
        assert code == 0


async def _post(http, url, body):
    try:
        await http.post(url, json=body)
    except httpx.HTTPError:
        return


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["count-words"], "is not an arena"),
        (["."], "a folder above packages"),
        (["haggle-arena", "--no-token", "--host", "0.0.0.0"], "--no-token works on loopback only"),
        (["haggle-arena", "--allow-host", "http://x"], "--allow-host takes HOST or HOST:PORT"),
    ],
)
def test_wrong_usage_is_refused_before_anything_listens(arguments, words, capsys):
    path = str(EXAMPLES / arguments[0]) if arguments[0] != "." else str(EXAMPLES)
    assert main(["serve", "a2a", path, *arguments[1:]]) == 2
    assert words in capsys.readouterr().err
