"""The audit of one package: look, try every family, add what is visible without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from benchflow.errors import BenchflowError, Issue, RuntimeFailure, UnsupportedError
from benchflow.evidence.audit.battery import UNDECIDED, Battery, Bounds
from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.scouting import look
from benchflow.evidence.trial_stage import Stage, StageOptions, Trial, open_stage
from benchflow.plugins import FAMILIES
from benchflow.record.evidence import AUDIT_UNDECIDED, TOLERANCE, AuditReport, FamilyReport
from benchflow.task.checks.worth import check_worth
from benchflow.task.package import TaskPackage, load_package
from benchflow.verifier.scope import scope_of

CHEATS = "evidence/cheats/"


def load_families(names: tuple[str, ...] = ()) -> dict[str, Family]:
    """The families of these names, or all of them; an unknown one is a `UsageError`."""
    return {name: cast("Family", FAMILIES.load(name)) for name in names or FAMILIES.names()}


async def audit_package(
    package: TaskPackage | Path,
    options: StageOptions,
    families: Mapping[str, Family],
    on_family: Callable[[], None] = lambda: None,
) -> AuditReport:
    """Try the families on a package, on a stage of its own; `on_family` is called when one is done.

    Where it cannot be run here (a judge without its key, an image or a feature that is missing) the report is
    undecided, and says what is missing. Raises what refuses a package that is wrong itself: `PackageError`.
    """
    package = package if isinstance(package, TaskPackage) else load_package(package)
    try:
        async with open_stage(package, options) as stage:
            return await audit_stage(stage, families, on_family)
    except (UnsupportedError, RuntimeFailure) as error:
        return AuditReport(sound=False, isolation=None, findings=(not_run(error), *findings(package)))


def not_run(error: BenchflowError) -> Issue:
    """Why a package could not be audited here."""
    return Issue(AUDIT_UNDECIDED, "error", error.path, f"The audit could not run: {error}", error.file, error.line)


async def audit_stage(
    stage: Stage, families: Mapping[str, Family], on_family: Callable[[], None] = lambda: None
) -> AuditReport:
    """Try the families on the package of a stage, and the cheats that it ships."""
    seen = await look(stage)
    battery = Battery(stage, seen, bounds_of(stage.package))
    reports = await battery.run({**families, SHIPPED.name: SHIPPED}, on_family)
    found = (*findings(stage.package), *_observations(seen, await battery.baseline()), *_undecided(reports))
    sound = not any(report.verdict in ("broken", "voided") for report in reports)
    sound = sound and not any(issue.severity == "error" for issue in found)
    return AuditReport(sound, stage.isolation, reports, found)


def bounds_of(package: TaskPackage) -> Bounds:
    """What a package allows for work that is no solution, as it declares it or by default."""
    evidence = package.view.namespace.evidence
    calibration = evidence.calibration if evidence is not None else None
    declared = {
        "no_op": calibration.no_op_reward_max if calibration is not None else None,
        "known_bad": calibration.known_bad_reward_max if calibration is not None else None,
    }
    steps: list[str | None] = [step.config.name for step in package.view.steps]
    declared["most"] = max(scope_of(package.view, step).reward_range.high for step in steps or [None])
    return Bounds(**{name: bound for name, bound in declared.items() if bound is not None})


def findings(package: TaskPackage) -> Iterator[Issue]:
    """What makes a package worthless, seen without running it."""
    yield from check_worth(package)


def _observations(seen: Seen, nothing: Trial) -> Iterator[Issue]:
    """What the runs without tricks show: a reward that nobody reaches, and a verifier that scores solutions only."""
    full = seen.package.view.required_reward
    if seen.solved is not None and seen.solved < full - TOLERANCE:
        message = f"the package's own solution gets {seen.solved:g} of {full:g}: the full reward may be unreachable"
        yield Issue("reward-unreachable", "warning", "", message)
    error = nothing.result.error
    if error is not None:
        message = (
            f"without any work there is no score, not even 0, so that a failed attempt is not counted: {error.message}"
        )
        yield Issue("no-op-unscored", "warning", "", message)


def _undecided(reports: Sequence[FamilyReport]) -> Iterator[Issue]:
    """Nobody may take a package for sound because its audit could not run."""
    undecided = [report for report in reports if report.evidence.startswith(UNDECIDED)]
    if not undecided:
        return
    nothing = not any(report.verdict != "not-applicable" for report in reports)
    names = ", ".join(report.family for report in undecided[:5])
    more = f" and {len(undecided) - 5} more" if len(undecided) > 5 else ""
    message = f"not decided: {names}{more}; {undecided[0].evidence.removeprefix(UNDECIDED)}"
    yield Issue(AUDIT_UNDECIDED, "error" if nothing else "warning", "", message)


def _shipped(seen: Seen) -> list[Attempt] | NotApplicable:
    files = seen.package.files
    scripts = sorted(path for path in files.files if path.startswith(CHEATS) and path.endswith(".sh"))
    if not scripts:
        return NotApplicable("The package ships no cheats in evidence/cheats/.")
    return [Attempt(f"runs {path}", files.read(path).decode(errors="replace"), bound="known-bad") for path in scripts]


SHIPPED = Family(
    "shipped-cheats",
    "Runs the cheats that the package ships in evidence/cheats/.",
    "Make the verifier reject what the cheat produces.",
    _shipped,
)
