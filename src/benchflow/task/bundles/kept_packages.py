"""Packages of bundles and registries as folders in the user's cache, each under the hash of all that it consists of.

    STORE/packages/KEY/NAME/…       the package, with what lies beside it in its place below KEY
    STORE/packages.lock             held (shared) by every process that uses one of them
    STORE/packages-renaming.lock    held while a package is put into its place

A package is written beside its place and renamed, so that concurrent processes see it whole or not at all. One that
exists is read and compared before it is used, and replaced if anything in it has changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchflow.errors import InfrastructureFailure
from benchflow.files.locks import try_lock
from benchflow.files.user_store import default_store
from benchflow.task.bundles.bundle_index import Member
from benchflow.task.filemap import read_regular, scan

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MODES: Final = {"file": 0o644, "program": 0o755}
_held: Final[dict[Path, int]] = {}
"""The locks of this process, which end with it."""

Contents = Callable[[], Iterable[tuple[Member, bytes]]]


def packages_place() -> Path:
    return default_store() / "packages"


def hold(place: Path) -> None:
    """Keep everything in a cache from being removed as long as this process runs."""
    if place in _held:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InfrastructureFailure(f"The cache {place} cannot be used: {error.strerror or error}.") from error
    fcntl.flock(lock, fcntl.LOCK_SH)
    _held[place] = lock


@contextmanager
def kept_alone(place: Path) -> Iterator[bool]:
    """Whether no process uses this cache; none can begin to in the meantime."""
    try:
        lock = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        yield try_lock(lock)
    finally:
        os.close(lock)


def remove_kept(path: Path) -> bool:
    """Remove a package, a repository or an index from its cache, unless a process uses that cache."""
    with kept_alone(path.parent) as unused:
        if unused and path.is_dir():
            with suppress(FileNotFoundError):
                path.rename(gone := _temporary(path))
                shutil.rmtree(gone)
        elif unused:
            path.unlink(missing_ok=True)
        return unused


def keep(name: str, members: Sequence[Member], contents: Contents) -> Path:
    """The folder of a package called `name`, made from its verified contents unless it is in the cache already.

    Paths are relative to the package; those of files beside it start with `../`.
    """
    folder = kept_place(name, members)
    place = folder.parent
    if _is_whole(folder, members):
        os.utime(place)
        return folder
    staging = _temporary(place)
    try:
        _write(staging, name, contents())
        with _renaming(place.parent):
            if not _is_whole(folder, members):  # else another process was first
                damaged = _temporary(place)
                with suppress(FileNotFoundError):
                    place.rename(damaged)
                staging.rename(place)
                shutil.rmtree(damaged, ignore_errors=True)
    except OSError as error:
        message = f"The cache {place.parent} cannot be written: {error.strerror or error}."
        raise InfrastructureFailure(message) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


@contextmanager
def _renaming(place: Path) -> Iterator[None]:
    """One at a time: of two that replace the same damaged package, the second would remove what the first one made."""
    lock = os.open(place.with_name(f"{place.name}-renaming.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _temporary(place: Path) -> Path:
    return place.with_name(f".{os.urandom(8).hex()}.tmp")


def kept_place(name: str, members: Sequence[Member]) -> Path:
    """Where a package is, or would be."""
    return packages_place() / hashlib.sha256(json.dumps([name, members]).encode()).hexdigest() / name


def _is_whole(folder: Path, members: Sequence[Member]) -> bool:
    """Whether a folder holds exactly these members; one that is moved away meanwhile does not."""
    try:
        return folder.is_dir() and _holds(folder, members)
    except OSError:
        return False


def _holds(folder: Path, members: Sequence[Member]) -> bool:
    own = {member.path: member for member in members if not member.path.startswith("../")}
    found = scan(folder)
    files = {path: member for path, member in own.items() if member.kind in _MODES}
    if found.issues or found.hashes() != {path: member.sha256 for path, member in files.items()}:
        return False
    for path, member in files.items():
        if bool(os.stat(f"{folder}/{path}").st_mode & 0o100) != (member.kind == "program"):  # noqa: PTH116
            return False
    links = {path: member.sha256 for path, member in own.items() if member.kind == "link"}
    if {path: hashlib.sha256(os.fsencode(target)).hexdigest() for path, target in found.links.items()} != links:
        return False
    if not found.folders.issuperset(path for path, member in own.items() if member.kind == "folder"):
        return False
    beside = [member for member in members if member.path.startswith("../")]
    return all(hashlib.sha256(read_regular(_below(folder, m.path))[0]).hexdigest() == m.sha256 for m in beside)


def _below(folder: Path, path: str) -> str:
    return os.path.normpath(f"{folder}/{path}")


def _write(staging: Path, name: str, contents: Iterable[tuple[Member, bytes]]) -> None:
    folder = f"{staging}/{name}"
    os.makedirs(folder)  # noqa: PTH103 - many packages, here and below
    made = {folder}
    for member, data in contents:
        path = _below(Path(folder), member.path) if member.path.startswith("../") else f"{folder}/{member.path}"
        parent = path if member.kind == "folder" else path.rpartition("/")[0]
        if parent not in made:
            os.makedirs(parent, exist_ok=True)  # noqa: PTH103
            made.add(parent)
        if member.kind == "link":
            os.symlink(os.fsdecode(data), path)  # noqa: PTH211
        elif member.kind != "folder":
            with suppress(FileExistsError):  # a file beside that the package names twice
                _write_file(path, data, _MODES[member.kind])


def _write_file(path: str, data: bytes, mode: int) -> None:
    descriptor = os.open(path, _NEW, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if mode == _MODES["program"]:
            os.fchmod(descriptor, mode)  # whatever the umask is
    finally:
        os.close(descriptor)
