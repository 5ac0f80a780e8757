"""Restore: a kept workspace is restored in a started environment: files, links, deletions, modes, owners and times.

The archive is read as data that may be damaged: names stay below the folder they belong to, sizes are bounded.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

import anyio.to_thread

from benchflow.errors import InfrastructureFailure, SandboxFailure
from benchflow.files.scratch import scratch
from benchflow.record.reading.kept_workspace import FILES, MANIFEST, SCHEMA
from benchflow.rollout.phases.keep import MAX_BYTES, MAX_ENTRIES, STAT, is_plain
from benchflow.sandbox.protocol import Rights, Sandbox

_TIMEOUT_SEC: Final = 120.0
_LONGEST_MANIFEST: Final = 64 << 20
_DAMAGES: Final = (
    tarfile.TarError, zlib.error, OSError, EOFError, ValueError, LookupError, TypeError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading an archive raises that is not as `keep` writes it."""


@dataclass(slots=True)
class _Staged:
    """What an archive holds besides the files themselves."""

    deleted: list[str] = field(default_factory=list)
    owners: dict[tuple[int, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    modes: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Modes that a copy does not preserve."""
    above: list[str] = field(default_factory=list)
    """Folders of the environment that hold what was kept, and stay as they are."""
    times: dict[Path, float] = field(default_factory=dict)
    """Of folders, which change with what is put into them."""

    def note(self, path: str, mode: int, uid: int, gid: int, *, is_folder: bool) -> None:
        """Remember what has to be set once the files are inside."""
        if (uid, gid) != (0, 0):
            self.owners[uid, gid].append(path)
        if not is_plain(mode) or is_folder:
            self.modes[mode].append(path)


async def restore_workspace(sandbox: Sandbox, archive: Path) -> None:
    """Make the files of a started, pristine sandbox those that were kept.

    Raises `InfrastructureFailure` (`workspace-damaged`) for an archive that is none, `SandboxFailure` when the sandbox
    does not take it.
    """
    with scratch("workspace-") as folder:
        root = folder / "root"
        root.mkdir()
        try:
            staged = await anyio.to_thread.run_sync(_unpack, archive, root)
        except _DAMAGES as error:
            message = f"The kept workspace {archive} is damaged: {error}."
            raise InfrastructureFailure(message, code="workspace-damaged") from error
        await _each(sandbox, ["rm", "-rf"], staged.deleted)
        above = await _rights_of(sandbox, staged.above)
        await sandbox.upload(root, "/", owner="root")
        for path, rights in above.items():
            staged.note(path, rights.mode, rights.uid, rights.gid, is_folder=True)
        for (uid, gid), paths in staged.owners.items():
            await _each(sandbox, ["chown", "-h", f"{uid}:{gid}"], paths)
        for mode, paths in staged.modes.items():
            await _each(sandbox, ["chmod", f"{mode:o}"], paths)


async def _each(sandbox: Sandbox, command: Sequence[str], paths: Sequence[str]) -> None:
    """Run a command on many paths as root."""
    if not paths:
        return
    listed = b"".join(os.fsencode(path) + b"\0" for path in paths)
    done = await sandbox.exec(["xargs", "-0", *command, "--"], user="root", cwd="/", stdin=listed, timeout=_TIMEOUT_SEC)
    if not done.ok:
        reason = done.stderr.decode(errors="replace").strip()[-300:]
        message = f"The kept workspace cannot be restored: {command[0]}: {reason or 'no reason given'}"
        raise SandboxFailure(message, code="restore-failed")


def _unpack(archive: Path, root: Path) -> _Staged:
    staged = _Staged()
    entries = size = 0
    with gzip.open(archive) as stream, tarfile.open(fileobj=cast("IO[bytes]", _Bounded(stream)), mode="r:") as tar:
        staged.deleted = [_path(item) for item in _manifest(tar)["deleted"]]
        for member in tar:
            entries += 1
            size += member.size
            if entries > 20 * MAX_ENTRIES or size > MAX_BYTES + _LONGEST_MANIFEST:
                raise ValueError("it exceeds the limits of a kept workspace")
            if member.name.startswith(f"{FILES}/"):
                _place(tar, member, root, staged)
    for folder, time in staged.times.items():
        os.utime(folder, (time, time))
    return staged


class _Bounded:
    """A stream of which nothing large is read at once: headers in an archive may announce any size."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream: Final = stream
        self.seek: Final = stream.seek
        self.tell: Final = stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LONGEST_MANIFEST:
            raise ValueError(f"it has a header of {size:,} bytes")
        return self._stream.read(size)


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    first = tar.next()
    content = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
    if content is None or first is None or first.size > _LONGEST_MANIFEST:
        raise ValueError(f"it does not begin with {MANIFEST}")
    manifest: Any = json.loads(content.read())
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise ValueError(f"it is no {SCHEMA}")
    return dict(manifest)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path, staged: _Staged) -> None:
    path = _path(member.name.removeprefix(FILES))
    place = root / path.lstrip("/")
    _make_above(place.parent, root, staged)
    if member.issym():
        place.symlink_to(member.linkname)
    elif member.isdir():
        place.mkdir()
    elif member.isreg():
        content = tar.extractfile(member)
        with place.open("xb") as file:
            if content is not None:
                shutil.copyfileobj(content, file)
    else:
        raise ValueError(f"{path} is neither a file, a folder nor a link")
    if member.issym():
        staged.note(path, 0o777, member.uid, member.gid, is_folder=False)
        return
    staged.note(path, member.mode, member.uid, member.gid, is_folder=member.isdir())
    place.chmod(member.mode & 0o777 | (0o700 if member.isdir() else 0o400))
    if member.isdir():
        staged.times[place] = member.mtime
    else:
        os.utime(place, (member.mtime, member.mtime))


def _make_above(folder: Path, root: Path, staged: _Staged) -> None:
    """The folders above a path; a link on the way is not followed."""
    place = root
    for name in folder.relative_to(root).parts:
        place /= name
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise ValueError(f"{folder.relative_to(root)} is not a folder")
        if not place.exists():
            place.mkdir()
            staged.above.append(f"/{place.relative_to(root).as_posix()}")


async def _rights_of(sandbox: Sandbox, paths: Sequence[str]) -> dict[str, Rights]:
    """Mode and owner of those of the folders that are there."""
    found: dict[str, Rights] = {}
    for path in paths:
        told = await sandbox.exec([*STAT, path], user="root", cwd="/", timeout=_TIMEOUT_SEC)
        if told.ok:
            mode, uid, gid, time = told.stdout.split()
            found[path] = Rights(int(mode, 8), int(uid), int(gid), int(time))
    return found


def _path(name: str) -> str:
    """An absolute path that means itself."""
    parts = name.split("/")
    if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") or "\0" in part for part in parts[1:]):
        raise ValueError(f"{name!r} is no absolute path")
    return name
