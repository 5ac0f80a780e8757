"""What `acceptance-live` runs: the declared cases, and those generated from the calibration report; pure.

Every generated case carries the command that its entry has, because a case is something that is run, never an artifact
that is missing on purpose. Whatever cannot be run is an issue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from benchflow.errors import Issue
from benchflow.files.strict_json import StrictJSONError, canonical_sha256, parse_json
from benchflow.record.codec import plain
from benchflow.record.evidence import CaseType
from benchflow.record.live_report import LiveCaseRecord, LiveExpect
from benchflow.task.checks.evidence_files import CALIBRATION_TYPES, unit_number
from benchflow.task.config.evidence_config import AcceptanceLive, Calibration, Evidence, LiveLeaderboard
from benchflow.task.package import TaskPackage

LIVE: Final = "benchflow.evidence.acceptance_live"
DEFAULT_TARGET: Final = "/app"


@dataclass(frozen=True, slots=True)
class LiveSpec:
    """What is run, and what it is judged by."""

    cases: tuple[LiveCaseRecord, ...]
    paths: Mapping[str, tuple[str, str]]
    """The name of a case to the file and the dotted path that it comes from."""
    target: str | None
    """Where the current worktree is staged; None if the package does not declare a workspace."""
    leaderboard: LiveLeaderboard
    report: str | None
    evidence: Evidence

    @property
    def sha256(self) -> str:
        """Changes with everything that decides what a report is about."""
        source = "current-worktree" if self.target is not None else None
        board = {"required": self.leaderboard.required, "max_flake_rate": self.leaderboard.max_flake_rate}
        return canonical_sha256(
            {
                "workspace": {"source": source, "target": self.target},
                "cases": plain(self.cases),
                "leaderboard": board,
                "report": self.report,
            }
        )


def live_spec(package: TaskPackage, evidence: Evidence | None) -> tuple[LiveSpec | None, tuple[Issue, ...]]:
    """The live cases of a package with this evidence; None if there is nothing to run, which the issues explain."""
    live = evidence.acceptance_live if evidence is not None else None
    if evidence is None or live is None:
        return None, (_issue("evidence-missing", LIVE, f"{LIVE} is missing: there are no live cases to run"),)
    issues: list[Issue] = []
    cases: list[tuple[LiveCaseRecord, tuple[str, str]]] = [
        *_declared(package, live, issues),
        *_generated(package, evidence, live, issues),
    ]
    for name, number in Counter(case.name for case, _ in cases).items():
        if number > 1:
            message = f"{number} live cases are called '{name}'; the names of declared and generated cases must differ"
            issues.append(_issue("live-case-invalid", f"{LIVE}.cases", message))
    if not cases and not issues:
        issues.append(_issue("evidence-missing", f"{LIVE}.cases", f"{LIVE} declares neither cases nor calibration"))
    if issues:
        return None, tuple(issues)
    workdir = package.view.config.environment.workdir
    target = (live.workspace.target or workdir or DEFAULT_TARGET) if "workspace" in live.declared else None
    records = tuple(case for case, _ in cases)
    paths = {case.name: where for case, where in cases}
    return LiveSpec(records, paths, target, live.leaderboard or LiveLeaderboard(), live.report, evidence), ()


def _declared(
    package: TaskPackage, live: AcceptanceLive, issues: list[Issue]
) -> Iterator[tuple[LiveCaseRecord, tuple[str, str]]]:
    for index, case in enumerate(live.cases):
        path = f"{LIVE}.cases[{index}]"
        given = case.expect
        expect = LiveExpect(
            given.reward_min, given.reward_max, given.reward_range, given.reward_equals, given.flake_rate_max
        )
        kind = cast("CaseType", case.type)
        if kind == "oracle" and not has_oracle(package):
            message = f"The case '{case.name}' runs the oracle, but the package has no oracle/solve.sh"
            issues.append(_issue("live-case-invalid", path, message))
        elif kind in ("known-bad", "partial") and case.command is None and "workspace" not in live.declared:
            message = f"The {kind} case '{case.name}' has no command and no workspace, so there is nothing to run"
            issues.append(_issue("live-case-invalid", path, message))
        else:
            record = LiveCaseRecord(case.name, kind, "declared", case.command, case.reruns, expect)
            yield record, ("task.md", path)


def _generated(
    package: TaskPackage, evidence: Evidence, live: AcceptanceLive, issues: list[Issue]
) -> Iterator[tuple[LiveCaseRecord, tuple[str, str]]]:
    if live.calibration is None:
        return
    calibration = evidence.calibration
    if calibration is None or calibration.report is None:
        path = f"{LIVE}.calibration.from"
        issues.append(_issue("evidence-missing", path, f"{path} names calibration.report, which is not declared"))
        return
    file = calibration.report
    try:
        document = parse_json(package.files.read(file))
    except (OSError, KeyError, StrictJSONError) as error:
        issues.append(Issue("evidence-file-invalid", "error", "", f"{file} cannot be read: {error}", file))
        return
    entries = document.get("cases") if isinstance(document, dict) else None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        problem = _entry_problem(entry)
        if problem is not None:
            message = f"{file}: cases[{index}] cannot be run live: {problem}"
            issues.append(Issue("live-case-invalid", "error", f"cases[{index}]", message, file))
            continue
        expect = _derived(entry, calibration, live.calibration.flake_rate_max)
        kind = cast("CaseType", entry["type"])
        record = LiveCaseRecord(
            entry["name"], kind, "calibration-report", entry.get("command"), live.calibration.reruns, expect
        )
        yield record, (file, f"cases[{index}]")


def _entry_problem(entry: Any) -> str | None:
    """Why an entry of a calibration report is not a live case."""
    if not isinstance(entry, Mapping):
        return "it is not an object"
    name, kind, command = entry.get("name"), entry.get("type"), entry.get("command")
    if not isinstance(name, str) or not name.strip():
        return "it has no name"
    if kind not in CALIBRATION_TYPES:
        return f"its type is not one of {', '.join(CALIBRATION_TYPES)}"
    if unit_number(entry.get("reward")) is None:
        return "its reward is not a number from 0 to 1"
    if command is None:
        return None if kind == "reference" else f"a {kind} case needs a command"
    if not isinstance(command, str) or not command.strip() or len(command.splitlines()) != 1:
        return "its command is not a single line"
    return None


def _derived(entry: Mapping[str, Any], calibration: Calibration, flakes: float | None) -> LiveExpect:
    kind = entry["type"]
    if kind == "no-op":
        return LiveExpect(None, calibration.no_op_reward_max, None, None, flakes)
    if kind == "known-bad":
        return LiveExpect(None, calibration.known_bad_reward_max, None, None, flakes)
    if kind == "partial":
        return LiveExpect(None, None, calibration.partial_solution_range, None, flakes)
    return LiveExpect(None, None, None, unit_number(entry["reward"]), flakes)


def has_oracle(package: TaskPackage) -> bool:
    """Whether the package, or each of its steps, has a solution to run."""
    steps = package.view.steps
    return package.oracle_dir is not None or (bool(steps) and all(step.oracle_dir is not None for step in steps))


def _issue(code: str, path: str, message: str) -> Issue:
    return Issue(code, "error", path, message, "task.md")
