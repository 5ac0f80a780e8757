"""What a host holds for a driver: an episode or a gym task, the calls that run in it, and what it has recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.serve.episode import Episode, ToolSpec
from benchflow.serve.remote.episode_orders import Ended
from benchflow.serve.remote.staged_task import StagedTask


class Held:
    """One thing that is played."""

    def __init__(self, playing: Episode | StagedTask, records: Path | None = None) -> None:
        """`records`: where calls of models are recorded; removed with it."""
        self.playing: Final = playing
        self.missed = 0
        """Lists of what the driver wants, in a row, that did not have it."""
        self.sent: tuple[ToolSpec, ...] | None = None
        """The tools that the driver knows."""
        self._records: Final = records
        self._scopes: Final[set[anyio.CancelScope]] = set()
        """Around every call that runs; cancelled when it ends."""
        self._idle = anyio.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around a call: it is cancelled when this ends."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()

    async def end(self) -> Ended:
        """End the calls that run, then the episode; what it recorded."""
        ended = Ended()
        with anyio.CancelScope(shield=True):
            for scope in self._scopes:
                scope.cancel()
            if self._scopes:
                self._idle = anyio.Event()
                await self._idle.wait()
            try:
                await self.playing.close()
                ended = Ended(await anyio.to_thread.run_sync(_files, self._records))
            finally:
                if self._records is not None:
                    shutil.rmtree(self._records, ignore_errors=True)
        return ended


def _files(folder: Path | None) -> dict[str, bytes]:
    if folder is None:
        return {}
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}
