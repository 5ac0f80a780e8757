"""How something ended: with a `Score`, or with the `ErrorRecord` of the one boundary that failed; nothing in between.

In documents an outcome is four keys: `status`, `reward`, `rewards`, `error`. A missing reward is null, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from benchflow.errors import Category
from benchflow.record.codec import read, register
from benchflow.rewards.numbers import finite, shown
from benchflow.rewards.verdict import Phase, Scored, Verdict

Status = Literal["scored", "unscored"]
FULL: Final = 1.0
"""A reward from here on needs no explanation."""


@dataclass(frozen=True, slots=True)
class Score:
    """A reward, and with it every metric."""

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The reward and the metrics by name."""

    def __post_init__(self) -> None:
        for name, value in (("reward", self.reward), *self.rewards.items()):
            if finite(value) is None:
                raise ValueError(f"A reward is a finite number, and {name} is {shown(value)}.")

    def to_plain(self) -> dict[str, Any]:
        return {"status": "scored", "reward": self.reward, "rewards": dict(self.rewards), "error": None}


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Why there is no score: exactly one boundary, how it failed, in which phase."""

    category: Category
    code: str
    phase: Phase
    message: str

    def to_dict(self) -> dict[str, Any]:
        return {"category": self.category, "code": self.code, "phase": self.phase, "message": self.message}

    def to_plain(self) -> dict[str, Any]:
        return {"status": "unscored", "reward": None, "rewards": {}, "error": self.to_dict()}


@dataclass(frozen=True, slots=True)
class NoOutcome:
    """Something that was planned but has no outcome."""

    status: Literal["not-reached", "taken", "not-run"]
    """`not-reached`: a step after one that ended the task. `taken`: the branch that its parent took.
    `not-run`: a branch beyond the limit."""

    def to_plain(self) -> dict[str, Any]:
        return {"status": self.status, "reward": None, "rewards": {}, "error": None}


Outcome = Score | ErrorRecord
"""Of a rollout."""
PartOutcome = Score | ErrorRecord | NoOutcome
"""Of a step or a branch."""


class HasOutcome:
    """The four keys of an outcome, read from a record that has one."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def outcome(self) -> PartOutcome: ...

    @property
    def status(self) -> str:
        return status_of(self.outcome)

    @property
    def reward(self) -> float | None:
        return self.outcome.reward if isinstance(self.outcome, Score) else None

    @property
    def rewards(self) -> Mapping[str, float]:
        return self.outcome.rewards if isinstance(self.outcome, Score) else {}

    @property
    def error(self) -> ErrorRecord | None:
        return self.outcome if isinstance(self.outcome, ErrorRecord) else None


def status_of(outcome: PartOutcome) -> str:
    if isinstance(outcome, NoOutcome):
        return outcome.status
    return "scored" if isinstance(outcome, Score) else "unscored"


def outcome_of(verdict: Verdict, clean: Callable[[str], str] = lambda text: text) -> Outcome:
    """The outcome of a verdict; `clean` removes secrets from its reason."""
    if isinstance(verdict, Scored):
        return Score(verdict.reward, {"reward": verdict.reward, **verdict.metrics})
    return ErrorRecord(verdict.category, verdict.code, verdict.phase, clean(verdict.reason))


def _read_outcome(value: Any) -> Outcome:
    status = value.get("status") if isinstance(value, dict) else None
    if status == "scored" and value.get("error") is None:
        return read(Score, {"reward": value.get("reward"), "rewards": value.get("rewards", {})})
    if status == "unscored" and value.get("reward") is None:
        return read(ErrorRecord, value.get("error"))
    raise ValueError(f"status: {shown(status)} is not an outcome: scored with a reward, or unscored with an error")


def _read_part_outcome(value: Any) -> PartOutcome:
    status = value.get("status") if isinstance(value, dict) else None
    if status in ("scored", "unscored"):
        return _read_outcome(value)
    return read(NoOutcome, {"status": status})


register(Outcome, _read_outcome)
register(PartOutcome, _read_part_outcome)
