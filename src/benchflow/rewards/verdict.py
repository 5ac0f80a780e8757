"""The result of a rollout: `Scored`, with a reward, or `Unscored`, with the boundary that failed.

A missing reward is never 0: a `Scored` cannot be built without a finite number, and an `Unscored` has none. Both can be
converted to plain records and back without loss, and both can be pickled.

`attribute` decides which boundary is responsible for a failure: the errors in `benchflow.errors` have their own,
failures of the machine and cancellation are recognised, everything else belongs to the boundary whose code was running.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from benchflow.errors import BenchflowError, Category, InfrastructureFailure, Issue, PackageError, RuntimeFailure
from benchflow.rewards.numbers import finite, shown
from benchflow.rewards.reward_errors import RewardError

Phase = Literal["plan", "environment", "agent", "verify", "record"]
Space = Literal["output", "action", "reasoning", "memory", "latent"]
Granularity = Literal["terminal", "step"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
SPACES: Final[tuple[Space, ...]] = get_args(Space)
GRANULARITIES: Final[tuple[Granularity, ...]] = get_args(Granularity)
MAX_REASON: Final = 2_000
CANCELLED: Final = "Cancelled before it finished."
_MACHINE: Final[Mapping[int, str]] = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.ENOMEM: "out-of-memory",
    errno.EMFILE: "out-of-descriptors",
    errno.ENFILE: "out-of-descriptors",
    errno.EAGAIN: "out-of-processes",
}


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


class Attributed(RuntimeFailure):
    """A failure that has been attributed; `verdict` is its record."""

    def __init__(self, verdict: Unscored) -> None:
        super().__init__(verdict.reason, code=verdict.code)
        self.verdict = verdict


@dataclass(eq=False, slots=True)
class attributed:  # noqa: N801 - used as a statement: with attributed("agent", "plan")
    """Attribute any failure in the block: it is raised as `Attributed`, with the failure as its cause.

    The innermost block takes precedence. Cancellation and interrupts pass through unchanged.
    """

    boundary: Category
    phase: Phase

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, Attributed):
            raise Attributed(attribute(error, self.boundary, self.phase)) from error


def attribute(error: BaseException, boundary: Category, phase: Phase) -> Unscored:
    """The verdict for an exception raised by `boundary` in `phase`; never raises."""
    if isinstance(error, Attributed):
        return error.verdict
    if isinstance(error, BaseExceptionGroup):
        return _attribute_group(error, boundary, phase)
    category, code = _boundary_of(error, boundary)
    return Unscored(category, phase, code, _reason(error))


def _attribute_group(group: BaseExceptionGroup[BaseException], boundary: Category, phase: Phase) -> Unscored:
    """The first failure that is not a cancellation, since the others were cancelled because of it."""
    verdicts = [attribute(error, boundary, phase) for error in group.exceptions]
    failures = [verdict for verdict in verdicts if verdict.category != "cancelled"]
    return (failures or verdicts)[0]


def _boundary_of(error: BaseException, boundary: Category) -> tuple[Category, str]:
    from asyncio import CancelledError

    match error:
        case BenchflowError():
            return error.category, error.code
        case CancelledError() | GeneratorExit():
            return "cancelled", "cancelled"
        case KeyboardInterrupt() | SystemExit():
            return "cancelled", "interrupted"
        case TimeoutError():
            return boundary, "timeout"
        case MemoryError():
            return "infrastructure", "out-of-memory"
        case ConnectionError():
            return boundary, "connection-lost"
        case OSError():
            return "infrastructure", _MACHINE.get(error.errno or 0, "os-error")
        case _:
            return boundary, "crashed"


def _reason(error: BaseException) -> str:
    """One line: the message of a `BenchflowError`, otherwise type and message."""
    from asyncio import CancelledError

    if isinstance(error, CancelledError | GeneratorExit):
        return CANCELLED  # the exception's own text is about scopes and tasks of the event loop
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an unknown exception may fail to print
        text = ""
    if not isinstance(error, BenchflowError) or not text:
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    elif isinstance(error, PackageError) and error.file is not None and error.line is not None:
        where = f"{error.file}:{error.line}"
        text = text if where in text else f"{where}: {text}"
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."
