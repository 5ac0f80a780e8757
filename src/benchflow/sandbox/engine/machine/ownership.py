"""Who made which container, proven by locks, so that leftovers of a crash can be removed and nothing else.

An owner is a folder with a file that its process keeps locked. It is mounted into every container: the anchor leaves
when the lock is free, and the next start removes everything with the label of an owner whose lock is free.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow.files.locks import free_lock
from benchflow.sandbox.engine.box.anchor import program

OWNED: Final = "benchcube.owner"
"""The label of everything we make; its value is the owner's id."""
PURPOSE: Final = "benchcube.purpose"
"""`sandbox`, `service` and `fork` end with their owner; `snapshot` and `environment` stay until they are discarded."""
INSIDE: Final = "/dev/.benchcube"
"""Where the owner's folder appears in a container. `/dev` is never part of an image or of a diff."""
ANCHOR: Final = f"{INSIDE}/anchor"
LEASE: Final = f"{INSIDE}/lease"


def default_state() -> Path:
    """Where owners, locks and notes about snapshots are kept: `$XDG_STATE_HOME`, else below the home folder."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "benchcube" / "engine"


class Owner:
    """The owner of containers on one engine: this process, or one that is gone, proven by holding its lock."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder: Final = folder
        self.id: Final = folder.name
        self._lock: int | None = lock

    @classmethod
    def register(cls, state: Path, endpoint: str, machine: str) -> Owner:
        """A new owner below `state`, locked before anyone can see its folder."""
        owners = state / "owners"
        owners.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex[:20]
        draft = owners / f".{name}"
        draft.mkdir(mode=0o755)
        (draft / "endpoint.json").write_text(json.dumps({"endpoint": endpoint}), encoding="utf-8")
        anchor = draft / "anchor"
        anchor.write_bytes(program(machine))
        anchor.chmod(0o755)
        lock = os.open(draft / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = owners / name
        draft.rename(folder)
        return cls(folder, lock)

    def release(self) -> None:
        """Remove the folder, once nothing carries its label any more, and give up the lock; idempotent."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.keep()

    def keep(self) -> None:
        """Give up the lock and leave the folder for another time; idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def dead_owners(state: Path, endpoint: str) -> Iterator[Owner]:
    """Owners on the same engine that no process holds any more."""
    owners = state / "owners"
    for folder in sorted(owners.iterdir()) if owners.is_dir() else []:
        if folder.name.startswith(".") or _endpoint(folder) != endpoint:
            continue
        lock = free_lock(folder / "lease")
        if lock is not None:
            yield Owner(folder, lock)


def _endpoint(folder: Path) -> str | None:
    try:
        found = json.loads((folder / "endpoint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("endpoint") if isinstance(found, dict) else None
