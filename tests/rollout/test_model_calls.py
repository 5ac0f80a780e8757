"""Rollouts whose agents ask models through the gateway: what is counted, limited, unscored, recorded and replayed."""

import json
import os

import anyio
import httpx
import pytest

from benchflow.agents.protocol import TurnResult
from benchflow.models.gateway import CallLimits, Gateway
from benchflow.models.gateway.replay_book import ReplayBook
from benchflow.record import read_model_calls
from benchflow.rollout.atif import export_atif
from benchflow.rollout.drivers import turns
from benchflow.testing import Answer, Fault, ModelServer, ToolCall

pytestmark = pytest.mark.anyio

KEY = "sk-canary-0123456789abcdef"
ASK = """\
import json, os, sys, urllib.error, urllib.request
def ask(text):
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    try:
        return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return "swallowed " + error.read().decode()
"""


@pytest.fixture
def server():
    with ModelServer("done", api_key=KEY) as running:
        yield running


@pytest.fixture
def machine(server):
    return {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}


def asking(*texts, then="echo done > answer.txt", wait=0.0, **asked):
    """What an agent in a box does: ask a model, swallow what fails, and go on."""

    async def work(context):
        assert context.models is not None
        headers = {"authorization": f"Bearer {context.models.token}"}
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=60, verify=False) as client:
            for text in texts:
                body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **asked}
                await client.post(f"{context.models.url('openai')}/chat/completions", json=body)
        await anyio.sleep(wait)
        return then

    return work


@pytest.fixture(autouse=True)
def inside(monkeypatch, new_script):
    """Agents of these tests ask from inside."""
    from benchflow.agents.protocol import Agent

    monkeypatch.setattr(Agent, "asks_inside", True)


def calls(tmp_path, out="out"):
    return list(read_model_calls(tmp_path / out / "model_calls.jsonl"))


async def test_usage_is_what_the_gateway_saw_and_not_what_the_agent_says(run, make_package, machine, tmp_path):
    result = await run(make_package(), commands=[asking("one", "two")], machine=machine)
    assert result.reward == 1
    assert result.usage["model_calls"] == 2
    assert result.usage["input_tokens"] == sum(call.usage["input_tokens"] for call in calls(tmp_path))
    assert result.usage["cost_usd"] > 0
    assert [(call.place.role, call.place.turn) for call in calls(tmp_path)] == [("agent", 0), ("agent", 0)]


async def test_a_failure_that_the_agent_swallowed_is_unscored(run, make_package, machine, server, tmp_path):
    server._script = (Fault(401, "no"),)
    result = await run(make_package(), commands=[asking("one")], machine=machine)
    assert (result.status, result.reward) == ("unscored", None)
    assert (result.error.category, result.error.code, result.error.phase) == ("agent", "key-refused", "agent")
    assert calls(tmp_path)[0].outcome == "failed"


async def test_a_forbidden_tool_that_only_the_calls_show_is_unscored(run, make_package, machine, server):
    frontmatter = "benchflow:\n  agent_policy: {search: disabled, forbidden_tools: [deploy]}\n"
    tools = [{"type": "function", "function": {"name": "Deploy"}}, {"type": "web_search"}]
    server._script = (Answer(tool_calls=[ToolCall("Deploy")]), "done")
    result = await run(make_package(frontmatter), commands=[asking("one", "two", tools=tools)], machine=machine)
    assert (result.error.category, result.error.code) == ("agent", "forbidden-tool")
    assert "Deploy (1)" in result.error.message
    found = result.to_dict()["audit"]
    assert found == {"forbidden_tool_calls": {"Deploy": 1}, "passed": False, "removed_tools": {"web_search": 2}}


async def test_at_a_limit_what_was_done_is_verified_and_the_record_says_which(run, make_package, machine, tmp_path):
    limits = CallLimits(max_calls=1)
    result = await run(make_package(), commands=[asking("one", "two")], machine=machine, call_limits=limits)
    assert (result.status, result.reward) == ("scored", 1)
    assert result.agent.stop_reason == "max_calls"
    assert result.notes.limits_reached == ("max_calls",)
    assert [call.outcome for call in calls(tmp_path)] == ["answered", "limited"]


async def test_an_agent_that_goes_on_after_a_limit_is_ended(run, make_package, machine, monkeypatch, events):
    monkeypatch.setattr(turns, "LIMIT_SEC", 0.2)
    limits = CallLimits(max_calls=1)
    result = await run(make_package(), commands=[asking("one", "two", wait=600)], machine=machine, call_limits=limits)
    assert (result.status, result.reward) == ("scored", 0)
    assert (result.agent.stop_reason, result.agent.timed_out) == ("max_calls", False)
    assert any(event.get("code") == "max_calls" for event in events())


async def test_the_token_ends_with_the_agent_phase(run, make_package, machine, new_script):
    script = new_script(asking("one"))
    await run(make_package(), script=script, machine=machine)
    access = script.contexts[0].models
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{access.url('openai')}/models", headers={"authorization": f"Bearer {access.token}"})


async def test_rollouts_that_are_not_begun_when_the_job_reaches_its_limit_say_so(run, make_package, machine):
    async with Gateway(machine, limits=CallLimits(max_calls=1)) as gateway:
        options = {"machine": machine, "gateway": gateway}
        first = await run(make_package(), commands=[asking("one", "two")], **options)
        assert (first.status, first.notes.limits_reached) == ("scored", ("job max_calls",))
        second = await run(make_package(), commands=[asking("one")], out="second", **options)
    assert (second.status, second.error.category, second.error.code) == ("unscored", "cancelled", "job-limit")


@pytest.mark.slow
@pytest.mark.xdist_group("models")  # the client loads for seconds
async def test_a_model_agent_is_recorded_limited_and_replayed(run, make_package, machine, server, tmp_path):
    limits = {"machine": machine, "call_limits": CallLimits(max_calls=2), "make_agent": None}
    result = await run(make_package(), agent="model:openai/gpt-4o", **limits)
    assert (result.status, result.usage["model_calls"]) == ("scored", 1)
    (call,) = calls(tmp_path)
    assert (call.dialect, call.outcome, call.usage["output_tokens"]) == ("litellm", "answered", 1)
    server._script = (Fault(500, "gone"),)
    book = ReplayBook.open(tmp_path / "out")
    again = await run(
        make_package(), agent="model:openai/gpt-4o", out="again", replay=book, machine={}, make_agent=None
    )
    assert (again.status, calls(tmp_path, "again")[0].replayed) == ("scored", True)
    assert len(server.requests) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("models")  # the client loads for seconds
async def test_a_model_agent_ends_its_turn_at_a_limit(run, make_package, machine, server, tmp_path):
    from benchflow.testing import Answer, ToolCall

    server._script = lambda _: Answer(tool_calls=[ToolCall("bash", {"command": "echo done > answer.txt"})])
    options = {"machine": machine, "call_limits": CallLimits(max_calls=2), "make_agent": None}
    result = await run(make_package(), agent="model:openai/gpt-4o", **options)
    assert (result.status, result.reward, result.agent.stop_reason) == ("scored", 1, "max_calls")
    assert [call.outcome for call in calls(tmp_path)] == ["answered", "answered", "limited"]


@pytest.mark.sandbox
@pytest.mark.slow
async def test_a_box_without_network_asks_a_model_and_holds_no_key(run, make_package, machine, tmp_path):
    script = tmp_path / "agent.sh"
    script.write_text(
        f"cat > ask.py <<'EOF'\n{ASK}\nprint(ask('hi'))\nEOF\npython3 ask.py > answer.txt\n"
        "env; (env; cat /proc/*/environ 2>/dev/null) | tr a-z b-za\n"  # a record hides a key only as it is
        "grep -rl sk-canary /app /home /root /tmp /etc /opt /var 2>/dev/null; true\n"
    )
    named = "{OPENAI_API_KEY: '${OPENAI_API_KEY}', APP_KEY: '${OPENAI_API_KEY}', CLAUDE: '${ANTHROPIC_AUTH_TOKEN}'}"
    package = make_package(
        f"environment:\n  network_mode: no-network\n  env: {named}\n"
        "benchflow:\n  secrets:\n    - {name: app, env: APP_SECRET, scope: environment}\n",
    )
    keys = {"ANTHROPIC_API_KEY": f"{KEY}-2", "ANTHROPIC_AUTH_TOKEN": f"{KEY}-3", "APP_SECRET": KEY}
    result = await run(package, f"script:{script}", machine={**machine, **keys})
    assert (result.status, result.reward) == ("scored", 1)
    assert result.usage["model_calls"] == 1
    said = (tmp_path / "out" / "agent" / "script.txt").read_text()
    shifted = str.maketrans("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza")
    for given in ("APP_SECRET=bench-", "APP_KEY=bench-", "CLAUDE=bench-"):
        assert given.translate(shifted) in said
    assert KEY.translate(shifted) not in said
    assert "OPENAI_BASE_URL=http://127.0.0.1:" in said
    found = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert found == []
    assert json.loads((tmp_path / "out" / "result.json").read_text())["usage"]["model_calls"] == 1


async def test_a_turn_result_of_an_agent_without_calls_stays_as_it_is(run, make_package, machine):
    async def work(context):
        return TurnResult("end_turn", usage={"input_tokens": 7})

    result = await run(make_package(), commands=[work], machine=machine)
    assert result.usage == {"input_tokens": 7}


async def test_a_token_that_an_agent_shows_its_model_is_neither_recorded_nor_in_the_way_of_a_replay(
    run, make_package, machine, new_script, tmp_path
):
    async def showing(context):
        return await asking(f"my key is {context.models.token}")(context)

    script = new_script(showing)
    assert (await run(make_package(), script=script, machine=machine)).reward == 1
    assert script.contexts[0].models.token not in (tmp_path / "out" / "model_calls.jsonl").read_text()
    book = ReplayBook.open(tmp_path / "out")
    again = await run(make_package(), commands=[showing], machine=machine, out="again", replay=book)
    assert (again.reward, calls(tmp_path, "again")[0].replayed) == (1, True)


async def test_token_ids_are_recorded_and_the_export_carries_the_calls(run, make_package, machine, tmp_path):
    ask = asking("one two")

    async def work(context):
        command = await ask(context)
        context.events("agent_message", text="I asked.")
        return command

    await run(make_package(), commands=[work], machine=machine, token_ids=True)
    document = export_atif(tmp_path / "out")
    (step,) = [step for step in document["steps"] if step["source"] == "agent"]
    assert step["llm_call_count"] == 1
    assert len(step["metrics"]["completion_token_ids"]) == len(step["metrics"]["logprobs"]) == 1
    assert step["metrics"]["prompt_token_ids"]
    (call,) = document["extra"]["model_calls"]
    assert (call["seq"], call["request"]["return_token_ids"]) == (1, True)
    assert document["final_metrics"]["total_cost_usd"] > 0


async def test_a_key_that_a_package_or_the_user_passes_on_is_replaced_by_the_token(
    run, make_package, machine, new_script
):
    script = new_script("echo done > answer.txt")
    given = {"APP_KEY": KEY, "APP_CONFIG": f'{{"key": "{KEY}"}}', "PLAIN": "sk"}
    assert (await run(make_package(), script=script, machine=machine, agent_env=given)).reward == 1
    context = script.contexts[0]
    token = context.models.token
    assert {name: context.env[name] for name in given} == {
        "APP_KEY": token,
        "APP_CONFIG": f'{{"key": "{token}"}}',
        "PLAIN": "sk",
    }
