"""Collects criteria and grades them."""

from __future__ import annotations

import functools
import inspect
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Check = Callable[..., Any]


class Criterion:
    """One check with its arguments, its weight and its name."""

    def __init__(self, check: Check, args: tuple[Any, ...], kwargs: dict[str, Any], settings: dict[str, Any]) -> None:
        self.check = check
        self.args = args
        self.kwargs = kwargs
        self.weight = float(settings.get("weight", 1.0))
        self.isolated = bool(settings.get("isolated", False))
        self.description = settings.get("description") or (check.__doc__ or "").strip().split("\n")[0]
        words = [str(arg) for arg in args if isinstance(arg, (str, int, float))]
        self.name = settings.get("name") or ":".join([check.__name__, *words])[:80]

    def grade(self, workspace: Path) -> float:
        """A score from 0 to 1; a missing file and a failed assertion are 0, other errors are raised."""
        try:
            if not self.isolated:
                return _score(self.check(workspace, *self.args, **self.kwargs))
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "workspace"
                shutil.copytree(str(workspace), str(copy), symlinks=True)
                return _score(self.check(copy, *self.args, **self.kwargs))
        except (AssertionError, FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return 0.0


class Session:
    """The criteria that a module adds while it is imported."""

    def __init__(self) -> None:
        self.criteria: list[Criterion] = []


SESSION = Session()


def _score(value: Any) -> float:
    if isinstance(value, bool):
        return 1.0 if value else 0.0
    if not isinstance(value, (int, float)) or value != value:
        raise TypeError(f"a check must return a truth value or a number from 0 to 1, not {value!r}")
    return min(max(float(value), 0.0), 1.0)


def registers(check: Check) -> Check:
    """Make a call of a check add it as a criterion; the workspace is passed when it is graded."""

    @functools.wraps(check)
    def add(*args: Any, **kwargs: Any) -> None:
        settings: dict[str, Any] = {key: kwargs.pop(key) for key in ("weight", "name", "isolated") if key in kwargs}
        SESSION.criteria.append(Criterion(check, args, kwargs, settings))

    return add


def criterion(check: Check | None = None, *, description: str | None = None, shared: bool = False) -> Any:
    """A decorator for custom checks. One that takes only the workspace is added at once, unless it is `shared`."""

    def decorate(function: Check) -> Check:
        if len(inspect.signature(function).parameters) <= 1 and not shared:
            SESSION.criteria.append(Criterion(function, (), {}, {"description": description}))
            return function
        return registers(function)

    return decorate(check) if check is not None else decorate
