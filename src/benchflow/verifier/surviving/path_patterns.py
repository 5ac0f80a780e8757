"""Paths of a sandbox that match a declared pattern: `*` and `?` within a name, `**` across folders.

Packages declare with them what passes from one phase to the next. What matches is decided here, not by a shell of the
sandbox: its `find` only lists names, and a name that it makes up still has to match and to be a plain one.
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
_LISTED: Final = (0, 1)
"""How `find` ends; with 1 if the folder does not exist."""
_WILD: Final = re.compile(r"[*?]")
_NOT_PLAIN: Final = frozenset({"", ".", ".."})


def is_pattern(path: str) -> bool:
    return _WILD.search(path) is not None


def fixed_part(pattern: str) -> str:
    """The folder above the first name with a wildcard of an absolute pattern; without one, the whole path."""
    names = pattern.split("/")
    first = next((index for index, name in enumerate(names) if is_pattern(name)), len(names))
    return "/" + "/".join(names[:first]).lstrip("/")


def as_regex(pattern: str) -> re.Pattern[str]:
    """A pattern as an expression for whole paths; every other character stands for itself."""
    names = pattern.strip("/").split("/")
    parts = [r"(?:/[^/]+)*" if name == "**" else f"/{_name(name)}" for name in names]
    return re.compile("".join(parts), re.DOTALL)


def _name(name: str) -> str:
    wild = {"*": "[^/]*", "?": "[^/]"}
    return "".join(wild.get(part[0]) or re.escape(part) for part in re.findall(r"\*+|[^*]", name))


async def matches(sandbox: Sandbox, pattern: str, *, most: int | None = MAX_MATCHES) -> list[str]:
    """The paths that match an absolute pattern, without those below another one; sorted. More are `too-large`."""
    expression = as_regex(pattern)
    found: dict[str, None] = {}
    for name in await _listed(sandbox, pattern):
        if not expression.fullmatch(name) or not _NOT_PLAIN.isdisjoint(name.split("/")[1:]):
            continue
        if not any(parent in found for parent in _parents(name)):
            found[name] = None
    if most is not None and len(found) > most:
        raise SandboxFailure(f"More than {most:,} paths match {pattern}.", code="too-large")
    return list(found)


async def _listed(sandbox: Sandbox, pattern: str) -> list[str]:
    """The names that `find` prints as deep as the pattern reaches; a listing that is not whole is a failure."""
    top = fixed_part(pattern)
    names = pattern.strip("/").removeprefix(top[1:]).strip("/").split("/")
    if names == ["**"]:
        names = []  # the folder itself matches, and with it all that is below
    depth = () if "**" in names else ("-maxdepth", str(len(names)))
    words = ["find", top, *depth, "-print0"]
    listing = await sandbox.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC, max_output=_MAX_LISTING)
    if listing.exit_code in _NO_PROGRAM:
        raise EnvironmentFailure(f"The environment has no find, which {pattern} needs.", code="program-missing")
    if listing.timed_out or listing.dropped_bytes or listing.exit_code not in _LISTED:
        raise SandboxFailure(f"The paths that match {pattern} could not be listed.", code="listing-failed")
    return sorted(listing.stdout.decode("utf-8", "surrogateescape").split("\0"))


def _parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(2, len(names))]
