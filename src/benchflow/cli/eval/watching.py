"""What people see while a job runs: on a terminal a live block with the running rollouts, and a line per result."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchflow.cli.eval.node_lines import node_lines
from benchflow.cli.terminal import LiveBlock, is_terminal, note, printable, shortened
from benchflow.evaluation.engine import Observer
from benchflow.evaluation.work import WorkItem
from benchflow.record import Result, TaskId
from benchflow.record.reading.live_rollouts import LiveRollout, LiveRollouts

_INTERVAL: Final = 0.1
_TICK: Final = 1.0
_LONGEST: Final = 200
_WIDE: Final = 160
_DOING: Final = {"environment": "starting", "agent": "agent", "verify": "verifying"}


class Watching(Observer):
    """Shows running items and results on stderr. Where the folder of the job is given, also what each one does."""

    def __init__(self, total: int, labels: Mapping[TaskId, str], job: Path | None = None) -> None:
        self._total = total
        self._labels = labels
        self._began = time.monotonic()
        self._running = 0
        self._rewards: list[float] = []
        self._unscored = 0
        self._drawn_at = 0.0
        self._block = LiveBlock(sys.stderr) if is_terminal(sys.stderr) else None
        self._live = LiveRollouts(job) if job is not None and self._block is not None else None
        self._lines: list[str] = []
        self._pause = ""
        self._drawing: Final = threading.Lock()
        """The block is drawn by the engine's thread and by the one that looks at rollouts."""
        self._closed: Final = threading.Event()
        if self._live is not None:
            threading.Thread(target=self._look, args=(self._live,), daemon=True).start()

    def started(self, item: WorkItem) -> None:
        del item
        self._running += 1
        self._draw()

    def finished(self, item: WorkItem, result: Result, rollout: str) -> None:
        del rollout
        self._running -= 1
        if result.reward is None:
            self._unscored += 1
        else:
            self._rewards.append(result.reward)
        self.say(f"[{self._done}/{self._total}] {self._name(item)}: {self.describe(item, result)}")
        self._draw(force=True)

    def task(self, item: WorkItem) -> TaskId:
        """The task of an item, as it is labelled."""
        return item.task.id

    def describe(self, item: WorkItem, result: Result) -> str:
        """How an item ended, in a few words."""
        del item
        return _outcome(result)

    def retrying(self, item: WorkItem, result: Result, delay: float) -> None:
        self._running -= 1
        self.say(f"{self._name(item)}: {self.describe(item, result).rstrip('.')}; retried in {delay:g} s")

    def paused(self, result: Result, delay: float) -> None:
        self._pause = f"paused: no new rollouts until one starts; next try in {delay:g} s or less"
        reason = in_short(result.error.message).rstrip(".") if result.error is not None else ""
        self.say(f"The machine keeps failing: {reason}. No new rollouts for {delay:g} s; then one is tried.")
        self._draw(force=True)

    def continued(self) -> None:
        self._pause = ""
        self.say("A rollout has started; the job continues.")
        self._draw(force=True)

    def close(self) -> None:
        """Take the live block away."""
        self._closed.set()
        if self._block is not None:
            with self._drawing:
                self._block.draw([])

    def _look(self, live: LiveRollouts) -> None:
        """Look at the running rollouts from time to time, beside the job."""
        while not self._closed.wait(_TICK):
            self._lines = [*node_lines(live.nodes()), *live_lines(live.look(), None)]
            self._draw(force=True)

    def _name(self, item: WorkItem) -> str:
        name = attempt_name(self._labels[self.task(item)], item.attempt)
        return name if item.line_up is None else f"{name}, {item.line_up}"

    @property
    def _done(self) -> int:
        return len(self._rewards) + self._unscored

    def say(self, text: str) -> None:
        """Print a line, above the live block if there is one."""
        if self._block is None:
            note(printable(text))
            return
        with self._drawing:
            self._block.above(printable(text))

    def _draw(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._block is None or (not force and now - self._drawn_at < _INTERVAL):
            return
        self._drawn_at = now
        mean = f"{sum(self._rewards) / len(self._rewards):.3f}" if self._rewards else "–"
        counts = f"{self._running} running · {len(self._rewards)} scored · {self._unscored} unscored"
        with self._drawing:
            if not self._closed.is_set():
                paused = [self._pause] if self._pause else []
                self._block.draw([f"{counts} · mean {mean} · {self._eta(now)}", *paused, *self._lines])

    def _eta(self, now: float) -> str:
        if not self._done:
            return f"0 of {self._total}"
        left = (now - self._began) / self._done * (self._total - self._done)
        return f"{self._done} of {self._total}, {int(left // 60)}:{int(left % 60):02} left"


def attempt_name(label: str, attempt: int) -> str:
    """One attempt at a task, as progress and reports name it."""
    return f"{label}, attempt {attempt}"


def in_short(sentence: str) -> str:
    """As much of a reason as fits on a line or two; the record has all of it."""
    return shortened(sentence, _LONGEST)


def live_lines(live: Sequence[LiveRollout], width: int | None = None) -> list[str]:
    """One line for each running rollout: how long, its phase, its node, what it used, its last action."""
    room = width or _WIDE
    lines = []
    for rollout in live:
        name = attempt_name(rollout.task, rollout.attempt) + (f" on {rollout.node}" if rollout.node else "")
        step = f" {rollout.step}" if rollout.step else ""
        used = _used(rollout)
        last = rollout.last if rollout.phase == "agent" else ""
        parts = [f"{_elapsed(rollout.started_at):>6}", f"{_DOING[rollout.phase]}{step}", name, *used, last]
        lines.append(shortened(printable("  " + "  ".join(part for part in parts if part)), room))
    return lines


def _used(rollout: LiveRollout) -> list[str]:
    usage = rollout.usage
    tokens = sum(usage.get(name, 0) for name in ("input_tokens", "output_tokens")) or usage.get("context_tokens", 0)
    shown = [f"{tokens / 1000:.1f}k tokens" if tokens >= 1000 else f"{tokens:g} tokens"] if tokens else []
    return [*shown, f"${usage['cost_usd']:.4f}"] if usage.get("cost_usd") else shown


def _elapsed(started_at: str) -> str:
    try:
        began = datetime.fromisoformat(started_at)
        seconds = max((datetime.now(UTC) - began).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return "–"
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"


def _outcome(result: Result) -> str:
    if result.error is not None:
        return f"unscored ({result.error.category}/{result.error.code}): {in_short(result.error.message)}"
    seconds = result.timing.get("total", sum(result.timing.values()))
    return f"{result.reward:g} ({seconds:.1f} s)"
