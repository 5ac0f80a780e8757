"""`bench serve mcp`: an agent plays over MCP on one port, its harness has the other, and neither can be the other."""

import httpx
import pytest

from cube.client import RpcError, TaskClient
from cube.core import Observation
from episode_server import serving
from wire_clients import agent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mcp(module_tmp, packages):
    """Packages in memory and a cube."""
    with serving(
        module_tmp, packages, "cube:counter-cube", "--sandbox", "memory", wire="mcp", no_token=False
    ) as server:
        yield server


@pytest.fixture
def harness(mcp):
    with TaskClient(mcp.url, token=mcp.address["token"], timeout=120) as client:
        yield client


def test_an_agent_plays_what_the_harness_begins_and_learns_of_no_reward(mcp, harness):
    prompt, _ = harness.reset("set/plain")

    async def play(client):
        objective = await client.read_resource("task://objective")
        tools = [tool.name for tool in (await client.list_tools()).tools]
        calls = [("bash", {"command": "echo half > /app/answer.txt"}), ("dance", {}), ("submit", {}), ("bash", {})]
        results = [await client.call_tool(name, arguments) for name, arguments in calls]
        return client.instructions, objective.contents[0].text, tools, results

    instructions, objective, tools, (written, unknown, submitted, late) = agent(mcp, play)
    assert isinstance(prompt, Observation)
    assert objective == prompt.contents[0].data
    assert objective in instructions
    assert tools == ["bash", "read_file", "write_file", "edit_file", "submit"]
    assert (written.is_error, unknown.is_error, submitted.is_error, late.is_error) == (False, True, False, True)
    told = submitted.meta["cube/episode"]
    assert (told["over"], told["reason"], told["number"]) == (True, "the agent submitted", harness.episode()["number"])
    assert "0.5" not in submitted.model_dump_json()
    assert (harness.episode()["reward"], harness.evaluate()[0]) == (0.5, 0.5)


def test_the_harness_ends_an_episode_and_scores_what_is_there(mcp, harness):
    harness.reset("set/plain")
    agent(mcp, lambda client: client.call_tool("write_file", {"path": "/app/answer.txt", "text": "done"}))
    with pytest.raises(RpcError, match="no verdict yet"):
        harness.evaluate()
    harness.end("time is up")
    episode = harness.episode()
    assert (episode["state"], episode["reason"], episode["reward"]) == ("over", "time is up", 1.0)
    late = agent(mcp, lambda client: client.call_tool("bash", {"command": "true"}))
    assert "time is up" in late.content[0].text


def test_an_episode_without_a_score_says_why_to_the_harness_only(mcp, harness):
    harness.reset("set/crash")
    submitted = agent(mcp, lambda client: client.call_tool("submit", {}))
    episode = harness.episode()
    assert (episode["reward"], episode["unscored"]["category"]) == (None, "verifier")
    assert "reward-missing" not in submitted.model_dump_json()


def test_arguments_that_no_action_of_a_cube_takes_are_refused_and_its_episode_continues(mcp, harness):
    harness.reset("up-1")

    async def play(client):
        calls = [("read", {"more": 1}), ("add", {"amount": True}), ("add", {"amount": 0})]
        return [await client.call_tool(name, arguments) for name, arguments in calls]

    extra, unfit, fine = agent(mcp, play)
    assert (extra.is_error, unfit.is_error, fine.is_error) == (True, True, False)
    assert "unknown argument" in extra.content[0].text
    assert fine.content[0].text == "0"


def test_the_task_of_a_cube_ends_by_itself(mcp, harness):
    harness.reset("up-1")
    agent(mcp, lambda client: client.call_tool("increment", {}))
    assert (harness.episode()["state"], harness.episode()["reward"]) == ("over", 1.0)


def test_what_the_harness_asks_in_vain(mcp, harness):
    for params, words in (
        ({"task_id": "../plain"}, "Unknown task"),
        ({"task_id": 3}, "must be a string"),
        ({"seed": "x"}, "seed"),
    ):
        with pytest.raises(RpcError, match=words):
            harness.rpc("cube/reset", **{"task_id": "set/plain", **params})
    with pytest.raises(RpcError, match="did not begin"):
        harness.reset("set/broken")
    with pytest.raises(RpcError, match="Unknown method"):
        harness.rpc("cube/privileged_info")
    assert {task["id"] for task in harness.rpc("cube/tasks")} >= {"set/plain", "up-1"}


def test_each_port_takes_its_own_token_only(mcp):
    own, agents = mcp.address["token"], mcp.address["agent_token"]
    assert own != agents
    reset = {"jsonrpc": "2.0", "id": 1, "method": "cube/reset", "params": {}}
    for url, token in ((mcp.url, agents), (mcp.address["agent_url"], own), (mcp.url, None)):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        assert httpx.post(url, json=reset, headers=headers, timeout=60).status_code == 401
    for url, token in ((mcp.url, own), (mcp.address["agent_url"], agents)):
        headers = {"Authorization": f"Bearer {token}", "Origin": "http://evil.example"}
        assert httpx.post(url, json=reset, headers=headers, timeout=60).status_code == 403


def test_the_only_task_begins_at_once_and_without_tokens_the_harness_cannot_be_found(tmp_path, packages):
    with serving(tmp_path, packages / "plain", "--sandbox", "memory", wire="mcp") as server:
        shown = agent(server, lambda client: client.call_tool("submit", {}))
        assert not shown.is_error
        root = server.url.rpartition("/")[0]
        reset = {"jsonrpc": "2.0", "id": 1, "method": "cube/reset", "params": {}}
        assert httpx.post(f"{root}/", json=reset, timeout=60).status_code == 404
        with TaskClient(server.url, timeout=60) as harness:
            assert harness.episode()["reward"] == 0.0


def test_a_first_task_that_cannot_begin_or_is_unknown_ends_the_command(invoke, packages):
    wanted = ("serve", "mcp", packages, "--sandbox", "local", "--base-image", "host")
    code, out, err = invoke(*wanted, "--task", "set/none")
    assert (code, out, "set/plain" in err) == (2, "", True)
    code, out, err = invoke(*wanted, "--task", "set/broken")
    assert (code, out, "tmieout_sec" in err) == (1, "", True)
