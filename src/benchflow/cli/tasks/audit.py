"""`bench tasks audit`: tries to score on packages without solving them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from benchflow.cli.arguments import PATH, isolation_option, json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.progress import Progress
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.tasks.rendering import counted, failure_issues, issue_lines
from benchflow.cli.terminal import Colour, emit, emit_json_text, printable, style, wrapped
from benchflow.errors import Issue, UsageError
from benchflow.files.atomic import growing_file
from benchflow.record.codec import plain
from benchflow.record.evidence import AuditReport, AuditVerdict
from benchflow.task.discovery import FoundPackage, find_packages

if TYPE_CHECKING:
    from benchflow.evidence.audit.exploit_family import Family
    from benchflow.evidence.trial_stage import StageOptions

_WORDS: Final[Mapping[AuditVerdict, tuple[str, Colour]]] = {
    "sound": ("sound  ", "green"),
    "unsound": ("UNSOUND", "red"),
    "undecided": ("UNDECIDED", "yellow"),
}


def _list_families(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the catalogue and end; no path is needed for it."""
    if not wanted or context.resilient_parsing:
        return
    from benchflow.evidence.audit.auditing import load_families

    for name, family in load_families().items():
        emit(style(name, "bold"))
        emit(wrapped(printable(family.title), 4))
        emit(wrapped(f"Remedy: {printable(family.remedy)}", 4))
    context.exit()


@click.command()
@package_paths
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_families,
    help="Print the families and exit.",
)
@click.option("--family", "families", multiple=True, metavar="NAME", help="Try only this family; repeatable.")
@click.option(
    "--sandbox", default="auto", show_default=True, metavar="NAME", help="Sandbox to use; see `bench sandboxes`."
)
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Maximum number of concurrent attempts; default: the number of processors.",
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Also write the report as JSON to a new file.")
@json_option
def audit(
    paths: tuple[Path, ...],
    families: tuple[str, ...],
    concurrency: int | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Try to score on packages without solving them.

    Agents that know the package try to earn a reward by tricks: each family of exploits is held, broken (it scores more
    than the same state without the trick), voided (there is no score because of the trick), or not applicable. Exits
    with 1 if a package is unsound, or undecided because it could not be tried here.
    """
    from benchflow.cli.preflight import require_base_image
    from benchflow.evidence.audit.auditing import load_families
    from benchflow.evidence.trial_stage import StageOptions
    from benchflow.sandbox.pulling import PullSettings

    if output is not None and output.exists():
        raise UsageError(f"{output} already exists.", code="output-exists")
    chosen = load_families(families)
    found = find_packages(paths)
    require_base_image(options["base_image"], options["sandbox"], options["pull"])
    places = concurrency or os.cpu_count() or 1
    at_once = min(places, len(found))
    settings = StageOptions(
        options["sandbox"],
        options["base_image"],
        PullSettings(options["pull"], on_progress=PullLines().show),
        options["isolation"],
        concurrency=max(1, places // at_once),
    )
    with growing_file(output) if output is not None else nullcontext() as file:
        report = _Report(file, as_json=as_json, several=len(found) > 1)
        _Work(found, settings, chosen, at_once, report).run()
        return GOOD if report.finish() else FAILED


@dataclass(frozen=True, slots=True)
class _Audited:
    """A package, and its entry in the JSON document."""

    verdict: AuditVerdict
    entry: dict[str, Any]


class _Report:
    """Says what was found of each package, so that memory does not grow with their number."""

    def __init__(self, file: TextIO | None, *, as_json: bool, several: bool) -> None:
        self._file = file
        self._as_json = as_json
        self._several = several
        self._verdicts: Counter[AuditVerdict] = Counter()
        self._families: dict[str, Counter[str]] = {}

    def show(self, item: _Audited) -> None:
        """As soon as it is done."""
        if not self._as_json:
            emit("\n".join(_lines(item)))

    def add(self, item: _Audited) -> None:
        """In the order in which they were found."""
        self._write(("," if self._verdicts else '{"tasks": [') + json.dumps(item.entry))
        self._verdicts[item.verdict] += 1
        for family in item.entry["families"]:
            self._families.setdefault(family["family"], Counter())[family["verdict"]] += 1

    def finish(self) -> bool:
        """Whether all are sound."""
        seen, total = self._verdicts, self._verdicts.total()
        summary = {"total": total, "sound": seen["sound"], "unsound": seen["unsound"]}
        self._write(f'], "summary": {json.dumps(summary)}}}')
        if not self._as_json:
            if self._several:
                emit("\n".join(_table(self._families)))
            text = f"{counted(total, 'package')} audited: {seen['sound']:,} sound, {seen['unsound']:,} unsound"
            text += f", {seen['undecided']:,} undecided" if seen["undecided"] else ""
            emit(style(text, "green" if seen["sound"] == total else "red"))
        return seen["sound"] == total

    def _write(self, text: str) -> None:
        if self._file is not None:
            self._file.write(text + "\n")
        if self._as_json:
            emit_json_text(text)


class _Work:
    """The packages of one command, some of them at once."""

    def __init__(
        self,
        found: Sequence[FoundPackage],
        settings: StageOptions,
        families: Mapping[str, Family],
        at_once: int,
        report: _Report,
    ) -> None:
        self._found = found
        self._settings = settings
        self._families = families
        self._at_once = at_once
        self._report = report
        self._progress = Progress("Trying exploits:", len(found) * (len(families) + 1))

    def run(self) -> None:
        import anyio

        try:
            anyio.run(self._run)
        finally:
            self._progress.hide()

    async def _run(self) -> None:
        import anyio

        waiting: dict[int, _Audited] = {}
        following = 0
        places = anyio.CapacityLimiter(self._at_once)

        async def one(number: int, item: FoundPackage) -> None:
            nonlocal following
            async with places:
                audited = waiting[number] = await self._audited(item)
            self._progress.hide()
            self._report.show(audited)
            while following in waiting:
                self._report.add(waiting.pop(following))
                following += 1

        async with anyio.create_task_group() as group:
            for number, item in enumerate(self._found):
                group.start_soon(one, number, item)

    async def _audited(self, item: FoundPackage) -> _Audited:
        from benchflow.evidence.audit.auditing import audit_package
        from benchflow.task.package import load_package

        entry: dict[str, Any] = {"path": item.shown, "name": item.folder_name, "digest": None}
        if item.problem is not None:
            return _unsound(entry, (item.problem,))
        try:
            package = load_package(item.path)
            entry |= {"name": package.name, "digest": package.digest, "content_digest": package.content_digest}
            report = await audit_package(package, self._settings, self._families, self._progress.advance)
        except Exception as error:  # noqa: BLE001 - one package must not prevent the reports of the others
            return _unsound(entry, failure_issues(error))
        return _with_report(entry, report)


def _with_report(entry: dict[str, Any], report: AuditReport) -> _Audited:
    document = {**plain(report), "families": plain(report.families)}
    findings = [issue.to_dict() for issue in report.findings]
    return _Audited(report.verdict, {**entry, **document, "findings": findings})


def _unsound(entry: dict[str, Any], issues: tuple[Issue, ...]) -> _Audited:
    return _with_report(entry, AuditReport(sound=False, isolation=None, findings=issues))


def _lines(audited: _Audited) -> Iterator[str]:
    entry = audited.entry
    word = style(*_WORDS[audited.verdict])
    rung = f" at '{entry['isolation']['rung']}'" if entry["isolation"] else ""
    name = f"({printable(entry['name'])}){rung}"
    yield f"{word} {printable(entry['path'])} {style(name, 'dim')}"
    tally: dict[str, int] = {}
    for family in entry["families"]:
        tally[family["verdict"]] = tally.get(family["verdict"], 0) + 1
        if family["verdict"] in ("broken", "voided"):
            yield f"     {style(family['verdict'], 'red')} {family['family']}: {printable(family['evidence'])}"
            yield f"            {style('remedy', 'dim')} {printable(family['remedy'])}"
    if tally:
        counts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(tally.items()))
        yield f"     {style(counts, 'dim')}"
    yield from issue_lines((Issue(**issue) for issue in entry["findings"]), entry["path"])


def _table(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """How often each family had which verdict, over all packages."""
    if not counts:
        return
    width = max(map(len, counts))
    verdicts = ("broken", "voided", "held", "not-applicable")
    yield style(
        f"{'family':<{width}}  {'  '.join(f'{verdict:>{max(len(verdict), 6)}}' for verdict in verdicts)}", "bold"
    )
    for name, seen in counts.items():
        numbers = "  ".join(f"{seen[verdict]:>{max(len(verdict), 6)},}" for verdict in verdicts)
        yield (
            style(f"{name:<{width}}  {numbers}", "red")
            if seen["broken"] + seen["voided"]
            else f"{name:<{width}}  {numbers}"
        )
