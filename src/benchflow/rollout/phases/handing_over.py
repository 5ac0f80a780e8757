"""Handoff artifacts: declared files on their way from the box of a role to those of the others.

They are copied out as plain files, within limits, and copied in without following links; what is missing, a link, a
special file or too large is not handed over, and the record says so. Nothing else leaves an isolated workspace.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from benchflow.errors import SandboxFailure
from benchflow.rollout.team_schedule import Ledger
from benchflow.sandbox.protocol import NO_SUCH_FILE, OF_THE_FILE, Sandbox

MAX_BYTES: Final = 256 << 20
"""Of one artifact, a folder with all its files."""
MAX_FILES: Final = 10_000
_SHA256: Final = 64


@dataclass(frozen=True, slots=True)
class Handed:
    """One artifact of a handoff."""

    path: str
    status: str
    """`handed`, `unchanged`, `missing` or `refused`; `not-received` for one that had no place in the box of a role."""
    files: int = 0
    bytes: int = 0
    sha256: str | None = None
    """Of a single file."""
    reason: str | None = None
    replaces: str | None = None
    """The role whose file it replaced."""

    def record(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("files", "bytes", "sha256", "reason", "replaces")}
        return {"path": self.path, "status": self.status, **{key: value for key, value in given.items() if value}}


class Handoffs:
    """The handoffs of one step. `shared` is the team's own workspace, which is verified."""

    def __init__(self, shared: Sandbox, artifacts: Iterable[str], store: Path, owner: str | None) -> None:
        """`store` is an empty folder; `owner` the user to whom files belong that are copied in."""
        workdir = shared.spec.workdir.rstrip("/")
        self.artifacts: Final = tuple(path if path.startswith("/") else f"{workdir}/{path}" for path in artifacts)
        self._shared: Final = shared
        self._store: Final = store
        self._owner: Final = owner
        self._ledger: Final = Ledger()
        self._copies = 0

    async def receive(self, role: str, box: Sandbox) -> list[Handed]:
        """Bring the box of a role up to what the others have handed over; what had no place there."""
        refused: list[Handed] = []
        for path in self._ledger.missing(role) if box is not self._shared else ():
            try:
                await box.upload(self._store / path[1:], path, owner=self._owner)
            except SandboxFailure as error:  # it is the role's doing: a folder where others have a file
                if error.code not in OF_THE_FILE:
                    raise
                refused.append(Handed(path, "not-received", reason=str(error)))
        found: dict[str, str] = {}
        with self._folder() as folder:
            for number, path in enumerate(self.artifacts):
                found |= (await self._copied(box, path, folder / str(number)))[1]
        self._ledger.receive(role, found)
        return refused

    async def hand_over(self, role: str, box: Sandbox) -> list[Handed]:
        """Copy what a role changed into the team's workspace."""
        handed: list[Handed] = []
        with self._folder() as folder:
            for number, path in enumerate(self.artifacts):  # apart, since one may be within another
                place = folder / str(number)
                problem, found = await self._copied(box, path, place)
                handed.append(problem or await self._take(role, path, found, place, copy=box is not self._shared))
        return handed

    async def _take(self, role: str, path: str, found: dict[str, str], folder: Path, *, copy: bool) -> Handed:
        changed = self._ledger.changed(role, found)
        size, replaced = 0, None
        for file in changed:
            source, kept = folder / file[1:], self._store / file[1:]
            try:
                if copy:
                    await self._shared.upload(source, file, owner=self._owner)
            except SandboxFailure as error:
                if error.code not in OF_THE_FILE:
                    raise
                return Handed(path, "refused", reason=f"{file} cannot be put into the team's workspace: {error}")
            size += source.stat().st_size
            await anyio.to_thread.run_sync(self._keep, source, kept)
            replaced = self._ledger.take(role, file, found[file]) or replaced
        single = found[path][:_SHA256] if tuple(found) == (path,) else None
        return Handed(path, "handed" if changed else "unchanged", len(changed), size, single, replaces=replaced)

    def _keep(self, source: Path, kept: Path) -> None:
        """Move a file into the store, in place of a folder, or of a file where its folder has to be."""
        for parent in kept.parents:
            if parent == self._store:
                break
            if parent.is_file():
                parent.unlink()
        if kept.is_dir():
            shutil.rmtree(kept)
        kept.parent.mkdir(parents=True, exist_ok=True)
        source.replace(kept)

    async def _copied(self, box: Sandbox, path: str, folder: Path) -> tuple[Handed | None, dict[str, str]]:
        """An artifact as plain files below a folder, with their digests; or why there are none."""
        target = folder / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            await box.download(path, target, max_bytes=MAX_BYTES, max_files=MAX_FILES)
        except SandboxFailure as error:
            if error.code not in OF_THE_FILE:
                raise
            status = "missing" if error.code == NO_SUCH_FILE else "refused"
            return Handed(path, status, reason=None if status == "missing" else str(error)), {}
        if target.is_symlink():
            return Handed(path, "refused", reason=f"{path} is a link"), {}
        return None, await anyio.to_thread.run_sync(_digests, target, path)

    def _folder(self) -> _Emptied:
        self._copies += 1
        return _Emptied(self._store.parent / f"{self._store.name}-{self._copies}")


class _Emptied:
    """A folder for the length of a block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        self._path.mkdir()
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _digests(top: Path, path: str) -> dict[str, str]:
    """The regular files at or below a place, by their paths in the box."""
    files = [top] if top.is_file() else sorted(top.rglob("*"))
    found: dict[str, str] = {}
    for file in files:
        if file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        place = path if file == top else f"{path}/{file.relative_to(top).as_posix()}"
        found[place] = f"{digest}{file.stat().st_mode & 0o111:o}"
    return found
