"""Verification at the rung `open`: in the agent's box itself, whose processes keep running.

Nothing of the agent's is reverted or removed. The verifier's files are removed when it has ended.
"""

from __future__ import annotations

from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import Sandbox
from benchflow.verifier.scope import GROUND, LOGS

_TIMEOUT_SEC: Final = 60.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Programs of the system only: others may be the agent's here."""


async def clear_place(sandbox: Sandbox, places: tuple[str, ...]) -> None:
    """Remove everything at the places of the verifier's files."""
    removed = " ".join((*places, LOGS, GROUND))
    command = f"for p in /logs {LOGS}; do [ ! -L $p ] || rm -f $p; done; rm -rf {removed}"
    result = await sandbox.exec(command, user="root", env={"PATH": _PATH}, cwd="/", timeout=_TIMEOUT_SEC)
    if not result.ok:
        raise SandboxFailure("The place of the verifier's files could not be cleared.", code="cleanup-failed")
