"""A set of absolute paths that answers whether a path is at or below one of them.

An answer costs as much as the path has folders, however many paths are in the set: trees of an agent have 100,000s.
"""

from __future__ import annotations

from collections.abc import Iterable


class PathSet:
    """Absolute paths, each with everything below it."""

    __slots__ = ("_paths",)

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths = {path.rstrip("/") for path in paths}

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str) -> None:
        self._paths.add(path.rstrip("/"))

    def covers(self, path: str) -> bool:
        """Whether `path` is one of the paths or below one."""
        return self.holder(path) is not None

    def holder(self, path: str) -> str | None:
        """The innermost path of the set that `path` is at or below."""
        place = path.rstrip("/")
        while place not in self._paths:
            if not place:
                return None
            place = place[: place.rfind("/")]
        return place or "/"
