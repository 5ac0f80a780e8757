"""Where two values differ, as `path: a != b`: observations, and models that went through JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from cube.core import Observation


def observation_difference(first: Observation, second: Observation) -> str:
    """The differences of two observations as `path: a != b`; empty if there are none."""
    return "; ".join(_differences("", first.model_dump(mode="json"), second.model_dump(mode="json")))


def model_difference(first: BaseModel, second: BaseModel) -> str:
    """The first difference of two models in class and fields; what they keep in private does not count."""
    return next(_differences("", first, second), "")


def _differences(path: str, first: Any, second: Any) -> Iterator[str]:
    if isinstance(first, BaseModel) and isinstance(second, BaseModel):
        if type(first) is not type(second):
            yield f"{path or 'the class'}: {type(first).__name__} != {type(second).__name__}"
            return
        first, second = ({name: getattr(each, name) for name in type(each).model_fields} for each in (first, second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *(key for key in second if key not in first)]:
            yield from _differences(f"{path}.{key}" if path else str(key), first.get(key), second.get(key))
    elif isinstance(first, list | tuple) and type(first) is type(second) and len(first) == len(second):
        for index, (left, right) in enumerate(zip(first, second, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif type(first) is not type(second) or first != second:
        yield f"{path}: {shown(first)} != {shown(second)}"


def shown(value: Any, limit: int = 120) -> str:
    """A value in short."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
