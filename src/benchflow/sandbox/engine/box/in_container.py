"""What all sandboxes of an engine share: commands and files go to one running container."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from benchflow.sandbox.engine.box.running_container import EngineContainer
from benchflow.sandbox.protocol import ExecOptions, ExecResult, ProcessOptions, Sandbox, SandboxProcess


class InContainer(Sandbox):
    """A sandbox whose commands and files are those of its container."""

    @property
    @abstractmethod
    def container(self) -> EngineContainer:
        """The running container; an error when there is none."""

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        return await self.container.exec(command, **options)

    async def process(self, command: str | Sequence[str], **options: Unpack[ProcessOptions]) -> SandboxProcess:
        return await self.container.process(command, **options)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        await self.container.upload(source, target, owner=owner)

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        await self.container.write_file(path, data, owner=owner, mode=mode)

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await self.container.write_files(files)

    async def stand_in(self, place: str, program: bytes, kept: str) -> None:
        await self.container.stand_in(place, program, kept)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        await self.container.download(source, target, max_bytes=max_bytes, max_files=max_files)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return await self.container.read_file(path, max_bytes=max_bytes)
