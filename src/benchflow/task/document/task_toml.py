"""`task.toml` of the split layout, schema 1.0 to today -> `TaskConfig`, and what it does not know, preserved.

What Harbor accepts, import accepts: unknown keys are kept aside with a warning and older spellings are read.
A wrong value is an error with its line. The result is valid natively too, so that it can become a `task.md`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from benchflow.errors import Issue, PackageError
from benchflow.task.config.issues import IssueLog
from benchflow.task.config.parsed_record import split_unknown
from benchflow.task.config.task_config import StepConfig, TaskConfig, TaskConfigError, VerifierConfig
from benchflow.task.document.compat_extra import leaf_paths, merge_compat_extra
from benchflow.task.document.harbor_input import adapt_harbor_config
from benchflow.task.document.harbor_keys import express
from benchflow.task.document.toml_source import parse_toml, toml_locator

TASK_TOML: Final = "task.toml"
SOURCE: Final = "task.toml"


@dataclass(frozen=True, slots=True)
class InboundCompatibility:
    """What a foreign definition held beyond the native configuration."""

    source: str
    config_extra: Mapping[str, Any]
    """Keys that the native configuration has no place for, nested as they were; None pads list items."""
    config_extra_paths: tuple[str, ...]
    """Every path beyond what Harbor knows, also of keys that the native configuration took in."""

    @property
    def status(self) -> Literal["strict", "preserved-extra"]:
        """Whether anything had to be preserved outside the configuration."""
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
    """A `task.toml`, read."""

    config: TaskConfig
    compatibility: InboundCompatibility
    issues: tuple[Issue, ...] = ()
    """Warnings: what was preserved without effect, and what the imported format implies."""

    @property
    def declared(self) -> dict[str, Any]:
        """What the author wrote, under canonical native names, without defaults."""
        return self.config.to_declared_dict()


@dataclass(frozen=True, slots=True)
class TaskTomlReading:
    """A `task.toml` as far as it can be read, with every problem."""

    config: TaskConfig | None
    compatibility: InboundCompatibility
    issues: tuple[Issue, ...]
    data: Mapping[str, Any]
    """As written; empty when it is not TOML."""


def import_task_config_toml(text: str, *, source: str = SOURCE) -> ImportedTaskConfig:
    """Read a `task.toml`; raises `TaskConfigError`, a `PackageError`, with every problem."""
    reading = read_task_toml(text, source=source)
    errors = tuple(issue for issue in reading.issues if issue.severity == "error")
    if reading.config is None or errors:
        raise TaskConfigError(errors)
    return ImportedTaskConfig(reading.config, reading.compatibility, reading.issues)


def read_task_toml(text: str, *, source: str = SOURCE) -> TaskTomlReading:
    """Read a `task.toml` without raising: every problem is an issue."""
    try:
        data = parse_toml(text, file=TASK_TOML)
    except PackageError as error:
        return TaskTomlReading(None, InboundCompatibility(source, {}, ()), (error.issue(),), {})
    problems = IssueLog(TASK_TOML, toml_locator(text), foreign=True)
    adapted, moved = adapt_harbor_config(data, problems)
    config = TaskConfig.parse(adapted, "", problems)
    extra = _unknown(adapted, config)
    paths = {*leaf_paths(extra), *leaf_paths(moved)}
    if config is not None:
        paths.update(lost.path for lost in express(config.to_declared_dict()).lost)
        config = _as_shared_box(config, problems)
    compatibility = InboundCompatibility(source, merge_compat_extra(extra, moved), tuple(sorted(paths)))
    return TaskTomlReading(config, compatibility, tuple(problems.issues), data)


def _unknown(adapted: Mapping[str, Any], config: TaskConfig | None) -> dict[str, Any]:
    """The keys no record knows. Variables written straight into the oracle's section became its `env`."""
    extra = split_unknown(TaskConfig, adapted)[1]
    for name in ("oracle", "solution"):
        taken = config.oracle.env if config is not None else {}
        rest = {key: value for key, value in extra.get(name, {}).items() if taken.get(key) != value}
        extra.pop(name, None)
        if rest:
            extra[name] = rest
    return extra


def _as_shared_box(config: TaskConfig, problems: IssueLog) -> TaskConfig:
    """The split layout promises that verification sees the agent's live box; say so in the configuration."""
    verifier = _keeping(config.verifier)
    if verifier is not config.verifier:
        problems.warning(
            "shared-live-box",
            "verifier.hardening",
            "an imported task is verified in the box the agent leaves: its processes and system changes stay "
            "and could act on the verifier; declare a separate verifier environment to rule that out",
        )
        config = config.replace(verifier=verifier)
    if config.steps:
        config = config.replace(steps=tuple(_step_keeping(step) for step in config.steps))
    return config


def _step_keeping(step: StepConfig) -> StepConfig:
    """A step that says how it is verified says this too; the others follow the task."""
    says_how = step.verifier.declared - {"type", "service", "hardening"}
    return step.replace(verifier=_keeping(step.verifier)) if says_how else step


def _keeping(verifier: VerifierConfig) -> VerifierConfig:
    declared = verifier.hardening.declared
    missing = {"keep_system_changes", "keep_processes"} - declared
    if verifier.isolation != "shared" or not missing:
        return verifier
    return verifier.replace(hardening=verifier.hardening.replace(**dict.fromkeys(sorted(missing), True)))
