"""Files that are inside a sandbox for one phase only: put there by root, gone without a trace afterwards."""

from __future__ import annotations

from typing import Final

import anyio

from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.sandbox.protocol import Sandbox

_TAKEN: Final = 3
_FREE_AND_LINK: Final = """\
for path in "$1" "$2"; do
  if [ -d "$path" ] && [ ! -L "$path" ]; then rmdir "$path" 2>/dev/null || { echo "$path"; exit 3; }
  elif [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; exit 3
  fi
done
ln -s "$1" "$2"
"""


async def claim_folder(sandbox: Sandbox, folder: str, alias: str) -> None:
    """Make `alias` a link to `folder`, which is about to be filled.

    Empty folders that stand there give way. Anything else is an `EnvironmentFailure`: it would be mixed up with
    what is put there, and removed with it.
    """
    done = await sandbox.exec(["sh", "-c", _FREE_AND_LINK, "sh", folder, alias], user="root", cwd="/")
    if done.exit_code == _TAKEN:
        taken = done.stdout.decode(errors="replace").strip()
        raise EnvironmentFailure(
            f"The environment has something at {taken} already, where the oracle's files belong during its phase.",
            code="path-taken",
        )
    if not done.ok:
        raise SandboxFailure(
            f"{alias} could not be made inside the sandbox: {_reason(done.stderr)}", code="link-failed"
        )


async def remove_inside(sandbox: Sandbox, *paths: str) -> None:
    """Remove files and folders as root, also while the caller is being cancelled.

    A sandbox that is gone has lost them already; files that resist are a `SandboxFailure`.
    """
    with anyio.CancelScope(shield=True):
        try:
            done = await sandbox.exec(["rm", "-rf", "--", *paths], user="root", cwd="/", timeout=60.0)
        except SandboxFailure as error:
            if error.code in ("sandbox-gone", "helper-gone"):
                return
            raise
    if not done.ok:
        raise SandboxFailure(
            f"{', '.join(paths)} could not be removed from the sandbox: {_reason(done.stderr)}", code="removal-failed"
        )


def _reason(stderr: bytes) -> str:
    return stderr.decode(errors="replace").strip()[-300:] or "no reason given."
