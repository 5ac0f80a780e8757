"""The range of user ids that this machine grants to an ordinary user, for sandboxes and for the layers of images."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchflow.sandbox.inside.accounts import IDS


def grant_range(pid: int) -> None:
    """Map the ids that the machine granted to this user, with the set-uid tools that may do so."""
    for tool, own, name in (("newuidmap", os.getuid(), "/etc/subuid"), ("newgidmap", os.getgid(), "/etc/subgid")):
        start = granted_range(name)
        if start is None:
            raise OSError(f"{name} does not grant this user {IDS} ids")
        done = subprocess.run(
            [tool, str(pid), "0", str(own), "1", "1", str(start), str(IDS - 1)], capture_output=True, check=False
        )
        if done.returncode:
            raise OSError(f"{tool} failed: {done.stderr.decode(errors='replace').strip()}")


def granted_range(path: str) -> int | None:
    """The first id of a range that is large enough, granted to the current user by name or number."""
    import pwd

    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split(":")
        if len(fields) == 3 and fields[0] in (name, str(uid)) and int(fields[2]) >= IDS - 1:
            return int(fields[1])
    return None
