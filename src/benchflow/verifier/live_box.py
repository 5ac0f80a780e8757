"""Verification at the rung `open`: in the agent's box itself, whose processes keep running.

Nothing can be reverted under running processes: files that the agent planted to act on programs are removed, its
changes stay, and both are recorded. The verifier's files are removed when it has ended.
"""

from __future__ import annotations

import shlex
from typing import Final

from benchflow.errors import Issue, SandboxFailure
from benchflow.sandbox.protocol import ExecResult, Sandbox
from benchflow.verifier.scope import GROUND, LOGS, TESTS, VERIFIER
from benchflow.verifier.survival import Rules, Withheld, withhold

_TIMEOUT_SEC: Final = 60.0
_AT_ONCE: Final = 500
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def clear_place(sandbox: Sandbox) -> None:
    """Remove everything at the place of the verifier's files."""
    command = f"for p in /logs {LOGS}; do [ ! -L $p ] || rm -f $p; done; rm -rf {VERIFIER} {TESTS} {LOGS} {GROUND}"
    result = await _as_root(sandbox, command)
    if not result.ok:
        raise SandboxFailure("The place of the verifier's files could not be cleared.", code="cleanup-failed")


async def remove_hooks(sandbox: Sandbox, rules: Rules) -> tuple[list[Withheld], list[Issue]]:
    """Remove files that the agent planted to act on the verifier; a note about changes that stay."""
    found = [item for item in withhold(await sandbox.changes(), rules) if item.reason != "scope"]
    planted = [item for item in found if item.kind == "added"]
    kept = [item.path for item in found if item.kind != "added"]
    for start in range(0, len(planted), _AT_ONCE):
        paths = [item.path for item in planted[start : start + _AT_ONCE]]
        if not (await _as_root(sandbox, f"rm -rf -- {shlex.join(paths)}")).ok:
            kept += paths
    if not kept:
        return planted, []
    message = f"Changed by the agent and not reverted, because its processes are still running: {', '.join(kept[:20])}"
    return planted, [Issue("changes-kept", "warning", "verifier.isolation", message)]


async def _as_root(sandbox: Sandbox, command: str) -> ExecResult:
    """Run one of our own commands, with system programs only: others may be the agent's here."""
    return await sandbox.exec(command, user="root", env={"PATH": _PATH}, cwd="/", timeout=_TIMEOUT_SEC)
