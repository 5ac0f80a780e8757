"""How far a judge agrees with itself, and whether that is what the package declares; pure.

Several verdicts on one state should be the same. What is compared are all pairs of the rewards that one state got, so
that a judge which says yes or no gets the share of pairs that agree, and one which gives grades is not asked for equal
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from benchflow.errors import Issue, Severity
from benchflow.record.evidence import TOLERANCE, MeasuredAgreement
from benchflow.task.config.evidence_config import JudgeAgreement

PATH: Final = "benchflow.evidence.calibration.judge_agreement"


def measured_agreement(states: Iterable[Sequence[float | None]]) -> MeasuredAgreement | None:
    """The agreement over the verdicts on each state; None if no state has two."""
    samples = pairs = compared = 0
    difference = 0.0
    for verdicts in states:
        rewards = sorted(reward for reward in verdicts if reward is not None)
        count = len(rewards)
        if count > 1:
            samples, compared = samples + count, compared + 1
            pairs += count * (count - 1) // 2
            # Of a sorted list, each reward is the larger one of `index` pairs and the smaller one of the others.
            difference += sum((2 * index - count + 1) * reward for index, reward in enumerate(rewards))
    return MeasuredAgreement(samples, compared, max(0.0, 1 - difference / pairs)) if pairs else None


def agreement_issues(found: MeasuredAgreement | None, declared: JudgeAgreement | None) -> list[Issue]:
    """What is missing from what a package declares: errors where it is required, else warnings."""
    if declared is None:
        return []
    severity: Severity = "error" if declared.required else "warning"
    if found is None:
        why = "The agreement of the judge was not measured: no state was judged twice."
        return [Issue("judge-unmeasured", severity, PATH, why, "task.md")]
    issues: list[Issue] = []
    if declared.sample_count is not None and found.sample_count < declared.sample_count:
        few = f"The agreement of the judge was measured on {found.sample_count} verdicts"
        message = f"{few}; {declared.sample_count} are declared: use --reruns {declared.sample_count}."
        issues.append(Issue("judge-unmeasured", severity, PATH, message, "task.md"))
    least = declared.min_pairwise_agreement
    if least is not None and found.pairwise_agreement < least - TOLERANCE:
        message = (
            f"The verdicts of the judge on the same state agree at {found.pairwise_agreement:.2g} "
            f"({found.sample_count} verdicts); {least:g} is declared."
        )
        issues.append(Issue("judge-disagrees", severity, PATH, message, "task.md"))
    return issues
