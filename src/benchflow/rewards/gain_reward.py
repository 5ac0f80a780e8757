"""Gain: a score relative to a live baseline and ceiling, (score - baseline) / (ceiling - baseline).

Baseline and ceiling are measured like the score itself. If the ceiling is not above the baseline by at least
`MIN_SPAN`, no gain can be computed: that is an error, never a division.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from benchflow.errors import VerifierFailure
from benchflow.rewards.numbers import UNIT, RewardRange, finite
from benchflow.rewards.verdict import Factor, Scored, Unscored, Verdict

MIN_SPAN: Final = 1e-6
"""The smallest accepted distance between baseline and ceiling."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A relative score and the values it was computed from."""

    score: float
    baseline: float
    ceiling: float
    raw: float
    """The quotient: below 0 if worse than the baseline, above 1 if better than the ceiling."""
    reward: float
    """The quotient, clamped to the range."""

    @property
    def clamped(self) -> bool:
        return self.reward != self.raw


def gain(score: float, baseline: float, ceiling: float, reward_range: RewardRange = UNIT) -> Gain:
    """The gain of a score.

    The reward is clamped to `reward_range`; `raw` keeps the quotient. Raises `VerifierFailure`: `gain-degenerate` if
    the ceiling is not above the baseline, `gain-invalid` for values that are not finite numbers.
    """
    for name, value in (("score", score), ("baseline", baseline), ("ceiling", ceiling)):
        if finite(value) is None:
            raise VerifierFailure(f"the {name} of a gain must be a finite number", code="gain-invalid", path=name)
    span = ceiling - baseline
    if span < MIN_SPAN:
        raise VerifierFailure(
            f"the ceiling ({ceiling!r}) is not above the baseline ({baseline!r}), so no gain can be measured",
            code="gain-degenerate",
            path="ceiling",
        )
    raw = finite((score - baseline) / span)
    if raw is None:
        raise VerifierFailure("the gain is not a finite number", code="gain-invalid", path="score")
    return Gain(score, baseline, ceiling, raw, min(max(raw, reward_range.low), reward_range.high))


def gain_verdict(
    score: Verdict,
    baseline: Verdict,
    ceiling: Verdict,
    *,
    sources: tuple[str, str, str] = ("agent", "no-op", "oracle"),
    reward_range: RewardRange = UNIT,
) -> Verdict:
    """The verdict of a gain; if one of its three parts is unscored, so is the gain, for the same reason.

    `sources` name the runs that the score, the baseline and the ceiling came from. Raises what `gain` raises.
    """
    parts = {"score": score, "baseline": baseline, "ceiling": ceiling}
    factors: dict[str, Factor] = {}
    for source, (name, verdict) in zip(sources, parts.items(), strict=True):
        if isinstance(verdict, Unscored):
            reason = f"the {name} (from {source!r}) has no reward: {verdict.reason}"
            return Unscored(verdict.category, verdict.phase, verdict.code, reason)
        factors[name] = Factor(name, source, verdict.reward)
    metrics = {name: factor.reward for name, factor in factors.items()}
    result = gain(metrics["score"], metrics["baseline"], metrics["ceiling"], reward_range)
    record = {
        "source": "gain",
        **asdict(result),
        "clamped": result.clamped,
        "sources": {name: factor.source for name, factor in factors.items()},
    }
    return Scored(
        result.reward,
        metrics=metrics,
        factors=tuple(factors.values()),
        document={"reward": result.reward, "metrics": metrics, "metadata": record},
        details={**record, "details": {name: verdict.to_dict() for name, verdict in parts.items()}},
    )
