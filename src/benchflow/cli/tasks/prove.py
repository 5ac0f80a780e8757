"""`bench tasks prove`: runs what shows that packages are sound, and writes the evidence.

An unchanged package is reported from its evidence, without loading anything that runs one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchflow.cli.arguments import isolation_option, json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.progress import Progress
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.tasks.rendering import counted, failure_issues, issue_lines
from benchflow.cli.terminal import emit, emit_json_text, printable, style
from benchflow.errors import Issue, UsageError
from benchflow.task.discovery import FoundPackage, find_packages

if TYPE_CHECKING:
    from benchflow.evidence.reuse import Known, Wanted
    from benchflow.record.evidence import ProofReport
    from benchflow.sandbox.pulling import PullPolicy
    from benchflow.task.package import TaskPackage

_HEADINGS: Final = (
    "PACKAGE", "VERDICT", "RUNG", "ORACLE", "NO-OP", "KNOWN-BAD", "PARTIAL", "FLAKES", "PERTURBED", "AUDIT", "BOARD",
)  # fmt: skip
_KINDS: Final = ("oracle", "no-op", "known-bad", "partial")
_SHOWN_ABOVE: Final = "case-undecided"
_PERTURBATION: Final = "perturbation"
_NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class _Request:
    """What the user asks for."""

    wanted: Wanted
    pull: PullPolicy
    concurrency: int
    writes: bool
    declares: bool
    fresh: bool


@click.command()
@package_paths
@click.option(
    "--reruns",
    type=click.IntRange(min=1),
    metavar="N",
    help="How often to verify the oracle's result; default: 60, or 10 if each time takes a rollout or a judge.",
)
@click.option("--report-only", is_flag=True, help="Write nothing into the packages.")
@click.option("--no-audit", is_flag=True, help="Skip the audit (see `bench tasks audit`).")
@click.option("--declare", is_flag=True, help="Also write the evidence block into task.md.")
@click.option("--fresh", is_flag=True, help="Run everything again, even if the evidence of a package is current.")
@click.option(
    "--sandbox", default="auto", show_default=True, metavar="NAME", help="Sandbox to use; see `bench sandboxes`."
)
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of concurrent packages; default: the number of processors.",
)
@json_option
def prove(paths: tuple[Path, ...], as_json: bool, **options: Any) -> int:
    """Test that packages are sound, and write the evidence.

    The oracle must get the full score each time its result is verified. Doing nothing, known cheats and partial
    solutions must stay within their bounds, and no family of exploits may score. The evidence is written to evidence/
    in each package and bound to its content: parts that did not change are not run again. Exits with 1 if a package is
    not proven.
    """
    if options["report_only"] and options["declare"]:
        raise UsageError("--declare writes into task.md; leave out --report-only", code="options-contradict")
    request = _request(options)
    found = find_packages(paths, to_change=not options["report_only"])
    output = _JsonOutput() if as_json else _TextOutput(len(found))
    progress = Progress("Proving packages:", len(found))

    def done(entry: dict[str, Any]) -> None:
        progress.hide()
        output.add(entry)
        progress.advance()

    try:
        _prove_all(found, request, done)
    finally:
        progress.hide()
    return GOOD if output.finish() else FAILED


def _request(options: Mapping[str, Any]) -> _Request:
    from benchflow.cli.preflight import require_base_image
    from benchflow.evidence.reuse import SHIPPED_CHEATS, Wanted
    from benchflow.plugins import FAMILIES
    from benchflow.task.checks import require_sandbox
    from benchflow.task.workers import available_cores

    if options["sandbox"] != "auto":
        require_sandbox(options["sandbox"])
    require_base_image(options["base_image"], options["sandbox"], options["pull"])
    families = None if options["no_audit"] else frozenset({*FAMILIES.names(), SHIPPED_CHEATS})
    return _Request(
        Wanted(options["sandbox"], options["base_image"], options["isolation"], options["reruns"], families),
        options["pull"],
        options["concurrency"] or available_cores(),
        not options["report_only"],
        options["declare"],
        options["fresh"],
    )


def _prove_all(found: list[FoundPackage], request: _Request, done: Callable[[dict[str, Any]], None]) -> None:
    """Prove packages at the same time, and hand over their entries in order; only those that wait are kept."""
    waiting: dict[int, dict[str, Any]] = {}
    items = iter(enumerate(found))
    following = 0

    def finish(number: int, entry: dict[str, Any]) -> None:
        nonlocal following
        waiting[number] = entry
        while following in waiting:
            done(waiting.pop(following))
            following += 1

    pending: list[tuple[int, TaskPackage]] = []
    for number, item in items:  # what needs no run needs no event loop either, which takes longer to load
        entry, package = _without_a_run(item, request)
        if entry is None and package is not None:
            pending.append((number, package))
            break
        finish(number, entry or {})
    if not pending:
        return
    import anyio

    async def work() -> None:
        while pending:
            number, package = pending.pop()
            finish(number, await _with_a_run(package, request))
        for number, item in items:
            entry, loaded = _without_a_run(item, request)
            if entry is None and loaded is not None:
                entry = await _with_a_run(loaded, request)
            finish(number, entry or {})

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(min(request.concurrency, len(found))):
                group.start_soon(work)

    anyio.run(all_of_them)


def _without_a_run(item: FoundPackage, request: _Request) -> tuple[dict[str, Any] | None, TaskPackage | None]:
    """The entry of a package that cannot be run, or of which its evidence shows everything; else the package."""
    from benchflow.evidence.reuse import still_proven
    from benchflow.task.package import load_package

    entry: dict[str, Any] = {"path": item.shown, "name": item.folder_name, "digest": None}
    try:
        if item.problem is not None:
            return _unproven(entry, (item.problem,)), None
        package = load_package(item.path)
        entry = _head(package)
        errors = tuple(issue for issue in package.issues if issue.severity == "error")
        if errors:
            return _unproven(entry, errors), None
        earlier = _known(package, request)
        report = still_proven(earlier, package, request.wanted) if earlier is not None else None
        return (_proven(package, report, request), None) if report is not None else (None, package)
    except Exception as error:  # noqa: BLE001 - one package must not prevent the reports of the others
        return _unproven(entry, failure_issues(error)), None


async def _with_a_run(package: TaskPackage, request: _Request) -> dict[str, Any]:
    from benchflow.evidence.audit.auditing import load_families
    from benchflow.evidence.prove import ProveOptions, prove_package
    from benchflow.evidence.trial_stage import StageOptions
    from benchflow.sandbox.pulling import PullSettings

    wanted = request.wanted
    pull = PullSettings(request.pull, on_progress=PullLines().show)
    stage = StageOptions(wanted.sandbox, wanted.base_image, pull, wanted.isolation)
    families = None if wanted.families is None else load_families()
    try:
        options = ProveOptions(stage, wanted.reruns, families)
        report = await prove_package(package, options, _known(package, request))
        return _proven(package, report, request)
    except Exception as error:  # noqa: BLE001 - as above
        return _unproven(_head(package), failure_issues(error))


def _known(package: TaskPackage, request: _Request) -> Known | None:
    """What the evidence of a package shows, unless everything is to be run again."""
    from benchflow.evidence.reuse import known
    from benchflow.record.evidence import read_proof_report

    if request.fresh:
        return None
    return known(read_proof_report(package.path / "evidence" / "acceptance"), package, request.wanted)


def _head(package: TaskPackage) -> dict[str, Any]:
    digests = {"digest": package.digest, "content_digest": package.content_digest}
    return {"path": str(package.path), "name": package.name, **digests}


def _proven(package: TaskPackage, report: ProofReport, request: _Request) -> dict[str, Any]:
    """The entry of a report, which is written into the package if that is wanted."""
    from benchflow.task.package import load_package

    written, issues = _write(package, report, request)
    head = _head(load_package(package.path) if written else package)
    return {**head, **_plain(report, issues), "written": list(written)}


def _write(package: TaskPackage, report: ProofReport, request: _Request) -> tuple[tuple[str, ...], tuple[Issue, ...]]:
    """Write the evidence, unless something is undecided: what is there then stays."""
    if not request.writes or not report.decided:
        return (), report.issues
    from benchflow.evidence.evidence_folder import write_evidence

    written = write_evidence(package, report, declare=request.declares)
    return written.files, (*report.issues, *written.issues)


def _plain(report: ProofReport, issues: tuple[Issue, ...]) -> dict[str, Any]:
    from benchflow.record.codec import plain

    entry: dict[str, Any] = plain(report)
    if report.audit is not None:
        entry["audit"]["findings"] = [issue.to_dict() for issue in report.audit.findings]
    return {**entry, "issues": [issue.to_dict() for issue in issues]}


def _unproven(entry: dict[str, Any], issues: tuple[Issue, ...]) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "proven": False,
        "isolation": None,
        "cases": [],
        "flake": None,
        "audit": None,
        "leaderboard": None,
    }
    return {**entry, **nothing, "issues": [issue.to_dict() for issue in issues], "written": []}


class _JsonOutput:
    """Writes entries as they come, so that memory does not grow with the number of packages."""

    def __init__(self) -> None:
        self._counts: Counter[bool] = Counter()

    def add(self, entry: dict[str, Any]) -> None:
        head = "," if self._counts else '{"tasks": ['
        self._counts[entry["proven"]] += 1
        emit_json_text(head + json.dumps(entry))

    def finish(self) -> bool:
        summary = {"total": self._counts.total(), "proven": self._counts[True], "unproven": self._counts[False]}
        emit_json_text(f'], "summary": {json.dumps(summary)}}}')
        return not self._counts[False]


class _TextOutput:
    """The details of a package; of several ones those of the unproven, and a table at the end."""

    def __init__(self, total: int) -> None:
        self._several = total > 1
        self._rows: list[tuple[str, ...]] = []
        self._unproven = 0

    def add(self, entry: dict[str, Any]) -> None:
        self._unproven += not entry["proven"]
        if self._several:
            self._rows.append(_row(entry))
        if not self._several or not entry["proven"]:
            emit("\n".join(_lines(entry)))

    def finish(self) -> bool:
        if not self._several:
            return not self._unproven
        emit("\n".join(_table(self._rows)))
        total = len(self._rows)
        text = f"{counted(total, 'package')}: {total - self._unproven:,} proven, {self._unproven:,} unproven"
        emit(style(text, "red" if self._unproven else "green"))
        return not self._unproven


def _lines(entry: Mapping[str, Any]) -> Iterator[str]:
    word = style("proven  ", "green") if entry["proven"] else style("UNPROVEN", "red")
    rung = f" at '{entry['isolation']['rung']}'" if entry["isolation"] else ""
    name = f"({printable(entry['name'])}){rung}"
    yield f"{word} {printable(entry['path'])} {style(name, 'dim')}"
    yield from _failed_lines(entry["cases"])
    passed = [case for case in entry["cases"] if case["passed"]]
    shown = [f"{printable(case['name'])} {_rewards(case)}" for case in passed if case["type"] != _PERTURBATION]
    if shown:
        yield f"     passed: {', '.join(shown)}"
    if entry["flake"]:
        flake = entry["flake"]
        yield (
            f"     verified {counted(flake['runs'], 'time')}, {flake['failures']} failed: "
            f"a flake rate of at most {flake['upper_95']:.1%} (95 %)"
        )
    yield from _perturbation_lines(entry, [case["name"] for case in passed if case["type"] == _PERTURBATION])
    if entry.get("judge_agreement"):
        agreement = entry["judge_agreement"]
        yield (
            f"     {agreement['sample_count']} verdicts of the judge on {counted(agreement['states'], 'state')} "
            f"agree at {agreement['pairwise_agreement']:.2g}"
        )
    yield from _audit_lines(entry["audit"] or {})
    board = entry["leaderboard"]
    if board:
        unchecked = f"; not checked: {', '.join(board['unchecked'])}" if board.get("unchecked") else ""
        yield f"     leaderboard: {board['status']}{unchecked}"
    issues = (Issue(**issue) for issue in entry["issues"] if issue["code"] != _SHOWN_ABOVE)
    yield from issue_lines(issues, entry["path"])
    if entry["written"]:
        yield style(f"     wrote {_written(entry['written'])}", "dim")


def _failed_lines(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What failed, and what has no result: often all of it for one reason, which is shown once."""
    undecided: dict[str, list[str]] = {}
    for case in cases:
        why = printable("; ".join(case.get("reasons", ())) or "failed")
        named = f"{case['type']} '{printable(case['name'])}'"
        if case.get("undecided"):
            undecided.setdefault(why, []).append(named)
        elif not case["passed"]:
            yield f"     {style('failed', 'red')} {named}: {why}"
    for why, names in undecided.items():
        yield f"     {style('no result', 'yellow')} for {', '.join(names)}, for a reason outside the package: {why}"


def _written(files: Sequence[str]) -> str:
    """`task.md, 3 files below evidence/`; the JSON document names each."""
    folders = Counter(file.partition("/")[0] for file in files if "/" in file)
    alone = [file for file in files if "/" not in file]
    return ", ".join([*alone, *(f"{counted(number, 'file')} below {folder}/" for folder, number in folders.items())])


def _perturbation_lines(entry: Mapping[str, Any], same: list[str]) -> Iterator[str]:
    if same:
        yield f"     the verdict does not depend on: {', '.join(same)}"
    for name, why in (entry.get("not_perturbed") or {}).items():
        yield style(f"     not tried: {name} ({printable(why)})", "dim")


def _audit_lines(audit: Mapping[str, Any]) -> Iterator[str]:
    families = audit.get("families", ())
    for family in families:
        if family["verdict"] in ("broken", "voided"):
            word = style("broken", "red") if family["verdict"] == "broken" else style("voided", "yellow")
            yield f"     {word} {family['family']}: {printable(family['evidence'])}"
            yield f"            {style('remedy', 'dim')} {printable(family.get('remedy') or '')}"
    tally = Counter(family["verdict"] for family in families)
    if tally:
        yield f"     audit: {', '.join(f'{number} {verdict}' for verdict, number in sorted(tally.items()))}"


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    rewards = []
    for kind in _KINDS:
        cases = [case for case in entry["cases"] if case["type"] == kind]
        rewards.append(", ".join(dict.fromkeys(_rewards(case) for case in cases)) or _NOTHING)
    perturbed = [case["passed"] for case in entry["cases"] if case["type"] == _PERTURBATION]
    flake, audit, board = entry["flake"], entry["audit"], entry["leaderboard"]
    verdicts = Counter(family["verdict"] for family in audit.get("families", ())) if audit else Counter[str]()
    bad = [f"{verdicts[verdict]} {verdict}" for verdict in ("broken", "voided") if verdicts[verdict]]
    return (
        printable(entry["path"]),
        "proven" if entry["proven"] else "UNPROVEN",
        entry["isolation"]["rung"] if entry["isolation"] else _NOTHING,
        *rewards,
        f"<= {flake['upper_95']:.1%}" if flake else _NOTHING,
        _NOTHING if not perturbed else f"{perturbed.count(False)} differ" if not all(perturbed) else "same",
        _NOTHING if not audit else bad[0] if bad else "sound" if audit["sound"] else "undecided",
        board["status"] if board else _NOTHING,
    )


def _rewards(case: Mapping[str, Any]) -> str:
    """`1`, or `0 to 1` of several runs; a run without a score is a question mark."""
    shown = ["?" if reward is None else f"{reward:g}" for reward in case["rewards"]]
    different = sorted(set(shown))
    return different[0] if len(different) == 1 else f"{different[0]} to {different[-1]}" if different else "?"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
