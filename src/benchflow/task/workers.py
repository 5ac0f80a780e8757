"""Runs one function over many packages on all cores, in order, with bounded memory.

A few packages run in this process. Many are passed in small chunks to forked processes, which inherit the list of
packages, so that only chunk numbers are sent and results come back, and which end with the command. When one of them
dies, or the function raises there, its chunk is repeated in this process. Where forking is not safe (anywhere but on
Linux), everything runs in this process.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Generic, NoReturn, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MANY: Final = 64
"""From this many packages on, starting processes is worth it."""
_CHUNK: Final = 16
_CHUNKS_AHEAD: Final = 4
_NUMBER: Final = 4
"""Size in bytes of a chunk number and of the length of its results."""
_READ: Final = 1 << 16
_PR_SET_PDEATHSIG: Final = 1


def ordered_map(
    function: Callable[[Item], Result], items: Sequence[Item], *, processes: int | None = None
) -> Iterator[Result]:
    """The results of a function, in the order of the items, as soon as each is known. Results must be picklable.

    At most a few chunks per process are in progress at a time. An exception in the function ends the iteration.
    """
    count = available_cores() if processes is None else processes
    if count < 2 or len(items) < MANY or sys.platform != "linux":
        yield from map(function, items)
        return
    yield function(items[0])  # forked processes inherit what it imports and caches
    yield from _Pool(function, items[1:]).results(count)


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool(Generic[Item, Result]):
    """Processes that read chunk numbers from one shared pipe and answer through a pipe each."""

    def __init__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self.function = function
        self.items = items
        self.chunks = -(-len(items) // _CHUNK)
        self.tickets, self.issue = os.pipe()
        self.workers: dict[int, int] = {}
        """Answer pipe -> process id, for each live process."""
        self.unread: dict[int, bytearray] = {}
        self.finished: dict[int, list[Result]] = {}
        self.lost = False
        """Whether a process has died: chunks may be missing."""

    def chunk(self, number: int) -> list[Result]:
        start = number * _CHUNK
        return [self.function(item) for item in self.items[start : start + _CHUNK]]

    def results(self, count: int) -> Iterator[Result]:
        """All results in order; the processes have ended when this ends, for whatever reason."""
        ahead = count * _CHUNKS_AHEAD
        try:
            for _ in range(count):
                self._start()
            for number in range(min(ahead, self.chunks)):
                self._hand_out(number)
            for number in range(self.chunks):
                yield from self._result(number)
                if number + ahead < self.chunks:
                    self._hand_out(number + ahead)
        finally:
            self._end()

    def _hand_out(self, number: int) -> None:
        os.write(self.issue, number.to_bytes(_NUMBER, "little"))

    def _result(self, number: int) -> list[Result]:
        while number not in self.finished and not self.lost:
            self._receive()
        return self.finished.pop(number) if number in self.finished else self.chunk(number)

    def _receive(self) -> None:
        """Wait until a process sends something, and read it."""
        import pickle
        from select import select

        for pipe in select(list(self.workers), [], [])[0]:
            data = os.read(pipe, _READ)
            if not data:
                self.lost = True
                self._forget(pipe)
                continue
            unread = self.unread[pipe]
            unread += data
            while len(unread) >= 2 * _NUMBER:
                end = 2 * _NUMBER + int.from_bytes(unread[_NUMBER : 2 * _NUMBER], "little")
                if len(unread) < end:
                    break
                number = int.from_bytes(unread[:_NUMBER], "little")
                self.finished[number] = pickle.loads(unread[2 * _NUMBER : end])  # noqa: S301 - written by our own process
                del unread[:end]

    def _start(self) -> None:
        answers, answer = os.pipe()
        parent = os.getpid()
        process = os.fork()
        if process == 0:
            self._work(parent, answer)
        os.close(answer)
        self.workers[answers] = process
        self.unread[answers] = bytearray()

    def _work(self, parent: int, answer: int) -> NoReturn:
        """The loop of a worker process: read a chunk number, process the chunk, answer. Any error ends the process."""
        try:
            _become_worker(parent)
            os.close(self.issue)
            for inherited in self.workers:
                os.close(inherited)
            import pickle

            while ticket := os.read(self.tickets, _NUMBER):
                results = pickle.dumps(self.chunk(int.from_bytes(ticket, "little")))
                _write(answer, ticket + len(results).to_bytes(_NUMBER, "little") + results)
        finally:
            os._exit(0)

    def _forget(self, pipe: int) -> None:
        process = self.workers.pop(pipe)
        os.close(pipe)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)

    def _end(self) -> None:
        """Ending early does not wait for chunks in progress."""
        for pipe in list(self.workers):
            self._forget(pipe)
        os.close(self.tickets)
        os.close(self.issue)


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _become_worker(parent: int) -> None:
    """End silently with the command, however it ends; leave inherited memory untouched."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
