"""A sandbox in which nothing runs and every verifier finds reward 1: what is left is the cost of what uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.errors import UnsupportedError
from benchflow.sandbox.protocol import (
    CAPABILITIES,
    BackendStatus,
    Change,
    ExecResult,
    Image,
    NetworkPolicy,
    Sandbox,
    SandboxBackend,
    SandboxProcess,
    SandboxSpec,
    Snapshot,
)
from benchflow.sandbox.pulling import PullSettings

_DONE = ExecResult(0, b"", b"", 0.0)


def _write_reward(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reward.txt").write_text("1\n")


class NullSandbox(Sandbox):
    """Every command succeeds at once and prints nothing; every file is a reward of 1."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id = "null"
        self.spec = spec

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(CAPABILITIES)

    async def start(self) -> None: ...

    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        del command, options
        return _DONE

    async def process(self, command: str | Sequence[str], **options: Any) -> SandboxProcess:
        del options
        raise UnsupportedError(f"The null sandbox runs nothing, so it cannot start {command!r}.")

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None: ...

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None: ...

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        del source, max_bytes, max_files
        _write_reward(target)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        del path, max_bytes
        return b"1\n"

    async def changes(self) -> list[Change]:
        return []

    async def kill_processes(self) -> None: ...

    async def set_network(self, policy: NetworkPolicy) -> None: ...

    async def fork(self, **options: Any) -> NullSandbox:
        revert = options.get("revert")
        if revert is not None:
            revert([])
        return NullSandbox(self.spec)

    async def snapshot(self) -> Snapshot:
        return Snapshot("null", "null", None)

    async def stop(self) -> None: ...


class NullBackend(SandboxBackend):
    """Declares everything and does nothing: for measuring, never for tests of what happens in a sandbox."""

    name = "null"
    declared = frozenset(CAPABILITIES)

    async def status(self) -> BackendStatus:
        return BackendStatus(self.name, usable=True, reason=None, capabilities=self.declared)

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> NullSandbox:
        del snapshot
        return NullSandbox(spec)

    async def build(self, context: Path, *, dockerfile: str = "Dockerfile", **options: object) -> Image:
        del options
        return Image(reference=str(context / dockerfile), digest="null")

    async def resolve(self, image: str, *, pull: PullSettings | None = None) -> Image:
        del pull
        return Image(reference=image, digest="null")

    async def discard(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...
