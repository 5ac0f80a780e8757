"""The package of a task: its document as text, its planes, what the gate says, and what each of its fields does.

A package is found by the path that a result names, and only that: no address chooses a folder. It may have changed or
be gone since; the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchflow.errors import BenchflowError, Issue
from benchflow.record import TaskId
from benchflow.view.known_jobs import KnownJob, Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.viewer import Viewer

if TYPE_CHECKING:
    from benchflow.task.config.parsed_record import Record
    from benchflow.task.package import TaskPackage

PLANES: Final = {
    "task": "What the agent is asked",
    "environment": "Where it works",
    "verifier": "Who judges it; never in the agent's file system",
    "oracle": "A solution; never in the agent's file system",
}


@dataclass(frozen=True, slots=True)
class FoundPackage:
    """A package that a job ran."""

    package: TaskPackage
    task: TaskId
    path: Path
    changed: bool
    """Whether its content differs from what was run."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One part of a package."""

    name: str
    purpose: str
    digest: str
    files: tuple[str, ...]


def find_package(job: KnownJob, name: str) -> FoundPackage:
    """The package of a task of a job; raises `Missing`."""
    from benchflow.task.package import load_package

    row = next((row for row in job.rows().rows if row.task.name == name), None)
    if row is None:
        raise Missing(f"{job.name} has no results of the task {name}.", "They appear when its first rollout finishes.")
    path = Path(job.head.directory) / row.path
    if not row.path or not path.is_dir():
        where = f"{row.path} does not exist here." if row.path else "The job does not record where it is."
        raise Missing(f"The package of {name} was not found.", where)
    try:
        package = load_package(path)
    except (BenchflowError, OSError) as error:
        raise Missing(f"The package of {name} cannot be read.", str(error)) from error
    return FoundPackage(package, row.task, path, package.content_digest != row.task.content_digest)


def package_page(viewer: Viewer, job_name: str, fields: Fields) -> str:
    """The page of a package."""
    name = fields.one("task")
    found = find_package(viewer.jobs.get(job_name), name)
    package = found.package
    config = package.config.to_dict() if package.config is not None else {}
    return viewer.page(
        "package.html",
        name,
        [
            ("Jobs", "/"),
            (job_name, address("job", job_name)),
            (name, address("job", job_name, "task", name=name)),
            ("Package", None),
        ],
        name=name,
        found=found,
        package=package,
        description=_description(config),
        prompts=list(_prompts(package)),
        planes=list(_planes(package)),
        issues=_issues(package),
        gates=list(_gates(found.path)),
        rows=list(_field_rows(package)),
        evidence_url=address("job", job_name, "evidence", task=name),
        task_url=address("job", job_name, "task", name=name),
    )


def _description(config: dict[str, Any]) -> str:
    task = config.get("task")
    return str(task.get("description") or "") if isinstance(task, dict) else ""


def _prompts(package: TaskPackage) -> Iterator[tuple[str, str]]:
    try:
        for turn in package.prompt_plan.turns:
            if turn.prompt.strip():
                yield ", ".join(part for part in (turn.scene, turn.role) if part), turn.prompt
        for step in package.view.steps:
            yield f"step {step.config.name}", step.instruction or ""
    except BenchflowError:
        return


def _planes(package: TaskPackage) -> Iterator[Plane]:
    from benchflow.task.package import package_parts

    folders = {
        "task": ("task.md", "task.toml", "instruction.md", "prompts/", "workdir/", "steps/"),
        "environment": ("environment/",),
        "verifier": ("verifier/", "tests/"),
        "oracle": ("oracle/", "solution/"),
    }
    parts = package_parts(package)
    for name, purpose in PLANES.items():
        files = tuple(sorted(path for path in package.files.files if path.startswith(folders[name])))
        if files:
            yield Plane(name, purpose, parts.get(name, ""), files)
    evidence = tuple(sorted(path for path in package.files.files if path.startswith("evidence/")))
    if evidence:
        yield Plane("evidence", "What shows that it is sound; not part of its content", "", evidence)


def _issues(package: TaskPackage) -> tuple[Issue, ...]:
    from benchflow.task.checks import check_package

    try:
        return tuple(check_package(package))
    except BenchflowError as error:
        return (error.issue(),)


def _gates(path: Path) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """What each built-in sandbox does not support of the package; static, nothing is started."""
    from benchflow.task.package import load_package

    for sandbox in ("local", "docker", "podman"):
        try:
            package = load_package(path, sandbox=sandbox)
            yield sandbox, tuple((feature.path, feature.reason) for feature in package.runtime_issues)
        except (BenchflowError, OSError):
            continue


def _field_rows(package: TaskPackage) -> Iterator[tuple[str, str, str]]:
    """Every field that the author declared, its value, and what it does."""
    if package.config is not None:
        yield from _declared(package.config, "")
    if package.document is not None:
        yield from _declared(package.document.namespace, "benchflow")


def _declared(record: Record, path: str) -> Iterator[tuple[str, str, str]]:
    from benchflow.task.capability_table import TABLE
    from benchflow.task.config.namespace import DocumentRoot
    from benchflow.task.config.task_config import TaskConfig

    table = TABLE[DocumentRoot if isinstance(record, TaskConfig) else type(record)]
    for field, value in record.items():
        place = f"{path}.{field.key}" if path else str(field.key)
        inside = list(_records(value, place))
        if inside:
            for inner, its_place in inside:
                yield from _declared(inner, its_place)
        elif value not in (None, "", (), {}):
            yield place, "not shown" if field.hidden else _shown(value), table[field.name].meaning


def _records(value: Any, place: str) -> Iterator[tuple[Record, str]]:
    from benchflow.task.config.parsed_record import Record

    if isinstance(value, Record):
        yield value, place
    elif isinstance(value, Mapping):
        yield from ((item, f"{place}.{name}") for name, item in value.items() if isinstance(item, Record))
    elif isinstance(value, tuple | list):
        yield from ((item, f"{place}[{index}]") for index, item in enumerate(value) if isinstance(item, Record))


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    return str(value)
