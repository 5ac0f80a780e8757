"""The environment manifest: services that run beside a task (`environment.toml`, table `[environment]`).

A package names it in `benchflow.environment.manifest`. Unknown keys are errors. Either the image starts its own
services (`owns_lifecycle`) or the manifest lists them; never both.
"""

from __future__ import annotations

from typing import Any, Final

from benchflow.errors import Issue, PackageError
from benchflow.task.config import kinds
from benchflow.task.config.kinds import flag, integer, listing, number, some_text
from benchflow.task.config.parsed_record import (
    FrozenMap,
    InvalidValueError,
    IssueLog,
    Kind,
    Record,
    describe,
    field,
    join,
)
from benchflow.task.document.markdown import MarkdownError, decode

port: Final = integer(least=1, most=65535)


def _endpoint(value: Any, path: str, problems: IssueLog) -> str | int:
    """A port of the environment, or a service and its port."""
    host, colon, number = value.rpartition(":") if isinstance(value, str) else ("", "", value)
    try:
        parsed: int = port.parse(number, path, problems)
    except InvalidValueError:
        parsed = 0
    if not parsed or bool(colon) != bool(host):
        raise InvalidValueError(f"must be a port or 'host:port', not {describe(value)}")
    return value if colon else parsed


class Service(Record):
    """A process that must run until verification has finished."""

    name: str = field(kinds.name)
    command: str = field(some_text)
    port: int | None = field(port, default=None)
    health_path: str = field(kinds.absolute_path, default="/health")


class TaskSelection(Record):
    """How a shared environment learns which task it serves."""

    mechanism: str = field(kinds.choice("image", "env_var"), default="image")
    key: str = field(some_text, default="BENCHFLOW_TASK_ID")
    inject_into: str = field(kinds.choice("entrypoint", "exec"), default="entrypoint")


class Readiness(Record):
    """When the services are ready."""

    http: tuple[str, ...] = field(listing(some_text), default=())
    tcp: tuple[str | int, ...] = field(listing(Kind(_endpoint)), default=())
    timeout_sec: float = field(number(above=0), default=120.0)


class ForwardEnv(Record):
    """Variables of the host that are passed to the services."""

    keys: tuple[str, ...] = field(listing(some_text), default=())


class State(Record):
    """Where the services keep their state."""

    kind: str = field(some_text, default="sqlite")
    paths: tuple[str, ...] = field(listing(some_text), default=())


class EnvironmentManifest(Record):
    """The table `[environment]`."""

    name: str = field(some_text)
    image: str | None = field(some_text, default=None)
    base_image: str | None = field(some_text, default=None)
    ports: tuple[int, ...] = field(listing(port), default=())
    services: tuple[Service, ...] = field(listing(kinds.record(Service)), default=())
    owns_lifecycle: bool = field(flag, default=True)
    keep_alive: bool = field(flag, default=True)
    isolation: str = field(kinds.choice("per_task", "persistent"), default="per_task")
    task_selection: TaskSelection | None = field(kinds.record(TaskSelection), default=None)
    readiness: Readiness = field(kinds.record(Readiness), default=Readiness())
    forward_env: ForwardEnv = field(kinds.record(ForwardEnv), default=ForwardEnv())
    state: State | None = field(kinds.record(State), default=None)
    env: FrozenMap = field(kinds.env, default=FrozenMap())

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        where = join(path, "services")
        owns = values.get("owns_lifecycle", True)
        if "image" not in values and "base_image" not in values:
            problems.error("missing-key", join(path, "image"), f"{path} needs an image or a base_image")
        if owns and values.get("services"):
            problems.error("conflicting-keys", where, f"{where} needs owns_lifecycle = false")
        if not owns and not values.get("services"):
            problems.error("missing-key", where, f"{where} is required when owns_lifecycle is false")


class ManifestRoot(Record):
    """The whole file."""

    environment: EnvironmentManifest = field(kinds.record(EnvironmentManifest))


def read_manifest(data: bytes, *, file: str) -> tuple[EnvironmentManifest | None, list[Issue]]:
    """Parse an environment manifest; every problem is an issue."""
    from benchflow.task.document.toml_source import parse_toml, toml_locator

    problems = IssueLog(file)
    try:
        text = decode(data)
        mapping = parse_toml(text, file=file)
    except MarkdownError as problem:
        problems.error(problem.code, "", f"{file} {problem}", line=problem.line)
        return None, problems.issues
    except PackageError as problem:
        return None, [problem.issue()]
    problems = IssueLog(file, toml_locator(text))
    root = ManifestRoot.parse(mapping, "", problems)
    return (root.environment if root is not None else None), problems.issues
