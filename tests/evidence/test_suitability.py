"""Leaderboard suitability: six checks on live cases, and what was not examined."""

from dataclasses import replace

import pytest

from benchflow.evidence.flakes import flake
from benchflow.evidence.suitability import EXAMINATIONS, examined_by, generated_types, suitability
from benchflow.record.evidence import AuditReport, CaseReport, Expected, MeasuredAgreement, ProofReport


def case(kind, *rewards, source="calibration-report", passed=True, **expect):
    expected = Expected(**(expect or {"reward_min": 0.0}))
    return CaseReport(f"a-{kind}", kind, len(rewards), rewards, expected, passed, source)


@pytest.fixture
def cases():
    return [
        case("oracle", 1.0, 1.0, source="declared", reward_min=0.99),
        case("no-op", 0.0, reward_max=0.1),
        case("known-bad", 0.0, reward_max=0.5),
        case("partial", 0.5, reward_range=(0.2, 0.8)),
        case("reference", 1.0, reward_equals=1.0),
    ]


def test_complete_live_cases_are_suitable(cases):
    found = suitability(cases)
    assert (found.status, found.issues) == ("suitable", ())
    assert list(found.checks.values()) == [True] * 6


def test_without_runs_nothing_is_shown():
    found = suitability([])
    assert found.status == "insufficient"
    assert found.checks["has_live_runs"] is False
    assert "oracle-cases" in found.unchecked


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("oracle", "has_oracle_proof"),
        ("reference", "has_reference_proof"),
        ("partial", "has_generated_calibration_coverage"),
    ],
)
def test_a_missing_kind_of_case_fails_its_check(cases, kind, check):
    found = suitability([one for one in cases if one.type != kind])
    assert found.checks[check] is False
    assert f"{kind}-cases" in found.unchecked
    assert any(kind in issue for issue in found.issues)


def test_a_case_that_failed_proves_nothing(cases):
    cases[0] = replace(cases[0], rewards=(1.0, None), passed=False)
    found = suitability(cases)
    checks = {name for name, good in found.checks.items() if not good}
    assert checks == {"all_runs_passed", "flake_rate_within_limit", "has_oracle_proof"}
    assert "a-oracle" in found.issues[0]


def test_calibration_cases_declared_by_hand_do_not_count_as_generated(cases):
    cases[1] = replace(cases[1], source="declared")
    assert generated_types(cases) == ("known-bad", "partial", "reference")
    assert suitability(cases).checks["has_generated_calibration_coverage"] is False


def test_one_failure_in_twenty_is_refused_at_0_and_granted_at_0_2(cases):
    rewards = (*[1.0] * 19, 0.0)
    cases[0] = case("oracle", *rewards, source="declared", reward_min=1.0, flake_rate_max=0.2)
    assert suitability(cases).checks["flake_rate_within_limit"] is False
    assert suitability(cases, max_flake_rate=0.2).status == "suitable"


def test_three_green_reruns_are_too_few_for_a_leaderboard(cases):
    few = suitability(cases, flake=flake([True] * 3))
    assert few.checks["flake_rate_within_limit"] is False
    assert "add reruns" in few.issues[0]
    assert suitability(cases, flake=flake([True] * 60)).status == "suitable"


def test_a_failed_rerun_counts_even_where_the_bound_is_low(cases):
    assert suitability(cases, flake=flake([True] * 199 + [False])).status == "insufficient"
    assert suitability(cases, flake=flake([True] * 199 + [False]), max_flake_rate=0.05).status == "suitable"


def test_what_was_not_examined_is_named(cases):
    found = suitability(cases, examined={"exploit-audit", "network-off"}, not_applicable={"judge-agreement"})
    assert found.unchecked == ("human-baseline", "instruction-review", "perturbations")
    assert suitability(cases).unchecked == tuple(EXAMINATIONS)


def test_an_unknown_examination_is_refused(cases):
    with pytest.raises(ValueError, match="astrology"):
        suitability(cases, examined={"astrology"})


def test_a_proof_examined_what_it_ran():
    seed = CaseReport("seed", "perturbation", 1, (1.0,), Expected(), True)
    nothing = ProofReport(True, None, (), None, None, None, ())
    assert examined_by(nothing) == frozenset()
    assert examined_by(replace(nothing, cases=(seed,))) == {"perturbations"}
    assert examined_by(replace(nothing, cases=(replace(seed, name="network"),))) == {"network-off"}
    judged = replace(nothing, judge_agreement=MeasuredAgreement(10, 1, 1.0), audit=AuditReport(True, None))
    assert examined_by(judged) == {"judge-agreement", "exploit-audit"}


def test_a_perturbed_reward_that_differs_once_is_not_a_flake_rate():
    once = CaseReport("seed", "perturbation", 2, (0.0, 1.0), Expected(reward_equals=1.0, flake_rate_max=0.5), True)
    assert suitability([once]).checks["flake_rate_within_limit"]
