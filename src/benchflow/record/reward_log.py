"""The rewards of a rollout as events: lines of `rewards.jsonl`, one per judged item and step, then the terminal one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.files.redaction import Redactor
from benchflow.record.codec import plain, read
from benchflow.record.json_files import JsonLines, read_lines
from benchflow.record.trajectory import timestamp
from benchflow.rewards import Scored, Verdict


@dataclass(frozen=True, slots=True)
class RewardLine:
    """One reward, and what it was given for."""

    ts: str
    type: str
    """`terminal` for the reward of the rollout, else `process`."""
    source: str
    value: float
    tag: str
    space: str
    granularity: str
    meta: Mapping[str, Any]


def write_rewards(
    path: Path, verdict: Verdict, redactor: Redactor, *, step: str | None = None, final: bool = True
) -> None:
    """Append the events of one verification; of one without a score there are none."""
    if isinstance(verdict, Scored):
        with closing(JsonLines(path)) as lines:
            for line in reward_lines(verdict, step=step, final=final):
                lines.append(redactor.data(plain(line)))


def read_rewards(path: Path) -> Iterator[RewardLine]:
    """The events of a file, one at a time; lines that are torn or not rewards are left out."""
    for line in read_lines(path):
        try:
            yield read(RewardLine, line)
        except ValueError:
            continue


def reward_lines(scored: Scored, *, step: str | None = None, final: bool = True) -> Iterator[RewardLine]:
    """The events of one verification; `final` when its reward is the rollout's."""
    now = timestamp()
    common: dict[str, Any] = {"step": step} if step is not None else {}
    for item in scored.items:
        meta: dict[str, Any] = {"reason": item.reason} if item.reason else {}
        yield RewardLine(now, "process", "verifier_rubric", item.score, item.name, item.space, "step", meta | common)
    for event in scored.events:
        if event.reward is not None:
            at = event.timestamp if isinstance(event.timestamp, str) else now
            index: dict[str, Any] = {"step_index": event.step} if event.step is not None else {}
            meta = index | common
            yield RewardLine(
                at, "process", event.source, event.reward, event.type, event.space, event.granularity, meta
            )
    kind, granularity = ("terminal", "terminal") if final else ("process", "step")
    metrics: dict[str, Any] = {"metrics": dict(scored.metrics)} if scored.metrics else {}
    yield RewardLine(now, kind, "verifier", scored.reward, step or "reward", "output", granularity, metrics | common)
