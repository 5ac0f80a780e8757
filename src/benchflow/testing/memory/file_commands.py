"""Programs of the in-memory shell that make, move, describe and remove files."""

from __future__ import annotations

import errno
import fnmatch
import posixpath
import re

from benchflow.testing.memory.node_tree import Node, failure
from benchflow.testing.memory.program_table import UnknownOptionError, options, program
from benchflow.testing.memory.shell import Call


@program("mkdir")
async def _mkdir(call: Call) -> int:
    found, paths = options(call, "p", "m")
    for path in paths:
        mode = int(found.get("m", "755"), 8)
        call.tree.make_folder(call.path(path), call.uid, parents="p" in found, mode=mode, time=call.now())
    return 0


@program("rm")
async def _rm(call: Call) -> int:
    found, paths = options(call, "rRfv")
    status = 0
    for path in paths:
        if "f" in found and call.tree.find(call.path(path), follow=False) is None:
            continue
        try:
            call.tree.remove(call.path(path), call.uid, tree=bool({"r", "R"} & found.keys()))
        except OSError as error:
            status = call.fail(f"cannot remove '{path}': {error.strerror}")
    return status


@program("touch")
async def _touch(call: Call) -> int:
    for path in options(call)[1]:
        place = call.path(path)
        if call.tree.find(place) is None:
            call.tree.write(place, b"", call.uid, time=call.now())
        else:
            call.tree.change(place, by=call.uid, time=call.now())
    return 0


def _into(call: Call, source: str, target: str) -> str:
    """Where a copy of `source` goes: into a folder, or to the path itself."""
    place = call.path(target)
    node = call.tree.find(place)
    folder = node is not None and node.kind == "directory"
    return posixpath.join(call.tree.resolve(place), posixpath.basename(source.rstrip("/"))) if folder else place


@program("cp")
async def _cp(call: Call) -> int:
    found, paths = options(call, "raRpf")
    *sources, target = paths
    for source in sources:
        if call.tree.node(call.path(source)).kind == "directory" and not {"r", "a", "R"} & found.keys():
            return call.fail(f"-r not specified; omitting directory '{source}'")
        contents = source.endswith("/.")
        place = call.path(target) if contents else _into(call, source, target)
        keep = bool({"a", "p"} & found.keys())
        call.tree.copy_tree(call.path(source.removesuffix("/.")), place, call.uid, keep=keep, time=call.now())
    return 0


@program("mv")
async def _mv(call: Call) -> int:
    *sources, target = options(call, "f")[1]
    for source in sources:
        call.tree.node(call.path(source), follow=False)
        call.tree.move(call.path(source), _into(call, source, target), call.uid)
    return 0


@program("ln")
async def _ln(call: Call) -> int:
    found, (target, name) = options(call, "sf")
    place = _into(call, target, name)
    if call.tree.find(place, follow=False) is not None and "f" not in found:
        raise failure(errno.EEXIST, name)
    node = call.tree.node(call.path(target)) if "s" not in found else None
    link = Node("symlink", b"", 0o777, call.uid, call.uid, call.now(), target)
    call.tree.put(place, node or link, call.uid)
    return 0


@program("mkfifo")
async def _mkfifo(call: Call) -> int:
    for path in call.args:
        call.tree.put(call.path(path), Node("special", b"", 0o644, call.uid, call.uid, call.now()), call.uid)
    return 0


@program("chmod")
async def _chmod(call: Call) -> int:
    found, (mode, *paths) = options(call, "R") if not re.match(r"-[rwx]", (call.args or [""])[0]) else ({}, call.args)
    paths = [path for path in paths if path != "--"]
    for path in paths:
        place = call.tree.resolve(call.path(path))
        call.tree.node(place)
        for name in [name for name, _ in call.tree.walk(place)] if "R" in found else [place]:
            call.tree.change(name, by=call.uid, mode=_mode(mode, call.tree.node(name, follow=False).mode))
    return 0


def _mode(text: str, mode: int) -> int:
    if text.isdecimal():
        return int(text, 8)
    for part in text.split(","):
        match = re.fullmatch(r"([ugoa]*)([-+=])([rwxXt]*)", part)
        if match is None:
            raise UnknownOptionError(f"invalid mode: {text}")
        who, how, what = match.groups()
        bits = sum({"r": 4, "w": 2, "x": 1, "X": 1, "t": 0}[letter] for letter in what)
        shifts = [{"u": 6, "g": 3, "o": 0}[letter] for letter in (who.replace("a", "ugo") or "ugo")]
        for shift in shifts:
            if how == "=":
                mode &= ~(7 << shift)
            mode = mode & ~(bits << shift) if how == "-" else mode | bits << shift
    return mode


@program("chown")
async def _chown(call: Call) -> int:
    found, (owner, *paths) = options(call, "Rh")
    paths = [path for path in paths if path != "--"]
    user, _, group = owner.partition(":")
    uid = call.shell.machine.user_id(user)
    gid = call.shell.machine.user_id(group) if group else uid
    if uid is None or gid is None:
        return call.fail(f"invalid user: '{owner}'")
    if call.uid != 0:
        raise failure(errno.EPERM, paths[0])
    for path in paths:
        place = call.tree.resolve(call.path(path), follow="h" not in found)
        for name in [name for name, _ in call.tree.walk(place)] if "R" in found else [place]:
            call.tree.change(name, follow=False, uid=uid, gid=gid)
    return 0


@program("stat")
async def _stat(call: Call) -> int:
    found, paths = options(call, "", "c")
    for path in [path for path in paths if path != "--"]:
        node = call.tree.node(call.path(path), follow=False)
        values = {"a": f"{node.mode:o}", "u": node.uid, "g": node.gid, "Y": node.time, "s": len(node.data), "n": path}
        call.out(re.sub(r"%([augYsn])", lambda match: str(values[match[1]]), found["c"]) + "\n")  # noqa: B023
    return 0


@program("ls")
async def _ls(call: Call) -> int:
    found, paths = options(call, "aA1d")
    status = 0
    for path in paths or ["."]:
        node = call.tree.find(call.path(path))
        if node is None:
            status = call.fail(f"cannot access '{path}': No such file or directory", 2)
            continue
        names = [path] if node.kind != "directory" or "d" in found else call.tree.entries(call.path(path))
        hidden = bool({"a", "A", "d"} & found.keys())
        title = f"{path}:\n" if len(paths) > 1 and node.kind == "directory" and "d" not in found else ""
        call.out(title + "".join(f"{name}\n" for name in names if hidden or not name.startswith(".")))
    return status


@program("find")
async def _find(call: Call) -> int:
    words = call.args.copy()
    paths = []
    while words and not words[0].startswith("-"):
        paths.append(words.pop(0))
    kinds = {"f": "file", "d": "directory", "l": "symlink"}
    end = "\n"
    if words and words[-1] == "-print0":
        end = "\0"
        words.pop()
    while words:
        if words[0] not in ("-type", "-name", "-mindepth", "-maxdepth"):
            raise UnknownOptionError(f"unknown option: {words[0]}")
        words = words[2:]
    wanted = dict(zip(call.args[len(paths) :: 2], call.args[len(paths) + 1 :: 2], strict=False))
    status = 0
    for path in paths or ["."]:
        place = call.tree.resolve(call.path(path))
        if call.tree.find(place) is None:
            status = call.fail(f"'{path}': No such file or directory")
        for name, node in call.tree.walk(place):
            depth = name[len(place) :].count("/")
            if "-type" in wanted and node.kind != kinds[wanted["-type"]]:
                continue
            if "-name" in wanted and not re.fullmatch(fnmatch.translate(wanted["-name"]), posixpath.basename(name)):
                continue
            if int(wanted.get("-mindepth", 0)) <= depth <= int(wanted.get("-maxdepth", 1 << 30)):
                call.out(path.rstrip("/") + name[len(place) :] + end)
    return status
