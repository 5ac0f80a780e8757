"""Whose tests are in the folders that a test runner searches: the verifier's, or the agent's, which nobody asked for.

Other rights, another owner and a copy together with its folder do not make a test of the agent one of the verifier's:
`sources` lists what the agent left. What the verifier computed or edited stays the verifier's.
"""

import os
from fnmatch import fnmatch

import verifier_texts as texts  # type: ignore[import-not-found, unused-ignore] # beside this file in a box
from verifier_lookups import CHANGES, PLACES  # type: ignore[import-not-found, unused-ignore] # beside this file in a box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")
_LINK = -1


def is_agents(path: str) -> bool:
    """Whether a test is one that the agent left, or a copy of one."""
    return _origin(os.path.abspath(path)) is not None


def is_uninvited(path: str, named: "Iterable[str]", patterns: "Sequence[str]") -> bool:
    """Whether a test of the agent is among tests that the verifier put there, and is not named itself."""
    here = os.path.abspath(path)
    origin = _origin(here)
    if origin is None or here in [os.path.abspath(word) for word in named]:
        return False
    beside = {os.path.dirname(here), *map(os.path.abspath, named)}
    return any(_has_own(folder, patterns, here, origin) for folder in beside) and not _is_also_built(here, origin)


def has_own(folder: str, patterns: "Sequence[str]") -> bool:
    """Whether the verifier put tests into a folder or below it."""
    return _has_own(folder, patterns, "", "")


def _origin(path: str) -> "str | None":
    """Where the agent left the test that is at a path; None if it is the verifier's or the environment's."""
    if path not in _ORIGINS:
        _ORIGINS[path] = None if path.startswith(PLACES) else _found_origin(path)
    return _ORIGINS[path]


_ORIGINS: "dict[str, str | None]" = {}


def _found_origin(path: str) -> "str | None":
    if not CHANGES.is_touched(path):
        return path if CHANGES.is_agents(path) or _is_left(path) else None
    origin = path if _is_left(path) else _copied_from(path)
    return None if origin is None or _is_verifiers_text(path) else origin


def _is_left(path: str) -> bool:
    """Whether a file is as the agent left it at that path, but for its rights."""
    for place in (path, os.path.realpath(path)):
        size = _left().get(os.path.basename(place), {}).get(place)
        if size is not None and os.path.lexists(place):
            same = size == (_LINK if os.path.islink(place) else os.path.getsize(place))
            return same and not CHANGES.is_new(place) and not (CHANGES.is_touched(place) and texts.is_copy(place))
    return False


def _copied_from(path: str) -> "str | None":
    """The file of the agent with the same name and bytes, of several the one with the most folders in common."""
    left = _left().get(os.path.basename(path), {})
    found = [place for place in left if place != path and _is_left(place) and texts.is_same(path, place)]
    return max(found, key=lambda place: len(_tail(path, place))) if found else None


def _left() -> "dict[str, dict[str, int]]":
    """The files of Python that the agent added or changed, with their sizes, by name; read when somebody asks."""
    if not _LEFT:
        _LEFT[""] = {}
        with open(texts.GROUND + "/sources", "rb") as file:
            records = file.read().split(b"\0")
        for record in records[:-1]:
            size, _, raw = record.partition(b" ")
            path = raw.decode("utf-8", "surrogateescape")
            _LEFT.setdefault(os.path.basename(path), {})[path] = int(size)
    return _LEFT


_LEFT: "dict[str, dict[str, int]]" = {}


def _has_own(folder: str, patterns: "Sequence[str]", test: str, origin: str) -> bool:
    """The same where a test of the agent is, which may have been copied there together with others."""
    tail = _tail(test, origin) if test != origin else ""
    moved, base = test[: len(test) - len(tail)], origin[: len(origin) - len(tail)]
    after_all = bool(test) and CHANGES.is_touched(test)
    key = (folder, tuple(patterns), tail and (moved, base), after_all)
    if key not in _OWN:
        files = (place for place in _below(folder) if _is_test(place, patterns))
        pairs = ((place, base + place[len(moved) :] if tail and place.startswith(moved) else place) for place in files)
        _OWN[key] = any(_is_verifiers(place, built, after_all=after_all) for place, built in pairs)
    return _OWN[key]


_OWN: "dict[tuple[object, ...], bool]" = {}


def _is_verifiers(path: str, built: str, *, after_all: bool) -> bool:
    """Whether the verifier put a test there, where it would be a copy of what was `built` somewhere else.

    `after_all` files got other rights or were copied, tests of the environment did too: then a new time or the text
    shows what the verifier wrote.
    """
    if not CHANGES.is_touched(path):
        return False
    if texts.is_copy(path):
        return True
    if path != built and texts.is_same(path, built):
        path = built
    if not CHANGES.is_touched(path) or _is_left(path):
        return False
    return not after_all or CHANGES.is_new(path) or _is_verifiers_text(path)


def _is_verifiers_text(path: str) -> bool:
    return bool(texts.is_known(path) or texts.is_packed(path))


def _is_test(path: str, patterns: "Sequence[str]") -> bool:
    return path.endswith(".py") and any(fnmatch(os.path.basename(path), os.path.basename(word)) for word in patterns)


def _is_also_built(path: str, origin: str) -> bool:
    """Whether a copy may be a test as built, of which the agent has a copy too.

    One with an old time may have other rights only, in the folder where the environment and the agent worked.
    """
    if path == origin:
        return False
    top = origin.split("/")[1]
    same = [place for place in _everywhere().get(os.path.basename(path), ()) if texts.is_same(path, place)]
    return any(
        not CHANGES.is_touched(place) or (place.split("/")[1] == top and not CHANGES.is_new(place))
        for place in same
        if not CHANGES.is_agents(place) and not _is_left(place)
    )


def _everywhere() -> "dict[str, list[str]]":
    """The files outside the system that have the name of one that the agent left, by name."""
    if not _FILES:
        tops = ["/" + name for name in os.listdir("/") if name not in _SYSTEM]
        for path in (path for top in tops for path in _below(top)):
            if os.path.basename(path) in _left():
                _FILES.setdefault(os.path.basename(path), []).append(path)
    return _FILES


_FILES: "dict[str, list[str]]" = {}


def _below(folder: str) -> "Iterator[str]":
    return (place + "/" + name for place, _, names in os.walk(folder.rstrip("/") or "/") for name in names)


def _tail(one: str, other: str) -> str:
    """The last parts that two paths have in common."""
    mine, its, count = one.split("/"), other.split("/"), 0
    while count < min(len(mine), len(its)) and mine[-1 - count] == its[-1 - count]:
        count += 1
    return "/".join(mine[len(mine) - count :])
