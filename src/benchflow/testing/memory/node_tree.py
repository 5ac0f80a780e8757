"""The files of an in-memory sandbox: immutable nodes by absolute path, so that copying the tree copies one dictionary.

Errors are those of the kernel (`OSError` with its number). Permissions are checked for reading, writing and changing
the entries of a folder; the way to a path is never closed.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from benchflow.sandbox.protocol import Change, Rights

Kind = Literal["file", "directory", "symlink", "special"]
_MOST_LINKS: Final = 40
_READ, _WRITE = 4, 2


@dataclass(frozen=True, slots=True)
class Node:
    """One file, folder, link or special file."""

    kind: Kind
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    time: int = 0
    target: str = ""
    """The target of a link, as written."""

    def allows(self, uid: int, bit: int) -> bool:
        shift = 6 if self.uid == uid else 3 if self.gid == uid else 0
        return uid == 0 or bool(self.mode >> shift & bit)


def failure(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def below(path: str, folder: str) -> bool:
    """Whether `path` lies in `folder`."""
    return path.startswith(folder.rstrip("/") + "/") and path != folder


@dataclass(slots=True)
class NodeTree:
    """Every method takes absolute paths; `uid` is the acting user."""

    nodes: dict[str, Node] = field(default_factory=lambda: {"/": Node("directory", mode=0o755)})
    read_only: tuple[str, ...] = ()
    """Where mounts are."""

    def copy(self) -> NodeTree:
        return NodeTree(self.nodes.copy(), self.read_only)

    # --- looking ---

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """The path without links; `follow` counts for its last name. What is not there may be named."""
        pending, current, links = [part for part in path.split("/") if part][::-1], "/", 0
        while pending:
            name = pending.pop()
            if name in (".", ".."):
                current = posixpath.dirname(current) if name == ".." else current
                continue
            step = posixpath.join(current, name)
            node = self.nodes.get(step)
            if node is not None and node.kind == "symlink" and (pending or follow):
                links += 1
                if links > _MOST_LINKS:
                    raise failure(errno.ELOOP, path)
                current = "/" if node.target.startswith("/") else current
                pending += [part for part in node.target.split("/") if part][::-1]
                continue
            if pending and node is not None and node.kind != "directory":
                raise failure(errno.ENOTDIR, path)
            current = step
        return current

    def find(self, path: str, *, follow: bool = True) -> Node | None:
        try:
            return self.nodes.get(self.resolve(path, follow=follow))
        except OSError:
            return None

    def node(self, path: str, *, follow: bool = True) -> Node:
        found = self.nodes.get(self.resolve(path, follow=follow))
        if found is None:
            raise failure(errno.ENOENT, path)
        return found

    def entries(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        folder = self.resolve(path)
        node = self.node(folder)
        if node.kind != "directory":
            raise failure(errno.ENOTDIR, path)
        prefix = folder.rstrip("/") + "/"
        names = (name[len(prefix) :] for name in self.nodes.copy() if name.startswith(prefix))
        return sorted(name for name in names if name and "/" not in name)

    def walk(self, path: str) -> Iterator[tuple[str, Node]]:
        """A path and all below it, by path; links are not followed."""
        nodes = self.nodes.copy()
        for name in sorted(nodes):
            if name == path or below(name, path):
                yield name, nodes[name]

    def read(self, path: str, uid: int = 0) -> bytes:
        node = self.node(path)
        if node.kind == "directory":
            raise failure(errno.EISDIR, path)
        if not node.allows(uid, _READ):
            raise failure(errno.EACCES, path)
        return node.data

    # --- changing ---

    def put(self, path: str, node: Node, uid: int = 0) -> None:
        """Set the node at a path; its last name is not followed, and its folder must exist."""
        place = posixpath.join(self.resolve(posixpath.dirname(path)), posixpath.basename(path))
        self._require_entry(place, uid)
        self.nodes[place] = node

    def write(self, path: str, data: bytes, uid: int = 0, *, append: bool = False, time: int = 0) -> None:
        place = self.resolve(path)
        node = self.nodes.get(place)
        if node is None:
            self.put(place, Node("file", data, 0o644, uid, uid, time), uid)
            return
        if node.kind == "directory":
            raise failure(errno.EISDIR, path)
        if node.kind == "special":
            return
        self._require_writable(place)
        if not node.allows(uid, _WRITE):
            raise failure(errno.EACCES, path)
        self.nodes[place] = replace(node, data=node.data + data if append else data, time=time)

    def make_folder(self, path: str, uid: int = 0, *, parents: bool = False, mode: int = 0o755, time: int = 0) -> None:
        place = self.resolve(path)
        if place in self.nodes:
            if self.nodes[place].kind == "directory" and parents:
                return
            raise failure(errno.EEXIST, path)
        above = posixpath.dirname(place)
        if parents and above not in self.nodes:
            self.make_folder(above, uid, parents=True, time=time)
        self.put(place, Node("directory", b"", mode, uid, uid, time), uid)

    def remove(self, path: str, uid: int = 0, *, tree: bool = False) -> None:
        place = self.resolve(path, follow=False)
        node = self.node(place, follow=False)
        inner = [name for name in self.nodes.copy() if below(name, place)]
        if node.kind == "directory" and not tree:
            raise failure(errno.EISDIR if not inner else errno.ENOTEMPTY, path)
        for name in (place, *inner):
            self._require_entry(name, uid)
        for name in (place, *inner):
            del self.nodes[name]

    def change(self, path: str, *, by: int = 0, follow: bool = True, **fields: int) -> None:
        """Change mode, owner or time: `mode`, `uid`, `gid`, `time`."""
        place = self.resolve(path, follow=follow)
        node = self.node(place, follow=False)
        self._require_writable(place)
        if by not in (0, node.uid):
            raise failure(errno.EPERM, path)
        self.nodes[place] = replace(node, **fields)  # type: ignore[arg-type]

    def copy_tree(self, source: str, target: str, uid: int = 0, *, keep: bool = False, time: int = 0) -> None:
        """Copy a file or a folder with all in it to a path; `keep` keeps owners and times."""
        source = self.resolve(source, follow=not keep)
        for name, node in list(self.walk(source)):
            copied = node if keep else replace(node, uid=uid, gid=uid, time=time)
            self.put(target + name[len(source) :], copied, uid)

    def move(self, source: str, target: str, uid: int = 0) -> None:
        if (node := self.find(target, follow=False)) is not None:
            self.remove(target, uid, tree=node.kind == "directory")
        self.copy_tree(self.resolve(source, follow=False), target, uid, keep=True)
        self.remove(source, uid, tree=True)

    def _require_entry(self, place: str, uid: int) -> None:
        """Require permission to create, replace or remove the entry at `place`."""
        self._require_writable(place)
        above = self.nodes.get(posixpath.dirname(place))
        if above is None:
            raise failure(errno.ENOENT, place)
        if above.kind != "directory":
            raise failure(errno.ENOTDIR, place)
        node = self.nodes.get(place)
        sticky = above.mode & stat.S_ISVTX and node is not None and uid not in (0, node.uid, above.uid)
        if not above.allows(uid, _WRITE) or sticky:
            raise failure(errno.EACCES, place)

    def _require_writable(self, place: str) -> None:
        if any(place == mount or below(place, mount) for mount in self.read_only):
            raise failure(errno.EROFS, place)

    # --- comparing ---

    def changes(self, built: NodeTree) -> list[Change]:
        """What differs from the environment, by path; of a deleted folder the folder alone. Mounts do not count."""
        now, before = self.nodes.copy(), built.nodes
        found = []
        for path in sorted(now.keys() | before.keys()):
            if any(path == mount or below(path, mount) for mount in self.read_only):
                continue
            node, former = now.get(path), before.get(path)
            if node is None:
                if posixpath.dirname(path) in now and former is not None:
                    found.append(Change(path, "deleted", former.kind))
            elif former is None or _differs(node, former):
                found.append(_change(path, node, "added" if former is None else "changed"))
        return found

    def revert(self, built: NodeTree, paths: Iterable[str]) -> None:
        """Restore paths with everything below them to the environment as built."""
        for path in paths:
            for name in [name for name in self.nodes if name == path or below(name, path)]:
                del self.nodes[name]
            self.nodes.update((name, node) for name, node in built.walk(path))
        self.nodes = {name: node for name, node in self.nodes.items() if posixpath.dirname(name) in self.nodes}


def _differs(node: Node, former: Node) -> bool:
    """A folder's time changes with its entries, which are changes of their own."""
    return replace(node, time=0) != replace(former, time=0) or (node.kind == "file" and node.time != former.time)


def _change(path: str, node: Node, kind: Literal["added", "changed"]) -> Change:
    rights = Rights(node.mode, node.uid, node.gid, node.time)
    target = node.target if node.kind == "symlink" else None
    return Change(path, kind, node.kind, len(node.data), target, rights)


def from_host(source: Path) -> Iterator[tuple[str, Node]]:
    """A file or folder of the host: paths below it (the top as an empty one), and nodes that root owns."""
    pending = [(source, "")]
    while pending:
        path, name = pending.pop()
        status = path.lstat() if name else path.stat()
        mode, time = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            yield name, Node("directory", b"", mode, time=time)
            pending += [(inner, f"{name}/{inner.name}") for inner in path.iterdir()]
        elif stat.S_ISLNK(status.st_mode):
            yield name, Node("symlink", b"", 0o777, time=time, target=os.readlink(path))  # noqa: PTH115 - as it says
        elif stat.S_ISREG(status.st_mode):
            yield name, Node("file", path.read_bytes(), mode, time=time)
        else:
            yield name, Node("special", b"", mode, time=time)
