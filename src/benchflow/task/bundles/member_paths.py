"""Names in archives: which are safe to write below a folder, on any file system. Pure.

`path_problem` judges one name, `link_problem` the target of a link, `clashes` a whole list: names that are equal when
case is ignored, and files in the place of folders.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

MAX_PATH: Final = 1024
MAX_NAME: Final = 255
_WRONG: Final = frozenset({"", ".", ".."})


def path_problem(path: str) -> str | None:
    """Why a name is not a plain relative path; continues a sentence that starts with the name."""
    if not path.isprintable() or "\\" in path or not _encodes(path):
        return "has a character that names in a bundle cannot have"
    if path.startswith("/") or (len(path) > 1 and path[1] == ":" and path[0].isalpha()):
        return "is an absolute path"
    parts = path.split("/")
    if ".." in parts:
        return "leaves the folder it is in"
    if not _WRONG.isdisjoint(parts):
        return "is not a plain path"
    if len(path) > MAX_PATH // 4 and (len(path.encode()) > MAX_PATH or max(len(p.encode()) for p in parts) > MAX_NAME):
        return "is too long"
    return None


def link_problem(path: str, target: str) -> str | None:
    """Why a link is refused; continues a sentence that starts with its name.

    Allowed are `../` up to the folder of the package, then plain names: such a link stays inside whatever the names
    lead to, because every link among them does so too, and the folder that a link is in is never a link itself.
    """
    steps = target.split("/")
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    if up > path.count("/"):
        return f"is a link to '{target}', outside its package"
    rest = "/".join(steps[up:])
    if rest and path_problem(rest) is not None:
        return f"is a link to '{target}', which is not a plain relative path"
    return None


def clashes(paths: Iterable[str]) -> str | None:
    """The first problem between names, as a whole sentence part; names are of files and of empty folders."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        folded = _folded(path)
        if folded in seen:
            return _twice(seen[folded], path)
        seen[folded] = path
        parent = path.rpartition("/")[0]
        while parent:
            key = _folded(parent)
            known = folders.get(key)
            if known == parent:
                break
            if known is not None:
                return _twice(known, parent)
            folders[key] = parent
            parent = parent.rpartition("/")[0]
    both = next((key for key in folders if key in seen), None)
    return None if both is None else f"'{seen[both]}' is both a file and a folder"


def _twice(one: str, other: str) -> str:
    return f"'{one}' occurs twice" if one == other else f"'{one}' and '{other}' differ only in case or spelling"


def _folded(path: str) -> str:
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())


def _encodes(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
