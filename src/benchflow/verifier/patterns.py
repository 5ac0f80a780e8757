"""Paths of a sandbox that match a declared pattern: `*` and `?` within a name, `**` across folders.

Packages declare with them what passes from one phase to the next. What matches is decided here, not by a shell of the
sandbox: its `find` only lists names, and a name that it makes up still has to match.
"""

from __future__ import annotations

import re
from typing import Final

from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.sandbox.protocol import Sandbox

MAX_MATCHES: Final = 1_000
_MAX_LISTING: Final = 32 << 20
_TIMEOUT_SEC: Final = 60.0
_NO_PROGRAM: Final = (126, 127)
_WILD: Final = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    return _WILD.search(path) is not None


def fixed_part(pattern: str) -> str:
    """The folder above the first name with a wildcard."""
    names = pattern.split("/")
    first = next((index for index, name in enumerate(names) if is_pattern(name)), len(names))
    return "/".join(names[:first]) or "/"


def as_regex(pattern: str) -> re.Pattern[str]:
    """A pattern as an expression for whole paths; `[…]` is a set of characters, as in a shell."""
    names = pattern.strip("/").split("/")
    parts = [r"(?:/[^/]+)*" if name == "**" else f"/{_name(name)}" for name in names]
    return re.compile("".join(parts), re.DOTALL)


def _name(name: str) -> str:
    found: list[str] = []
    for part in re.findall(r"\*+|\?|\[[^\]/]+\]|[\s\S]", name):
        if part.startswith("*"):
            found.append("[^/]*")
        elif part == "?":
            found.append("[^/]")
        elif len(part) > 1:
            inner = part[1:-1].replace("\\", "\\\\")
            found.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            found.append(re.escape(part))
    return "".join(found)


async def matches(sandbox: Sandbox, pattern: str) -> list[str]:
    """The paths that match an absolute pattern, without those below another one; sorted."""
    top = fixed_part(pattern)
    if pattern.rstrip("/") == f"{top.rstrip('/')}/**":
        return [top]
    listing = await sandbox.exec(
        ["find", top, "-print0"], user="root", cwd="/", timeout=_TIMEOUT_SEC, max_output=_MAX_LISTING
    )
    if listing.exit_code in _NO_PROGRAM:
        raise EnvironmentFailure(f"The environment has no find, which {pattern} needs.", code="program-missing")
    expression = as_regex(pattern)
    found: dict[str, None] = {}
    for name in sorted(listing.stdout.decode("utf-8", "surrogateescape").split("\0")):
        if expression.fullmatch(name) and not any(parent in found for parent in _parents(name)):
            found[name] = None
    if len(found) > MAX_MATCHES:
        raise SandboxFailure(f"More than {MAX_MATCHES} paths match {pattern}.", code="too-large")
    return list(found)


def _parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(2, len(names))]
