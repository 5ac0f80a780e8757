"""Users of an image, read from the text of its own `passwd` and `group`. Pure."""

from __future__ import annotations

from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.transfer import Owner

AGENT: Final = "agent"
"""The unprivileged user of a sandbox."""
AGENT_ID: Final = 1000
AGENT_HOME: Final = f"/home/{AGENT}"
UNNAMED_AGENT: Final = f"{AGENT_ID}:{AGENT_ID}"
"""That user in an image which does not know the name."""


def default_user(passwd: str) -> str:
    """Who commands run as when neither the package nor the image says."""
    return AGENT if _entry(AGENT, passwd) else UNNAMED_AGENT


def numeric_owner(owner: str, passwd: str, group: str) -> Owner:
    """`NAME`, `UID`, `NAME:GROUP` or `UID:GID` as numbers."""
    user, _, wanted_group = owner.partition(":")
    found = _entry(user, passwd)
    if found is not None:
        uid, gid = found
    elif user.isascii() and user.isdigit():
        uid, gid = int(user), 0
    elif user == AGENT:
        uid, gid = AGENT_ID, AGENT_ID
    else:
        raise SandboxFailure(f"The environment has no user '{user}'.", code="unknown-user")
    if wanted_group:
        gid = _group(wanted_group, group)
    return Owner(uid, gid)


def _entry(user: str, passwd: str) -> tuple[int, int] | None:
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[0] == user and fields[2].isdigit() and fields[3].isdigit():
            return int(fields[2]), int(fields[3])
    return None


def _group(name: str, group: str) -> int:
    for line in group.splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[0] == name and fields[2].isdigit():
            return int(fields[2])
    if name.isascii() and name.isdigit():
        return int(name)
    raise SandboxFailure(f"The environment has no group '{name}'.", code="unknown-user")
