"""Resources that infrastructures of this machine have launched and not closed, one file per run, below the cache root.

A record names the process that owns the run. If that process has exited without closing it, for instance because it
was killed, the run is stale, and any process may clean up after it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import cube

_RUN_ID: Final = re.compile(r"[0-9a-f]{32}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """One launched resource."""

    run_id: str
    resource: str
    infra: str
    """The fingerprint of the place."""
    created_at: str
    expires_at: str | None
    engine: str | None = None
    """The command of the container engine whose containers outlive their owner; None if they do not."""
    folder: str | None = None
    """A folder that a killed owner may have left; its name is the run id."""
    owner: tuple[int, str] = field(default_factory=lambda: (os.getpid(), _started(os.getpid()) or ""))
    """Process id, and when that process started: ids are used again."""

    @property
    def abandoned(self) -> bool:
        """Whether the process that launched it has ended."""
        return _started(self.owner[0]) != self.owner[1]

    @property
    def own(self) -> bool:
        return self.owner == (os.getpid(), _started(os.getpid()) or "")

    def expired(self, now: datetime, max_age_seconds: float | None) -> bool:
        """Whether it is older than it may be."""
        if max_age_seconds is not None:
            return (now - datetime.fromisoformat(self.created_at)).total_seconds() > max_age_seconds
        return self.expires_at is not None and datetime.fromisoformat(self.expires_at) < now


def _folder() -> Path:
    return cube._CUBE_CACHE_ROOT / "active"


def note(run: ActiveRun) -> None:
    """Record a run before anything of it starts, so that nothing can be left unrecorded."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(asdict(run), stream)
    Path(temporary).replace(folder / f"{run.run_id}.json")


def forget(run_id: str) -> None:
    """Remove the record of a run that has ended."""
    if _RUN_ID.fullmatch(run_id):
        (_folder() / f"{run_id}.json").unlink(missing_ok=True)


def active_runs() -> list[ActiveRun]:
    """All that can be read, oldest first; a damaged record is removed, since nothing can be done with it."""
    folder = _folder()
    found = [_read(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    return sorted((run for run in found if run is not None), key=lambda run: run.created_at)


def _read(path: Path) -> ActiveRun | None:
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        run = ActiveRun(**{**fields, "owner": (int(fields["owner"][0]), str(fields["owner"][1]))})
        for moment in (run.created_at, run.expires_at):
            if moment is not None:
                datetime.fromisoformat(moment)
    except FileNotFoundError:  # it ended meanwhile
        return None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        logger.warning("The record %s of a launched resource is damaged (%s) and is removed.", path, error)
        path.unlink(missing_ok=True)
        return None
    return run if run.run_id == path.stem else None


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() or not _runs(pid) else "running"
    return stat.rpartition(")")[2].split()[19]


def _runs(pid: int) -> bool:
    """For machines without /proc, where all that is known is whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
