"""The programs of the in-memory shell, by name: its own built-ins, and what small scripts use of the usual tools.

Each is `async def program(call) -> exit code`. An option that a program does not know is an error, so that a test
never passes because an option was ignored.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import anyio

from benchflow.testing.memory.node_tree import Node, failure
from benchflow.testing.memory.shell import NOT_FOUND, Call, Jump, Leave, Pipe, Program, Return

PROGRAMS: Final[dict[str, Program]] = {}
_SIGNALS: Final = {"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "TERM": 15}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0", "a": "\a", "b": "\b"}
_SUFFIXES: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def program(*names: str) -> Callable[[Program], Program]:
    def known_as(one: Program) -> Program:
        PROGRAMS.update(dict.fromkeys(names, one))
        return one

    return known_as


class _Unknown(OSError):
    """An option that a program does not know."""


def options(call: Call, flags: str = "", valued: str = "") -> tuple[dict[str, str], list[str]]:
    """The options of a call, those of `valued` with their values, and its other words."""
    found: dict[str, str] = {}
    words = call.args.copy()
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        letters = list(word[1:])
        while letters:
            letter = letters.pop(0)
            if letter in valued:
                found[letter] = "".join(letters) or (words.pop(0) if words else "")
                break
            if letter not in flags:
                raise _Unknown(f"unknown option: {word}")
            found[letter] = ""
    return found, words


def _size(text: str) -> int:
    number = text.lstrip("+")
    return int(number[:-1]) * _SUFFIXES[number[-1]] if number[-1:] in _SUFFIXES else int(number)


async def _inputs(call: Call, paths: list[str]) -> list[tuple[str, bytes]]:
    """The contents of files by name, or of standard input."""
    if not paths or paths == ["-"]:
        return [("", await call.stdin.rest())]
    return [(path, call.tree.read(call.path(path), call.uid)) for path in paths]


# --- built-ins of the shell ---


@program("true", ":", "trap", "umask", "hash", "ulimit", "sync", "stty")
async def _true(call: Call) -> int:
    del call
    return 0


@program("false")
async def _false(call: Call) -> int:
    del call
    return 1


@program("exit")
async def _exit(call: Call) -> int:
    raise Leave(int(call.args[0]) & 255 if call.args else call.shell.status)


@program("return")
async def _return(call: Call) -> int:
    raise Return(int(call.args[0]) if call.args else call.shell.status)


@program("break", "continue")
async def _jump(call: Call) -> int:
    raise Jump(int(call.args[0]) if call.args else 1, again=call.name == "continue")


@program("cd")
async def _cd(call: Call) -> int:
    folder = call.tree.resolve(call.path(call.args[0] if call.args else call.shell.variables.get("HOME", "/")))
    if call.tree.node(folder).kind != "directory":
        raise failure(errno.ENOTDIR, folder)
    call.shell.cwd = folder
    return 0


@program("pwd")
async def _pwd(call: Call) -> int:
    call.out(f"{call.shell.cwd}\n")
    return 0


@program("export", "local", "readonly")
async def _export(call: Call) -> int:
    for word in call.args:
        name, equals, value = word.partition("=")
        if equals:
            call.shell.variables[name] = value
        if call.name == "export":
            call.shell.exported.add(name)
    return 0


@program("unset")
async def _unset(call: Call) -> int:
    for name in options(call, "vf")[1]:
        call.shell.variables.pop(name, None)
        call.shell.functions.pop(name, None)
    return 0


@program("set")
async def _set(call: Call) -> int:
    words = call.args.copy()
    while words and words[0][:1] in ("-", "+") and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            call.shell.parameters = words
            return 0
        letters = set(word[1:])
        if "o" in letters:
            letters = {{"errexit": "e", "nounset": "u", "xtrace": "x"}.get(words.pop(0), "o"), *letters} - {"o"}
        call.shell.options = call.shell.options | letters if word[0] == "-" else call.shell.options - letters
    if words:
        call.shell.parameters = words
    return 0


@program("shift")
async def _shift(call: Call) -> int:
    del call.shell.parameters[: int(call.args[0]) if call.args else 1]
    return 0


@program("read")
async def _read(call: Call) -> int:
    names = options(call, "r")[1] or ["REPLY"]
    line = (await call.stdin.line()).decode(errors="surrogateescape")
    text = line.rstrip("\n")
    whole = call.shell.variables.get("IFS") == ""
    values = [text] if whole else text.split(maxsplit=len(names) - 1)
    for position, name in enumerate(names):
        call.shell.variables[name] = values[position].rstrip() if position < len(values) else ""
        if whole:
            call.shell.variables[name] = text
    return 0 if line.endswith("\n") else 1


@program(".", "source")
async def _source(call: Call) -> int:
    text = call.tree.read(call.path(call.args[0]), call.uid).decode(errors="surrogateescape")
    try:
        return await call.shell.run_text(text)
    except Return as end:
        return end.code


@program("eval")
async def _eval(call: Call) -> int:
    return await call.shell.run_text(" ".join(call.args))


@program("exec")
async def _exec(call: Call) -> int:
    raise Leave(await call.shell.execute(call.args) if call.args else 0)


@program("command", "type", "which")
async def _command(call: Call) -> int:
    found, names = options(call, "va")
    if call.name == "command" and "v" not in found:
        return await call.shell.call(names)
    for name in names:
        known = name in call.shell.machine.programs or name in PROGRAMS or name in call.shell.functions
        if not known and call.tree.find(f"/usr/local/bin/{name}") is None:
            return NOT_FOUND
        call.out(f"/bin/{name}\n")
    return 0


@program("wait")
async def _wait(call: Call) -> int:
    jobs = [job for job in call.shell.machine.jobs.values() if job.leader == call.shell.job.leader]
    for job in jobs:
        if job is not call.shell.job and (not call.args or str(job.pid) in call.args):
            await job.ended.wait()
    return 0


@program("kill")
async def _kill(call: Call) -> int:
    machine, words, signal = call.shell.machine, call.args.copy(), 15
    if words and words[0].startswith("-") and len(words) > 1:
        name = words.pop(0).lstrip("-").removeprefix("SIG")
        signal = int(name) if name.isdecimal() else _SIGNALS[name]
    for word in words:
        if word == "-1":
            for job in list(machine.jobs.values()):
                if job is not call.shell.job and call.uid in (0, job.uid):
                    job.kill(128 + signal)
            continue
        found = machine.jobs.get(abs(int(word)))
        if found is None:
            return call.fail(f"({word}): No such process")
        if call.uid not in (0, found.uid):
            return call.fail(f"({word}): Operation not permitted")
        if signal and found is call.shell.job:
            raise Leave(128 + signal)
        if signal:
            found.kill(128 + signal)
    return 0


# --- processes ---


@program("sh", "bash", "dash")
async def _sh(call: Call) -> int:
    found, words = options(call, "eux", "c")
    flags = {f"-{letter}" for letter in found if letter != "c"}
    shell = call.shell
    if "c" in found:
        return await shell.source(found["c"], words[0] if words else "sh", words[1:], flags)
    if not words:
        return await shell.source((await call.stdin.rest()).decode(errors="surrogateescape"), "sh", [], flags)
    text = call.tree.read(call.path(words[0]), call.uid).decode(errors="surrogateescape")
    return await shell.source(text, words[0], words[1:], flags)


@program("env")
async def _env(call: Call) -> int:
    found, words = options(call, "i", "u")
    values = {} if "i" in found else call.shell.environment()
    values.pop(found.get("u", ""), None)
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        values[name] = value
    if not words:
        call.out("".join(f"{name}={value}\n" for name, value in values.items()))
        return 0
    inner = replace(call.shell.child(), variables=values, exported=set(values))
    return await inner.execute(words)


@program("setsid", "nohup")
async def _setsid(call: Call) -> int:
    return await call.shell.execute(options(call, "fw")[1])


@program("timeout")
async def _timeout(call: Call) -> int:
    seconds, *words = options(call)[1]
    with anyio.move_on_after(float(seconds.rstrip("s"))):
        return await call.shell.execute(words)
    return 124


@program("xargs")
async def _xargs(call: Call) -> int:
    found, words = options(call, "0r")
    data = (await call.stdin.rest()).decode(errors="surrogateescape")
    given = [item for item in data.split("\0") if item] if "0" in found else data.split()
    if not given and "r" in found:
        return 0
    inner = replace(call.shell.child(), stdin=Pipe(b""))
    return 123 if await inner.execute([*(words or ["echo"]), *given]) else 0


@program("sleep")
async def _sleep(call: Call) -> int:
    for word in call.args:
        await anyio.sleep(float("inf") if word == "infinity" else float(word.rstrip("s")))
    return 0


@program("id", "whoami")
async def _id(call: Call) -> int:
    found, words = options(call, "unGg")
    uid = call.uid if not words else call.shell.machine.user_id(words[0])
    if uid is None:
        return call.fail(f"'{words[0]}': no such user")
    name = call.shell.machine.account(uid)[0]
    plain = call.name == "whoami" or "n" in found
    call.out(f"{name}\n" if plain else f"{uid}\n" if found else f"uid={uid}({name}) gid={uid}({name})\n")
    return 0


@program("hostname")
async def _hostname(call: Call) -> int:
    call.out(f"{call.shell.machine.hostname}\n")
    return 0


@program("date")
async def _date(call: Call) -> int:
    form = call.args[0][1:] if call.args else "%c"
    now = time.time()
    form = form.replace("%N", f"{int(now % 1 * 1e9):09}").replace("%s", str(int(now)))
    call.out(time.strftime(form, time.gmtime(now)) + "\n")
    return 0


# --- text ---


def _unescaped(text: str) -> str:
    return re.sub(r"\\(x[0-9a-fA-F]{1,2}|0?[0-7]{1,3}|.)", _escape, text, flags=re.DOTALL)


def _escape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0].isdecimal():
        return chr(int(code, 8))
    return _ESCAPES.get(code, match[0])


@program("echo")
async def _echo(call: Call) -> int:
    words, end, escapes = call.args.copy(), "\n", False
    while words and words[0] in ("-n", "-e", "-ne", "-en"):
        flag = words.pop(0)
        end, escapes = "" if "n" in flag else end, escapes or "e" in flag
    text = " ".join(words)
    call.out((_unescaped(text) if escapes else text) + end)
    return 0


@program("printf")
async def _printf(call: Call) -> int:
    form, *values = options(call)[1]
    form = _unescaped(form)
    while True:
        used, missing = len(values), False

        def fill(match: re.Match[str]) -> str:
            if match[0] == "%%":
                return "%"
            value = values.pop(0) if values else ""
            if match[1] == "b":
                return _unescaped(value)
            if match[1] == "s":
                return match[0] % value
            return match[0] % (float(value or 0) if match[1] in "fge" else int(value or 0))

        call.out(re.sub(r"%[-+ 0-9.]*([sdbfgexo])|%%", fill, form))
        missing = len(values) == used
        if not values or missing:
            return 0


@program("cat")
async def _cat(call: Call) -> int:
    paths = options(call, "u")[1]
    if not paths or paths == ["-"]:
        while chunk := await call.stdin.chunk():
            call.out(chunk)
        return 0
    status = 0
    for path in paths:
        try:
            call.out(call.tree.read(call.path(path), call.uid))
        except OSError as error:
            status = call.fail(f"{path}: {error.strerror}")
    return status


@program("head", "tail")
async def _ends(call: Call) -> int:
    if call.args and re.fullmatch(r"-\d+", call.args[0]):
        call.args[:1] = ["-n", call.args[0][1:]]
    found, paths = options(call, "", "nc")
    for path in paths or [""]:
        place = call.tree.resolve(call.path(path)) if path else ""
        if place in ("/dev/zero", "/dev/urandom") and "c" in found:
            count = _size(found["c"])
            call.out(bytes(count) if place == "/dev/zero" else os.urandom(count))
            continue
        [(_, data)] = await _inputs(call, [path] if path else [])
        wanted = found.get("c") or found.get("n") or "10"
        parts = [data[at : at + 1] for at in range(len(data))] if "c" in found else data.splitlines(keepends=True)
        count = _size(wanted)
        if call.name == "head":
            kept = parts[:count]
        else:
            kept = parts[count - 1 :] if wanted.startswith("+") else parts[max(len(parts) - count, 0) :]
        call.out(b"".join(kept))
    return 0


@program("wc")
async def _wc(call: Call) -> int:
    found, paths = options(call, "lcw")
    for path, data in await _inputs(call, paths):
        counts = {"l": data.count(b"\n"), "w": len(data.split()), "c": len(data)}
        shown = [str(counts[letter]) for letter in "lwc" if letter in (found or counts)]
        call.out(" ".join([*shown, path]).rstrip() + "\n")
    return 0


@program("grep")
async def _grep(call: Call) -> int:
    found, words = options(call, "qsivFEcxrlnoh", "e")
    pattern = found["e"] if "e" in found else words.pop(0)
    text = re.escape(pattern) if "F" in found else pattern
    if "E" not in found and "F" not in found:
        text = re.sub(r"\\([+?|(){}])|([+?|(){}])", lambda match: match[1] or f"\\{match[2]}", text)
    matching = re.compile(f"(?:{text})$" if "x" in found else text, re.IGNORECASE if "i" in found else 0)
    search = matching.match if "x" in found else matching.search
    hits, status = 0, 1
    try:
        inputs = await _inputs(call, words)
    except OSError as error:
        return 2 if "s" in found else call.fail(f"{error.filename}: {error.strerror}", 2)
    for path, data in inputs:
        lines = data.decode(errors="surrogateescape").splitlines()
        kept = [line for line in lines if bool(search(line)) != ("v" in found)]
        hits += len(kept)
        prefix = f"{path}:" if len(inputs) > 1 and "h" not in found else ""
        if "q" not in found and "c" not in found:
            call.out("".join(f"{prefix}{line}\n" for line in kept))
    if "c" in found:
        call.out(f"{hits}\n")
    return 0 if hits else status


@program("sort")
async def _sort(call: Call) -> int:
    found, paths = options(call, "urn")
    lines = [line for _, data in await _inputs(call, paths) for line in data.splitlines()]
    lines = list(dict.fromkeys(lines)) if "u" in found else lines
    key = (lambda line: float(line.split()[0] if line.split() else 0)) if "n" in found else None
    call.out(b"".join(line + b"\n" for line in sorted(lines, key=key, reverse="r" in found)))
    return 0


@program("tr")
async def _tr(call: Call) -> int:
    found, (old, *new) = options(call, "d")
    data = (await call.stdin.rest()).decode(errors="surrogateescape")
    old, other = _characters(old), _characters(new[0] if new else "")
    table = dict.fromkeys(map(ord, old)) if "d" in found else str.maketrans(old, other.ljust(len(old), other[-1:]))
    call.out(data.translate(table))
    return 0


def _characters(text: str) -> str:
    return _unescaped(
        re.sub(r"(.)-(.)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), text)
    )


@program("cut")
async def _cut(call: Call) -> int:
    found, paths = options(call, "", "dfc")
    for _, data in await _inputs(call, paths):
        for line in data.decode(errors="surrogateescape").splitlines():
            parts = list(line) if "c" in found else line.split(found.get("d", "\t"))
            first, dash, last = found.get("f", found.get("c", "1")).partition("-")
            end = int(last) if last else len(parts) if dash else int(first)
            kept = parts[int(first or 1) - 1 : end]
            call.out(("" if "c" in found else found.get("d", "\t")).join(kept) + "\n")
    return 0


@program("seq")
async def _seq(call: Call) -> int:
    numbers = [int(word) for word in call.args]
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    call.out("".join(f"{number}\n" for number in range(first, last + 1)))
    return 0


@program("tee")
async def _tee(call: Call) -> int:
    found, paths = options(call, "a")
    data = await call.stdin.rest()
    for path in paths:
        call.tree.write(call.path(path), data, call.uid, append="a" in found, time=call.now())
    call.out(data)
    return 0


@program("basename", "dirname")
async def _name(call: Call) -> int:
    path = options(call)[1][0]
    part = posixpath.basename(path.rstrip("/")) if call.name == "basename" else posixpath.dirname(path.rstrip("/"))
    call.out(f"{part or ('.' if call.name == 'dirname' else '/')}\n")
    return 0


# --- conditions ---


@program("test", "[", "[[")
async def _test(call: Call) -> int:
    words = call.args.copy()
    if call.name != "test" and words.pop() != {"[": "]", "[[": "]]"}[call.name]:
        return call.fail("missing ]", 2)
    try:
        return int(not _condition(call, words))
    except ValueError as error:
        return call.fail(str(error), 2)


def _condition(call: Call, words: list[str]) -> bool:
    for joint, together in (("-o", any), ("-a", all)):
        if joint in words[1:-1]:
            at = words.index(joint, 1)
            return together([_condition(call, words[:at]), _condition(call, words[at + 1 :])])
    match words:
        case []:
            return False
        case ["!", *rest] if rest:
            return not _condition(call, rest)
        case [word]:
            return bool(word)
        case [("-n" | "-z") as kind, word]:
            return bool(word) == (kind == "-n")
        case [kind, path] if len(kind) == 2 and kind[0] == "-":
            return _about_file(call, kind[1], path)
        case [one, ("=" | "=="), other]:
            return one == other
        case [one, "!=", other]:
            return one != other
        case [one, "-ef", other]:
            return call.tree.resolve(call.path(one)) == call.tree.resolve(call.path(other))
        case [one, kind, other] if kind in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge"):
            left, right = int(one), int(other)
            return {"-eq": left == right, "-ne": left != right, "-lt": left < right, "-le": left <= right,
                    "-gt": left > right, "-ge": left >= right}[kind]  # fmt: skip
    raise ValueError(f"condition is not understood: {' '.join(words)}")


def _about_file(call: Call, kind: str, path: str) -> bool:
    tree, place = call.tree, call.path(path)
    if kind in "Lh":
        node = tree.find(place, follow=False)
        return node is not None and node.kind == "symlink"
    node = tree.find(place)
    if node is None or kind == "e":
        return node is not None
    if kind in "fd":
        return node.kind == {"f": "file", "d": "directory"}[kind]
    if kind in "rwx":
        shift = 6 if node.uid == call.uid else 0
        bit = {"r": 4, "w": 2, "x": 1}[kind]
        return (
            bool(node.mode & 0o111)
            if call.uid == 0 and kind == "x"
            else call.uid == 0 or bool(node.mode >> shift & bit)
        )
    if kind == "s":
        return bool(node.data)
    if kind == "O":
        return node.uid == call.uid
    raise ValueError(f"condition is not understood: -{kind}")


# --- files ---


@program("mkdir")
async def _mkdir(call: Call) -> int:
    found, paths = options(call, "p", "m")
    for path in paths:
        mode = int(found.get("m", "755"), 8)
        call.tree.make_folder(call.path(path), call.uid, parents="p" in found, mode=mode, time=call.now())
    return 0


@program("rmdir")
async def _rmdir(call: Call) -> int:
    for path in options(call)[1]:
        if call.tree.entries(call.path(path)):
            raise failure(errno.ENOTEMPTY, path)
        call.tree.remove(call.path(path), call.uid, tree=True)
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


@program("readlink")
async def _readlink(call: Call) -> int:
    found, (path,) = options(call, "fe")
    if found:
        call.out(call.tree.resolve(call.path(path)) + "\n")
        return 0
    node = call.tree.node(call.path(path), follow=False)
    if node.kind != "symlink":
        return 1
    call.out(node.target + "\n")
    return 0


@program("mkfifo")
async def _mkfifo(call: Call) -> int:
    for path in call.args:
        call.tree.put(call.path(path), Node("special", b"", 0o644, call.uid, call.uid, call.now()), call.uid)
    return 0


@program("truncate")
async def _truncate(call: Call) -> int:
    found, paths = options(call, "", "s")
    for path in paths:
        node, size = call.tree.find(call.path(path)), _size(found["s"])
        data = (node.data if node is not None else b"")[:size]
        call.tree.write(call.path(path), data.ljust(size, b"\0"), call.uid, time=call.now())
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
            raise _Unknown(f"invalid mode: {text}")
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
    while words:
        if words[0] not in ("-type", "-name", "-mindepth", "-maxdepth"):
            raise _Unknown(f"unknown option: {words[0]}")
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
            if "-name" in wanted and not re.fullmatch(_glob(wanted["-name"]), posixpath.basename(name)):
                continue
            if int(wanted.get("-mindepth", 0)) <= depth <= int(wanted.get("-maxdepth", 1 << 30)):
                call.out(path.rstrip("/") + name[len(place) :] + "\n")
    return status


def _glob(pattern: str) -> str:
    import fnmatch

    return fnmatch.translate(pattern)
