"""Programs of the in-memory shell that print and change text."""

from __future__ import annotations

import os
import re
from typing import Final

from benchflow.testing.memory.program_table import inputs_of, options, program, size_of
from benchflow.testing.memory.shell import Call

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0", "a": "\a", "b": "\b"}


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
            count = size_of(found["c"])
            call.out(bytes(count) if place == "/dev/zero" else os.urandom(count))
            continue
        [(_, data)] = await inputs_of(call, [path] if path else [])
        wanted = found.get("c") or found.get("n") or "10"
        parts = [data[at : at + 1] for at in range(len(data))] if "c" in found else data.splitlines(keepends=True)
        count = size_of(wanted)
        if call.name == "head":
            kept = parts[:count]
        else:
            kept = parts[count - 1 :] if wanted.startswith("+") else parts[max(len(parts) - count, 0) :]
        call.out(b"".join(kept))
    return 0


@program("wc")
async def _wc(call: Call) -> int:
    found, paths = options(call, "lcw")
    for path, data in await inputs_of(call, paths):
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
        inputs = await inputs_of(call, words)
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
    lines = [line for _, data in await inputs_of(call, paths) for line in data.splitlines()]
    lines = list(dict.fromkeys(lines)) if "u" in found else lines
    key = (lambda line: float(line.split()[0] if line.split() else 0)) if "n" in found else None
    call.out(b"".join(line + b"\n" for line in sorted(lines, key=key, reverse="r" in found)))
    return 0


@program("tee")
async def _tee(call: Call) -> int:
    found, paths = options(call, "a")
    data = await call.stdin.rest()
    for path in paths:
        call.tree.write(call.path(path), data, call.uid, append="a" in found, time=call.now())
    call.out(data)
    return 0
