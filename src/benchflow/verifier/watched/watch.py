"""`Watch`: collects which paths the commands of one verification look for, with the program `missed` in its box."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchflow.sandbox.protocol import Sandbox
from benchflow.verifier.surviving.missed_lookups import Lookups, read_lookups

PLACE: Final = "/run/verifier-ground/missed"
_PROGRAM: Final = f"{PLACE}/missed"
_RECORDS: Final = f"{PLACE}/records"
_PROGRAMS: Final = Path(__file__).parents[1] / "kit" / "missed"
_MOST_BYTES: Final = 64 << 20
_MOST_STARTED: Final = 60
_START_SEC: Final = 60.0
_AT_ONCE: Final = 500
_START: Final = """\
for program in "$@"; do
  command -v "$program" >/dev/null 2>&1 || continue
  for word in "" --version; do
    "$program" $word </dev/null >/dev/null 2>&1 & last=$!
    ( sleep 2; kill -9 "$last" ) >/dev/null 2>&1 & limit=$!
    wait "$last" 2>/dev/null
    kill -9 "$limit" 2>/dev/null
  done
done
"""
"""Starts programs that a verifier names, each without input: one that it would start only after others succeed looks
for its settings and libraries here all the same."""


@dataclass(slots=True)
class Watch:
    """Collects what the commands of a verification look for. Those of the `programs` that it did not start are started
    too, once it is done."""

    programs: Sequence[str] = ()
    folders: Sequence[str] = ()
    """Folders that are made before."""
    lookups: Lookups = field(default_factory=Lookups)
    problems: list[str] = field(default_factory=list)
    """Why something may be missing from what was found."""
    watched: bool = False

    @property
    def problem(self) -> str | None:
        unknown = None if self.watched else "no program of the verifier was watched"
        return self.problems[0] if self.problems else unknown

    async def begin(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Put the program into a box; the words that every command of the verifier begins with."""
        program = _program()
        if program is None:
            self.problems.append(f"programs cannot be watched on {platform.machine()}")
            return ()
        await sandbox.write_file(_PROGRAM, program, mode=0o755)
        await sandbox.write_file(_RECORDS, b"", mode=0o666)
        for start in range(0, len(self.folders), _AT_ONCE):
            words = ["/bin/mkdir", "-p", "--", *self.folders[start : start + _AT_ONCE]]
            await sandbox.exec(words, user="root", cwd="/", timeout=_START_SEC)
        return (_PROGRAM, _RECORDS, sandbox.spec.workdir)

    async def end(self, sandbox: Sandbox, user: str) -> None:
        """Start what is left, and read the records."""
        if _program() is None:
            return
        found, whole = read_lookups(await sandbox.read_file(_RECORDS, max_bytes=_MOST_BYTES))
        started = {path.rpartition("/")[2] for path in found.executed}
        if left := [program for program in self.programs if program not in started]:
            words = [_PROGRAM, _RECORDS, sandbox.spec.workdir, "/bin/sh", "-c", _START, "sh", *left[:_MOST_STARTED]]
            await sandbox.exec(words, user=user, cwd=PLACE, timeout=_START_SEC)
            await sandbox.kill_processes()
            found, whole = read_lookups(await sandbox.read_file(_RECORDS, max_bytes=_MOST_BYTES))
        self.lookups |= found
        self.watched = True
        if not whole:
            self.problems.append("some of them could not be watched")


@functools.cache
def _program() -> bytes | None:
    place = _PROGRAMS / f"missed-{platform.machine()}"
    return place.read_bytes() if place.is_file() else None
