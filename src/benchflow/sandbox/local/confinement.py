"""How a child of the supervisor gives up what the supervisor may do, before it runs anything of the environment.

Order matters: control groups and limits first, then identity, then capabilities, then the system-call filter.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Final

from benchflow.sandbox.local import syscalls as sc
from benchflow.sandbox.local.accounts import Account
from benchflow.sandbox.local.plan import IDS, Plan

ROOT_CAPABILITIES: Final = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31})
"""What root inside keeps: files, identities, signals, low ports, chroot; no devices, no raw packets, no mounts."""
TRANSFER_CAPABILITIES: Final = frozenset({0, 1, 3, 4})
"""What copying files in and out needs: owners and permissions."""
_LAST_CAPABILITY: Final = 63


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def load_filter(program: bytes) -> None:
    """Install a system-call filter for this process and all it will start."""
    code = ctypes.create_string_buffer(program, len(program))
    record = _Program(len(program) // 8, ctypes.addressof(code))
    sc.prctl(sc.PR_SET_SECCOMP, 2, ctypes.addressof(record))


def join_groups(groups: Sequence[int]) -> None:
    """Move this process into the control groups behind the descriptors."""
    for fd in groups:
        os.write(fd, b"0")


def limit(plan: Plan) -> None:
    """Processors and per-process limits of the plan."""
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    for name, value in plan.rlimits.items():
        number: int = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (ceiling, ceiling))


def become(account: Account, plan: Plan) -> None:
    """Take on an identity and drop every capability it does not need; there is no way back."""
    keep = ROOT_CAPABILITIES if account.uid == 0 else frozenset()
    if plan.identity == "single":
        if account.uid != 0:
            _appear_as(account)
        _drop_bounding(keep)
    else:
        _drop_bounding(keep)
        if not (0 <= account.uid < IDS and 0 <= account.gid < IDS):
            raise OSError(f"The user id {account.uid} or group id {account.gid} is outside 0-{IDS - 1}.")
        os.setgroups([gid for gid in account.groups if gid < IDS])
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    keep_capabilities(keep)


def keep_capabilities(keep: Iterable[int]) -> None:
    """Exactly these of the capabilities this process has, and no new ones by running programs."""
    sc.set_capabilities(sum(1 << number for number in keep) & sc.permitted_capabilities())
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)


def _drop_bounding(keep: frozenset[int]) -> None:
    for number in range(_LAST_CAPABILITY + 1):
        if number not in keep:
            try:
                sc.prctl(sc.PR_CAPBSET_DROP, number)
            except OSError:  # beyond the last one this kernel knows
                break


def _appear_as(account: Account) -> None:
    """With one user id: a nested user namespace in which that id has the account's number.

    The process must be readable for the moment of writing its maps, so it keeps nothing open but its own streams.
    """
    sc.close_from(3)
    sc.prctl(sc.PR_SET_DUMPABLE, 1)
    sc.unshare(sc.CLONE_NEWUSER)
    for name, value in (("gid_map", account.gid), ("uid_map", account.uid)):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, f"{value} 0 1".encode())
        os.close(fd)
