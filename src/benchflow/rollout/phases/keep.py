"""Keep: the workspace an agent left is packed beside its record, so that it can be scored again.

`keep` writes one `workspace.tar.gz`: under `files/` every path that differs from the environment, with its
mode, owner and time, and `workspace.json` with what was deleted. Secrets are removed. If a workspace cannot be
kept, the record has the reason; this never fails a rollout. `restore` is the inverse.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import SandboxFailure
from benchflow.files.atomic import temporary_sibling, write_atomic
from benchflow.files.path_set import PathSet
from benchflow.files.redaction import Redactor, redact_folder
from benchflow.files.scratch import scratch
from benchflow.record import Workspace
from benchflow.record.reading.kept_workspace import FILES, MANIFEST, SCHEMA
from benchflow.rollout.phases.step_bounds import keeps_processes
from benchflow.sandbox.protocol import OF_THE_FILE, Change, Rights, Sandbox

MAX_BYTES: Final = 256 << 20
MAX_ENTRIES: Final = 50_000
_TREE: Final = 5
"""A new folder with at least so many entries is copied at once, fewer are copied one by one."""
STAT: Final = ("stat", "-c", "%a %u %g %Y", "--")
_CROWD: Final = 256
"""A folder of the environment with at least so many changed files in it is copied at once where possible."""
_ARGUMENTS: Final = 64 << 10
"""As many bytes of paths are given to one command."""
_AT_HAND: Final = 1 << 20
"""Up to so many bytes in so few files are read into memory; more goes through a folder."""
_FEW: Final = 32
_TIMEOUT_SEC: Final = 120.0
_Target = BinaryIO | gzip.GzipFile


async def keep(
    environment: Environment, step: str | None, archive: Path, redactor: Redactor, *, without: frozenset[Change]
) -> Workspace:
    """Keep the workspace of a step, unless what is packed would not be all that its verifier sees."""
    sandbox = environment.sandbox
    if environment.services is not None or sandbox.spec.composition is not None:
        return _not_kept("Services of the environment have state that cannot be saved.")
    if keeps_processes(environment.preparation, step) and await sandbox.has_processes():
        return _not_kept("The verifier needs running processes, which cannot be saved.")
    return await keep_workspace(sandbox, archive, redactor, without=without)


def _not_kept(reason: str) -> Workspace:
    return Workspace(kept=False, reason=reason)


class _NotKeptError(Exception):
    """Why a workspace cannot be kept, in one sentence."""


async def keep_workspace(
    sandbox: Sandbox, archive: Path, redactor: Redactor, *, without: frozenset[Change] = frozenset()
) -> Workspace:
    """Pack what differs in a sandbox from its environment into `archive`; `without` is what was there before the agent.

    The archive appears whole or not at all.
    """
    try:
        changes = [change for change in await sandbox.changes() if change not in without]
        _within_limits(changes)
        present = [change for change in changes if change.kind != "deleted"]
        rights = await _rights(sandbox, present)
        files = [change for change in present if change.type == "file"]
        if len(files) <= _FEW and sum(file.size for file in files) <= _AT_HAND:
            contents = {file.path: await sandbox.read_file(file.path, max_bytes=_AT_HAND) for file in files}
            return _pack(_InMemory(contents, redactor), changes, rights, archive, redactor)
        with scratch("workspace-") as root:
            await _download(sandbox, present, root)
            await anyio.to_thread.run_sync(redact_folder, redactor, root)
            return await anyio.to_thread.run_sync(_pack, _InFolder(root), changes, rights, archive, redactor)
    except _NotKeptError as error:
        return _not_kept(str(error))
    except SandboxFailure as error:
        return _not_kept(f"The workspace could not be copied: {error}")
    except OSError as error:
        return _not_kept(f"The workspace could not be written: {error.strerror or error}.")


def _within_limits(changes: Sequence[Change]) -> None:
    if len(changes) > MAX_ENTRIES:
        raise _NotKeptError(f"The agent changed {len(changes):,} paths; workspaces are kept up to {MAX_ENTRIES:,}.")
    size = sum(change.size for change in changes)
    if size > MAX_BYTES:
        message = f"The agent's changes are {size >> 20:,} MB; workspaces are kept up to {MAX_BYTES >> 20} MB."
        raise _NotKeptError(message)
    special = next((change for change in changes if change.type == "special" and change.kind != "deleted"), None)
    if special is not None:
        raise _NotKeptError(f"{special.path} is neither a file, a folder nor a link, and cannot be kept.")
    unknown = next((c for c in changes if c.type == "symlink" and c.kind != "deleted" and c.target is None), None)
    if unknown is not None:
        raise _NotKeptError(f"The target of the link {unknown.path} is unknown, so it cannot be saved.")


async def _rights(sandbox: Sandbox, present: Sequence[Change]) -> dict[str, Rights]:
    """Mode, owner and time of every path: as the backend tells them, else asked for inside."""
    known = {change.path: change.rights for change in present if change.rights is not None}
    paths = [change.path for change in present if change.path not in known]
    if not paths:
        return known
    lines: list[str] = []
    for some in _in_parts(paths):
        told = await sandbox.exec([*STAT, *some], user="root", cwd="/", timeout=_TIMEOUT_SEC)
        lines += told.stdout.decode(errors="replace").splitlines()
    try:
        numbers = [[int(words[0], 8), *map(int, words[1:])] for words in (line.split() for line in lines)]
        return known | {path: Rights(*found) for path, found in zip(paths, numbers, strict=True)}
    except (ValueError, TypeError, IndexError):
        message = "The environment has no working `stat`, so the owners of files cannot be saved."
        raise _NotKeptError(message) from None


def _in_parts(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths in lists that fit onto a command line."""
    part: list[str] = []
    length = 0
    for path in paths:
        if part and length + len(path) > _ARGUMENTS:
            yield part
            part, length = [], 0
        part.append(path)
        length += 4 * len(path) + 1
    yield part


def _above(path: str) -> Iterator[str]:
    """The folders above a path, without the root."""
    while path := path[: path.rfind("/")]:
        yield path


async def _download(sandbox: Sandbox, present: Sequence[Change], root: Path) -> None:
    """Copy the files below a host folder at their own paths; folders that hold much, as a whole."""
    whole = _whole_folders(present)
    done = PathSet()
    for folder in _crowded_folders(present, whole):
        if not done.covers(folder) and await _copied_whole(sandbox, folder, root / folder.lstrip("/")):
            done.add(folder)
    for change in present:
        place = root / change.path.lstrip("/")
        if done.covers(change.path):
            continue
        if change.path in whole:
            place.parent.mkdir(parents=True, exist_ok=True)
            await sandbox.download(change.path, place, max_bytes=MAX_BYTES, max_files=MAX_ENTRIES)
            done.add(change.path)
        elif change.type == "directory":
            place.mkdir(parents=True, exist_ok=True)
        elif change.type == "file":
            await sandbox.download(change.path, place, max_bytes=MAX_BYTES)


async def _copied_whole(sandbox: Sandbox, folder: str, place: Path) -> bool:
    """Copy a folder with all that the environment has in it, if that is not too much; whether it was copied."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        await sandbox.download(folder, place, max_bytes=MAX_BYTES, max_files=MAX_ENTRIES)
    except SandboxFailure as error:
        if error.code not in OF_THE_FILE:
            raise
        return False
    return True


def _crowded_folders(present: Sequence[Change], whole: set[str]) -> list[str]:
    """Folders of the environment with so many changed files that copying one by one takes too long, outermost first."""
    new = PathSet(whole)
    parents = Counter(change.path.rpartition("/")[0] for change in present if change.type == "file")
    return sorted(path for path, count in parents.items() if count >= _CROWD and path and not new.covers(path))


def _whole_folders(present: Sequence[Change]) -> set[str]:
    """New folders without links that hold so much that copying them at once is worth it."""
    added = {change.path for change in present if change.kind == "added" and change.type == "directory"}
    inside = dict.fromkeys(added, 0)
    linked: set[str] = set()
    for change in present:
        for parent in _above(change.path):
            if parent in inside:
                inside[parent] += 1
                if change.type == "symlink":
                    linked.add(parent)
    return {path for path, count in inside.items() if count >= _TREE and path not in linked}


class _InMemory:
    """Contents of few small files."""

    def __init__(self, contents: Mapping[str, bytes], redactor: Redactor) -> None:
        self._contents = {path: redactor.raw(data) for path, data in contents.items()}

    def open(self, path: str, shown: str) -> tuple[BinaryIO, int]:
        del shown
        data = self._contents[path]
        return io.BytesIO(data), len(data)


class _InFolder:
    """Contents below a host folder from which secrets were taken already, in names too."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, path: str, shown: str) -> tuple[BinaryIO, int]:
        del path
        file = (self._root / shown.lstrip("/")).open("rb")
        return file, os.fstat(file.fileno()).st_size


def _pack(
    contents: _InMemory | _InFolder,
    changes: Sequence[Change],
    rights: Mapping[str, Rights],
    archive: Path,
    redactor: Redactor,
) -> Workspace:
    """Write the archive, names and targets of links without secrets too."""
    present = {change.path: change for change in changes if change.kind != "deleted"}
    deleted = [change.path for change in changes if change.kind == "deleted"]
    text = json.dumps(redactor.data({"schema": SCHEMA, "deleted": deleted}), ensure_ascii=True).encode()

    def fill(target: _Target) -> int:
        with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(_info(MANIFEST, Rights(0o644, 0, 0, 0), len(text)), io.BytesIO(text))
            return sum(_add(tar, contents, present[path], rights[path], redactor) for path in sorted(present))

    if not archive.parent.is_dir():
        archive.parent.mkdir(parents=True)
    if isinstance(contents, _InMemory):
        plain = io.BytesIO()
        size = fill(plain)
        write_atomic(archive, gzip.compress(plain.getbuffer(), compresslevel=1, mtime=0), sync=False)
    else:
        size = _written(archive, fill)
    return Workspace(kept=True, entries=len(changes), bytes=size)


def _written(archive: Path, fill: Callable[[_Target], int]) -> int:
    """Compress what `fill` writes as it comes, however much it is; gives what `fill` gives."""
    unfinished = temporary_sibling(archive)
    try:
        with (
            unfinished.open("xb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, filename="", mtime=0) as packed,
        ):
            size = fill(packed)
        unfinished.replace(archive)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return size


def _add(
    tar: tarfile.TarFile,
    contents: _InMemory | _InFolder,
    change: Change,
    rights: Rights,
    redactor: Redactor,
) -> int:
    """One path; how many bytes it holds. A name that held a secret stands under its redacted one."""
    shown = redactor.text(change.path)
    info = _info(f"{FILES}{shown}", rights)
    if change.type == "directory":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif change.type == "symlink":
        info.type, info.linkname = tarfile.SYMTYPE, redactor.text(change.target or "")
        tar.addfile(info)
    else:
        file, info.size = contents.open(change.path, shown)
        with file:
            tar.addfile(info, file)
    return info.size


def _info(name: str, rights: Rights, size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid, info.mtime = rights.mode, rights.uid, rights.gid, int(rights.time)
    info.size = size
    return info


def is_plain(mode: int) -> bool:
    """Whether a mode is carried by a copy as it is: no special bits, and readable by its owner."""
    return not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX) and mode & stat.S_IRUSR != 0
