"""Users of an image, read from the text of its own `passwd` and `group`. Pure."""

from __future__ import annotations

from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.box.record_transfer import Owner

AGENT: Final = "agent"
"""The unprivileged user of a sandbox."""
AGENT_ID: Final = 1000
_ROOT: Final = ("root", "0")
_LAST_ID: Final = 60_000


def is_root(user: str | None) -> bool:
    """Whether a user as a package or an image names it is root."""
    return user is not None and user.partition(":")[0] in _ROOT


def with_agent(passwd: str, group: str) -> tuple[str, str]:
    """Both texts with root and the unprivileged user in them, who gets the first number that is free."""
    if _entry("root", passwd) is None:
        passwd, group = _lines(passwd) + "root:x:0:0:root:/root:/bin/sh\n", _lines(group) + "root:x:0:\n"
    if _entry(AGENT, passwd) is not None:
        return passwd, group
    taken = {line.split(":")[2] for text in (passwd, group) for line in text.splitlines() if line.count(":") >= 2}
    number = next(candidate for candidate in range(AGENT_ID, _LAST_ID) if str(candidate) not in taken)
    return (
        _lines(passwd) + f"{AGENT}:x:{number}:{number}::/home/{AGENT}:/bin/sh\n",
        _lines(group) + f"{AGENT}:x:{number}:\n",
    )


def home_folder(user: str, passwd: str) -> str | None:
    """Where a user is at home, if the environment says so."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[0] == user and fields[5].startswith("/"):
            return fields[5]
    return None


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


def _lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


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
