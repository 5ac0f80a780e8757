"""Cached baseline and ceiling scores: one file per score, named by the hash of everything that it depends on.

Files are written atomically, so any number of rollouts may share a folder; an unreadable file counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchflow.errors import InfrastructureFailure
from benchflow.files.atomic import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.rewards import Scored, verdict_from_dict
from benchflow.sandbox.local.layers.sandbox_store import default_store

SCHEMA: Final = "benchcube.measured.v1"
HOST: Final = "host"
_MAX_RECORD: Final = 16 << 20
_USERLAND: Final = ("/etc/os-release", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/local/lib")


@dataclass(frozen=True, slots=True)
class Measured:
    """A baseline or ceiling score, and when it was measured (ISO 8601, UTC)."""

    verdict: Scored
    at: str


def default_cache() -> Path:
    """The folder of cached scores in the user's cache."""
    return default_store() / "measured"


def place_of(folder: Path, parts: Mapping[str, Any]) -> Path:
    """The file of a score that depends on `parts`."""
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return folder / f"{key}.json"


def userland() -> str:
    """An identifier of this machine's own programs, which changes when they are updated."""
    times = []
    for name in _USERLAND:
        try:
            times.append(Path(name).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return f"{HOST}:{'.'.join(map(str, times))}"


def recall(place: Path) -> Measured | None:
    """The cached score, if there is one."""
    try:
        record = json.loads(read_regular(place, max_bytes=_MAX_RECORD))
        if record["schema"] != SCHEMA:
            return None
        verdict = verdict_from_dict(record["verdict"])
        return Measured(verdict, str(record["measured_at"])) if isinstance(verdict, Scored) else None
    except (OSError, RefusedFileError, ValueError, KeyError, TypeError, InfrastructureFailure):
        return None


def remember(place: Path, verdict: Scored) -> None:
    """Store a score; raises `OSError` if nothing can be written."""
    place.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_atomic(place, json.dumps({"schema": SCHEMA, "measured_at": now, "verdict": verdict.to_dict()}))
