"""What was changed before a snapshot or fork was made: the engine only knows what changed since.

One small file per image, written whole; a snapshot outlives the process that made it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import ChangeKind


class SnapshotNotes:
    """Paths and how they were changed, by image id, below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, image: str, kinds: Mapping[str, ChangeKind]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(image)
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(dict(kinds)), encoding="utf-8")
        draft.replace(path)

    def read(self, image: str) -> dict[str, ChangeKind]:
        try:
            found: dict[str, ChangeKind] = json.loads(self._path(image).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SandboxFailure(
                f"The changes before the snapshot {image[:12]} are unknown on this machine.",
                code="snapshot-unknown",
            ) from None
        return found

    def forget(self, image: str) -> None:
        self._path(image).unlink(missing_ok=True)

    def _path(self, image: str) -> Path:
        return self._folder / f"{image.removeprefix('sha256:')}.json"
