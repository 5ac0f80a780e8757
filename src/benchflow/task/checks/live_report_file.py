"""A live report that lies in a package: it belongs to this package, agrees with itself, and nobody changed it.

Nothing is run. Every number of the report is compared with the runs that it lists, every run with its own SHA-256, the
whole with its sidecar, and its task and cases with the package as it is now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchflow.errors import Issue
from benchflow.files.strict_json import canonical_sha256
from benchflow.task.checks.evidence_files import (
    MAX_EVIDENCE_BYTES,
    TOLERANCE,
    EvidenceReader,
    unit_number,
    within_bounds,
)
from benchflow.task.config.evidence_config import AcceptanceLive, Evidence
from benchflow.task.package import TaskPackage

SIDECAR: Final = ".sha256"
NOT_RUN: Final = "live-proof-not-run"
KIND: Final = "acceptance-live-report"
_PATH: Final = "benchflow.evidence.acceptance_live"
_EXPECT: Final = ("reward_min", "reward_max", "reward_range", "reward_equals", "flake_rate_max")
_COUNTS: Final = ("total_runs", "passed_runs", "failed_runs", "flake_rate", "min_reward", "max_reward")


def is_about_report(issue: Issue, evidence: Evidence | None) -> bool:
    """Whether an issue is about the last live report, which new live runs replace."""
    live = evidence.acceptance_live if evidence is not None else None
    report = live.report if live is not None else None
    return issue.code == NOT_RUN or (report is not None and issue.file in (report, report + SIDECAR))


def nothing_runs(live: AcceptanceLive | None) -> Iterator[Issue]:
    """The warning for a level that runs nothing, of a package that asks for live runs."""
    if live is not None:
        message = (
            f"{_PATH} requires live runs, but this level runs nothing: "
            "use 'bench tasks check --level acceptance-live --sandbox NAME'"
        )
        yield Issue(NOT_RUN, "warning", _PATH, message, "task.md")


def check_live_report(package: TaskPackage, evidence: Evidence | None) -> Iterator[Issue]:
    """The problems of the live report that a package declares; a missing one was not made yet."""
    live = evidence.acceptance_live if evidence is not None else None
    if live is None:
        return
    name = live.report
    if name is None or name not in package.files:
        yield from nothing_runs(live)
        return
    reader = EvidenceReader(package.path, package.files.hashes())
    found = reader.read(name, f"{_PATH}.report", kind=KIND)
    if found is not None:
        _check_sidecar(reader, name)
        _check_runs(reader, name, found)
        _check_belongs(reader, name, found, package)
        _check_cases(reader, name, found, live)
        _check_result(reader, name, found)
    yield from reader.issues


def _check_sidecar(reader: EvidenceReader, name: str) -> None:
    sidecar = name + SIDECAR
    if sidecar not in reader.files:
        reader.report("evidence-file-missing", f"{_PATH}.report", f"{name} has no sidecar {sidecar}", file=sidecar)
        return
    with (reader.root / sidecar).open("rb") as stream:
        words = stream.read(MAX_EVIDENCE_BYTES).decode(errors="replace").split()
    if not words or words[0] != reader.files[name]:
        reader.report("pin-mismatch", "", f"{name} has changed since {sidecar} was written", file=sidecar)


def _check_runs(reader: EvidenceReader, name: str, found: Mapping[str, Any]) -> None:
    """The runs are unchanged, and the summaries are theirs."""
    runs = found.get("runs")
    if not isinstance(runs, list) or not all(_is_run(run) for run in runs):
        reader.wrong(name, "runs", f"{name}: runs must be a list with one record per run")
        return
    for index, run in enumerate(runs):
        if canonical_sha256({key: value for key, value in run.items() if key != "sha256"}) != run.get("sha256"):
            message = f"{name}: runs[{index}] does not have the SHA-256 that it names"
            reader.report("pin-mismatch", f"runs[{index}].sha256", message, file=name)
    _compare(reader, name, "summary", found.get("summary"), runs)
    summaries = found.get("case_summaries")
    listed = [entry for entry in summaries if isinstance(entry, Mapping)] if isinstance(summaries, list) else []
    if {entry.get("case") for entry in listed} != {run["case"] for run in runs}:
        reader.disagrees(name, "case_summaries", f"{name}: case_summaries must list the cases that were run")
        return
    for index, entry in enumerate(listed):
        own = [run for run in runs if run["case"] == entry["case"]]
        where = f"case_summaries[{index}]"
        _compare(reader, name, where, entry, own)
        failed = sum(run["status"] == "failed" for run in own) / len(own)
        passed = failed <= (unit_number(entry.get("flake_rate_max")) or 0.0) + TOLERANCE
        if (entry.get("status") == "passed") is not passed:
            reader.disagrees(name, f"{where}.status", f"{name}: {where}.status contradicts the runs of the case")


def _is_run(run: Any) -> bool:
    if not isinstance(run, Mapping) or not isinstance(run.get("case"), str):
        return False
    scored = run.get("reward") is None or unit_number(run["reward"]) is not None
    # A passed run without a reward would be a claim without a proof.
    return scored and (run.get("status") == "failed" or (run.get("status") == "passed" and run["reward"] is not None))


def _compare(reader: EvidenceReader, name: str, where: str, claimed: Any, runs: Sequence[Mapping[str, Any]]) -> None:
    rewards = [run["reward"] for run in runs if run["reward"] is not None]
    failed = sum(run["status"] == "failed" for run in runs)
    rate = failed / len(runs) if runs else 0.0
    actual = (len(runs), len(runs) - failed, failed, rate, min(rewards, default=None), max(rewards, default=None))
    for key, value in zip(_COUNTS, actual, strict=True):
        said = claimed.get(key) if isinstance(claimed, Mapping) else None
        if not _equal(said, value):
            message = f"{name}: {where}.{key} is not what the runs give, {'null' if value is None else f'{value:g}'}"
            reader.disagrees(name, f"{where}.{key}", message)


def _equal(said: Any, value: float | None) -> bool:
    if value is None or said is None:
        return said is value
    return type(said) in (int, float) and abs(said - value) <= TOLERANCE


def _check_belongs(reader: EvidenceReader, name: str, found: Mapping[str, Any], package: TaskPackage) -> None:
    """The package has not changed since. Reports of other tools know single files only."""
    task = found.get("task")
    task = task if isinstance(task, Mapping) else {}
    digest = task.get("content_digest")
    if digest is not None:
        if digest != package.content_digest:
            _stale(reader, name, "task.content_digest", "the package has changed since the live runs")
        return
    for key, files in (
        ("task_md_sha256", ("task.md",)),
        ("oracle_sha256", ("oracle/solve.sh", "solution/solve.sh")),
        ("verifier_sha256", ("verifier/test.sh", "tests/test.sh")),
    ):
        now = next((reader.files[file] for file in files if file in reader.files), None)
        if task.get(key) != now:
            _stale(reader, name, f"task.{key}", f"{files[0]} has changed since the live runs")


def _check_cases(reader: EvidenceReader, name: str, found: Mapping[str, Any], live: AcceptanceLive) -> None:
    """The cases that were run are those that the package declares now, each as often as it says."""
    cases = found.get("cases")
    entries = [case for case in cases if isinstance(case, Mapping)] if isinstance(cases, list) else []
    declared = {str(case.get("name")): case for case in entries if case.get("source") == "declared"}
    wanted = {case.name: case for case in live.cases}
    for gone in declared.keys() ^ wanted.keys():
        _stale(reader, name, "cases", f"the declared case '{gone}' was added or removed since the live runs")
    for case_name in declared.keys() & wanted.keys():
        case, said = wanted[case_name], declared[case_name]
        expect = said.get("expect")
        now = {key: _listed(getattr(case.expect, key)) for key in _EXPECT}
        then = {key: expect.get(key) for key in _EXPECT} if isinstance(expect, Mapping) else None
        same = (case.type, case.command, case.reruns) == tuple(said.get(key) for key in ("type", "command", "reruns"))
        if not same or now != then:
            _stale(reader, name, "cases", f"the case '{case_name}' has changed since the live runs")
    runs = found.get("runs")
    made = [run.get("case") for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []
    bounds = {entry.get("name"): entry.get("expect") for entry in entries}
    for index, run in enumerate(runs if isinstance(runs, list) else ()):
        if _is_run(run) and run["status"] == "passed" and not within_bounds(run["reward"], bounds.get(run["case"])):
            message = f"{name}: runs[{index}] is recorded as passed, with a reward that its case does not allow"
            reader.disagrees(name, f"runs[{index}]", message)
    for entry in entries:
        number = made.count(entry.get("name"))
        if number != entry.get("reruns"):
            message = f"{name}: the case '{entry.get('name')}' has {number} runs, not as many as its reruns"
            reader.disagrees(name, "runs", message)


def _check_result(reader: EvidenceReader, name: str, found: Mapping[str, Any]) -> None:
    """A report of failed cases is no proof."""
    summaries = found.get("case_summaries")
    for entry in summaries if isinstance(summaries, list) else ():
        if isinstance(entry, Mapping) and entry.get("status") != "passed":
            message = f"{name}: the live case '{entry.get('case')}' failed"
            reader.report("evidence-insufficient", "case_summaries", message, file=name)
    verdict = found.get("leaderboard_suitability")
    if isinstance(verdict, Mapping) and verdict.get("required") is True and verdict.get("status") != "suitable":
        message = f"{name}: the package is not suitable for a leaderboard, which it requires"
        reader.report("evidence-insufficient", "leaderboard_suitability.status", message, file=name)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _stale(reader: EvidenceReader, name: str, path: str, message: str) -> None:
    reader.report("evidence-stale", path, f"{name}: {message}; run the level acceptance-live again", file=name)
