"""The account of the verifier's user, where system changes are kept: programs take its shell and home from there.

An agent may change accounts and add some, for that can be its work. That of the verifier's user, and root's, are as
built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import OF_THE_FILE, Change, Sandbox

ACCOUNTS: Final = "/etc/passwd"
_MAX_BYTES: Final = 16 << 20
_TIMEOUT_SEC: Final = 60.0


def are_changed(changes: Iterable[Change]) -> bool:
    return any(change.path in (ACCOUNTS, "/etc") and change.type != "directory" for change in changes)


def with_own(text: str, built: str, users: Collection[str]) -> str:
    """The accounts of a text, with those of some users as built, first."""
    own = [line for line in built.splitlines() if line.partition(":")[0] in users]
    others = [line for line in text.splitlines() if not _is_of(line, users, own)]
    return "".join(f"{line}\n" for line in (*own, *others))


def _is_of(line: str, users: Collection[str], own: Sequence[str]) -> bool:
    """Whether a line is for one of the users, or for the number of root, by which programs look it up too."""
    name, number = line.partition(":")[0], [*line.split(":"), "", "", ""][2]
    return name in users or (number == "0" and any(item.split(":")[2:3] == ["0"] for item in own))


async def settle(forked: Sandbox, built: str, user: str) -> bool:
    """Restore these accounts in a copy; whether they differed."""
    try:
        text = (await forked.read_file(ACCOUNTS, max_bytes=_MAX_BYTES)).decode("utf-8", "surrogateescape")
    except SandboxFailure as error:
        if error.code not in OF_THE_FILE:
            raise
        text = built
    wanted = with_own(text, built, {"root", user})
    if sorted(wanted.splitlines()) == sorted(text.splitlines()):
        return False
    await forked.exec(["/bin/rm", "-rf", "--", ACCOUNTS], user="root", cwd="/", timeout=_TIMEOUT_SEC)
    await forked.write_file(ACCOUNTS, wanted.encode("utf-8", "surrogateescape"), mode=0o644)
    return True
