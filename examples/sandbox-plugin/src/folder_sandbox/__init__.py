"""A sandbox backend in which every sandbox is a folder of this machine. An example: it isolates nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import anyio

from benchflow.sandbox import BackendStatus, SandboxBackend, SandboxSpec, Snapshot, UsageError
from folder_sandbox.sandbox import FolderSandbox, make_root, within

__all__ = ["FolderBackend", "FolderSandbox"]


class FolderBackend(SandboxBackend):
    """Sandboxes below one temporary folder, which `close` removes."""

    name = "folder"
    declared = frozenset({"network.public", "limits.time", "healthcheck", "mounts", "fork"})

    def __init__(self) -> None:
        self._place: Path | None = None

    @property
    def place(self) -> Path:
        """Where the folders of sandboxes are; `built` is a root as every sandbox begins."""
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="folder-sandbox-"))
            make_root(self._place / "built")
        return self._place

    async def status(self) -> BackendStatus:
        """Found out by running `true` the way every command is run."""
        reason = None
        try:
            command = within(self.place / "built", (), "/", ["true"])
            done = await anyio.run_process(command, check=False)
            if done.returncode != 0:
                said = " ".join(done.stderr.decode(errors="replace").split())
                reason = f"A mount namespace cannot be made: {said or 'no reason given'}."
        except OSError as error:
            reason = f"`unshare` of util-linux cannot be run: {error.strerror}."
        return BackendStatus(self.name, reason is None, reason, self.declared if reason is None else frozenset())

    def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> FolderSandbox:
        if snapshot is not None:
            raise UsageError("The sandbox 'folder' has no snapshots.")
        return FolderSandbox(self, spec, self.place / "built")

    async def close(self) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None
