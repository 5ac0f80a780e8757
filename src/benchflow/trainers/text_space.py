"""`AnyText`: the space of texts of any characters, also for vector environments with shared memory.

Gymnasium's own `Text` has a set of characters, and shares a text as one number per possible character.
"""

from __future__ import annotations

import multiprocessing
import string
from collections.abc import Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any, Final, overload

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
def _read(space: AnyText, shared_memory: SynchronizedArray[Any], n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, _row(space), n)


class SharedTexts(Sequence[str]):
    """The texts that are in shared memory now; a copy is a tuple of them.

    Gymnasium asks for the batch once and relies on it to change with the memory, as its arrays do.
    """

    def __init__(self, memory: SynchronizedArray[Any], row: int, count: int) -> None:
        self._memory: Final = memory
        self._row: Final = row
        self._count: Final = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(self._count)))
        start = range(self._count)[index] * self._row
        view = memoryview(self._memory.get_obj()).cast("B")
        length = int.from_bytes(view[start : start + _HEADER], "little")
        return bytes(view[start + _HEADER : start + _HEADER + length]).decode()

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, SharedTexts) else other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return repr(tuple(self))
