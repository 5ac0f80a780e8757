from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchflow.errors import VerifierFailure
from benchflow.rewards import (
    UNIT,
    Factor,
    RewardRange,
    Scored,
    Unscored,
    gain,
    gain_verdict,
    read_reward,
    write_reward,
)
from benchflow.rewards.gain_reward import MIN_SPAN

unit = st.floats(0, 1)


@pytest.mark.parametrize(
    ("score", "baseline", "ceiling", "reward", "raw"),
    [
        (0.6, 0.2, 1.0, 0.5, 0.5),
        (0.2, 0.2, 1.0, 0.0, 0.0),
        (1.0, 0.2, 1.0, 1.0, 1.0),
        (0.0, 0.5, 1.0, 0.0, -1.0),
        (1.0, 0.0, 0.5, 1.0, 2.0),
    ],
)
def test_the_gain_of_a_score(score: float, baseline: float, ceiling: float, reward: float, raw: float) -> None:
    result = gain(score, baseline, ceiling)
    assert (result.reward, result.raw) == (pytest.approx(reward), pytest.approx(raw))
    assert result.clamped == (reward != raw)


def test_a_wider_range_lets_losses_and_records_show() -> None:
    assert gain(0.0, 0.5, 1.0, RewardRange(-1, 2)).reward == -1.0
    assert gain(1.0, 0.0, 0.5, RewardRange(-1, 2)).reward == 2.0
    assert gain(0.0, 0.75, 1.0, RewardRange(-1, 2)).reward == -1.0


@pytest.mark.parametrize(("baseline", "ceiling"), [(0.5, 0.5), (1.0, 0.0), (0.5, 0.5 + MIN_SPAN / 2), (0.0, 0.0)])
def test_a_degenerate_span_is_an_error_and_no_division(baseline: float, ceiling: float) -> None:
    with pytest.raises(VerifierFailure) as caught:
        gain(0.5, baseline, ceiling)
    assert (caught.value.code, caught.value.category) == ("gain-degenerate", "verifier")
    assert caught.value.path == "ceiling"


def test_the_smallest_span_is_one() -> None:
    assert gain(MIN_SPAN, 0.0, MIN_SPAN).reward == 1.0


def test_a_gain_that_overflows_is_refused() -> None:
    with pytest.raises(VerifierFailure, match="not a finite number") as caught:
        gain(1e308, -1e308, 1.0)
    assert (caught.value.code, caught.value.path) == ("gain-invalid", "score")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), True, None])
def test_only_finite_numbers_have_a_gain(bad: object) -> None:
    parts = {"score": (bad, 0.0, 1.0), "baseline": (0.5, bad, 1.0), "ceiling": (0.5, 0.0, bad)}
    for name, numbers in parts.items():
        with pytest.raises(VerifierFailure, match=name) as caught:
            gain(*numbers)
        assert (caught.value.code, caught.value.path) == ("gain-invalid", name)


@given(unit, unit, unit)
def test_a_gain_is_inside_the_range_exact_at_the_ends_and_grows_with_the_score(
    score: float, baseline: float, ceiling: float
) -> None:
    assume(ceiling - baseline >= MIN_SPAN)
    result = gain(score, baseline, ceiling)
    assert UNIT.low <= result.reward <= UNIT.high
    assert gain(baseline, baseline, ceiling).reward == 0.0
    assert gain(ceiling, baseline, ceiling).reward == 1.0
    assert result.reward <= gain(1.0, baseline, ceiling).reward


def test_the_verdict_records_all_three_runs(tmp_path: Path) -> None:
    verdict = gain_verdict(Scored(0.6), Scored(0.2), Scored(1.0), sources=("agent", "case:empty", "oracle"))
    assert verdict.reward == pytest.approx(0.5)
    assert verdict.metrics == {"score": 0.6, "baseline": 0.2, "ceiling": 1.0}
    assert [factor.source for factor in verdict.factors] == ["agent", "case:empty", "oracle"]
    write_reward(tmp_path, verdict)
    again = read_reward(tmp_path)
    assert (again.reward, again.metrics, again.details) == (verdict.reward, verdict.metrics, verdict.details)


def test_the_record_of_a_gain_says_what_it_was_made_of() -> None:
    parts = {"score": Scored(1.0), "baseline": Scored(0.0), "ceiling": Scored(0.5)}
    verdict = gain_verdict(*parts.values())
    assert verdict.factors == (
        Factor("score", "agent", 1.0),
        Factor("baseline", "no-op", 0.0),
        Factor("ceiling", "oracle", 0.5),
    )
    metrics = {"score": 1.0, "baseline": 0.0, "ceiling": 0.5}
    record = {
        **metrics,
        "source": "gain",
        "raw": 2.0,
        "reward": 1.0,
        "clamped": True,
        "sources": {"score": "agent", "baseline": "no-op", "ceiling": "oracle"},
    }
    assert verdict.document == {"reward": 1.0, "metrics": metrics, "metadata": record}
    assert verdict.details == {**record, "details": {name: part.to_dict() for name, part in parts.items()}}


def test_a_gain_needs_a_source_for_each_of_its_three_parts() -> None:
    with pytest.raises(ValueError, match="zip"):
        gain_verdict(Scored(0.6), Scored(0.2), Scored(1.0), sources=("agent", "no-op"))  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [0, 1, 2])
def test_without_any_one_part_there_is_no_gain(part: int) -> None:
    verdicts: list = [Scored(0.6), Scored(0.2), Scored(1.0)]
    verdicts[part] = Unscored("sandbox", "verify", "lost", "it went away")
    verdict = gain_verdict(*verdicts)
    assert isinstance(verdict, Unscored)
    assert (verdict.category, verdict.phase, verdict.code) == ("sandbox", "verify", "lost")
    assert ("score", "baseline", "ceiling")[part] in verdict.reason
    assert verdict.reason.endswith("it went away")
