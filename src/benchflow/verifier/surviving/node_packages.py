"""Files `package.json` of an agent with which Node would not load the hook of the ground folder.

Node resolves `--require` as if the package of the current folder asked for it: one that cannot be parsed ends Node.
`candidates` chooses files from the list of changes, `mislead` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NoReturn

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Sandbox

NAME: Final = "package.json"
_MODULES: Final = "node_modules"
_LARGEST: Final = 1 << 16
_AT_ONCE: Final = 200
_TIMEOUT_SEC: Final = 60.0
_READ: Final = f"""
for place do
  [ ! -f "$place" ] || head -c {_LARGEST + 1} "$place"
  printf '\\0'
done
"""


def candidates(changes: Sequence[Change], withheld: PathSet) -> list[str]:
    """Surviving files that may describe the package of a folder in which a verifier runs Node.

    Installed packages are among them only if a link leads from elsewhere to where they are.
    """
    own = [change for change in changes if change.kind != "deleted" and not withheld.covers(change.path)]
    led = any(change.type == "symlink" and not _is_installed(change.path) and _leads(change.target) for change in own)
    return [
        change.path
        for change in own
        if change.path.endswith(f"/{NAME}") and change.type != "directory" and (led or not _is_installed(change.path))
    ]


def _is_installed(path: str) -> bool:
    return f"/{_MODULES}/" in path


def _leads(target: str | None) -> bool:
    return target is None or _MODULES in target.split("/")


async def mislead(forked: Sandbox, paths: Sequence[str]) -> bool:
    """Whether one of these files may break `--require`; one that cannot be judged may."""
    for start in range(0, len(paths), _AT_ONCE):
        chunk = paths[start : start + _AT_ONCE]
        words = ["/bin/sh", "-c", _READ, "sh", *chunk]
        limit = (_LARGEST + 2) * len(chunk)
        result = await forked.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC, max_output=limit)
        texts = result.stdout.split(b"\0")[:-1]
        if not result.ok or len(texts) != len(chunk) or not all(map(is_harmless, texts)):
            return True
    return False


def is_harmless(text: bytes) -> bool:
    """Whether Node can parse a `package.json`."""
    if len(text) > _LARGEST:
        return False
    try:
        package = json.loads(text.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(package, dict)


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)
