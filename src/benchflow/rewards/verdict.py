"""The result of a rollout: `Scored`, with a reward, or `Unscored`, with the boundary that failed.

A missing reward is never 0: a `Scored` cannot be built without a finite number, and an `Unscored` has none. Both can be
converted to plain records and back without loss, and both can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from benchflow.errors import Category, InfrastructureFailure, Issue
from benchflow.rewards.numbers import finite, shown
from benchflow.rewards.reward_errors import RewardError

Phase = Literal["plan", "environment", "agent", "verify", "record"]
Space = Literal["output", "action", "reasoning", "memory", "latent"]
Granularity = Literal["terminal", "step"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
SPACES: Final[tuple[Space, ...]] = get_args(Space)
GRANULARITIES: Final[tuple[Granularity, ...]] = get_args(Granularity)


@dataclass(frozen=True, slots=True)
class RewardItem:
    """One judged criterion or rubric line."""

    name: str
    score: float
    """From 0 to 1."""
    space: Space = "output"
    reason: str | None = None
    raw: Any = None
    """The answer before it was normalised."""
    clamped: bool = False
    """Whether the answer was outside its scale and was moved to the nearest end."""


@dataclass(frozen=True, slots=True)
class RewardEvent:
    """A reward given during an episode; `reward` is None for an event without one."""

    type: str
    reward: float | None
    source: str
    step: int | None = None
    space: Space = "output"
    granularity: Granularity = "terminal"
    timestamp: str | float | None = None
    tool_call_id: str | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Factor:
    """One part of a combined reward, with the strategy or run that scored it."""

    name: str
    source: str
    reward: float
    weight: float | None = None


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Scored:
    """A reward, with everything known about its origin."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=_nothing)
    items: tuple[RewardItem, ...] = ()
    events: tuple[RewardEvent, ...] = ()
    factors: tuple[Factor, ...] = ()
    document: Mapping[str, Any] = field(default_factory=_nothing)
    """`reward.json` in canonical form: what the verifier wrote, with the final `reward`."""
    details: Any = None
    """`reward-details.json`, if it exists and is valid."""
    diagnostics: tuple[Issue, ...] = ()
    """Warnings that do not affect the reward."""

    status: Literal["scored"] = field(default="scored", init=False)

    def __post_init__(self) -> None:
        reward = finite(self.reward)
        if reward is None:
            raise RewardError(f"a reward must be a finite number, not {shown(self.reward)}", path="reward")
        object.__setattr__(self, "reward", reward)
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))
        object.__setattr__(self, "document", MappingProxyType({**self._contents(), "reward": reward}))

    def _contents(self) -> dict[str, Any]:
        """The document with its reward first; without a document, built from metrics and items."""
        contents: dict[str, Any] = {"reward": self.reward, **self.document}
        if not self.document and self.metrics:
            contents["metrics"] = dict(self.metrics)
        if not self.document and self.items:
            contents["rubric"] = [_rubric_line(item) for item in self.items]
        return contents

    def __reduce__(self) -> tuple[Any, ...]:
        return verdict_from_dict, (self.to_dict(),)

    def record(self) -> dict[str, Any]:
        """The part of `result.json`; `rewards` holds the reward and every metric."""
        rewards = {"reward": self.reward, **self.metrics}
        return {"status": self.status, "reward": self.reward, "rewards": rewards, "error": None}

    def to_dict(self) -> dict[str, Any]:
        """All data as plain JSON values."""
        return {
            **self.record(),
            "metrics": dict(self.metrics),
            "items": [asdict(item) for item in self.items],
            "events": [asdict(event) for event in self.events],
            "factors": [asdict(factor) for factor in self.factors],
            "document": dict(self.document),
            "details": self.details,
            "diagnostics": [issue.to_dict() for issue in self.diagnostics],
        }


@dataclass(frozen=True, slots=True)
class Unscored:
    """No reward, with exactly one responsible boundary."""

    category: Category
    phase: Phase
    code: str
    reason: str

    status: Literal["unscored"] = field(default="unscored", init=False)

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES or self.phase not in PHASES:
            raise ValueError(f"{self.category!r} in phase {self.phase!r} is not a boundary of a rollout")
        if not self.code or not self.reason:
            raise ValueError("an unscored verdict needs a code and a reason")

    @property
    def reward(self) -> None:
        """Never a number."""
        return

    def record(self) -> dict[str, Any]:
        """The part of `result.json`."""
        error = {"category": self.category, "code": self.code, "phase": self.phase, "message": self.reason}
        return {"status": self.status, "reward": None, "rewards": {}, "error": error}

    def to_dict(self) -> dict[str, Any]:
        return self.record()


Verdict = Scored | Unscored


def _rubric_line(item: RewardItem) -> dict[str, Any]:
    line: dict[str, Any] = {"name": item.name, "score": item.score, "space": item.space}
    return line if item.reason is None else {**line, "reason": item.reason}


def verdict_from_dict(record: Mapping[str, Any]) -> Verdict:
    """The verdict that `to_dict` wrote; raises `InfrastructureFailure` (`record-invalid`)."""
    try:
        if record["status"] == "unscored":
            error = record["error"]
            return Unscored(error["category"], error["phase"], error["code"], error["message"])
        if record["status"] != "scored" or finite(record["reward"]) is None:
            raise ValueError(f"a verdict must be scored with a reward, or unscored, not {shown(record['status'])}")
        return Scored(
            reward=record["reward"],
            metrics=record["metrics"],
            items=tuple(RewardItem(**item) for item in record["items"]),
            events=tuple(RewardEvent(**event) for event in record["events"]),
            factors=tuple(Factor(**factor) for factor in record["factors"]),
            document=record["document"],
            details=record["details"],
            diagnostics=tuple(Issue(**issue) for issue in record["diagnostics"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InfrastructureFailure(f"not a verdict record: {error}", code="record-invalid") from error


def space(value: object, what: str) -> Space:
    """One of the reward spaces; raises `RewardError`."""
    if value not in SPACES:
        raise RewardError(f"{what} must be one of {', '.join(SPACES)}, not {shown(value)}", path=what)
    return value


def granularity(value: object, what: str) -> Granularity:
    """`terminal` or `step`; raises `RewardError`."""
    if value not in GRANULARITIES:
        raise RewardError(f"{what} must be one of {', '.join(GRANULARITIES)}, not {shown(value)}", path=what)
    return value
