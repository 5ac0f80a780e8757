"""Combines several metrics into one reward by a declared method.

A policy comes from the verifier document or a criteria file, from `reward.json`, or from both; the package takes
precedence. Metric names must match declared criteria and weights exactly, so that a forgotten check is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from benchflow.errors import PackageError
from benchflow.rewards.numbers import TOLERANCE, UNIT, RewardRange, finite, shown
from benchflow.rewards.reward_errors import RewardError

Method = Literal[
    "mean", "weighted_mean", "weighted_sum", "all_pass", "any_pass", "required_pass", "threshold", "min", "max",
    "product",
]  # fmt: skip
METHODS: Final[tuple[Method, ...]] = get_args(Method)
PASS_MARK: Final = 0.5
"""The lowest value that counts as passed for `all_pass` and `any_pass`."""
DEFAULT_THRESHOLD: Final = 0.7

_KEYS: Final = frozenset({"method", "weights", "threshold", "criteria", "fallback", "field", "primary"})


@dataclass(frozen=True, slots=True)
class AggregatePolicy:
    """How metrics are combined. None leaves a setting to the other source of the policy."""

    method: Method | None = None
    weights: Mapping[str, float] | None = None
    threshold: float | None = None
    criteria: tuple[str, ...] | None = None
    """The exact names of the metrics, if declared."""
    fallback: Method | None = None
    """The method if neither source names one."""

    @property
    def effective_method(self) -> Method | None:
        return self.method or self.fallback

    def over(self, other: AggregatePolicy | None) -> AggregatePolicy:
        """This policy, with unset values taken from `other`."""
        if other is None:
            return self
        return AggregatePolicy(
            method=self.method or other.method,
            weights=other.weights if self.weights is None else self.weights,
            threshold=other.threshold if self.threshold is None else self.threshold,
            criteria=other.criteria if self.criteria is None else self.criteria,
            fallback=self.fallback or other.fallback,
        )

    def require_criteria(self, metrics: Mapping[str, float]) -> None:
        """Raise `RewardError` unless the metrics are exactly the declared criteria (if any are)."""
        if self.criteria is not None:
            _require_names(metrics, self.criteria, "the declared criteria")

    def apply(self, metrics: Mapping[str, float], reward_range: RewardRange = UNIT) -> float:
        """The reward of these metrics; raises `RewardError` if there is none within the range."""
        method = self.effective_method
        if method is None:
            raise RewardError("no aggregate method is declared", path="aggregate.method")
        self.require_criteria(metrics)
        value = aggregate(method, metrics, weights=self.weights, threshold=self.threshold)
        return reward_range.settle(value, f"the {method} of the metrics")

    def to_dict(self) -> dict[str, Any]:
        """The policy as written in `reward.json`, without unset values."""
        record: dict[str, Any] = {}
        if self.effective_method is not None:
            record["method"] = self.effective_method
        if self.weights is not None:
            record["weights"] = dict(self.weights)
        if self.threshold is not None:
            record["threshold"] = self.threshold
        if self.criteria is not None:
            record["criteria"] = list(self.criteria)
        return record


def parse_policy(value: object, *, path: str = "aggregate", file: str | None = None) -> AggregatePolicy:
    """Parse a policy; methods may be spelled with `_` or `-`. Raises `PackageError` with the key."""

    def wrong(message: str, key: str = "") -> PackageError:
        return PackageError(message, code="invalid-aggregate", path=f"{path}.{key}" if key else path, file=file)

    if not isinstance(value, Mapping):
        raise wrong(f"{path} must be a mapping, not {shown(value)}")
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    if unknown:
        raise wrong(f"{path} has an unknown key {unknown[0]!r}; known keys are {', '.join(sorted(_KEYS))}", unknown[0])
    for key in ("field", "primary"):
        if value.get(key, "reward") != "reward":
            raise wrong(f"{path}.{key} must be 'reward', not {shown(value[key])}", key)
    try:
        return AggregatePolicy(
            method=_method(value.get("method")),
            weights=_weights(value.get("weights")),
            threshold=_threshold(value.get("threshold")),
            criteria=_criteria(value.get("criteria")),
            fallback=_method(value.get("fallback")),
        )
    except _Wrong as error:
        raise wrong(f"{path}: {error}") from error


def aggregate(
    method: Method,
    metrics: Mapping[str, float],
    *,
    weights: Mapping[str, float] | None = None,
    threshold: float | None = None,
) -> float:
    """The metrics combined by `method`; raises `RewardError` if there are none or the weights do not match."""
    if not metrics:
        raise RewardError(f"there are no metrics for {method}", path="metrics")
    if weights is not None:
        _require_names(metrics, weights, "the weights")
    elif method == "weighted_sum":
        raise RewardError("weighted_sum needs a weight for every metric", path="aggregate.weights")
    values = list(metrics.values())
    scale = [1.0] * len(values) if weights is None else [weights[name] for name in metrics]
    try:
        return _FOLDS[method](values, scale, DEFAULT_THRESHOLD if threshold is None else threshold)
    except OverflowError as error:
        raise RewardError(f"the {method} of the metrics overflows", path="metrics") from error


def _mean(values: Sequence[float]) -> float:
    return _between(values, math.fsum(values) / len(values))


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    largest = max(weights)
    if largest <= 0:
        raise RewardError("the weights add up to 0", path="aggregate.weights")
    shares = [weight / largest for weight in weights]
    mean = math.fsum(share * value for share, value in zip(shares, values, strict=True)) / math.fsum(shares)
    return _between([value for share, value in zip(shares, values, strict=True) if share > 0], mean)


def _between(values: Sequence[float], mean: float) -> float:
    """Undo rounding: a mean is never outside its values."""
    return min(max(mean, min(values)), max(values))


def _passes(values: Sequence[float]) -> list[bool]:
    return [value >= PASS_MARK for value in values]


_FOLDS: Final[Mapping[Method, Callable[[Sequence[float], Sequence[float], float], float]]] = {
    "mean": lambda values, _weights, _threshold: _mean(values),
    "weighted_mean": lambda values, weights, _threshold: _weighted_mean(values, weights),
    "weighted_sum": lambda values, weights, _threshold: math.fsum(
        weight * value for weight, value in zip(weights, values, strict=True)
    ),
    "all_pass": lambda values, _weights, _threshold: float(all(_passes(values))),
    "any_pass": lambda values, _weights, _threshold: float(any(_passes(values))),
    "required_pass": lambda values, weights, _threshold: float(
        all(value >= 1 - TOLERANCE for value, weight in zip(values, weights, strict=True) if weight > 0)
    ),
    "threshold": lambda values, weights, threshold: float(_weighted_mean(values, weights) >= threshold - TOLERANCE),
    "min": lambda values, _weights, _threshold: min(values),
    "max": lambda values, _weights, _threshold: max(values),
    "product": lambda values, _weights, _threshold: math.prod(values),
}


class _Wrong(Exception):
    """A wrong value inside a policy."""


def _method(value: object) -> Method | None:
    if value is None:
        return None
    name = value.replace("-", "_") if isinstance(value, str) else value
    for method in METHODS:
        if method == name:
            return method
    raise _Wrong(f"the method must be one of {', '.join(METHODS)}, not {shown(value)}")


def _weights(value: object) -> Mapping[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        raise _Wrong("weights must map metric names to numbers")
    weights: dict[str, float] = {}
    for name, weight in value.items():
        number = finite(weight)
        if not isinstance(name, str) or number is None or number < 0:
            raise _Wrong(f"the weight of {shown(name)} must be a finite number of at least 0, not {shown(weight)}")
        weights[name] = number
    return MappingProxyType(weights)


def _threshold(value: object) -> float | None:
    if value is None:
        return None
    number = finite(value)
    if number is None or not 0 <= number <= 1:
        raise _Wrong(f"the threshold must be a number from 0 to 1, not {shown(value)}")
    return number


def _criteria(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) and name for name in value):
        raise _Wrong("criteria must be a list of metric names")
    if len(set(value)) != len(value):
        raise _Wrong("criteria must be unique")
    return tuple(value)


def _require_names(metrics: Mapping[str, float], declared: Mapping[str, float] | tuple[str, ...], what: str) -> None:
    missing = [name for name in declared if name not in metrics]
    extra = [name for name in metrics if name not in declared]
    if missing or extra:
        parts = [f"missing {shown(missing)}"] * bool(missing) + [f"not declared {shown(extra)}"] * bool(extra)
        raise RewardError(f"the metrics do not match {what}: {'; '.join(parts)}", path="metrics")
