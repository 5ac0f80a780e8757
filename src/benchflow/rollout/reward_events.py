"""The rewards of a rollout as events: lines of `rewards.jsonl`, one per judged item and step, then the terminal one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchflow.rewards import Scored
from benchflow.rollout.trajectory import timestamp


def reward_lines(scored: Scored, *, step: str | None = None, final: bool = True) -> Iterator[dict[str, Any]]:
    """The events of one verification; `final` when its reward is the rollout's."""
    now = timestamp()
    common: dict[str, Any] = {"step": step} if step is not None else {}
    for item in scored.items:
        meta: dict[str, Any] = {"reason": item.reason} if item.reason else {}
        yield _line(now, "process", "verifier_rubric", item.score, item.name, item.space, "step", meta | common)
    for event in scored.events:
        if event.reward is not None:
            stamp = event.timestamp if isinstance(event.timestamp, str) else now
            index: dict[str, Any] = {"step_index": event.step} if event.step is not None else {}
            yield _line(
                stamp, "process", event.source, event.reward, event.type, event.space, event.granularity, index | common
            )
    kind, granularity = ("terminal", "terminal") if final else ("process", "step")
    metrics: dict[str, Any] = {"metrics": dict(scored.metrics)} if scored.metrics else {}
    meta = metrics | common
    yield _line(now, kind, "verifier", scored.reward, step or "reward", "output", granularity, meta)


def _line(
    ts: str, kind: str, source: str, value: float, tag: str, space: str, granularity: str, meta: dict[str, Any]
) -> dict[str, Any]:
    line = {"ts": ts, "type": kind, "source": source, "value": value, "tag": tag}
    return {**line, "space": space, "granularity": granularity, "meta": meta}
