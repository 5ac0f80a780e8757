"""Whether the evidence of a package is enough for a leaderboard: six checks, and what was not examined; pure.

A suitable package is not a perfect one. What nobody has examined is listed beside the verdict, so that a reader of a
leaderboard sees what it rests on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from benchflow.record.evidence import TOLERANCE, CaseReport, Flake, ProofReport, Suitability

GENERATED_TYPES: Final = ("known-bad", "no-op", "partial", "reference")
"""The types of calibration case that a leaderboard requires, each generated and passed."""

MOST_UPPER_95: Final = 0.05
"""Where reruns were counted, their upper bound must be this low, or as low as what the package declares."""

EXAMINATIONS: Final[Mapping[str, str]] = {
    "exploit-audit": "no exploit family was tried",
    "human-baseline": "no score of a person is recorded",
    "instruction-review": "no one reviewed whether the verifier tests what the instruction asks",
    "judge-agreement": "the agreement of the judge with itself was not measured",
    "network-off": "the verifier was not run without a network",
    "perturbations": "the verifier was not run in another time zone, locale or clock, or as another user",
}
"""What else can be examined, and the sentence for where it was not."""


def suitability(
    cases: Sequence[CaseReport],
    *,
    max_flake_rate: float = 0.0,
    flake: Flake | None = None,
    examined: Collection[str] = (),
    not_applicable: Collection[str] = (),
) -> Suitability:
    """The verdict on cases that were run.

    `flake` counts the verifier reruns of one state, where there were any. `examined` and `not_applicable` name
    `EXAMINATIONS`; the rest is unchecked, as are the case types that the package does not have.
    """
    if unknown := {*examined, *not_applicable} - EXAMINATIONS.keys():
        raise ValueError(f"unknown examinations: {', '.join(sorted(unknown))}")
    problems = {
        "has_live_runs": _no_runs(cases),
        "all_runs_passed": _failed(cases),
        "flake_rate_within_limit": _too_many_flakes(cases, max_flake_rate, flake),
        "has_oracle_proof": _no_proof(cases, "oracle"),
        "has_reference_proof": _no_proof(cases, "reference"),
        "has_generated_calibration_coverage": _uncovered(cases),
    }
    issues = tuple(problem for problem in problems.values() if problem is not None)
    return Suitability(
        status="insufficient" if issues else "suitable",
        checks={name: problem is None for name, problem in problems.items()},
        unchecked=_unchecked(cases, {*examined, *not_applicable}),
        issues=issues,
    )


def examined_by(report: ProofReport) -> frozenset[str]:
    """What the runs of a proof examined."""
    perturbed = {case.name for case in report.cases if case.type == "perturbation"}
    done = {
        "exploit-audit": report.audit is not None,
        "judge-agreement": report.judge_agreement is not None,
        "network-off": "network" in perturbed,
        "perturbations": bool(perturbed - {"network"}),
    }
    return frozenset(name for name, was in done.items() if was)


def generated_types(cases: Sequence[CaseReport]) -> tuple[str, ...]:
    """The calibration types of which a case passed that nobody declared by hand."""
    passed = {case.type for case in cases if case.source != "declared" and case.passed and case.runs}
    return tuple(kind for kind in GENERATED_TYPES if kind in passed)


def failed_runs(case: CaseReport) -> int:
    """The runs that were not scored, or whose reward was not the expected one."""
    return sum(reward is None or bool(case.expect.missed(reward)) for reward in case.rewards)


def _no_runs(cases: Sequence[CaseReport]) -> str | None:
    return None if any(case.runs for case in cases) else "no live case was run"


def _failed(cases: Sequence[CaseReport]) -> str | None:
    """A case that tolerates a flake rate passes with failed runs, and then only the limit of the leaderboard counts."""
    failed = [case.name for case in cases if not case.passed]
    return f"these cases failed: {', '.join(failed)}" if failed else None


def _too_many_flakes(cases: Sequence[CaseReport], most: float, flake: Flake | None) -> str | None:
    for case in cases:
        if case.type == "perturbation":  # judged by a reward that differs twice, which is not a rate
            continue
        if case.runs and failed_runs(case) / case.runs > most + TOLERANCE:
            rate = f"{failed_runs(case)} of {case.runs} runs"
            return f"{rate} of the case '{case.name}' failed; a rate of at most {most:g} is allowed"
    if flake is None:
        return None
    if flake.runs and flake.failures / flake.runs > most + TOLERANCE:
        return f"{flake.failures} of {flake.runs} verifier reruns failed; a rate of at most {most:g} is allowed"
    bound = max(most, MOST_UPPER_95)
    if flake.upper_95 > bound + TOLERANCE:
        known = f"{flake.failures} failures in {flake.runs} verifier reruns"
        return f"{known} show a flake rate of at most {flake.upper_95:.2g} at 95 %; {bound:g} is required: add reruns"
    return None


def _no_proof(cases: Sequence[CaseReport], kind: str) -> str | None:
    proven = any(case.type == kind and case.passed and case.runs for case in cases)
    return None if proven else f"no {kind} case passed"


def _uncovered(cases: Sequence[CaseReport]) -> str | None:
    missing = [kind for kind in GENERATED_TYPES if kind not in generated_types(cases)]
    return f"no generated calibration case of these types passed: {', '.join(missing)}" if missing else None


def _unchecked(cases: Sequence[CaseReport], settled: Collection[str]) -> tuple[str, ...]:
    present = {case.type for case in cases if case.runs}
    absent = [f"{kind}-cases" for kind in ("oracle", *GENERATED_TYPES) if kind not in present]
    return (*absent, *(name for name in EXAMINATIONS if name not in settled))
