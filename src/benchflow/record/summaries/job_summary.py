"""`summary.json`: the statistics of a job and the results that count, typed, with its reader.

The numbers are computed in `benchflow.evaluation`; here is their shape. A value that is not known is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from benchflow.files.strict_json import parse_json
from benchflow.record.codec import plain, read, write_listing
from benchflow.record.identity import Shard
from benchflow.record.job import Counted, DamagedLine, read_counted
from benchflow.record.summaries.arena_summary import ArenaStatistics
from benchflow.record.summaries.estimates import Bounds, Estimate

SUMMARY_SCHEMA: Final = "benchcube.summary.v2"


@dataclass(frozen=True, slots=True)
class WiderCounts:
    """Results below full that were checked at the next wider rung, because changes of the agent were withheld."""

    checked: int
    higher: int
    """How many would have a higher reward there."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a set of results amounts to."""

    total: int
    tasks: int
    scored: int
    unscored: int
    unscored_by: Mapping[str, int]
    """By category of the error."""
    mean_reward: Estimate
    mean_reward_bounds: Bounds
    """The mean with every unscored result taken as 0, and as 1."""
    pass_threshold: float
    pass_rate: Estimate
    pass_at_k: Mapping[str, Estimate]
    pass_hat_k: Mapping[str, Estimate]
    metrics: Mapping[str, Estimate]
    usage: Mapping[str, float]
    isolation: Mapping[str, int]
    """How many results were verified at which rung; at `open` the agent's processes can act on the verifier."""
    wider: WiderCounts
    arena: ArenaStatistics | None = None
    """Of the games among the results; None without any."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics over the results of a job that count, and those results."""

    job: str
    statistics: Statistics
    damaged: tuple[DamagedLine, ...]
    """Lines of `results.jsonl` that are left out."""
    counted: tuple[Counted, ...]
    superseded: int = 0
    """Number of results that are left out because their packages have changed or are gone."""
    shard: Shard | None = None
    """The part of a plan that the job is; None for all of it."""

    def to_dict(self) -> dict[str, Any]:
        return {**self._head(), "results": [counted.to_dict() for counted in self.counted]}

    def write(self, path: Path) -> None:
        """Write the document, a line per result. Raises `OSError`."""
        write_listing(path, self._head(), "results", (counted.to_dict() for counted in self.counted))

    def _head(self) -> dict[str, Any]:
        return {
            "schema": SUMMARY_SCHEMA,
            "job": self.job,
            **({"shard": plain(self.shard)} if self.shard is not None else {}),
            **plain(self.statistics),
            **({"superseded": self.superseded} if self.superseded else {}),
            "damaged_lines": [{"line": line.number, "reason": line.reason} for line in self.damaged],
        }

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """The summary of a document; raises `ValueError` when it is not one."""
        if not isinstance(document, dict) or document.get("schema") != SUMMARY_SCHEMA:
            raise ValueError(f"it is not a document of the schema {SUMMARY_SCHEMA}")
        head = read(_Head, document)
        return cls(
            head.job,
            read(Statistics, document),
            tuple(DamagedLine(line.line, line.reason) for line in head.damaged_lines),
            tuple(map(read_counted, head.results)),
            head.superseded,
            head.shard,
        )


def read_summary(path: Path) -> Summary | None:
    """The summary in a file; None if there is none that can be read: it can be computed from the results."""
    try:
        return Summary.from_dict(parse_json(path.read_bytes()))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _Line:
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands beside the statistics."""

    job: str
    damaged_lines: tuple[_Line, ...]
    results: tuple[Any, ...]
    superseded: int = 0
    shard: Shard | None = None
