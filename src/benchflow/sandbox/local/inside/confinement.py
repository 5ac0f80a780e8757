"""How a child of the supervisor that moves files gives up what the supervisor may do.

Order matters: control groups and limits first, then capabilities, then the system-call filter. Commands are confined by
the calls of `entrance`.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Final

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.local.inside.messages import Plan

ROOT_CAPABILITIES: Final = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31})
"""What root inside keeps: files, identities, signals, low ports, chroot; no devices, no raw packets, no mounts."""
TRANSFER_CAPABILITIES: Final = frozenset({0, 1, 3, 4})
"""What copying files in and out needs: owners and permissions."""


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


def keep_capabilities(keep: Iterable[int]) -> None:
    """Exactly these of the capabilities this process has, and no new ones by running programs."""
    sc.set_capabilities(sum(1 << number for number in keep) & sc.permitted_capabilities())
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
