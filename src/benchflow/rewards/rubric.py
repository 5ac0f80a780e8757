"""Rubrics: what is judged, on which scale, with which weight.

In: the answers of a judge. Out: scores from 0 to 1, and one reward by the policy of the rubric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from benchflow.errors import JudgeFailure
from benchflow.rewards.aggregate import AggregatePolicy
from benchflow.rewards.numbers import finite, shown
from benchflow.rewards.verdict import RewardItem, Space

CriterionType = Literal["binary", "likert", "numeric", "rubric"]
JudgeMode = Literal["individual", "batched"]

TYPES: Final[tuple[CriterionType, ...]] = get_args(CriterionType)
MODES: Final[tuple[JudgeMode, ...]] = get_args(JudgeMode)

_YES: Final = frozenset({"yes", "true", "pass", "passed", "1"})
_NO: Final = frozenset({"no", "false", "fail", "failed", "0"})
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing to judge."""

    id: str
    description: str
    type: CriterionType = "binary"
    points: int = 5
    """Number of steps of a `likert` scale, which starts at 1."""
    min: float = 0.0
    max: float = 100.0
    """Ends of a `numeric` scale."""
    levels: tuple[str, ...] = ()
    """The levels of a `rubric` scale, the worst first; the answer is the number of a level, from 0."""
    weight: float = 1.0
    negate: bool = False
    """Inverts the score."""
    optional: bool = False
    """Not needed for `required_pass`."""
    files: tuple[str, ...] = ()
    space: Space = "output"

    @property
    def scale(self) -> tuple[float, float]:
        """The lowest and the highest answer."""
        match self.type:
            case "binary":
                return 0.0, 1.0
            case "likert":
                return 1.0, float(self.points)
            case "numeric":
                return self.min, self.max
            case "rubric":
                return 0.0, float(len(self.levels) - 1)

    def grade(self, answer: object, reason: str | None = None) -> RewardItem:
        """The answer as a score from 0 to 1.

        Binary answers are yes or no, or a number, where 0.5 and above means yes. Answers outside the scale are clamped
        and marked. Anything else raises `JudgeFailure` (`judge-answer-invalid`).
        """
        low, high = self.scale
        raw = _answer_number(answer, binary=self.type == "binary")
        if raw is None:
            raise JudgeFailure(
                f"the judge's answer for {self.id!r} must be {self._expected()}, not {shown(answer)}",
                code="judge-answer-invalid",
                path=self.id,
            )
        inside = min(max(raw, low), high)
        score = float(inside >= 0.5) if self.type == "binary" else (inside - low) / (high - low)
        return RewardItem(
            self.id, 1.0 - score if self.negate else score, self.space, reason, raw=answer, clamped=inside != raw
        )

    def _expected(self) -> str:
        low, high = self.scale
        return "yes or no" if self.type == "binary" else f"a number from {low:g} to {high:g}"


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """The `[judge]` table. `options` has the keys that are not defined here; the caller of the judge must support or
    reject each of them."""

    model: str | None = None
    mode: JudgeMode = "individual"
    files: tuple[str, ...] = ()
    timeout_sec: float = 120.0
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Rubric:
    """All criteria of a file and how their scores are combined."""

    criteria: tuple[Criterion, ...]
    policy: AggregatePolicy
    judge: JudgeSettings = JudgeSettings()
    title: str | None = None

    def combine(self, items: Mapping[str, RewardItem]) -> float:
        """The reward of one graded item per criterion; raises `RewardError` unless they match exactly."""
        return self.policy.apply({name: item.score for name, item in items.items()})


def _answer_number(answer: object, *, binary: bool) -> float | None:
    """The answer as a number: a number, a decimal string, or yes and no for binary questions."""
    if isinstance(answer, bool):
        return float(answer) if binary else None
    if not isinstance(answer, str):
        return finite(answer)
    word = answer.strip().lower()
    if binary and word in _YES | _NO:
        return float(word in _YES)
    return finite(float(word)) if _DECIMAL.fullmatch(word) else None
