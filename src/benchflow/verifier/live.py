"""Verification in the agent's box itself, where the solution is a running process or services must go on.

Nothing can be reverted under running processes: what the agent planted to act on programs is removed, what it changed
stays, and both are recorded. The verifier's files are gone again when it has ended.
"""

from __future__ import annotations

import shlex
from typing import Final

from benchflow.errors import Issue
from benchflow.sandbox.protocol import Sandbox
from benchflow.verifier.staging import LOGS, TESTS, VERIFIER
from benchflow.verifier.survival import Rules, Withheld, withhold

_TIMEOUT_SEC: Final = 60.0
_AT_ONCE: Final = 500
_ROOT: Final = ("root", "0")


async def end_agent(sandbox: Sandbox, user: str) -> Issue | None:
    """End the agent's processes and leave those of the services; a note when the two cannot be told apart."""
    if user.partition(":")[0] in _ROOT:
        message = "The agent runs as root, as the services do, so its processes could not be told from theirs."
        return Issue("processes-kept", "warning", "agent.user", message)
    for _ in range(2):
        await sandbox.exec("kill -KILL -1", user=user, cwd="/", timeout=_TIMEOUT_SEC)
    return None


async def clear_place(sandbox: Sandbox) -> None:
    """Remove whatever stands where the verifier's files go."""
    command = f"for p in /logs {LOGS}; do [ ! -L $p ] || rm -f $p; done; rm -rf {VERIFIER} {TESTS} {LOGS}"
    await sandbox.exec(command, user="root", cwd="/", timeout=_TIMEOUT_SEC)


async def remove_hooks(sandbox: Sandbox, rules: Rules) -> tuple[list[Withheld], list[Issue]]:
    """Remove what the agent planted to act on the verifier; a note about what it changed and cannot be put back."""
    found = [item for item in withhold(await sandbox.changes(), rules) if item.reason != "scope"]
    planted = [item for item in found if item.kind == "added"]
    for start in range(0, len(planted), _AT_ONCE):
        paths = shlex.join(item.path for item in planted[start : start + _AT_ONCE])
        await sandbox.exec(f"rm -rf -- {paths}", user="root", cwd="/", timeout=_TIMEOUT_SEC)
    kept = [item.path for item in found if item.kind != "added"]
    if not kept:
        return planted, []
    message = f"Changed by the agent and not put back, because its processes live on: {', '.join(kept[:20])}"
    return planted, [Issue("changes-kept", "warning", "verifier.hardening.keep_processes", message)]
