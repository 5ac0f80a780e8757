"""The model as a policy that drives gym tasks, against a model server over real HTTP."""

import pytest

from benchflow.agents import AgentLimits, create_policy
from benchflow.errors import AgentFailure
from benchflow.testing import Answer, Fault, ModelServer, ToolCall, Usage
from counter_cube.benchmark import CounterBenchmarkConfig
from cube.core import ActionSchema, ImageContent, Observation, TextContent
from cube.task import STOP_ACTION

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("models")]  # the client loads for seconds
ACTIONS = [ActionSchema(name="press", description="Press a button.", parameters={"type": "object", "properties": {}})]


def press(*names, **fields):
    return Answer(tool_calls=[ToolCall(name, {}) for name in names], **fields)


@pytest.fixture
def policy():
    """A policy over a scripted model, with its server."""
    servers = []

    def make(script, model="openai/m", **limits):
        server = ModelServer(script).start()
        servers.append(server)
        made = create_policy(f"model:{model}", limits=AgentLimits(**limits), environ=server.environment)
        return made, server

    yield make
    for server in servers:
        server.stop()


def seen(text, call=None):
    return Observation(contents=[TextContent(data=text, tool_call_id=call)])


async def test_actions_come_with_ids_and_observations_answer_them(policy):
    acting, server = policy([press("press", "press"), press(STOP_ACTION.name)])
    first = await acting.act(seen("Press twice."), ACTIONS)
    assert [action.name for action in first] == ["press", "press"]
    assert len({action.id for action in first}) == 2
    observed = seen("one", first[0].id) + seen("two", first[1].id) + seen("a bell rings")
    [stop] = await acting.act(observed, ACTIONS)
    assert stop.name == STOP_ACTION.name
    assert list(server.requests[0].tools) == ["press", STOP_ACTION.name]
    roles = [(message["role"], message["content"]) for message in server.requests[1].messages][-3:]
    assert roles == [("tool", "one"), ("tool", "two"), ("user", "a bell rings")]
    assert (acting.usage["steps"], acting.usage["tool_calls"], acting.stop_reason) == (2, 3, None)


async def test_a_whole_gym_task_is_played(policy):
    acting, server = policy([Answer(tool_calls=[ToolCall("add", {"amount": 2})]), press(STOP_ACTION.name)])
    config = next(iter(CounterBenchmarkConfig().get_task_configs()))
    task = config.make()
    observation, _ = task.reset()
    done = False
    while not done and (actions := await acting.act(observation, task.action_set)):
        output = task.step(actions)
        observation, done = output.obs, output.done
    task.close()
    assert done
    assert "add" in server.requests[0].tools


async def test_calls_without_an_observation_are_answered_anyway(policy):
    acting, server = policy([press("press"), press("press"), press("press")])
    await acting.act(seen("Go."), ACTIONS)
    await acting.act(Observation(), ACTIONS)
    await acting.act(seen("no id"), ACTIONS)
    answers = [message["content"] for message in server.requests[2].messages if message["role"] == "tool"]
    assert answers == ["(done)", "no id"]


async def test_pictures_follow_as_messages_of_the_user(policy):
    from PIL import Image

    acting, server = policy([press("press"), press("press")])
    [action] = await acting.act(seen("Look."), ACTIONS)
    picture = ImageContent(data=Image.new("RGB", (1, 1)), tool_call_id=action.id)
    await acting.act(Observation(contents=[picture]), ACTIONS)
    tool, user = server.requests[1].messages[-2:]
    assert (tool["role"], tool["content"]) == ("tool", "(shown below)")
    assert user["content"][0]["type"] == "image_url"


async def test_calls_that_make_no_sense_are_answered_and_not_passed_on(policy):
    script = [Answer(tool_calls=[ToolCall("fly", {}), ToolCall("press", "{")]), press("press")]
    acting, server = policy(script)
    [action] = await acting.act(seen("Go."), ACTIONS)
    assert action.name == "press"
    answers = [message["content"] for message in server.requests[1].messages if message["role"] == "tool"]
    assert "Unknown tool 'fly'" in answers[0]
    assert "not valid JSON" in answers[1]


async def test_a_good_call_beside_a_bad_one_is_made(policy):
    acting, server = policy([press("fly", "press"), press("press")])
    [action] = await acting.act(seen("Go."), ACTIONS)
    await acting.act(seen("pressed", action.id), ACTIONS)
    answers = [message["content"] for message in server.requests[1].messages if message["role"] == "tool"]
    assert len(answers) == 2


async def test_words_alone_are_reminded_once_then_end_the_episode(policy):
    acting, server = policy("I think I am done.")
    assert await acting.act(seen("Go."), ACTIONS) == []
    assert (acting.stop_reason, len(server.requests)) == ("end_turn", 2)


async def test_a_model_that_only_makes_nonsense_is_given_up(policy):
    acting, _ = policy(press("fly"))
    assert await acting.act(seen("Go."), ACTIONS) == []
    assert acting.stop_reason == "refusal"


@pytest.mark.parametrize(
    ("limits", "stop"),
    [({"max_steps": 1}, "max_steps"), ({"max_tokens": 50}, "max_tokens"), ({"max_cost_usd": 0.0001}, "max_cost")],
)
async def test_limits_end_the_episode(policy, limits, stop):
    acting, _ = policy(press("press", usage=Usage(90, 10)), model="gpt-4o", **limits)
    assert await acting.act(seen("Go."), ACTIONS)
    assert await acting.act(seen("Go on."), ACTIONS) == []
    assert acting.stop_reason == stop


async def test_a_conversation_without_room_ends_the_episode(policy):
    acting, _ = policy(Fault(400, "maximum context length is 1 token", code="context_length_exceeded"))
    assert await acting.act(seen("Go."), ACTIONS) == []
    assert acting.stop_reason == "max_tokens"


async def test_a_reset_forgets_everything(policy):
    acting, server = policy(press("press"))
    await acting.act(seen("First."), ACTIONS)
    acting.reset()
    assert acting.usage == {}
    await acting.act(seen("Second."), ACTIONS)
    assert "First." not in str(server.requests[1].messages)


async def test_a_key_that_is_refused_is_the_agent_s_failure(policy):
    acting, _ = policy(Fault(401, "bad key"))
    with pytest.raises(AgentFailure, match="provider refused"):
        await acting.act(seen("Go."), ACTIONS)
