"""Users of an environment, read from the text of its own `passwd` and `group`: the machine's own accounts are not used.

Name-service libraries would run code of the environment in a privileged process, so they are never called.
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from benchflow.sandbox.inside import beneath

AGENT: Final = "agent"
"""The unprivileged user of a sandbox."""
AGENT_ID: Final = 1000
GIT_SETTINGS: Final = "/etc/gitconfig"
_TRUST: Final = "[safe]\n\tdirectory = *\n"
"""git refuses to work in folders of another user. In a container everything is root's; here the working folder belongs
to the agent, and root, which oracles and set-up scripts run as, has to work in it all the same."""
IDS: Final = 65536
"""How many user ids a sandbox has unless it has only one."""
_FIRST_SYSTEM_ID: Final = 60_000
_LARGEST: Final = 1 << 20


class UnknownUser(LookupError):
    """A name that the environment does not know."""


class Account(NamedTuple):
    """A user with its groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def is_root(user: str | None) -> bool:
    """Whether a user as a package or an image names it is root."""
    return user is not None and user.partition(":")[0] in ("root", "0")


def find_account(user: str, passwd: str, group: str, *, assumed: bool = True) -> Account:
    """`NAME`, `UID`, `NAME:GROUP` or `UID:GID` in the texts of an environment; an `UnknownUser` otherwise.

    `assumed`: root and the unprivileged user are known although the texts do not name them.
    """
    wanted, _, wanted_group = user.partition(":")
    account = _in_passwd(wanted, passwd)
    if account is None and assumed and wanted == AGENT:
        account = Account(AGENT_ID, AGENT_ID, (), AGENT, f"/home/{AGENT}")
    if account is None and assumed and wanted in ("", "root"):
        account = Account(0, 0, (), "root", "/root")
    if account is None:
        if not wanted.isascii() or not wanted.isdigit():
            raise UnknownUser(f"The environment has no user '{wanted}'.")
        account = Account(int(wanted), 0, (), wanted, "/")
    if wanted_group:
        return account._replace(gid=_group_id(wanted_group, group))
    return account._replace(groups=_memberships(account.name, group))


def with_account(name: str, passwd: str, group: str) -> tuple[str, str]:
    """Both texts with this account in them; a new one has the first number from 1000 on that is free."""
    if _in_passwd(name, passwd) is not None:
        return passwd, group
    taken = {fields[2] for fields in _lines(passwd) + _lines(group) if len(fields) > 2}
    free = (number for number in range(AGENT_ID, _FIRST_SYSTEM_ID) if str(number) not in taken)
    number, home = (0, "/root") if name == "root" else (next(free), f"/home/{name}")
    passwd, group = (text if not text or text.endswith("\n") else f"{text}\n" for text in (passwd, group))
    return f"{passwd}{name}:x:{number}:{number}::{home}:/bin/sh\n", f"{group}{name}:x:{number}:\n"


def read_account(user: str) -> Account:
    """`find_account` in the files of the current root."""
    return find_account(user, _text("/etc/passwd"), _text("/etc/group"))


class Accounts:
    """The accounts of the current root, read again only when their files have changed."""

    def __init__(self) -> None:
        self._known: dict[str, Account] = {}
        self._seen: object = None

    def find(self, user: str) -> Account:
        state = [_state(path) for path in ("/etc/passwd", "/etc/group")]
        if state != self._seen:
            self._known.clear()
            self._seen = state
        if user not in self._known:
            self._known[user] = read_account(user)
        return self._known[user]


def _state(path: str) -> tuple[int, int, int, int] | None:
    """What tells two versions of a file apart; the time of change is the kernel's and cannot be forged."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns


def add_account(name: str) -> Account:
    """The account `name` in the files of the current root, which are written anew if it is not in them."""
    before = _text("/etc/passwd"), _text("/etc/group")
    passwd, group = with_account(name, *before)
    if (passwd, group) != before:
        _write_etc({"passwd": passwd, "group": group})
    return find_account(name, passwd, "")


def with_trust(settings: str) -> str:
    """The system's settings of git, with which it works in folders of any user."""
    if _TRUST in settings:
        return settings
    return f"{settings if not settings or settings.endswith(chr(10)) else settings + chr(10)}{_TRUST}"


def trust_owners() -> None:
    """Let git work in folders of any user, in the files of the current root."""
    before = _text(GIT_SETTINGS)
    settings = with_trust(before)
    if settings != before:
        _write_etc({"gitconfig": settings})


def _write_etc(texts: dict[str, str]) -> None:
    """Write files of `/etc` in place of whatever stands there."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    etc = beneath.claim_directory(root, "/etc")
    os.close(root)
    try:
        for name, text in texts.items():
            _replace(etc, name, text)
    finally:
        os.close(etc)


def _lines(text: str) -> list[list[str]]:
    return [line.split(":") for line in text.splitlines()]


def _replace(directory: int, name: str, text: str) -> None:
    """Write a file in place of whatever stands there."""
    beneath.remove_unless(directory, name, beneath.nothing)
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=directory)
    with os.fdopen(fd, "wb") as file:
        file.write(text.encode("utf-8", "surrogateescape"))


def _in_passwd(wanted: str, passwd: str) -> Account | None:
    by_number: Account | None = None
    for fields in _lines(passwd):
        if len(fields) < 4 or not (fields[2].isdigit() and fields[3].isdigit()):
            continue
        home = fields[5] if len(fields) > 5 else ""
        account = Account(int(fields[2]), int(fields[3]), (), fields[0], home or "/")
        if fields[0] == wanted:
            return account
        if fields[2] == wanted and by_number is None:
            by_number = account
    return by_number


def _group_id(wanted: str, group: str) -> int:
    for fields in _lines(group):
        if len(fields) >= 3 and fields[0] == wanted and fields[2].isdigit():
            return int(fields[2])
    if wanted.isascii() and wanted.isdigit():
        return int(wanted)
    raise UnknownUser(f"The environment has no group '{wanted}'.")


def _memberships(name: str, group: str) -> tuple[int, ...]:
    groups = (fields for fields in _lines(group) if len(fields) >= 4 and fields[2].isdigit())
    return tuple(int(fields[2]) for fields in groups if name in fields[3].split(","))


def _text(path: str) -> str:
    """A small regular file, or nothing: the owner of the environment may have put anything there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _LARGEST).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)
