"""The evidence of a package: what it declares and, with the presets for live acceptance, files in their usual places.

Files in `evidence/acceptance/` fill in what is missing, and never replace what the author declares. They are found, not
vouched for: a file that is found has no pin of its own, so only the pins file shows that it has not changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.task.checks.evidence_files import MAX_EVIDENCE_BYTES, unit_number
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.document.merging import merge_below
from benchflow.task.package import TaskPackage

PRESETS: Final = frozenset({"acceptance-live", "leaderboard-local"})
FOLDER: Final = "evidence/acceptance/"
ORACLE_RUN: Final = f"{FOLDER}oracle-run.json"
STABILITY: Final = f"{FOLDER}verifier-stability-report.json"
REVIEW: Final = f"{FOLDER}review.json"
CALIBRATION: Final = f"{FOLDER}calibration-report.json"
GOLD_RESULT: Final = f"{FOLDER}gold-result.json"
LIVE_REPORT: Final = f"{FOLDER}live-report.json"
GOLD_TRAJECTORY: Final = f"{FOLDER}gold-trajectory.jsonl"
WORKSPACE: Final = "/repo"
_EXPECT: Final = ("reward_min", "reward_max", "reward_range", "reward_equals", "flake_rate_max")


def effective_evidence(package: TaskPackage) -> Evidence | None:
    """The evidence of a package; None if it has none."""
    document = package.document
    if document is None:
        return None
    declared: Evidence | None = document.namespace.evidence
    if PRESETS.isdisjoint(document.presets):
        return declared
    evidence = declared or Evidence()
    for section, found in _found(package):
        problems = IssueLog("task.md")
        merged = merge_below(Evidence, {section: found}, evidence.to_declared_dict())
        filled = Evidence.parse(merged, "benchflow.evidence", problems)
        if filled is not None and not problems.issues:  # what is malformed is reported where its file is checked
            evidence = filled
    return evidence if evidence.declared else None


def _found(package: TaskPackage) -> Iterator[tuple[str, Any]]:
    """The sections for which there are files, and what the files say."""
    for section, made in (
        ("oracle_runs", _oracle_runs(package)),
        ("verifier", _stability(package)),
        ("review", _review(package)),
        ("calibration", _calibration(package)),
        ("acceptance_live", {"report": LIVE_REPORT} if LIVE_REPORT in package.files else None),
        ("acceptance_live", _live(package)),
        ("trajectories", [{"path": GOLD_TRAJECTORY}] if GOLD_TRAJECTORY in package.files else None),
    ):
        if made is not None:
            yield section, made


def _oracle_runs(package: TaskPackage) -> dict[str, Any] | None:
    found = _read(package, ORACLE_RUN)
    if found is None:
        return None
    keys = ("required_reward", "expected_reward", "reward")
    numbers = [number for key in keys if (number := unit_number(found.get(key))) is not None]
    return {"required_reward": numbers[0] if numbers else 1.0, "artifact": ORACLE_RUN}


def _stability(package: TaskPackage) -> dict[str, Any] | None:
    found = _read(package, STABILITY)
    if found is None:
        return None
    reruns = found.get("reruns", 3)
    flakes = unit_number(found.get("flake_rate", 0.0))
    return {
        "reruns": reruns if type(reruns) is int and reruns >= 0 else 3,
        "flake_rate": 0.0 if flakes is None else flakes,
        "report": STABILITY,
    }


def _review(package: TaskPackage) -> dict[str, Any] | None:
    found = _read(package, REVIEW)
    if found is None:
        return None
    # A review that says nothing is not taken for one that passed: the missing claim is then reported.
    claims = {
        key: found[key]
        for key in ("anti_cheat", "instruction_alignment", "reviewer")
        if isinstance(found.get(key), str) and found[key]
    }
    return {**claims, "artifact": REVIEW}


def _calibration(package: TaskPackage) -> dict[str, Any] | None:
    found = _read(package, CALIBRATION)
    cases = found.get("cases") if found is not None else None
    rewards: dict[str, list[float]] = {}
    names: dict[float, str] = {}
    for case in cases if isinstance(cases, list) else ():
        reward = unit_number(case.get("reward")) if isinstance(case, Mapping) else None
        if reward is None:
            continue
        rewards.setdefault(str(case.get("type")), []).append(reward)
        if case.get("type") == "reference":
            names.setdefault(reward, str(case.get("name") or "reference"))
    if not {"no-op", "known-bad", "partial"} <= rewards.keys():
        return None
    artifact = {"artifact": GOLD_RESULT} if GOLD_RESULT in package.files else {}
    examples = [{"name": name, "expected_reward": reward, **artifact} for reward, name in names.items()]
    return {
        "no_op_reward_max": max(rewards["no-op"]),
        "known_bad_reward_max": max(rewards["known-bad"]),
        "partial_solution_range": [min(rewards["partial"]), max(rewards["partial"])],
        "report": CALIBRATION,
        **({"human_or_reference_examples": examples} if examples else {}),
    }


def _live(package: TaskPackage) -> dict[str, Any] | None:
    found = _read(package, LIVE_REPORT)
    if found is None:
        return None
    made: dict[str, Any] = {"calibration": {"from": "calibration.report"}}
    workspace = found.get("workspace")
    if not isinstance(workspace, Mapping) or workspace.get("source") is not None:  # null: nothing was staged
        made["workspace"] = {"source": "current-worktree", "target": WORKSPACE}
    listed = found.get("cases")
    if cases := [_case(case) for case in (listed if isinstance(listed, list) else ()) if _is_declared(case)]:
        made["cases"] = cases
    verdict = found.get("leaderboard_suitability")
    if isinstance(verdict, Mapping):
        flakes = unit_number(verdict.get("max_flake_rate"))
        made["leaderboard"] = {"required": verdict.get("required") is True, "max_flake_rate": flakes or 0.0}
    return made


def _is_declared(case: Any) -> bool:
    return isinstance(case, Mapping) and case.get("source") == "declared" and isinstance(case.get("expect"), Mapping)


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    expect = {key: case["expect"][key] for key in _EXPECT if case["expect"].get(key) is not None}
    given = {key: case[key] for key in ("name", "type", "command", "reruns") if case.get(key) is not None}
    return {**given, "expect": expect}


def _read(package: TaskPackage, name: str) -> Mapping[str, Any] | None:
    """The JSON object in a file, empty if it cannot be read, which the check of the file reports; None without one."""
    entry = package.files.files.get(name)
    if entry is None:
        return None
    try:
        found = parse_json(package.files.read(name)) if entry.size <= MAX_EVIDENCE_BYTES else None
    except (OSError, StrictJSONError):
        found = None
    return found if isinstance(found, dict) else {}
