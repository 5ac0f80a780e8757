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
from benchflow.task.package import TaskPackage, load_package

Check = Callable[[TaskPackage], Iterable[Issue]]


def _check_acceptance(package: TaskPackage) -> Iterable[Issue]:
    from benchflow.task.checks.acceptance_level import check_evidence
    from benchflow.task.checks.pins import pinnable_hashes

    evidence = package.document.namespace.evidence if package.document is not None else None
    return check_evidence(package.path, evidence, pinnable_hashes(package))


LEVELS: Final[Mapping[str, tuple[Check, ...]]] = {
    "schema": (check_schema,),
    "structural": (check_schema, check_structure, check_worth),
    "runtime-capability": (check_schema, check_structure, check_worth),
    "publication-grade": (check_schema, check_structure, check_worth, check_publication),
    "acceptance": (check_schema, check_structure, check_worth, check_publication, _check_acceptance),
}
"""The checks of each level; sandbox support is checked at any level when a sandbox is named."""
DEFAULT_LEVEL: Final = "structural"


class CheckReport(NamedTuple):
    """The result for one package."""

    path: str
    name: str
    digest: str | None
    """None only for a folder that could not be searched."""
    issues: tuple[Issue, ...]
    content_digest: str | None = None

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
        raise UsageError(f"unknown level '{level}'; choose one of {', '.join(LEVELS)}", code="unknown-level")
    if level == "runtime-capability" and sandbox is None:
        raise UsageError("the level runtime-capability needs a sandbox: add --sandbox NAME", code="sandbox-missing")
    require_sandbox(sandbox)


def require_sandbox(sandbox: str | None) -> None:
    """Raise `UsageError` for an unknown sandbox."""
    if sandbox is None:
        return
    from benchflow.task.runtime_capabilities import declared_capabilities

    declared_capabilities(sandbox)


def check_folder(path: Path, *, level: str = DEFAULT_LEVEL, sandbox: str | None = None) -> CheckReport:
    """Load and check a folder; always returns a report."""
    try:
        package = load_package(path)
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
        return CheckReport(str(found.path), found.path.absolute().name, None, (found.problem,))
    return check_folder(found.path, level=level, sandbox=sandbox)


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
