"""What a migration did to a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.errors import Issue


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What a migration did to a folder; all paths are relative to it."""

    task_dir: Path
    source: str
    created: tuple[str, ...]
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    extra_paths: tuple[str, ...] = ()
    """Foreign keys that were preserved."""
    issues: tuple[Issue, ...] = ()
    """Warnings about what was preserved without effect or needs the author."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.task_dir),
            "source": self.source,
            "created": list(self.created),
            "removed": list(self.removed),
            "renamed": [{"from": old, "to": new} for old, new in self.renamed],
            "extra_paths": list(self.extra_paths),
            "issues": [issue.to_dict() for issue in self.issues],
        }
