"""Programs of the in-memory shell: its own built-ins, conditions, and those that run or describe processes.

Each is `async def program(call) -> exit code`. An option that a program does not know is an error, so that a test never
passes because an option was ignored.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Final

import anyio

from benchflow.testing.memory.memory_jobs import Pipe
from benchflow.testing.memory.node_tree import failure
from benchflow.testing.memory.program_table import PROGRAMS, options, program
from benchflow.testing.memory.shell import NOT_FOUND, Call, Jump, Leave, Return

_SIGNALS: Final = {"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "TERM": 15}


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
