"""A reward combined from several strategies, for example a deterministic check times a judge.

The package declares how factors are combined and which strategy scores each. Every factor is recorded with its source;
if one is unscored, the result is unscored for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from benchflow.errors import PackageError
from benchflow.rewards.numbers import UNIT, RewardRange, finite, shown
from benchflow.rewards.verdict import Factor, Scored, Unscored, Verdict

Combination = Literal["product", "weighted_sum"]
COMBINATIONS: Final[tuple[Combination, ...]] = get_args(Combination)


@dataclass(frozen=True, slots=True)
class FactorSpec:
    """A declared factor: its name, the strategy that scores it, and its weight in a sum."""

    name: str
    source: str
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class HybridPolicy:
    """A declared combination of at least two factors."""

    combine: Combination
    factors: tuple[FactorSpec, ...]

    def reward(self, verdicts: Mapping[str, Verdict], reward_range: RewardRange = UNIT) -> Verdict:
        """One verdict from the verdicts of all declared factors, by name.

        Raises `RewardError` if the result is outside the range, and `KeyError` for a factor without a verdict.
        """
        found = [(spec, verdicts[spec.name]) for spec in self.factors]
        for spec, verdict in found:
            if isinstance(verdict, Unscored):
                reason = f"the factor {spec.name!r} (from {spec.source!r}) has no reward: {verdict.reason}"
                return Unscored(verdict.category, verdict.phase, verdict.code, reason)
        factors = tuple(
            Factor(spec.name, spec.source, verdict.reward, spec.weight)
            for spec, verdict in found
            if isinstance(verdict, Scored)
        )
        reward = reward_range.settle(self._combined(factors), f"the {self.combine} of the factors")
        metrics = {factor.name: factor.reward for factor in factors}
        record = {"source": "hybrid", "combine": self.combine, "factors": [asdict(factor) for factor in factors]}
        document = {"reward": reward, "metrics": metrics, "aggregate": self._aggregate(), "metadata": record}
        details = {**record, "details": {spec.name: verdict.to_dict() for spec, verdict in found}}
        return Scored(reward, metrics=metrics, factors=factors, document=document, details=details)

    def _combined(self, factors: tuple[Factor, ...]) -> float:
        if self.combine == "product":
            return math.prod(factor.reward for factor in factors)
        return math.fsum(factor.reward * (factor.weight or 0.0) for factor in factors)

    def _aggregate(self) -> dict[str, Any]:
        if self.combine == "product":
            return {"method": "product"}
        return {"method": "weighted_sum", "weights": {spec.name: spec.weight or 0.0 for spec in self.factors}}


def parse_hybrid(value: object, *, path: str = "hybrid", file: str | None = None) -> HybridPolicy:
    """A policy from `{combine: product | weighted_sum, factors: {NAME: {source: STRATEGY, weight: NUMBER}}}`.

    A sum needs a weight for every factor, a product has none. Raises `PackageError` (`invalid-hybrid`) with the key.
    """
    try:
        declared = _mapping(value, "", {"combine", "factors"})
        combine = declared.get("combine")
        if combine not in COMBINATIONS:
            raise _Wrong("combine", f"must be one of {', '.join(COMBINATIONS)}, not {shown(combine)}")
        factors = declared.get("factors")
        if not isinstance(factors, Mapping) or len(factors) < 2:
            raise _Wrong("factors", "must have at least two factors")
        return HybridPolicy(combine, tuple(_factor(name, entry, combine) for name, entry in factors.items()))
    except _Wrong as error:
        where = f"{path}.{error.key}" if error.key else path
        raise PackageError(f"{where} {error}", code="invalid-hybrid", path=where, file=file) from error


class _Wrong(Exception):
    """A wrong value at a key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _mapping(value: object, key: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _Wrong(key, f"must be a mapping, not {shown(value)}")
    for name in value:
        if name not in known:
            raise _Wrong(f"{key}.{name}".lstrip("."), f"is not a known key; known keys are {', '.join(sorted(known))}")
    return value


def _factor(name: object, entry: object, combine: Combination) -> FactorSpec:
    if not isinstance(name, str) or not name:
        raise _Wrong("factors", f"must have names, not {shown(name)}")
    key = f"factors.{name}"
    declared = _mapping(entry, key, {"source", "weight"})
    source = declared.get("source")
    if not isinstance(source, str) or not source:
        raise _Wrong(f"{key}.source", "must name the strategy that scores this factor")
    if combine == "product":
        if "weight" in declared:
            raise _Wrong(f"{key}.weight", "has no meaning in a product")
        return FactorSpec(name, source)
    weight = finite(declared.get("weight"))
    if weight is None or weight < 0:
        raise _Wrong(f"{key}.weight", f"must be a number of at least 0, not {shown(declared.get('weight'))}")
    return FactorSpec(name, source, weight)
