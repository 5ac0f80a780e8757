"""The work of the supervisor's children other than commands: move a tree through a stream, prepare accounts.

Each first joins the sandbox's limits and gives up its privileges; its errors go to the driver.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from benchflow.sandbox.inside import accounts, beneath, tree_stream
from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.local.inside import confinement, messages
from benchflow.sandbox.local.inside.messages import Plan
from benchflow.sandbox.local.inside.namespaces import NamespacesRefused

_BUFFER: Final = 1 << 20
_FAILED: Final = 125


def run(reply: socket.socket, work: Callable[[], int]) -> NoReturn:
    """End this process with the result of `work`; its error is reported through `reply`."""
    try:
        os._exit(work())
    except BaseException as error:  # noqa: BLE001 - nothing may return into the supervisor's loop
        with contextlib.suppress(BaseException):
            messages.send(reply, failure(error))
    finally:
        os._exit(_FAILED)


def failure(error: BaseException) -> messages.Message:
    """An error as a message."""
    if isinstance(error, NamespacesRefused):
        return {"error": f"The kernel refuses the namespaces of a sandbox: {error.strerror}.", "kind": "no-namespaces"}
    if isinstance(error, OSError):
        return {"error": tree_stream.describe(error), "errno": error.errno, "kind": tree_stream.kind_of(error)}
    kind = (
        "refused"
        if isinstance(error, tree_stream.Refused)
        else "user"
        if isinstance(error, accounts.UnknownUser)
        else ""
    )
    return {"error": str(error) or type(error).__name__, "kind": kind}


def _confine_transfer(plan: Plan, program: bytes, groups: Sequence[int]) -> None:
    os.setsid()
    confinement.join_groups(groups)
    confinement.limit(plan)
    confinement.keep_capabilities(confinement.TRANSFER_CAPABILITIES)
    confinement.load_filter(program)


def receive_tree(plan: Plan, program: bytes, groups: Sequence[int], message: messages.Message, fd: int) -> int:
    """`unpack_tree` without privileges."""
    owner_of(message["owner"], plan)
    _confine_transfer(plan, program, groups)
    unpack_tree(plan, message, fd)
    return 0


def unpack_tree(plan: Plan, message: messages.Message, fd: int) -> None:
    """Unpack a stream into a folder, which is made if it is missing; closes the stream."""
    opened: list[int] = []
    with os.fdopen(fd, "rb", buffering=_BUFFER) as source:
        try:
            owner = owner_of(message["owner"], plan)
            opened.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            opened.append(beneath.claim_directory(opened[0], message["path"]))
            opened.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=opened[1]))
            intake = tree_stream.Intake(1 << 62, 1 << 62, owner if owner != (0, 0) else None, any_links=True)
            tree_stream.unpack(opened[2], source, intake)
        finally:
            for descriptor in opened:
                os.close(descriptor)


def send_tree(plan: Plan, program: bytes, groups: Sequence[int], message: messages.Message, fd: int) -> int:
    """Pack a folder into a stream."""
    _confine_transfer(plan, program, groups)
    directory = open_plain(message["path"], os.O_RDONLY | os.O_DIRECTORY)
    with os.fdopen(fd, "wb", buffering=_BUFFER) as output:
        tree_stream.pack(directory, output)
    return 0


def prepare(plan: Plan, program: bytes, groups: Sequence[int], message: messages.Message) -> int:
    """Add the user to the accounts if it is missing; give it its home and what root owns in the working folder."""
    _confine_transfer(plan, program, groups)
    user = message["user"]
    account = accounts.read_account(user) if user != accounts.AGENT else accounts.add_account(user)
    for path in (message["workdir"], *((account.home,) if user == accounts.AGENT else ())):
        os.makedirs(path, 0o755, exist_ok=True)
        if plan.identity != "single" and path != "/":
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _give(folder, account)
            os.close(folder)
    accounts.trust_owners()
    return 0


def _give(folder: int, account: accounts.Account) -> None:
    """Make the account the owner of a folder and of all below it that is root's; links are not followed."""
    for directory, _, names, fd in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        del directory
        for name in (".", *names):
            if os.lstat(name, dir_fd=fd).st_uid == 0:
                os.chown(name, account.uid, account.gid, dir_fd=fd, follow_symlinks=False)


def owner_of(user: str | None, plan: Plan) -> tuple[int, int]:
    """The numbers that files for this user get; with one user id there is only that one."""
    if user is None or plan.identity == "single":
        return (0, 0)
    account = accounts.read_account(user)
    return (account.uid, account.gid)


def open_plain(path: str, flags: int) -> int:
    """Open a path on which no name is a link."""
    beneath.parts_of(path)
    try:
        resolve = sc.RESOLVE_NO_SYMLINKS | sc.RESOLVE_NO_MAGICLINKS
        careful = os.O_NOFOLLOW | (0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY)
        return sc.open_beneath(sc.AT_FDCWD, path, flags | careful, 0, resolve)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise tree_stream.Refused(f"'{path}' is, or goes through, a link, which is not followed.") from None
        raise OSError(error.errno, f"'{path}': {os.strerror(error.errno or 0)}") from None
