"""Statistics of a set of results, with their uncertainty.

The unit is the task: attempts at one task are not independent, so that a mean is the mean of task means and intervals
come from how tasks differ. Results without a score are counted, never averaged; the bounds show their possible
effect.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING, Any, Final, get_args

from benchflow.record import Bounds, Estimate, Rung, Statistics, TaskId, WiderCounts

if TYPE_CHECKING:
    from benchflow.evaluation.games.ratings import Seat

PASS_THRESHOLD = 1.0
"""A reward from here on counts as a pass."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """What statistics need of one result."""

    task: TaskId
    reward: float | None
    """None for a result without a score."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    category: str | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    rung: Rung | None = None
    """The isolation of its verification."""
    higher: tuple[bool, ...] = ()
    """For each check at a wider rung, whether the reward was higher there."""
    seats: tuple[Seat, ...] = ()
    """Who had which role and reward, if it was a game."""
    who: str = ""
    """The agent, or everybody in a game: attempts by the same are repetitions of one another."""

    @property
    def scored(self) -> bool:
        return self.reward is not None


Span = tuple[float, float]
"""The smallest and the largest value that is possible."""
RATE: Final[Span] = (0.0, 1.0)
_ROUNDING: Final = 1e-12
"""Means that differ by less are equal: attempts are added up in another order."""


def summarise(outcomes: Iterable[Sample], *, pass_threshold: float = PASS_THRESHOLD) -> Statistics:
    """The statistics of a set of results."""
    everything = list(outcomes)
    scored = [outcome for outcome in everything if outcome.scored]
    rewards = _by_task(scored, lambda outcome: outcome.reward)
    passes = _by_task(scored, lambda outcome: float((outcome.reward or 0.0) >= pass_threshold))
    attempts = Counter((outcome.task, outcome.who) for outcome in everything)
    counts = _pass_counts(scored, pass_threshold)
    return Statistics(
        total=len(everything),
        tasks=len({task for task, _ in attempts}),
        scored=len(scored),
        unscored=len(everything) - len(scored),
        unscored_by=dict(sorted(Counter(o.category or "infrastructure" for o in everything if not o.scored).items())),
        mean_reward=mean(rewards, span_of(reward for values in rewards.values() for reward in values)),
        mean_reward_bounds=bounds(everything),
        pass_threshold=pass_threshold,
        pass_rate=proportion(passes),
        pass_at_k={str(k): pass_at_k(counts, k) for k in _ks(attempts)},
        pass_hat_k={str(k): pass_hat_k(counts, k) for k in _ks(attempts)},
        metrics=_metrics(scored),
        usage=_usage(everything),
        isolation=_by_rung(everything),
        wider=WiderCounts(
            checked=sum(bool(outcome.higher) for outcome in everything),
            higher=sum(any(outcome.higher) for outcome in everything),
        ),
    )


def _pass_counts(scored: Iterable[Sample], pass_threshold: float) -> list[Counts]:
    """Of each task, how many attempts there are and how many of them pass; those by others are counted apart."""
    found: dict[TaskId, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for outcome in scored:
        found[outcome.task][outcome.who].append((outcome.reward or 0.0) >= pass_threshold)
    return [tuple((len(passed), sum(passed)) for passed in by.values()) for by in found.values()]


def _by_rung(outcomes: Iterable[Sample]) -> dict[str, int]:
    found = Counter(outcome.rung for outcome in outcomes)
    return {rung: found[rung] for rung in get_args(Rung) if found[rung]}


def span_of(rewards: Iterable[float]) -> Span:
    """The possible values of rewards: 0 to 1, unless some are outside."""
    known = list(rewards)
    return min([0.0, *known]), max([1.0, *known])


def average(values: Sequence[float]) -> float:
    """The mean, also of numbers whose sum is too large for a float."""
    try:
        return fmean(values)
    except OverflowError:
        largest = max(map(abs, values))
        return fmean(value / largest for value in values) * largest


def mean(by_task: Mapping[Any, Sequence[float]], span: Span | None = None) -> Estimate:
    """The mean of task means with a t interval over tasks, cut to the values that are possible.

    One task has no interval. Tasks that all agree show no spread, and a t interval would have no width. With a span
    it is then the Wilson interval of the mean's place in the span: of all distributions within a span, those at its
    two ends vary most, so this is cautious. Without a span it is not known.
    """
    results = sum(map(len, by_task.values()))
    units = [average(values) for values in by_task.values()]
    if not units:
        return Estimate(None, None, None, 0, 0)
    value = average(units)
    low, high = _interval(units, value, span) if len(units) > 1 else (None, None)
    return Estimate(value, low, high, len(units), results)


def _interval(units: Sequence[float], value: float, span: Span | None) -> tuple[float | None, float | None]:
    least, most = span or (-sys.float_info.max, sys.float_info.max)
    scale = max(1.0, *map(abs, (*units, *(span or ()))))  # squares of large numbers do not fit into a float
    scaled = [unit / scale for unit in units]
    if max(scaled) - min(scaled) > _ROUNDING:
        spread = variance(scaled)
        half = t_quantile(0.5 + CONFIDENCE / 2, len(units) - 1) * math.sqrt(spread / len(units)) * scale
        return max(least, value - half), min(most, value + half)
    if span is None:
        return None, None
    least, most = least / scale, most / scale
    low, high = (
        max(span[0], min(span[1], (least + end * (most - least)) * scale))
        for end in wilson(min(1.0, max(0.0, (value / scale - least) / (most - least))), len(units))
    )
    return low, high


def proportion(by_task: Mapping[Any, Sequence[float]]) -> Estimate:
    """The mean of 0/1 values with a Wilson interval whose sample size is reduced by the spread between tasks.

    Attempts that agree within each task count as one; attempts that vary as freely as tasks do count in full.
    """
    results = sum(map(len, by_task.values()))
    units = [fmean(values) for values in by_task.values()]
    if not units:
        return Estimate(None, None, None, 0, 0)
    value = fmean(units)
    size = float(len(units))  # if all agree, nothing shows that attempts carry more information than tasks
    between = variance(units) / len(units) if len(units) > 1 else 0.0
    if between > 0:
        size = min(max(value * (1 - value) / between, len(units)), results)
    low, high = wilson(value, size)
    return Estimate(value, low, high, len(units), results)


def wilson(share: float, size: float) -> tuple[float, float]:
    """The Wilson score interval of a share seen in `size` trials."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    return max(0.0, middle - half), min(1.0, middle + half)


def sign_test(gained: int, lost: int) -> float | None:
    """The chance of flips at least as uneven as these if both directions are equally likely; None without flips."""
    total = gained + lost
    if not total:
        return None
    tail = sum(math.comb(total, count) for count in range(min(gained, lost) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**total)))


Counts = tuple[tuple[int, int], ...]
"""Attempts and passes at one task, for everybody who attempted it."""


def pass_at_k(counts: Iterable[Counts], k: int) -> Estimate:
    """The chance that one of k attempts passes; tasks with fewer are left out."""
    return _over_tasks(counts, k, lambda n, c: (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k))


def pass_hat_k(counts: Iterable[Counts], k: int) -> Estimate:
    """The chance that all of k attempts pass; tasks with fewer are left out."""
    return _over_tasks(counts, k, lambda n, c: math.comb(c, k) / math.comb(n, k))


def _over_tasks(counts: Iterable[Counts], k: int, chance: Any) -> Estimate:
    usable = [[(n, c) for n, c in by if n >= k] for by in counts]
    chances = {index: [chance(n, c) for n, c in by] for index, by in enumerate(usable) if by}
    return replace(mean(chances, RATE), results=sum(n for by in usable for n, _ in by))


def bounds(outcomes: Sequence[Sample]) -> Bounds:
    """What the mean reward could have been: every result without a score taken as 0, and as 1."""
    low, high = (
        mean(_by_task(outcomes, lambda outcome, fill=fill: outcome.reward if outcome.scored else fill)).value
        for fill in RATE
    )
    return Bounds(low, high)


def t_quantile(probability: float, freedom: int) -> float:
    """Student's t quantile by Hill's expansion; exact for one and two degrees of freedom."""
    tail = 2 * (1 - probability)
    if freedom == 1:
        return 1 / math.tan(tail * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    a = 1 / (freedom - 0.5)
    b = (48 / a) / a
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    x = d * tail
    y = x ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(1 - tail / 2) * -1
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        first = (freedom + 6) / (freedom * y) - 0.089 * d - 0.822
        y = ((1 / (first * (freedom + 2) * 3) + 0.5 / (freedom + 4)) * y - 1) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)


def _by_task(outcomes: Iterable[Sample], value: Any) -> dict[TaskId, list[float]]:
    grouped: dict[TaskId, list[float]] = defaultdict(list)
    for outcome in outcomes:
        grouped[outcome.task].append(float(value(outcome)))
    return dict(grouped)


def _ks(attempts: Mapping[Any, int]) -> list[int]:
    """1, 2, 4, … up to the most attempts at a task, and that number itself."""
    most = max(attempts.values(), default=0)
    powers = [2**power for power in range(most.bit_length())]
    return sorted({*powers, most} - {0})


def _metrics(scored: Sequence[Sample]) -> dict[str, Estimate]:
    names = sorted({name for outcome in scored for name in outcome.metrics})
    having = {name: [outcome for outcome in scored if name in outcome.metrics] for name in names}
    return {name: mean(_by_task(having[name], lambda o, name=name: o.metrics[name])) for name in names}


def _usage(outcomes: Sequence[Sample]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for outcome in outcomes:
        for name, value in outcome.usage.items():
            totals[name] += value
    return {name: total for name, total in sorted(totals.items()) if math.isfinite(total)}  # JSON has no infinity
