"""COPY and ADD: which files land where, what identifies them, and how they get into a layer.

Sources are read through a `LayerTree`, be it the build context or another stage, so that no link points outside
of it.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.build.layer_writer import LayerWriter, open_regular
from benchflow.sandbox.images.dockerfile.dockerignore import IgnoreRules, ignore_rules
from benchflow.sandbox.images.layer_tree import Entry, LayerTree

_NOTHING: Final = IgnoreRules()
_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Source:
    """A matched source: a file or a folder of the tree it is read from."""

    path: str
    """Absolute in its tree, links followed."""
    name: str
    """What it is called at the destination when that is a folder."""
    entry: Entry


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns copied files and with which permissions; None keeps what the source has."""

    uid: int | None = 0
    gid: int | None = 0
    mode: int | None = None

    def of(self, status: os.stat_result) -> tuple[int, int, int]:
        """Mode, user and group for something with this status."""
        mode = stat.S_IMODE(status.st_mode) if self.mode is None else self.mode
        return mode, *(
            status.st_uid if self.uid is None else self.uid,
            status.st_gid if self.gid is None else self.gid,
        )


class SourceTree:
    """Where copies come from: a tree and what of it may be seen."""

    def __init__(self, tree: LayerTree, hidden: IgnoreRules | None = None, *, what: str) -> None:
        self.tree: Final = tree
        self.hidden: Final = hidden or IgnoreRules()
        self.what: Final = what
        """How messages call it: `the build context`, `the stage build`."""

    def match(self, pattern: str) -> list[Source]:
        """What a source pattern names, sorted; nothing at all is an `EnvironmentFailure`."""
        clean = posixpath.normpath("/" + pattern).replace("//", "/", 1)
        paths = self._glob(clean) if _WILDCARD.search(clean) else [clean]
        found = [source for path in paths if (source := self._source(path)) is not None]
        if not found:
            raise EnvironmentFailure(f"{self.what} has no {pattern}", code="copy-failed")
        return found

    def _source(self, path: str) -> Source | None:
        real = self.tree.resolve(path)
        entry = self.tree.lookup(real)
        if entry is None or (real != "/" and self._is_hidden(real, entry)):
            return None
        return Source(real, posixpath.basename(path), entry)

    def _is_hidden(self, path: str, entry: Entry) -> bool:
        if entry.is_directory and self.hidden.takes_back:
            return False
        return self.hidden.ignores(path.lstrip("/"))

    def _glob(self, pattern: str) -> list[str]:
        found = ["/"]
        for part in [part for part in pattern.split("/") if part]:
            if _WILDCARD.search(part):
                rules = ignore_rules([part])
                found = [
                    posixpath.join(folder, name)
                    for folder in found
                    if (entry := self.tree.find(folder)) is not None and entry.is_directory
                    for name in self.tree.names(self.tree.resolve(folder))
                    if rules.ignores(name)
                ]
            else:
                found = [posixpath.join(folder, part) for folder in found]
        return found

    def below(self, source: Source, left_out: IgnoreRules) -> Iterator[tuple[str, Entry]]:
        """What a folder holds, visible parts only, with paths relative to it."""
        prefix = source.path.strip("/")
        for relative, entry in self.tree.walk(source.path):
            whole = f"{prefix}/{relative}" if prefix else relative
            if not self.hidden.ignores(whole) and not left_out.ignores(relative):
                yield relative, entry


@dataclass(frozen=True, slots=True)
class Copy:
    """One source on its way to a destination."""

    tree: SourceTree
    source: Source
    left_out: IgnoreRules = _NOTHING

    def fingerprint(self) -> Iterator[str]:
        """What identifies the copied files: names, kinds, permissions and content, but no times."""
        yield self.source.name
        yield _fingerprint(self.source.entry)
        if self.source.entry.is_directory:
            for relative, entry in self.tree.below(self.source, self.left_out):
                yield relative
                yield _fingerprint(entry)

    def apply(self, writer: LayerWriter, destination: str, *, as_folder: bool, owner: Ownership) -> None:
        """Write a folder's contents below `destination`, a file at it or, with `as_folder`, in it."""
        if self.source.entry.is_directory:
            self._apply_folder(writer, destination, owner)
            return
        target = posixpath.join(destination, self.source.name) if as_folder else destination
        _put(writer, target, self.source.entry, owner)

    def _apply_folder(self, writer: LayerWriter, destination: str, owner: Ownership) -> None:
        uid, gid = owner.uid or 0, owner.gid or 0
        writer.directory(destination, uid=uid, gid=gid)
        for relative, entry in self.tree.below(self.source, self.left_out):
            _put(writer, posixpath.join(destination, relative), entry, owner)


def _put(writer: LayerWriter, target: str, entry: Entry, owner: Ownership) -> None:
    mode, uid, gid = owner.of(entry.status)
    if entry.is_directory:
        writer.directory(target, mode=mode, uid=uid, gid=gid)
        writer.set_directory(target, mode=mode, uid=uid, gid=gid)
    elif entry.is_link:
        writer.link(target, os.readlink(entry.source), uid=uid, gid=gid)  # noqa: PTH115 (Path would change its text)
    elif entry.is_file:
        writer.file(target, entry.source, mode=mode, uid=uid, gid=gid)
    else:
        message = f"{posixpath.basename(target)} is neither a file, a folder nor a link"
        raise EnvironmentFailure(message, code="copy-failed")


def _fingerprint(entry: Entry) -> str:
    mode = entry.status.st_mode
    if entry.is_link:
        return f"link {os.readlink(entry.source)}"  # noqa: PTH115 (Path would change its text)
    if entry.is_directory:
        return f"folder {stat.S_IMODE(mode):o}"
    if entry.is_file:
        return f"file {stat.S_IMODE(mode):o} {content_digest(entry.source, entry.status)}"
    raise EnvironmentFailure(f"{entry.source.name} is neither a file, a folder nor a link", code="copy-failed")


_digests: dict[tuple[int, int, int, int, int], str] = {}


def content_digest(path: Path, status: os.stat_result) -> str:
    """The hash of a file's bytes, remembered in this process until its status changes."""
    known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if known not in _digests:
        digest = hashlib.sha256()
        with open_regular(path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        _digests[known] = digest.hexdigest()
    return _digests[known]


def hash_all(parts: Iterable[object]) -> str:
    """A key from parts; no two different lists of parts give the same."""
    digest = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogateescape")
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()
