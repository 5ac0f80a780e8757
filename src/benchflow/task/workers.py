"""Running one function over many packages on all cores, in order, with bounded memory.

Few packages run in this process; many are handed in small chunks to processes that end with the command. When
one of them dies nothing is lost: what it held is done again here.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

MANY: Final = 64
"""From this many packages on, starting processes pays for itself."""
_CHUNK: Final = 16
_CHUNKS_AHEAD: Final = 4
_PR_SET_PDEATHSIG: Final = 1


def ordered_map(
    function: Callable[[Item], Result], items: Sequence[Item], *, processes: int | None = None
) -> Iterator[Result]:
    """The results of a picklable function, in the order of the items, as soon as each is known.

    At most a few chunks per process are under way at a time. An exception of the function ends the iteration.
    """
    count = available_cores() if processes is None else processes
    if count < 2 or len(items) < MANY:
        yield from map(function, items)
    else:
        yield from _map_in_processes(function, items, count)


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _map_in_processes(function: Callable[[Item], Result], items: Sequence[Item], count: int) -> Iterator[Result]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    yield function(items[0])  # what it imports and remembers, forked processes have from the start
    items = items[1:]
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    others = active_children()
    pool = ProcessPoolExecutor(count, context, _become_worker, (os.getpid(),))
    chunks = (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
    pending: deque[tuple[Sequence[Item], Future[list[Result]] | None]] = deque()

    def submit(wanted: int) -> None:
        for chunk in islice(chunks, wanted):
            try:
                pending.append((chunk, pool.submit(_run_chunk, function, chunk)))
            except BrokenProcessPool:
                pending.append((chunk, None))

    finished = False
    try:
        submit(count * _CHUNKS_AHEAD)
        while pending:
            chunk, future = pending.popleft()
            try:
                results = None if future is None else future.result()
            except BrokenProcessPool:
                results = None
            yield from map(function, chunk) if results is None else results
            submit(1)
        finished = True
    finally:
        if not finished:
            # Whoever stops early does not wait for the work that is under way.
            for worker in active_children():
                if worker not in others:
                    worker.kill()
        pool.shutdown(wait=True, cancel_futures=True)


def _run_chunk(function: Callable[[Item], Result], chunk: Sequence[Item]) -> list[Result]:
    return [function(item) for item in chunk]


def _become_worker(parent: int) -> None:
    """Die at once and silently with the command, however it ends; leave inherited memory untouched."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
