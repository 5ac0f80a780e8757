"""`task.toml` of the split layout, schema 1.0 and later -> `TaskConfig`, with unknown keys preserved.

Whatever Harbor accepts is accepted: unknown keys are preserved with a warning, values that Harbor ignores are moved
aside, older spellings are converted. An invalid value is an error with its line. The result is valid natively too, so
that it can be written as `task.md`.
"""

from __future__ import annotations

import copy
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any, Final, Literal

from benchflow.errors import Issue, PackageError
from benchflow.task.config.parsed_record import IssueLog, join, split_unknown
from benchflow.task.config.task_config import AUTO, KEPT, TaskConfig, TaskConfigError, VerifierConfig
from benchflow.task.document.compat_extra import leaf_paths, merge_compat_extra
from benchflow.task.document.harbor_keys import express
from benchflow.task.document.toml_source import parse_toml, toml_locator

TASK_TOML: Final = "task.toml"
SOURCE: Final = "task.toml"


@dataclass(frozen=True, slots=True)
class InboundCompatibility:
    """What a foreign definition contains beyond the native configuration."""

    source: str
    config_extra: Mapping[str, Any]
    """Keys that the native configuration does not have, nested as they were; None pads list items."""
    config_extra_paths: tuple[str, ...]
    """Every path that Harbor does not know, including keys that the native configuration has."""

    @property
    def status(self) -> Literal["strict", "preserved-extra"]:
        """Whether anything was preserved outside the configuration."""
        return "preserved-extra" if self.config_extra else "strict"

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "status": self.status,
            "config_extra": copy.deepcopy(dict(self.config_extra)),
            "config_extra_paths": list(self.config_extra_paths),
        }


@dataclass(frozen=True, slots=True)
class ImportedTaskConfig:
    """A parsed `task.toml`."""

    config: TaskConfig
    compatibility: InboundCompatibility
    issues: tuple[Issue, ...] = ()
    """Warnings: keys preserved without effect, and consequences of the imported format."""

    @property
    def declared(self) -> dict[str, Any]:
        """What the author declared, under canonical native names, without defaults."""
        return self.config.to_declared_dict()


@dataclass(frozen=True, slots=True)
class TaskTomlReading:
    """A `task.toml`, as far as it could be read, with every problem."""

    config: TaskConfig | None
    compatibility: InboundCompatibility
    issues: tuple[Issue, ...]
    data: Mapping[str, Any]
    """As written; empty when it is not TOML."""


def import_task_config_toml(text: str, *, source: str = SOURCE) -> ImportedTaskConfig:
    """Read a `task.toml`; raises `TaskConfigError`, a `PackageError`, with every problem."""
    reading = read_task_toml(text, source=source)
    config = TaskConfigError.require(reading.config, reading.issues)
    return ImportedTaskConfig(config, reading.compatibility, reading.issues)


def read_task_toml(text: str, *, source: str = SOURCE) -> TaskTomlReading:
    """Read a `task.toml` without raising: every problem is an issue."""
    try:
        data = parse_toml(text, file=TASK_TOML)
    except PackageError as error:
        return TaskTomlReading(None, InboundCompatibility(source, {}, ()), (error.issue(),), {})
    problems = IssueLog(TASK_TOML, toml_locator(text), foreign=True)
    config, extra, paths = read_harbor_config(data, problems)
    if config is not None:
        paths.update(lost.path for lost in express(config.to_declared_dict()).lost)
    compatibility = InboundCompatibility(source, extra, tuple(sorted(paths)))
    return TaskTomlReading(config, compatibility, tuple(problems.issues), data)


def read_harbor_config(data: dict[str, Any], problems: IssueLog) -> tuple[TaskConfig | None, dict[str, Any], set[str]]:
    """The configuration in a `task.toml`, what is preserved beside it, nested as it was, and the paths of that."""
    adapted, moved = adapt_harbor_config(data, problems)
    config = TaskConfig.parse(adapted, "", problems)
    extra = _unknown(adapted, config)
    paths = {*leaf_paths(extra), *leaf_paths(moved)}
    return _chosen_by_proof(config) if config is not None else None, merge_compat_extra(extra, moved), paths


def _unknown(adapted: Mapping[str, Any], config: TaskConfig | None) -> dict[str, Any]:
    """Keys that no record knows. Variables written directly in the oracle's section are in its `env`."""
    extra = split_unknown(TaskConfig, adapted)[1]
    for name in ("oracle", "solution"):
        taken = config.oracle.env if config is not None else {}
        rest = {key: value for key, value in extra.get(name, {}).items() if taken.get(key) != value}
        extra.pop(name, None)
        if rest:
            extra[name] = rest
    return extra


def _chosen_by_proof(config: TaskConfig) -> TaskConfig:
    """The split layout does not say what a verifier may see of the agent's state; the package's oracle decides."""
    config = config.replace(verifier=_auto(config.verifier))
    if not config.steps:
        return config
    # Other steps use the isolation of the task.
    apart = {step.name for step in config.steps if step.verifier.environment_mode == "shared"}
    steps = (step.replace(verifier=_auto(step.verifier)) if step.name in apart else step for step in config.steps)
    return config.replace(steps=tuple(steps))


def _auto(verifier: VerifierConfig) -> VerifierConfig:
    native = verifier.isolation is not None or verifier.hardening.declared & KEPT
    return verifier if native or verifier.wanted_isolation == "separate" else verifier.replace(isolation=AUTO)


TIME_AS_TEXT: Final = "time-as-text"
_NATIVE_VERSION: Final = re.compile(r"0*1(\.[0-9]{1,6})?")


def adapt_harbor_config(data: dict[str, Any], problems: IssueLog) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mapping in native form, and what was moved aside, with its nesting. `data` is not changed."""
    adapted = _copy(data, "", problems)
    moved: dict[str, Any] = {}
    _adapt_version(adapted, moved, problems)
    _adapt_authors(adapted)
    for key, read in (("oracle", "solution"), ("sandbox", "environment")):
        if key in adapted and read in adapted:
            moved[key] = adapted.pop(key)
            problems.warning("no-effect", key, f"{key} has no effect beside {read}; it is preserved")
    for path, section in _sections(adapted):
        aside = _adapt_section(path, section, problems)
        if aside:
            _place(moved, path, aside)
    return adapted, moved


def _copy(value: Any, path: str, problems: IssueLog) -> Any:
    """A deep copy in which times of day, which YAML does not have, are text; each is reported."""
    if isinstance(value, dict):
        return {key: _copy(item, join(path, key), problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    if not isinstance(value, dt.time):
        return nan if value != value else value  # one `nan`, so that mappings with it are equal
    written = value.isoformat()
    problems.warning(
        TIME_AS_TEXT, path, f"{path} is a time of day, which YAML does not have; it is read as '{written}'"
    )
    return written


def _adapt_version(data: dict[str, Any], moved: dict[str, Any], problems: IssueLog) -> None:
    spelled = "schema_version" if "schema_version" in data else "version"
    if spelled not in data:
        return
    if spelled == "schema_version" and "version" in data:
        moved["version"] = data.pop("version")
        problems.warning("no-effect", "version", "version has no effect beside schema_version; it is preserved")
    version = data.pop(spelled)
    if type(version) in (int, float):
        version = str(version)
    if isinstance(version, str) and not _NATIVE_VERSION.fullmatch(version):
        problems.warning(
            "unknown-schema", spelled, f"unknown {spelled} '{version[:40]}'; it is read as the current version"
        )
        moved[spelled] = version
        return
    items = list(data.items())
    data.clear()
    data.update({"schema_version": version, **dict(items)})


def _adapt_authors(data: dict[str, Any]) -> None:
    task = data.get("task")
    if isinstance(task, dict) and isinstance(task.get("authors"), list):
        task["authors"] = [{"name": item} if isinstance(item, str) else item for item in task["authors"]]


def _sections(data: dict[str, Any]) -> Iterator[tuple[list[str | int], dict[str, Any]]]:
    """Every section with network settings and its location, including those of steps."""
    holders: list[tuple[list[str | int], dict[str, Any]]] = [([], data)]
    steps = data.get("steps")
    if isinstance(steps, list):
        holders += [(["steps", index], step) for index, step in enumerate(steps) if isinstance(step, dict)]
    for prefix, holder in holders:
        for name in ("agent", "verifier", "environment", "sandbox"):
            section = holder.get(name)
            if not isinstance(section, dict):
                continue
            yield [*prefix, name], section
            if name == "verifier":
                for inner in ("environment", "sandbox"):
                    if isinstance(section.get(inner), dict):
                        yield [*prefix, name, inner], section[inner]


_IN_ENVIRONMENT: Final = (("allow_internet", "network_mode"), ("image", "docker_image"))
_SUPERSEDED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "agent": (("allow_internet", "network_mode"),),
    "verifier": (("allow_internet", "network_mode"), ("sandbox_mode", "environment_mode"), ("sandbox", "environment")),
    "environment": _IN_ENVIRONMENT,
    "sandbox": _IN_ENVIRONMENT,
}
"""By section: a key that has no effect beside another, which Harbor reads."""


def _adapt_section(where: list[str | int], section: dict[str, Any], problems: IssueLog) -> dict[str, Any]:
    path = ""
    for part in where:
        path = f"{path}[{part}]" if isinstance(part, int) else join(path, part)
    aside: dict[str, Any] = {}

    def put_aside(key: str, why: str) -> None:
        aside[key] = section.pop(key)
        problems.warning("no-effect", f"{path}.{key}", f"{path}.{key} {why}; it is preserved but has no effect")

    for old, read in _SUPERSEDED.get(str(where[-1]), ()):
        if old in section and read in section:
            put_aside(old, f"is superseded by {read}")
    for key in ("memory", "storage"):
        if where[-1] != "verifier" and not isinstance(section.get(key, ""), str):
            put_aside(key, "is not a string such as '2G'")
    if section.get("network_mode") == "allowlist" and section.get("allowed_hosts", []) == []:
        section["network_mode"] = "no-network"
    if section.get("network_mode") != "allowlist" and section.get("allowed_hosts") == []:
        del section["allowed_hosts"]
    skills = section.get("skills_dir")
    if isinstance(skills, str) and not skills.startswith("/"):
        put_aside("skills_dir", "is not an absolute path")
    return aside


def _place(root: dict[str, Any], where: list[str | int], aside: dict[str, Any]) -> None:
    """Store what was moved aside under its original path; lists are padded with None."""
    node: Any = root
    for part, following in zip(where, [*where[1:], None], strict=True):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            node.extend([None] * (part + 1 - len(node)))
            node[part] = empty if node[part] is None else node[part]
            node = node[part]
        else:
            node = node.setdefault(part, empty)
    node.update(aside)
