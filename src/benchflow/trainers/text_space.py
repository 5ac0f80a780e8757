"""`AnyText`: the space of texts of any characters, also for vector environments with shared memory.

Gymnasium's own `Text` has a set of characters, and shares a text as one number per possible character.
"""

from __future__ import annotations

import multiprocessing
import string
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any, Final

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

_SAMPLED: Final = string.ascii_letters + string.digits + " "
"""Samples are harmless as commands: no variables, no redirections, nothing that differs from run to run."""
_LONGEST_SAMPLE: Final = 24
_MOST_BYTES: Final = 4
"""Of a character in UTF-8."""
_HEADER: Final = 8


class AnyText(Space[str]):
    """Every text of at most `max_length` characters that can be written as UTF-8."""

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        self.max_length: Final = max_length
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short text of letters, digits and blanks."""
        if mask is not None or probability is not None:
            raise ValueError("A text is sampled without mask and probability.")
        length = int(self.np_random.integers(1, min(self.max_length, _LONGEST_SAMPLE) + 1))
        return "".join(_SAMPLED[place] for place in self.np_random.integers(len(_SAMPLED), size=length))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length and _is_utf8(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((AnyText, self.max_length))

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    def to_jsonable(self, sample_n: Any) -> list[Any]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        return [str(sample) for sample in sample_n]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _row(space: AnyText) -> int:
    return _HEADER + _MOST_BYTES * space.max_length


@create_shared_memory.register(AnyText)
def _create(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> SynchronizedArray[Any]:
    memory: SynchronizedArray[Any] = ctx.Array("B", n * _row(space))
    return memory


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, value: str, shared_memory: SynchronizedArray[Any]) -> None:
    data, start = value.encode(), index * _row(space)
    view = memoryview(shared_memory.get_obj()).cast("B")
    view[start : start + _HEADER] = len(data).to_bytes(_HEADER, "little")
    view[start + _HEADER : start + _HEADER + len(data)] = data


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, shared_memory: SynchronizedArray[Any], n: int = 1) -> tuple[str, ...]:
    view = memoryview(shared_memory.get_obj()).cast("B")
    texts = []
    for start in range(0, n * _row(space), _row(space)):
        length = int.from_bytes(view[start : start + _HEADER], "little")
        texts.append(bytes(view[start + _HEADER : start + _HEADER + length]).decode())
    return tuple(texts)
