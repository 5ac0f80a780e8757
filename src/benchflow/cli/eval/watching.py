"""What people see while a job runs: one live line on a terminal, a plain line per result otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from benchflow.cli.terminal import is_terminal, note, printable, style
from benchflow.evaluation.engine import Observer
from benchflow.evaluation.work import WorkItem
from benchflow.record import Result, TaskId

_ERASE = "\r\x1b[2K"
_INTERVAL = 0.1
_LONGEST = 200


class Watching(Observer):
    """Shows running items and results on stderr."""

    def __init__(self, total: int, labels: Mapping[TaskId, str]) -> None:
        self._total = total
        self._labels = labels
        self._began = time.monotonic()
        self._running = 0
        self._rewards: list[float] = []
        self._unscored = 0
        self._live = is_terminal(sys.stderr)
        self._drawn_at = 0.0

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
        self._say(f"[{self._done}/{self._total}] {self._name(item)}: {self.describe(item, result)}")
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
        self._say(f"{self._name(item)}: {self.describe(item, result)}; again in {delay:g} s")

    def close(self) -> None:
        """Take the live line away."""
        if self._live:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()

    def _name(self, item: WorkItem) -> str:
        return attempt_name(self._labels[self.task(item)], item.attempt)

    @property
    def _done(self) -> int:
        return len(self._rewards) + self._unscored

    def _say(self, text: str) -> None:
        if self._live:
            sys.stderr.write(_ERASE)
        note(printable(text))

    def _draw(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not self._live or (not force and now - self._drawn_at < _INTERVAL):
            return
        self._drawn_at = now
        mean = f"{sum(self._rewards) / len(self._rewards):.3f}" if self._rewards else "–"
        unscored = style(f"{self._unscored} unscored", "yellow", sys.stderr) if self._unscored else "0 unscored"
        line = f"{self._running} running · {len(self._rewards)} scored · {unscored} · mean {mean} · {self._eta(now)}"
        sys.stderr.write(f"{_ERASE}{line}")
        sys.stderr.flush()

    def _eta(self, now: float) -> str:
        if not self._done:
            return f"0 of {self._total}"
        left = (now - self._began) / self._done * (self._total - self._done)
        return f"{self._done} of {self._total}, {int(left // 60)}:{int(left % 60):02} left"


def attempt_name(label: str, attempt: int) -> str:
    """One attempt at a task, as progress and reports name it."""
    return f"{label}, attempt {attempt}"


def shortened(sentence: str) -> str:
    """As much of a reason as fits on a line or two; the record has all of it."""
    return sentence if len(sentence) <= _LONGEST else sentence[: _LONGEST - 2].rstrip() + " …"


def _outcome(result: Result) -> str:
    if result.error is not None:
        return f"unscored ({result.error.category}/{result.error.code}): {shortened(result.error.message)}"
    seconds = result.timing.get("total", sum(result.timing.values()))
    return f"{result.reward:g} ({seconds:.1f} s)"
