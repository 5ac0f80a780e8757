"""A configuration and what an import preserved -> the mapping of a `task.toml`, with what Harbor cannot express.

Native settings that Harbor does not know are left out, unless they came from a `task.toml`. What came from one is
written in the spelling of its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import tomli_w

from benchflow.task.config.namespace import Compat
from benchflow.task.config.parsed_record import FrozenMap, IssueLog
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.compat_extra import leaf_paths, restore_extra
from benchflow.task.document.harbor_keys import NO_SUCH_SETTING, express, step_name_problem, without_nulls
from benchflow.task.document.task_toml import SOURCE, InboundCompatibility, read_harbor_config
from benchflow.task.document.toml_source import parse_toml
from benchflow.task.interop import terminal_bench
from benchflow.task.interop.export_report import CompatibilityExportLoss
from benchflow.task.interop.spelling import Meaning, respelled, spelling_of
from benchflow.task.interop.split_layout import with_plain_artifacts, without_usual_rubric

_PATH_PART: Final = re.compile(r"[^.\[\]]+")


@dataclass(frozen=True, slots=True)
class Preserved:
    """What an import preserved beside the configuration."""

    source: str | None = None
    paths: frozenset[str] = frozenset()
    """Every foreign path, including settings that the native configuration has."""
    extra: Mapping[str, Any] = field(default_factory=FrozenMap)
    """The keys that have no native equivalent, with their nesting."""
    spelling: Mapping[str, Any] = field(default_factory=FrozenMap)
    """The parts of the source that would be written in other words."""

    @classmethod
    def of_document(cls, compat: Compat | None) -> Preserved:
        """What a `task.md` says about its source."""
        if compat is None:
            return cls()
        spelling = parse_toml(compat.spelling) if compat.spelling is not None else {}
        return cls(compat.source, frozenset(compat.extra_paths), compat.extra, spelling)

    @classmethod
    def of_source(cls, config: TaskConfig, imported: InboundCompatibility, data: Mapping[str, Any]) -> Preserved:
        """What must be kept of a `task.toml`, given as it was written, so that an export can restore it."""
        kept = cls(imported.source, frozenset(imported.config_extra_paths), imported.config_extra)
        spelling = spelling_of(data, harbor_toml(config, kept).data)
        return cls(kept.source, kept.paths, kept.extra, spelling)

    def to_compat(self) -> dict[str, Any]:
        """The mapping `benchflow.compat` that `of_document` reads."""
        return {
            "source": self.source,
            **({"extra_paths": sorted(self.paths)} if self.paths else {}),
            **({"extra": dict(self.extra)} if self.extra else {}),
            **({"spelling": tomli_w.dumps(self.spelling)} if self.spelling else {}),
        }


@dataclass(frozen=True, slots=True)
class HarborToml:
    """A `task.toml` as a mapping; losses have canonical paths."""

    data: dict[str, Any]
    losses: tuple[CompatibilityExportLoss, ...]
    restored: tuple[str, ...]
    """The restored foreign paths."""


def harbor_toml(config: TaskConfig, preserved: Preserved) -> HarborToml:
    """The `task.toml` of a configuration."""
    split = preserved.source == SOURCE
    expressed = express((without_usual_rubric(config) if split else config).to_declared_dict())
    losses: list[CompatibilityExportLoss] = []
    restored: list[str] = []
    data = expressed.kept
    for setting in expressed.lost:
        if setting.path in preserved.paths and setting.value is not None:
            _set(data, setting.path, without_nulls(setting.value))
            restored.append(setting.path)
            if setting.reason != NO_SUCH_SETTING:
                losses.append(CompatibilityExportLoss(setting.path, setting.reason, "refusal"))
        else:
            losses.append(CompatibilityExportLoss(setting.path, setting.reason))
    for index, step in enumerate(config.steps or ()):
        problem = step_name_problem(step.name)
        if problem:
            losses.append(CompatibilityExportLoss(f"steps[{index}].name", problem, "refusal"))
    back: list[str] = []
    if preserved.source != terminal_bench.SOURCE:
        data, back = restore_extra(data, preserved.extra)
        restored += back
    for path in sorted(set(leaf_paths(preserved.extra)) - set(back)):
        reason = "the preserved key does not fit this task.toml"
        losses.append(CompatibilityExportLoss(f"benchflow.compat.extra.{path}", reason, "warning"))
    cleaned = with_plain_artifacts(without_nulls(data))
    if preserved.spelling:
        meaning = Meaning(config.to_declared_dict(), preserved.extra)
        cleaned = respelled(cleaned, preserved.spelling, meaning, _meaning)
    return HarborToml(cleaned, tuple(losses), tuple(sorted(restored)))


def _meaning(data: dict[str, Any]) -> Meaning:
    problems = IssueLog(foreign=True)
    config, extra, _ = read_harbor_config(data, problems)
    valid = not any(issue.severity == "error" for issue in problems.issues)
    return Meaning(config.to_declared_dict() if config is not None else {}, extra, valid)


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a value at its path, unless the list item it belongs to no longer exists."""
    keys: list[str | int] = [int(part) if part.isdigit() else part for part in _PATH_PART.findall(path)]
    keys[0] = "solution" if keys[0] == "oracle" else keys[0]
    node: Any = data
    for key in keys[:-1]:
        if isinstance(key, int):
            node = node[key] if isinstance(node, list) and key < len(node) else {}
        else:
            node = node.setdefault(key, {})
    if isinstance(node, dict):
        node[keys[-1]] = value
