"""Lists of system calls as `entry/entry.c` follows them: everything that stands between a new process and its command.

Pure: it returns bytes. They are loaded at one address, so calls can point to their final location.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from benchflow.sandbox.inside import syscalls as sc

BASE: Final = 0x2_0000_0000
NOT_CONFINED: Final = 125
NOT_EXECUTABLE: Final = 126
_HEADER: Final = struct.Struct("<7q")
_STEP: Final = struct.Struct("<10q")
_UNCONFINED: Final = "the sandbox could not be sealed for this command"


class Rule(IntEnum):
    """What an error of a call means."""

    FAIL = 0
    """It is reported with the call's text, and the process ends with the call's code."""
    GO_ON = 1
    TRY = 2
    """The next call is tried; the reason is reported if none of them replaces the program."""


class Part(NamedTuple):
    """Finished calls, and the address of the first."""

    data: bytes
    address: int
    length: int


class Calls:
    """Calls with the data they point to, which begin at `start`."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._data = bytearray()
        self._steps = bytearray()
        self._count = 0
        self._failure = self.text(_UNCONFINED)

    def place(self, data: bytes) -> int:
        """The address of the bytes."""
        address = self._start + len(self._data)
        self._data += data
        self._data += bytes(-len(self._data) % 8)
        return address

    def text(self, value: str) -> int:
        return self.place(value.encode("utf-8", "surrogateescape") + b"\0")

    def pointers(self, addresses: Iterable[int]) -> int:
        """An array that ends with a null."""
        values = (*addresses, 0)
        return self.place(struct.pack(f"<{len(values)}q", *values))

    def add(
        self, name: str, *values: int, rule: Rule = Rule.FAIL, text: int | None = None, code: int = NOT_CONFINED
    ) -> None:
        """One call; without a `text` its failure means that the command would not be confined."""
        padded = (*values, 0, 0, 0, 0, 0, 0)[:6]
        self._steps += _STEP.pack(sc.NUMBER[name], *padded, rule, self._failure if text is None else text, code)
        self._count += 1

    def say(self, text: str, code: int) -> None:
        """Write a line to standard error and end with a code."""
        line = f"{text}\n".encode("utf-8", "surrogateescape")
        self.add("write", 2, self.place(line), len(line), rule=Rule.GO_ON)
        self.add("exit", code)

    def finish(self) -> Part:
        return Part(bytes(self._data) + bytes(self._steps), self._start + len(self._data), self._count)


@functools.cache
def reasons() -> tuple[bytes, int, int, int]:
    """The texts of errors, in front of every list: the bytes, address and length of the table, where calls begin."""
    table = Calls(BASE + _HEADER.size)
    count = max(errno.errorcode) + 1
    address = table.pointers([table.text(os.strerror(number)) for number in range(count)])
    data = table.finish().data
    return data, address, count, BASE + _HEADER.size + len(data)


def join(first: Part, second: Part, name: int) -> bytes:
    """The list: the texts of errors, the calls of `first` after them, and those of `second` at the end."""
    texts, table, count, _ = reasons()
    header = _HEADER.pack(first.address, first.length, second.address, second.length, table, count, name)
    return header + texts + first.data + second.data
