"""The results of a job as rows in memory: what tables, facets and statistics need, a fraction of each result.

`refresh` reads what was added to `results.jsonl` since the last time; with a limit, only as much as fits in it. Results
are read by `benchflow.record`, which also decides which of several tries counts. A file that was replaced or shortened
is read again from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from sys import intern
from threading import Lock
from time import monotonic
from typing import IO, Final, NamedTuple
from zlib import crc32

from benchflow.evaluation.statistics import Sample
from benchflow.evaluation.summary import sample, statistics_of
from benchflow.record import DamagedLine, Result, Statistics, TaskId, WorkKey, labels
from benchflow.record.job import counts_instead, read_line
from benchflow.view.plain_text import one_line

_WHY: Final = 200
_TAIL: Final = 256


class Row(NamedTuple):
    """One result that counts."""

    rollout: str
    task: TaskId
    path: str
    """Of the package, as it was given."""
    attempt: int
    reward: float | None
    """None if it is unscored."""
    category: str
    """The boundary that failed; empty if it is scored."""
    code: str
    phase: str
    message: str
    agent: str
    model: str
    rung: str
    fidelity: str
    exit_code: int | None
    timed_out: bool
    seconds: float | None
    cost: float | None
    tokens: float | None
    started_at: str
    branches: int
    rescored: bool
    sample: Sample

    @property
    def outcome(self) -> str:
        """`full`, `partial`, `zero` or `unscored`."""
        if self.reward is None:
            return "unscored"
        return "full" if self.reward >= 1 else "zero" if self.reward <= 0 else "partial"


def row_of(rollout: str, result: Result) -> Row:
    """The part of a result that is kept in memory; texts that repeat are kept once."""
    error, usage = result.error, result.usage
    tokens = [usage[name] for name in ("input_tokens", "output_tokens") if name in usage]
    taken = sample(result)
    task = TaskId(intern(result.task.name), result.task.content_digest and intern(result.task.content_digest))
    if result.task.ordinal > 1:
        task = result.task.id
    return Row(
        rollout,
        task,
        intern(result.task.path),
        result.attempt,
        result.reward,
        intern(error.category) if error else "",
        intern(error.code) if error else "",
        intern(error.phase) if error else "",
        one_line(error.message, _WHY) if error else "",
        intern(result.agent.name),
        intern(result.agent.model or ""),
        intern(result.rung or ""),
        intern(result.sandbox.fidelity or ""),
        result.agent.exit_code,
        result.agent.timed_out,
        result.timing.get("total"),
        usage.get("cost_usd"),
        sum(tokens) if tokens else None,
        result.started_at,
        len(result.notes.branches),
        result.notes.rescore is not None,
        Sample(
            task,
            taken.reward,
            taken.metrics,
            taken.category,
            taken.usage,
            taken.rung,
            taken.higher,
            taken.seats,
            intern(taken.who),
        ),
    )


@dataclass(frozen=True)
class Rows:
    """The rows of a job at one moment, with what is computed from all of them."""

    version: str
    """Differs whenever the rows may differ."""
    rows: tuple[Row, ...] = ()
    damaged: tuple[DamagedLine, ...] = ()
    superseded: int = 0
    share: float = 1.0
    """How much of the file was read: less than 1 while the rest is being read."""

    @cached_property
    def labels(self) -> dict[TaskId, str]:
        return labels(row.task for row in self.rows)

    @cached_property
    def by_rollout(self) -> dict[str, Row]:
        return {row.rollout: row for row in self.rows}

    @cached_property
    def statistics(self) -> Statistics:
        return statistics_of(row.sample for row in self.rows)


@dataclass
class ResultsFile:
    """Follows one `results.jsonl`."""

    path: Path
    _lock: Lock = field(default_factory=Lock)
    _read: tuple[int, int] = (0, 0)
    """The inode, and how many bytes of whole lines were read."""
    _end: bytes = b""
    """The last of these bytes: a file that has others there was replaced, even under the same inode."""
    _lines: int = 0
    _latest: dict[WorkKey, Row] = field(default_factory=dict)
    _damaged: list[DamagedLine] = field(default_factory=list)
    _share: float = 1.0
    _known: Rows = Rows("", share=0.0)
    _superseded: frozenset[WorkKey] = frozenset()

    def refresh(self, superseded: Iterable[WorkKey] = (), limit_sec: float | None = None) -> Rows:
        """The rows as they are now; keys that were superseded do not count. Raises `OSError`.

        With a limit, those that can be read within it, or that are known while somebody else reads.
        """
        if not self._lock.acquire(timeout=-1 if limit_sec is None else limit_sec):
            return self._known
        try:
            left_out = frozenset(superseded)
            until = None if limit_sec is None else monotonic() + limit_sec
            if self._catch_up(until) or left_out != self._superseded or not self._known.version:
                self._superseded = left_out
                counting = tuple(row for key, row in self._latest.items() if key not in left_out)
                version = f"{self._read[0]:x}-{self._read[1]:x}-{crc32(self._end):x}-{len(left_out):x}"
                gone = len(self._latest) - len(counting)
                self._known = Rows(version, counting, tuple(self._damaged), gone, self._share)
            return self._known
        finally:
            self._lock.release()

    def _catch_up(self, until: float | None) -> bool:
        """Read the lines that were added, until that time; whether there were any, or the file was replaced."""
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            changed = self._read != (0, 0)
            self._forget()
            return changed
        with stream:
            inode = os.fstat(stream.fileno()).st_ino
            changed = inode != self._read[0] or not self._continues(stream)
            if changed:
                self._forget()
            end = stream.seek(self._read[1])
            self._share = 1.0
            for line in stream:
                if not line.endswith(b"\n"):
                    break  # it is being written, or was torn
                if until is not None and monotonic() > until:
                    self._share = end / max(1, os.fstat(stream.fileno()).st_size)
                    break
                end += len(line)
                self._lines += 1
                self._add(line)
                changed = True
            if changed:
                self._read = (inode, end)
                stream.seek(max(0, end - _TAIL))
                self._end = stream.read(end - stream.tell())
        return changed

    def _continues(self, stream: IO[bytes]) -> bool:
        """Whether what was read is still there."""
        stream.seek(self._read[1] - len(self._end))
        return stream.read(len(self._end)) == self._end

    def _forget(self) -> None:
        self._read, self._end, self._lines, self._share = (0, 0), b"", 0, 1.0
        self._latest.clear()
        self._damaged.clear()

    def _add(self, line: bytes) -> None:
        read = read_line(self._lines, line)
        if isinstance(read, DamagedLine):
            self._damaged.append(read)
            return
        rollout, result = read
        known = self._latest.get(result.key)
        if known is None or counts_instead((known.rollout, known.category or None), (rollout, result.error)):
            self._latest[result.key] = row_of(rollout, result)
