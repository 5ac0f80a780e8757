"""Files that are in a sandbox for one phase only: written by root, removed completely afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import Sandbox


async def remove_inside(sandbox: Sandbox, *paths: str) -> None:
    """Remove files and folders as root, also while the caller is being cancelled.

    In a sandbox that is gone there is nothing to remove; files that cannot be removed are a `SandboxFailure`.
    """
    await run_as_root(sandbox, ["rm", "-rf", "--", *paths], ", ".join(paths))


async def run_as_root(sandbox: Sandbox, command: Sequence[str], what: str) -> None:
    """Run a command that removes something, as `remove_inside` does."""
    with anyio.CancelScope(shield=True):
        try:
            done = await sandbox.exec(command, user="root", cwd="/", timeout=60.0)
        except SandboxFailure as error:
            if error.code in ("sandbox-gone", "helper-gone"):
                return
            raise
    if not done.ok:
        reason = done.stderr.decode(errors="replace").strip()[-300:] or "no reason given."
        raise SandboxFailure(f"{what} could not be removed from the sandbox: {reason}", code="removal-failed")
