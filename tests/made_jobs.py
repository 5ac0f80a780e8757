"""Jobs for tests of readers: written with the writers of the project, without running anything."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow.evaluation.store import JobStore
from benchflow.files.redaction import Redactor
from benchflow.record import (
    AgentPart,
    ArenaPart,
    ArenaRole,
    BranchOption,
    BranchRecord,
    CallPlace,
    CallRetry,
    ErrorRecord,
    Isolation,
    JobNode,
    JobNodes,
    JobRecord,
    JobRequest,
    LiveRollout,
    MessageFile,
    MessagePart,
    ModelCalls,
    NoOutcome,
    NotCarriedOver,
    Notes,
    Player,
    Result,
    RewardLine,
    RolloutFolder,
    SandboxPart,
    Score,
    TaskPart,
    Trajectory,
    VerifierPart,
    WorkKey,
)
from benchflow.record.codec import plain

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
"""Text that does something wherever it is taken for HTML."""
BROKEN = ErrorRecord("infrastructure", "model-unreachable", "agent", f"It did not answer {HOSTILE}")
BRANCHES = (
    BranchRecord(
        id="1",
        parent="main",
        round=1,
        request=f"Remove it? {HOSTILE}",
        option=BranchOption("allow", "allow_once"),
        outcome=NoOutcome("taken"),
    ),
    BranchRecord(
        id="2",
        parent="main",
        round=1,
        request="Remove it?",
        option=BranchOption("reject", "reject_once"),
        outcome=Score(0.5, {"reward": 0.5}),
    ),
)


def made_result(
    task: str, attempt: int = 1, outcome: Score | ErrorRecord | float = 1.0, *, path: str = "", **changes: Any
) -> Result:
    """A result with everything that pages show."""
    ended = Score(outcome, {"reward": outcome, "tests": outcome}) if isinstance(outcome, float) else outcome
    isolation = Isolation("shared", "default", None)
    made = Result(
        task=TaskPart(task, path or f"packages/{task}", "sha256:1", "sha256:2"),
        agent=AgentPart("model", "acme/large", 0, timed_out=False),
        sandbox=SandboxPart("local", "host", "exact"),
        attempt=attempt,
        outcome=ended,
        verifier=VerifierPart("script", "tests", isolation, 0, (), (), NotCarriedOver(0, ())),
        timing={"environment": 0.5, "agent": 20.0, "verify": 1.5, "total": 22.0},
        usage={"input_tokens": 1200, "output_tokens": 80, "cost_usd": 0.02},
        key=WorkKey(f"{task}-{attempt}"),
        started_at="2026-11-16T09:12:41.120Z",
        finished_at="2026-11-16T09:14:02.020Z",
    )
    return replace(made, **changes)


def open_job(jobs: Path, name: str, planned: int, **request: Any) -> JobStore:
    """A job that is running as long as it is not closed."""
    asked = JobRequest(("packages",), "model", "acme/large", attempts=2, **request)
    return JobStore.create(jobs, JobRecord(name, asked, planned, "2026-11-16T09:12:40.000Z"))


def add_rollout(
    store: JobStore,
    name: str,
    result: Result | None,
    *,
    said: Iterable[tuple[str, Mapping[str, Any]]] = (),
    files: Mapping[str, bytes] | None = None,
    workspace: Mapping[str, bytes] | None = None,
) -> Path:
    """A rollout with its folder; without a result it is running."""
    folder = store.places.rollouts / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"task": {"name": name}, "attempt": 1, "agent": "model"}))
    with Trajectory(folder / "trajectory.jsonl", Redactor({})) as events:
        for kind, fields in said:
            events(kind, **fields)
    for path, content in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    if workspace is not None:
        with tarfile.open(folder / "workspace.tar.gz", "w:gz") as archive:
            _pack(archive, "workspace.json", b'{"schema": "benchcube.workspace.v1", "deleted": ["/app/gone.txt"]}')
            for path, content in workspace.items():
                _pack(archive, f"files{path}", content)
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result.to_dict()))
        store.append(result, name)
    return folder


def add_calls(folder: Path, count: int = 3, text: str = HOSTILE) -> None:
    """Model calls of a rollout: answered ones whose conversation grows, and at the end one that failed."""
    calls = ModelCalls(RolloutFolder(folder), Redactor({}))
    messages: list[dict[str, str]] = [{"role": "system", "content": f"Be careful. {text} " + "rule " * 400}]
    common: dict[str, Any] = {
        "time": "2026-11-16T09:12:41.120Z",
        "dialect": "openai-chat",
        "provider": "openai",
        "endpoint": f"POST /v1/chat/completions{text}",
    }
    for number in range(1, count):
        messages.append({"role": "user", "content": f"question {number} {text}"})
        calls.append(
            **common,
            place=CallPlace("agent", turn=0),
            model=f"large{text}",
            outcome="answered",
            status=200,
            usage={"input_tokens": 12_000 + number, "output_tokens": 80, "cached_tokens": 900, "cost_usd": 0.02},
            timing={"first_byte": 0.4, "first_token": 0.5, "total": 2.5},
            retries=(CallRetry("rate-limited", 429, 1.5),) if number == 1 else (),
            removed_tools=("web_search",) if number == 1 else (),
            request={"model": "large", "messages": messages, "temperature": 0},
            body=json.dumps({"choices": [{"message": {"content": f"answer {number} {text}" * 40}}]}).encode(),
        )
    calls.append(
        **common,
        place=CallPlace("judge", "judge"),
        model=None,
        outcome="failed",
        status=500,
        usage={},
        timing={"total": 0.1},
        code="model-unreachable",
        message=f"It failed {text}",
        request={"model": text},
        body=text.encode(),
    )
    calls.close()


def _pack(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def conversation(text: str = "I look first.") -> list[tuple[str, Mapping[str, Any]]]:
    """What an agent with one tool writes."""
    return [
        ("user_message", {"text": f"Fix the *parser*. {HOSTILE}"}),
        (
            "agent_thought",
            {"text": f"A thought about it. {HOSTILE} [a](javascript:alert(1)) ![b](http://192.0.2.1/b.png)"},
        ),
        ("agent_message", {"text": f"{text} {HOSTILE}"}),
        ("tool_call", {"tool": f"bash{HOSTILE}", "tool_call_id": "1", "arguments": {"command": f"ls {HOSTILE}"}}),
        ("tool_result", {"tool_call_id": "1", "output": f"\x1b[31mred\x1b[0m \u202e{HOSTILE}"}),
        ("agent_message", {"text": "A long story. " + "word " * 2_000}),
        ("usage", {"usage": {"input_tokens": 1200, "output_tokens": 80, "cost_usd": 0.02}}),
    ]


def rich_job(jobs: Path, name: str, *, directory: str = "", package: str = "") -> Path:
    """A finished job with a full, a partial, an unscored and a branched rollout, and hostile text everywhere."""
    store = open_job(jobs, name, 4, directory=directory)
    notes = Notes(branches=BRANCHES)
    branched = made_result("tree", 1, 0.5, notes=notes)
    path = package or "packages/parser"
    files = {
        "verifier/test-stdout.txt": f"FAILED test_a.py::test_forms - ValueError {HOSTILE}\n1 failed".encode(),
        f"artifacts/{HOSTILE.replace('/', '-')[:80]}.html": HOSTILE.encode(),
        "artifacts/shot.png": b"\x89PNG\r\n\x1a\n" + b"\0" * 20,
        "artifacts/page.svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "rewards.jsonl": (
            json.dumps(
                {
                    "ts": "2026-11-16T09:14:02Z",
                    "type": "process",
                    "source": "verifier_rubric",
                    "value": 0.6,
                    "tag": f"forms {HOSTILE}",
                    "space": "output",
                    "granularity": "step",
                    "meta": {"reason": f"3 of 5 {HOSTILE}"},
                }
            )
            + "\n"
        ).encode(),
    }
    workspace = {"/app/parser.py": f"def parse():\n    return 2  # {HOSTILE}\n".encode()}
    add_rollout(store, "parser__1__a", made_result("parser", 1, 1.0, path=path), said=conversation("First try."))
    partial = made_result("parser", 2, 0.6, path=path)
    add_calls(add_rollout(store, "parser__2__b", partial, said=conversation(), files=files, workspace=workspace))
    add_rollout(store, "words__1__c", made_result("words", 1, BROKEN, verifier=None))
    folder = add_rollout(store, "tree__1__d", branched, said=conversation())
    rounds = [
        {"round": 1, "scene": "plan", "role": "planner", "prompt": HOSTILE, "rewards": {"reward": 0.25}},
        {"round": 2, "scene": "build", "role": "coder", "prompt": "Go on", "rewards": {"reward": 0.5}},
    ]
    (folder / "user_rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    store.close()
    return store.folder


def made_game(players: Mapping[str, tuple[str, float | None]], *, attempt: int = 1, **changes: Any) -> Result:
    """The result of a game from who played which role and what they got; without rewards it is unscored."""
    roles = {
        role: ArenaRole(agent, None, None, reward, "played", messages=4) for role, (agent, reward) in players.items()
    }
    rewards = {role: reward for role, (_, reward) in players.items() if reward is not None}
    best = max(rewards, key=lambda role: rewards[role], default=None)
    winner = best if best is not None and list(rewards.values()).count(rewards[best]) == 1 else None
    first, (agent, reward) = next(iter(players.items()))
    part = ArenaPart(
        roles,
        scored_role=first,
        assessor="built-in",
        winner=winner,
        seed=611_375_616,
        rotation={role: agent for role, (agent, _) in players.items()},
        messages=9,
        events=2,
        tool_calls=1,
    )
    outcome = BROKEN if reward is None else Score(reward, {"reward": reward, **rewards})
    made = made_result(changes.pop("task", "haggle"), attempt, outcome, arena=part, **changes)
    key = WorkKey(f"{made.task.name}-{attempt}-{'-'.join(agent for agent, _ in players.values())}")
    return replace(made, agent=AgentPart(agent, None, 0, timed_out=False), key=key, usage={})


def add_exchange(folder: Path, rounds: int = 4, text: str = HOSTILE) -> None:
    """What was said in a game of two roles: offers and answers, a tool call, rewards, an error, and a large part."""
    places = RolloutFolder(folder)
    log = MessageFile(places, Redactor({}))
    second = 0

    def at() -> str:
        nonlocal second
        second += 1
        return f"2026-11-16T09:{12 + second // 60:02}:{second % 60:02}.120Z"

    def say(sender: str, receiver: str, *parts: MessagePart, **known: Any) -> int:
        fields = {"kind": "message", "context": "game", "message_id": None, "latency_ms": None, **known}
        return log.append(time=at(), sender=sender, receiver=receiver, parts=parts, **fields).seq

    def spoken(words: str) -> MessagePart:
        return MessagePart("text", len(words), text=words)

    rewards = []
    for number in range(1, rounds + 1):
        for role in ("buyer", "seller"):
            asked = say("umpire", role, spoken(f"Round {number}: what do you offer, *{role}*? {text}"))
            if number == 1:
                say(role, "umpire", spoken("thinking"), kind="status", state="working", reply_to=asked, task="t1")
                data = {"item": f"bicycle {text}"}
                log.append_call(
                    time=at(),
                    role=role,
                    tool=f"look{text}",
                    arguments=data,
                    ok=role == "buyer",
                    output=text,
                    seconds=0.2,
                )
            offer = MessagePart("data", 30, data={"price": 100 - number, "note": text})
            say(role, "umpire", spoken(f"I say {100 - number}. {text}"), offer, latency_ms=812.5, reply_to=asked)
            value = round(number / (2 * rounds), 3)
            meta = {"reason": f"an offer in round {number} {text}"}
            rewards.append(RewardLine(at(), "process", "assessor", value, role, "output", "step", meta))
    big = "a long letter " * 500
    say("umpire", "seller", MessagePart("text", len(big), text=big))
    say("seller", "umpire", spoken(f"no answer {text}"), kind="error", code=f"flood{text}"[:40])
    rewards.append(RewardLine(at(), "terminal", "verifier", 0.6, "reward", "output", "terminal", {}))
    log.close()
    places.rewards.write_text("".join(json.dumps(plain(line)) + "\n" for line in rewards))


def arena_job(jobs: Path, name: str) -> Path:
    """A finished job of games between three players that take turns, with hostile names; one game is unscored."""
    trick = f"script:{HOSTILE}"
    order = [("oracle", trick), (trick, "oracle"), ("oracle", "nop"), ("nop", "oracle"), (trick, "nop"), ("nop", trick)]
    strength = {"oracle": 0.9, trick: 0.7, "nop": 0.0}
    players = tuple(map(Player, strength))
    store = open_job(jobs, name, 13, rotation=players)
    number = 0
    for attempt in (1, 2):
        for buyer, seller in order:
            number += 1
            swing = 0.3 if attempt == 2 and "nop" not in (buyer, seller) else 0.0
            mine, theirs = strength[buyer] - swing, strength[seller]
            result = made_game({"buyer": (buyer, mine), "seller": (seller, theirs)}, attempt=attempt)
            folder = add_rollout(store, f"haggle__{attempt}__{number}", result, said=conversation())
            if number == 1:
                add_exchange(folder)
    broken = made_game({"buyer": ("oracle", None), "seller": ("nop", None)}, attempt=3)
    add_rollout(store, "haggle__3__13", replace(broken, verifier=None))
    store.close()
    return store.folder


def add_nodes(store: JobStore, text: str = HOSTILE) -> None:
    """Two nodes of a running job, of which one is lost; a rollout runs on the other, and another one waits."""
    live = LiveRollout(
        "far", "acme/far", 2, "model", None, "2026-11-16T09:12:41Z", "agent", None, f"bash {text}", 7, {}
    )
    ready = JobNode(
        "1", "fast", "ready", None, 8.0, 64_000, 32_000, 90_000, clock_offset_sec=-3.5, finished=4, rollouts=(live,)
    )
    lost = JobNode("2", "gone", "lost", f"It does not answer. {text}", lost=3)
    nodes = JobNodes("running", "2026-11-16T09:12:42Z", 1, (ready, lost), "node fast has 8 of 8 processors reserved")
    store.places.nodes.write_text(json.dumps(nodes.to_dict()))
