"""What shows that a package is sound: its cases on an axis of rewards, flakes, exploits, and what of it is stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchflow.record.evidence import CaseReport, Expected, FamilyReport, ProofReport, read_proof_report
from benchflow.view.page_addresses import Fields, address
from benchflow.view.pages.package_page import FoundPackage, find_package
from benchflow.view.viewer import Viewer

_ORDER: Final = ("broken", "voided", "held", "not-applicable")
ROW_HEIGHT: Final = 30


@dataclass(frozen=True, slots=True)
class CaseLine:
    """One case on the axis: its rewards, and the span that is allowed."""

    case: CaseReport
    y: int
    low: float
    high: float
    rewards: tuple[tuple[float, int], ...]
    """Each reward with how often it occurred."""
    unscored: int


def evidence_page(viewer: Viewer, job_name: str, fields: Fields) -> str:
    """The page with the evidence of a package."""
    name = fields.one("task")
    found = find_package(viewer.jobs.get(job_name), name)
    report = read_proof_report(found.package.path / "evidence" / "acceptance")
    cases = _lines(report.cases) if report is not None else []
    families = sorted(report.audit.families, key=_family_order) if report is not None and report.audit else []
    return viewer.page(
        "evidence.html",
        f"Evidence of {name}",
        [
            ("Jobs", "/"),
            (job_name, address("job", job_name)),
            (name, address("job", job_name, "package", task=name)),
            ("Evidence", None),
        ],
        name=name,
        path=str(found.path),
        report=report,
        stale=_stale(found, report) if report is not None else [],
        cases=cases,
        height=len(cases) * ROW_HEIGHT + 28,
        families=families,
        package_url=address("job", job_name, "package", task=name),
    )


def _lines(cases: tuple[CaseReport, ...]) -> list[CaseLine]:
    found = []
    for index, case in enumerate(sorted(cases, key=lambda case: (case.type == "perturbation", -_middle(case)))):
        low, high = _allowed(case.expect)
        counts: dict[float, int] = {}
        for reward in case.rewards:
            if reward is not None:
                counts[round(reward, 6)] = counts.get(round(reward, 6), 0) + 1
        unscored = sum(reward is None for reward in case.rewards)
        found.append(CaseLine(case, index * ROW_HEIGHT + 20, low, high, tuple(sorted(counts.items())), unscored))
    return found


def _middle(case: CaseReport) -> float:
    known = [reward for reward in case.rewards if reward is not None]
    return sum(known) / len(known) if known else 0.0


def _allowed(expect: Expected) -> tuple[float, float]:
    """The rewards that a case may have, as a span of 0 to 1."""
    if expect.reward_equals is not None:
        return expect.reward_equals, expect.reward_equals
    low, high = expect.reward_range or (0.0, 1.0)
    return max(low, expect.reward_min or 0.0), min(high, 1.0 if expect.reward_max is None else expect.reward_max)


def _family_order(family: FamilyReport) -> tuple[int, str]:
    return _ORDER.index(family.verdict), family.family


def _stale(found: FoundPackage, report: ProofReport) -> list[str]:
    """The planes that changed since the evidence was made."""
    from benchflow.task.package import package_parts

    if report.bound is None:
        return ["all of it: the report does not say what it is about"]
    now = package_parts(found.package)
    return [plane for plane, digest in report.bound.planes.items() if now.get(plane) != digest]
