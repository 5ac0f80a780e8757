"""The check levels: one module each; all problems are records.

`check_package` checks a loaded package, `check_folder` loads and checks a folder, `check_found` also accepts folders
that discovery could not search. None of them raises, whatever a folder contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchflow.errors import Issue, UsageError
from benchflow.task.checks.publication_level import check_publication
from benchflow.task.checks.schema_level import check_schema
from benchflow.task.checks.structural_level import check_structure
from benchflow.task.checks.worth import check_worth
from benchflow.task.discovery import FoundPackage
from benchflow.task.filemap import FileMap
from benchflow.task.package import TaskPackage, load_package

Check = Callable[[TaskPackage], Iterable[Issue]]


def _check_acceptance(package: TaskPackage) -> Iterable[Issue]:
    from benchflow.task.checks.acceptance_level import check_evidence
    from benchflow.task.checks.bindings import check_bindings
    from benchflow.task.checks.conventional_evidence import effective_evidence
    from benchflow.task.checks.live_report_file import check_live_report
    from benchflow.task.checks.pins import pinnable_hashes

    evidence = effective_evidence(package)
    yield from check_evidence(package.path, evidence, pinnable_hashes(package))
    yield from check_bindings(package)
    yield from check_live_report(package, evidence)


def _check_live_declared(package: TaskPackage) -> Iterable[Issue]:
    evidence = package.document.namespace.evidence if package.document is not None else None
    if evidence is None or evidence.acceptance_live is None:
        return ()
    from benchflow.task.checks.live_report_file import nothing_runs

    return nothing_runs(evidence.acceptance_live)


LEVELS: Final[Mapping[str, tuple[Check, ...]]] = {
    "schema": (check_schema,),
    "structural": (check_schema, check_structure, check_worth),
    "runtime-capability": (check_schema, check_structure, check_worth),
    "publication-grade": (check_schema, check_structure, check_worth, check_publication, _check_live_declared),
    "acceptance": (check_schema, check_structure, check_worth, check_publication, _check_acceptance),
}
"""The checks of each level; sandbox support is checked at any level when a sandbox is named."""
DEFAULT_LEVEL: Final = "structural"
LIVE_LEVEL: Final = "acceptance-live"
"""Runs cases in a sandbox, so it is not a check of this package: `benchflow.evidence.live_check` has it."""
_ON_DISK: Final = frozenset({"acceptance", LIVE_LEVEL})
"""Levels that read evidence from the folder itself."""


class CheckReport(NamedTuple):
    """The result for one package."""

    path: str
    name: str
    digest: str | None
    """None only for a folder that could not be searched."""
    issues: tuple[Issue, ...]
    content_digest: str | None = None
    live: Mapping[str, Any] | None = None
    """What live runs showed, of a level that runs them."""

    @property
    def errors(self) -> int:
        return sum(issue.severity == "error" for issue in self.issues)

    @property
    def valid(self) -> bool:
        """Whether no issue is an error."""
        return self.errors == 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "name": self.name,
            "digest": self.digest,
            "content_digest": self.content_digest,
            "valid": self.valid,
            "issues": [issue.to_dict() for issue in self.issues],
            **({"live": dict(self.live)} if self.live is not None else {}),
        }


def check_package(package: TaskPackage, *, level: str = DEFAULT_LEVEL, sandbox: str | None = None) -> tuple[Issue, ...]:
    """Every problem of a package at a level, in the order of the checks, each once.

    Raises `UsageError` as `require_level` does.
    """
    require_level(level, sandbox)
    found: dict[Issue, None] = {}
    for check in LEVELS[level]:
        found.update(dict.fromkeys(check(package)))
    if sandbox is not None:
        found.update(dict.fromkeys(check_capabilities(package, sandbox)))
    return tuple(_with_lines(package, found)) if found else ()


def require_level(level: str, sandbox: str | None) -> None:
    """Raise `UsageError` for an unknown level or sandbox, and for `runtime-capability` without a sandbox."""
    if level not in LEVELS:
        raise UsageError(f"unknown level '{level}'; available: {', '.join(LEVELS)}", code="unknown-level")
    if level == "runtime-capability" and sandbox is None:
        raise UsageError("the level runtime-capability needs a sandbox: add --sandbox NAME", code="sandbox-missing")
    require_sandbox(sandbox)


def require_sandbox(sandbox: str | None) -> None:
    """Raise `UsageError` for an unknown sandbox."""
    if sandbox is None:
        return
    from benchflow.task.runtime_capabilities import declared_capabilities

    declared_capabilities(sandbox)


def check_folder(
    path: Path, *, level: str = DEFAULT_LEVEL, sandbox: str | None = None, files: FileMap | None = None
) -> CheckReport:
    """Load and check a folder; always returns a report. `files` are what it contains, if that is known already."""
    try:
        package = load_package(path, files=files)
        issues = check_package(package, level=level, sandbox=sandbox)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - one package must not prevent the reports of the others
        message = f"the package could not be checked: {type(error).__name__}: {error}"
        return CheckReport(str(path), path.absolute().name, None, (Issue("check-failed", "error", "", message),))
    return CheckReport(str(path), package.name, package.digest, issues, package.content_digest)


def check_found(found: FoundPackage, *, level: str = DEFAULT_LEVEL, sandbox: str | None = None) -> CheckReport:
    """Check what discovery found; a folder it could not search is reported as a broken package."""
    if found.problem is not None:
        return CheckReport(found.shown, found.folder_name, None, (found.problem,))
    files = found.in_memory() if found.in_memory is not None and level not in _ON_DISK else None
    if files is not None:
        report = check_folder(files.root, level=level, sandbox=sandbox, files=files)
        if report.valid:  # what a package reads by itself, such as a profile in it, is missing in memory: an error
            return report._replace(path=found.shown)
    return check_folder(found.path, level=level, sandbox=sandbox)._replace(path=found.shown)


def _with_lines(package: TaskPackage, issues: Iterable[Issue]) -> Iterator[Issue]:
    """Add the line of their key to problems found after loading; the document is parsed again only for these."""
    locate: dict[str, Callable[[str], int | None]] = {}
    for issue in issues:
        if issue.line is None and issue.path and issue.file is not None and issue.file.endswith((".md", ".json")):
            if issue.file not in locate:
                locate[issue.file] = _locator(package, issue.file)
            yield replace(issue, line=locate[issue.file](issue.path))
        else:
            yield issue


def _locator(package: TaskPackage, file: str) -> Callable[[str], int | None]:
    from benchflow.errors import PackageError
    from benchflow.task.document.markdown import decode, split_frontmatter
    from benchflow.task.document.yaml_source import YamlSource

    try:
        text = decode(package.files.read(file))
        if file.endswith(".json"):
            return YamlSource(text).line  # JSON is YAML; anything else, or a very large text, has no lines
        return YamlSource(split_frontmatter(text).yaml, first_line=2).line
    except (OSError, KeyError, PackageError):
        return lambda _path: None


def check_capabilities(package: TaskPackage, sandbox: str) -> Iterator[Issue]:
    """What the sandbox does not support. A package whose definition cannot be read has been reported already."""
    from benchflow.task.runtime_capabilities import validate_task_runtime_support

    if package.config is None:
        return
    file = "task.md" if package.entrypoint == "task.md" else "task.toml"
    for feature in validate_task_runtime_support(package, sandbox=sandbox):
        yield feature.issue(definition=file)
