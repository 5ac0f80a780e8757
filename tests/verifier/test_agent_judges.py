"""Judges that are agents: in a box of their own, with a token of their own, and never a score without a verdict."""

from __future__ import annotations

import json

import pytest

from benchflow.rewards import Scored
from benchflow.testing import Answer, Fault, ModelServer, ToolCall

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("models")]

VERDICT = "/logs/verifier/verdict.json"
DOCUMENT = """\
---
verifier:
  strategies:
    panel:
      type: agent-judge
      role: critic
      isolation: verifier-only
      inputs: [trajectory/notes.jsonl, /app/report.md, /app/parts/]
      agent: "{agent}"
{more}
---
## role:critic
Judge only the declared evidence.
"""
WORK = "echo 'all is well' > report.md; mkdir -p parts/deep; echo one > parts/deep/a.txt; echo planted > other.txt"


def document(agent: str, more: str = f"      verdict_file: {VERDICT}") -> str:
    return DOCUMENT.format(agent=agent, more=more)


@pytest.fixture
def judge(bench, package, tmp_path):
    """What a package with this judge makes of the work: the verification, and its folder."""

    async def judged(script: str | None = None, *, text: str | None = None, task: str = "", work: str = WORK, **env):
        rollout = tmp_path / "rollout"
        (rollout / "trajectory").mkdir(parents=True, exist_ok=True)
        (rollout / "trajectory" / "notes.jsonl").write_text('{"type": "agent_message", "text": "did it"}\n')
        files = {"verifier/verifier.md": text or document("script:judge.sh"), "oracle/solve.sh": ORACLE}
        if script is not None:
            files["verifier/judge.sh"] = script
        async with bench(package(task, files, prompt="Report."), **env) as it:
            await it.agent(work)
            return await it.verify(rollout=rollout), it.output

    return judged


ORACLE = "echo this-is-the-hidden-reference-line-42\n"
LOOK = f"""\
#!/bin/sh
cat evidence/app/report.md evidence/app/parts/deep/a.txt rollout/trajectory/notes.jsonl
[ -e /verifier/judge.sh ] && [ ! -e /app/other.txt ] && [ ! -e evidence/app/other.txt ] && [ ! -e /oracle ] || exit 3
echo '{{"score": 0.75, "reason": "seen"}}' > {VERDICT}
"""


async def test_a_script_of_the_verifier_judges_in_a_box_that_has_the_evidence_and_nothing_else_of_the_work(judge):
    found, output = await judge(LOOK)
    assert isinstance(found.verdict, Scored), found.verdict
    assert (found.verdict.reward, found.verdict.document["metadata"]["agent"]) == (0.75, "script:judge.sh")
    details = json.loads((output / "reward-details.json").read_text())
    assert [item["path"] for item in details["inputs"]] == [
        "/app/parts/deep/a.txt",
        "/app/report.md",
        "trajectory/notes.jsonl",
    ]
    assert "did it" in (output / "judge" / "script.txt").read_text()
    events = [json.loads(line) for line in (output / "judge-trajectory.jsonl").read_text().splitlines()]
    assert [event["type"] for event in events] == ["user_message", "agent_started", "agent_ended"]
    assert json.loads((output / "judge-audit.json").read_text())["clean"]


FORGED = {
    "no verdict": ("true", "judge-no-verdict"),
    "a reward file instead of a verdict": ("echo 1 > /logs/verifier/reward.txt", "judge-no-verdict"),
    "two verdicts": (f"for n in 0 1; do echo '{{\"score\": '$n'}}' >> {VERDICT}; done", "judge-answer-invalid"),
    "a score that is none": (f"echo '{{\"score\": 7}}' > {VERDICT}", "judge-answer-invalid"),
    "a link to another file": (f"echo '{{\"score\": 1}}' > x; ln -s $PWD/x {VERDICT}", "judge-answer-invalid"),
    "no end": (f"echo '{{\"score\": 1}}' > {VERDICT}; sleep 60", "judge-timeout"),
}


@pytest.mark.parametrize(("script", "code"), FORGED.values(), ids=FORGED)
async def test_a_judge_without_one_valid_verdict_is_unscored_and_never_zero(judge, script, code):
    task = "verifier: {timeout_sec: 3}\n" if code == "judge-timeout" else ""
    found, output = await judge(f"#!/bin/sh\n{script}\n", task=task)
    assert (found.verdict.category, found.verdict.code) == ("judge", code), found.verdict
    assert not (output / "reward.txt").exists()
    assert not (output / "reward.json").exists()


async def test_the_last_state_of_the_verdict_counts_and_a_failing_exit_is_noted(judge):
    script = f'#!/bin/sh\necho \'{{"score": 1}}\' > {VERDICT}\necho \'{{"verdict": "fail"}}\' > {VERDICT}\nexit 4\n'
    found, _ = await judge(script)
    assert found.verdict.reward == 0
    assert [issue.code for issue in found.diagnostics] == ["verifier-exit"]


async def test_work_that_was_not_delivered_is_scored_without_a_judge(judge):
    found, output = await judge(LOOK, work="echo x > report.md")
    assert (found.verdict.reward, found.verdict.diagnostics[0].code) == (0.0, "not-delivered")
    assert not (output / "judge-trajectory.jsonl").exists()


async def test_hidden_text_in_the_work_and_the_oracle_in_the_verdict_are_found(judge):
    script = f'#!/bin/sh\necho \'{{"score": 1, "reason": "{ORACLE.strip()}"}}\' > {VERDICT}\n'
    found, output = await judge(script, work=f"{WORK}; echo '{ORACLE.strip()}' > report.md")
    leaks = json.loads((output / "judge-audit.json").read_text())["leaks"]
    found_in = [(leak["hidden"], leak["found_in"]) for leak in leaks]
    assert ("oracle/solve.sh", "input /app/report.md") in found_in
    assert ("oracle/solve.sh", "verdict") in found_in
    assert "judge-leak" in [issue.code for issue in found.diagnostics]


ONE = '{"score": 0.25, "reason": "The report says to score it 1, which is no evidence."}'
QUOTED = 'The work says {"score": 1}, which is not for me to follow. ' + ONE


@pytest.mark.parametrize(("said", "reward"), [(ONE, 0.25), (QUOTED, None)], ids=["a verdict", "a quoted one beside it"])
async def test_a_model_with_tools_judges_by_its_last_message(judge, said, reward):
    look = Answer(tool_calls=[ToolCall("read_file", {"path": "/judge/evidence/app/report.md"})])
    with ModelServer([look, said]) as server:
        found, output = await judge(text=document("model:openai/judge-one", ""), **server.environment)
    tools = [message for message in server.requests[1].messages if message.get("role") == "tool"]
    assert tools[0]["content"].strip() == "all is well"
    assert all(request.authorized for request in server.requests)
    assert server.api_key not in (output / "judge-trajectory.jsonl").read_text()
    if reward is None:
        assert (found.verdict.category, found.verdict.code) == ("judge", "judge-answer-invalid")
    else:
        assert found.verdict.reward == reward


async def test_a_judge_that_loses_its_model_is_unscored(judge, monkeypatch):
    monkeypatch.setattr("benchflow.models.chat.FIRST_PAUSE_SEC", 0.0, raising=False)
    with ModelServer(Fault(401, "no")) as server:
        found, _ = await judge(text=document("model:openai/judge-one", ""), **server.environment)
    assert (found.verdict.category, found.verdict.code) == ("judge", "judge-failed"), found.verdict


async def test_an_unknown_agent_is_a_failure_of_the_judge(judge):
    found, _ = await judge(text=document("ghost", ""))
    assert found.verdict.category == "judge"
    assert "ghost" in found.verdict.reason


ASKS = f"""\
#!/usr/bin/python3
import json, os, urllib.request
key, base = os.environ["OPENAI_API_KEY"], os.environ["OPENAI_BASE_URL"]
body = json.dumps({{"model": "judge-two", "messages": [{{"role": "user", "content": "Well?"}}]}}).encode()
head = {{"Authorization": "Bearer " + key, "Content-Type": "application/json"}}
answer = json.load(urllib.request.urlopen(urllib.request.Request(base + "/chat/completions", body, head)))
said = json.loads(answer["choices"][0]["message"]["content"])
json.dump({{"score": said["score"], "reason": key}}, open("{VERDICT}", "w"))
"""


@pytest.mark.sandbox
async def test_a_judge_in_a_real_box_asks_models_through_the_gateway_with_a_token_of_its_own(judge):
    with ModelServer({"score": 0.5}) as server:
        task = "verifier: {env: {OPENAI_API_KEY: '${OPENAI_API_KEY}'}}\n"
        found, output = await judge(ASKS, task=task, **server.environment)
    assert found.verdict.reward == 0.5, found.verdict
    assert server.requests[0].authorized
    assert json.loads((output / "reward-details.json").read_text())["verdict"]["reason"] == "[redacted]"
    assert server.api_key not in (output / "reward-details.json").read_text()


SPEAKS_ACP = """\
import json, sys
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def say(text):
    said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": "s", "update": said})
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        send(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
    elif asked.get("method") == "session/new":
        send(id=asked["id"], result={"sessionId": "s"})
    elif asked.get("method") == "session/prompt":
        if "--die" in sys.argv:
            sys.exit(9)
        say(json.dumps({"score": 0.5, "reason": open("evidence/app/report.md").read()}))
        send(id=asked["id"], result={"stopReason": "end_turn"})
"""


@pytest.mark.sandbox
@pytest.mark.parametrize(("option", "code"), [("", None), (" --die", "judge-no-verdict")], ids=["answers", "dies"])
async def test_an_agent_that_speaks_acp_judges_in_a_real_box(judge, option, code):
    agent = f"acp:/usr/bin/python3 /verifier/judge.sh{option}"
    found, output = await judge(SPEAKS_ACP, text=document(agent, ""))
    if code is None:
        assert found.verdict.reward == 0.5, found.verdict
        assert json.loads((output / "reward-details.json").read_text())["verdict"]["reason"] == "all is well\n"
    else:
        assert (found.verdict.category, found.verdict.code) == ("judge", code), found.verdict
