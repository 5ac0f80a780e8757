"""The loader's cache of libraries in a verifier's copy: it is as built, so it lacks what an agent installed.

`settle` makes it again in the copy, with the environment's own program and folders, and keeps the result only if it
finds every library of the environment where it was found before. Settings of the loader are as built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from benchflow.sandbox.protocol import Sandbox

CACHE: Final = "/etc/ld.so.cache"
_TIMEOUT_SEC: Final = 60.0
_MAX_BYTES: Final = 16 << 20
_MAKE: Final = r"""
[ -f /etc/ld.so.cache ] && [ -x /sbin/ldconfig ] && folder=$(mktemp -d) || exit 1
/sbin/ldconfig -i -X -C "$folder/cache" >/dev/null 2>&1 || exit 1
/sbin/ldconfig -p
printf '\0'
/sbin/ldconfig -p -C "$folder/cache"
printf '\0%s' "$folder"
"""
"""Makes another cache, without links and what an earlier run may have noted, and prints both and its place."""
_PARTS: Final = 3
_KEEP: Final = '[ ! "$2" ] || cp "$1/cache" /etc/ld.so.cache; rm -rf -- "$1"'
_ENTRY: Final = re.compile(r"\t(\S+) (\(.*\)) => (/.*)")


async def settle(forked: Sandbox) -> None:
    """Let the loader find the libraries that are in a copy; if that cannot be done safely, its cache stays as built."""
    words = ["/bin/sh", "-c", _MAKE]
    made = await forked.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC, max_output=_MAX_BYTES)
    parts = made.stdout.decode("utf-8", "surrogateescape").split("\0")
    if not made.ok or made.dropped_bytes or len(parts) != _PARTS:
        return
    kept = "yes" if finds_the_same(_entries(parts[0]), _entries(parts[1])) else ""
    await forked.exec(["/bin/sh", "-c", _KEEP, "sh", parts[2], kept], user="root", cwd="/", timeout=_TIMEOUT_SEC)


def finds_the_same(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> bool:
    """Whether what was found before is found in the same places, unless it is gone, and all that is new by the name of
    its file, by which other rules judge it."""
    for name, found in after.items():
        if name in before:
            if found != [item for item in before[name] if item in found]:
                return False
        elif not all(item.endswith(f"/{name}") for item in found):
            return False
    return True


def _entries(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if entry := _ENTRY.fullmatch(line):
            found.setdefault(entry[1], []).append(f"{entry[2]} {entry[3]}")
    return found
