"""Writes `nodes.json` about once per second while a job runs on a cluster, and once more when it has ended.

Writing never takes more than a twentieth of the time: with thousands of rollouts it is done less often. A board that
cannot be written, because the disk is full, is not worth a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import anyio

from benchflow.errors import BenchflowError
from benchflow.record import JobNodes, JobPlaces, write_document

_EVERY_SEC: Final = 1.0
_SHARE: Final = 20


class NodeBoard:
    """The board of one job."""

    def __init__(self, places: JobPlaces, look: Callable[[], JobNodes]) -> None:
        self._places: Final = places
        self._look: Final = look

    async def keep(self) -> None:
        """Write it until this is cancelled."""
        while True:
            began = time.perf_counter()
            self._write(self._look())
            await anyio.sleep(max(_EVERY_SEC, _SHARE * (time.perf_counter() - began)))

    def end(self) -> None:
        """The job is over: nothing runs any more."""
        last = self._look()
        nodes = tuple(replace(node, rollouts=()) for node in last.nodes)
        self._write(replace(last, state="ended", waiting=0, message=None, nodes=nodes))

    def _write(self, nodes: JobNodes) -> None:
        with suppress(OSError, BenchflowError):
            write_document(self._places.nodes, nodes.to_dict(), sync=False)
