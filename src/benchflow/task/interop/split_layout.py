"""Conversion between split and native folders: native folder names, and configuration as an author writes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.errors import PackageError
from benchflow.task.config.task_config import JudgeConfig, TaskConfig
from benchflow.task.filemap import scan
from benchflow.task.package_layout import ALIASES


@dataclass(frozen=True, slots=True)
class NativeTrees:
    """The steps that give folders their native names; all paths are relative to the package."""

    renames: tuple[tuple[str, str], ...] = ()
    duplicates: tuple[str, ...] = ()
    """Split folders whose native equivalent has the same files."""

    def apply(self, folder: Path) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Rename and remove; returns both."""
        for old, new in self.renames:
            (folder / old).rename(folder / new)
        for old in self.duplicates:
            shutil.rmtree(folder / old)
        return self.renames, self.duplicates


def plan_native_trees(folder: Path, steps: Iterable[str]) -> NativeTrees:
    """Plan the folders of a package and its steps; aliases that differ are a `PackageError`."""
    renames: list[tuple[str, str]] = []
    duplicates: list[str] = []
    for holder in ("", *(f"steps/{step}/" for step in steps)):
        for native, split in ((holder + native, holder + split) for native, split in ALIASES):
            if not (folder / split).is_dir() or (folder / split).is_symlink():
                continue
            if not (folder / native).exists():
                renames.append((split, native))
            elif scan(folder / native).hashes() == scan(folder / split).hashes():
                duplicates.append(split)
            else:
                pair = f"{native}|{split}"
                raise PackageError(f"{native}/ and {split}/ differ", code="alias-drift", path=pair)
    return NativeTrees(tuple(renames), tuple(duplicates))


def with_rubric_below(config: TaskConfig, old: str, new: str) -> TaskConfig:
    """The configuration, with the path of the judge's rubric adapted if it is in a folder that is renamed."""
    verifier = config.verifier
    rubric = verifier.judge.rubric_path
    if verifier.type != "llm-judge" or not rubric.startswith(f"{old}/"):
        return config
    judge = verifier.judge.replace(rubric_path=new + rubric.removeprefix(old))
    return config.replace(verifier=verifier.replace(judge=judge))


def without_usual_rubric(config: TaskConfig) -> TaskConfig:
    """The configuration without the path of a rubric that is where a judge looks for it anyway.

    Giving folders their native names makes that path explicit.
    """
    verifier = config.verifier
    if "judge" not in verifier.declared or verifier.judge.rubric_path != JudgeConfig.rubric_path:
        return config
    values = {item.name: value for item, value in verifier.judge.items() if item.name != "rubric_path"}
    return config.replace(verifier=verifier.replace(judge=JudgeConfig(**values)))


def with_plain_artifacts(declared: dict[str, Any]) -> dict[str, Any]:
    """A declared configuration as an author writes it: an artifact with only a path becomes a plain string."""
    for holder in (declared, *(declared.get("steps") or ())):
        if "artifacts" in holder:
            items = holder["artifacts"]
            holder["artifacts"] = [item["source"] if set(item) == {"source"} else item for item in items]
    return declared
