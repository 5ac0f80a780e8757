"""The system-call filter of everything that runs in a sandbox, assembled by hand.

Pure: `build_filter` gives the program as bytes for x86-64 or AArch64. What it refuses: changing mounts,
namespaces, kernel state and clocks, kernel interfaces with a record of escapes, and socket families that no
network namespace isolates.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_LOAD, _AND, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
ALLOW: Final = 0x7FFF0000
ANNOUNCE: Final = 0x7FC00000
"""The call waits until the listener has taken note of it."""
_KILL, _ERRNO = 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

_NEW_NAMESPACE: Final = 0x7E020080
_TERMINAL_INJECTION: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SOCKET_FAMILIES: Final = (1, 2, 10, 16)  # unix, inet, inet6, netlink
_DEVICE_BIT: Final = 0x2000  # set in the modes of character and block devices, and of nothing else mknod makes

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_SHARED: Final = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "ioctl": 16, "socket": 41, "clone": 56, "chown": 92, "fchown": 93, "lchown": 94, "syslog": 103, "setuid": 105,
        "setgid": 106, "setreuid": 113, "setregid": 114, "setgroups": 116, "setresuid": 117, "setresgid": 119,
        "setfsuid": 122, "setfsgid": 123, "capset": 126, "mknod": 133, "uselib": 134, "vhangup": 153, "pivot_root": 155,
        "adjtimex": 159, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
        "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
        "nfsservctl": 180, "sched_setaffinity": 203, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "mknodat": 259, "fchownat": 260,
        "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "kcmp": 312, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, **_SHARED,
    },
    "aarch64": {
        "lookup_dcookie": 18, "ioctl": 29, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41,
        "nfsservctl": 42,
        "fchownat": 54, "fchown": 55, "vhangup": 58, "quotactl": 60, "acct": 89, "capset": 91, "unshare": 97,
        "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
        "sched_setaffinity": 122, "reboot": 142, "setregid": 143, "setgid": 144, "setreuid": 145, "setuid": 146,
        "setresuid": 147, "setresgid": 149, "setfsuid": 151, "setfsgid": 152, "setgroups": 159, "settimeofday": 170,
        "adjtimex": 171, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224,
        "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "kcmp": 272,
        "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294, **_SHARED,
    },
}  # fmt: skip
"""The calls the filter has an opinion on, per processor."""

DENIED: Final = (
    "mount", "umount2", "pivot_root", "setns", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "swapon", "swapoff", "reboot", "init_module", "finit_module", "delete_module",
    "kexec_load", "kexec_file_load", "bpf", "perf_event_open", "userfaultfd", "add_key", "request_key", "keyctl",
    "open_by_handle_at", "name_to_handle_at", "acct", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex",
    "quotactl", "quotactl_fd", "iopl", "ioperm", "lookup_dcookie", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "process_madvise", "vhangup", "syslog", "nfsservctl", "uselib", "migrate_pages", "move_pages",
    "fanotify_init", "kcmp",
)  # fmt: skip
"""Refused with EPERM for everyone."""

_PRETENDED: Final = (
    "chown", "fchown", "lchown", "fchownat", "setgroups", "setgid", "setregid", "setresgid", "setuid", "setreuid",
    "setresuid", "setfsuid", "setfsgid", "capset",
)  # fmt: skip
"""What a root with one user id cannot do, and package managers take for granted: it succeeds without effect."""


class Condition(NamedTuple):
    """One of the values in the low or the high half of an argument, after a mask."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFF_FFFF
    high: bool = False


class Program:
    """Instructions in order; every rule ends in a return, so that the next one sees the call's number again."""

    def __init__(self) -> None:
        self.code = bytearray()

    def emit(self, operation: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self.code += struct.pack("HBBI", operation, if_true, if_false, value)

    def answer(self, number: int, result: int) -> None:
        """This call always ends so."""
        self.emit(_EQUAL, number, 0, 1)
        self.emit(_RETURN, result)

    def answer_if_bits(self, number: int, argument: int, bits: int, result: int) -> None:
        """This call ends so when any of the bits is set in an argument, else it is allowed."""
        self.emit(_EQUAL, number, 0, 4)
        self.emit(_LOAD, _ARGUMENTS_OFFSET + 8 * argument)
        self.emit(_ANY_BIT, bits, 0, 1)
        self.emit(_RETURN, result)
        self.emit(_RETURN, ALLOW)

    def answer_by_value(self, number: int, argument: int, values: Iterable[int], inside: int, outside: int) -> None:
        """This call ends `inside` when an argument is one of the values, else `outside`."""
        wanted = tuple(values)
        self.emit(_EQUAL, number, 0, len(wanted) + 3)
        self.emit(_LOAD, _ARGUMENTS_OFFSET + 8 * argument)
        for index, value in enumerate(wanted):
            self.emit(_EQUAL, value, len(wanted) - index, 0)
        self.emit(_RETURN, outside)
        self.emit(_RETURN, inside)

    def choose(self, number: int, *cases: tuple[Sequence[Condition], int]) -> None:
        """This call ends as the first case says whose conditions all hold, else it is allowed."""
        sizes = [1 + sum(2 + len(condition.values) for condition in conditions) for conditions, _ in cases]
        self.emit(_EQUAL, number, 0, sum(sizes) + 1)
        for (conditions, result), size in zip(cases, sizes, strict=True):
            left = size
            for condition in conditions:
                self.emit(_LOAD, _ARGUMENTS_OFFSET + 8 * condition.argument + 4 * condition.high)
                self.emit(_AND, condition.mask)
                left -= 2 + len(condition.values)
                for rest in range(len(condition.values) - 1, -1, -1):
                    self.emit(_EQUAL, condition.values[-1 - rest], rest, 0 if rest else left)
            self.emit(_RETURN, result)
        self.emit(_RETURN, ALLOW)

    def load_number(self) -> None:
        """What rules compare."""
        self.emit(_LOAD, _NUMBER_OFFSET)

    def answer_rest(self, result: int) -> None:
        """All other calls end so."""
        self.emit(_RETURN, result)


@functools.cache
def build_filter(*, fake_root: bool = False, pin_cpus: bool = False, machine: str | None = None) -> bytes:
    """The program for `load_filter`.

    `fake_root` lets owner changes and identity changes succeed without effect; `pin_cpus` forbids leaving the
    processors that were assigned.
    """
    architecture = machine or os.uname().machine
    numbers = NUMBERS[architecture]
    refuse = _ERRNO | errno.EPERM
    program = Program()
    program.emit(_LOAD, _ARCH_OFFSET)
    program.emit(_EQUAL, AUDIT_ARCH[architecture], 1, 0)
    program.emit(_RETURN, _KILL)
    program.load_number()
    if architecture == "x86_64":  # the x32 calls would bypass every comparison below
        program.emit(_ANY_BIT, 0x40000000, 0, 1)
        program.emit(_RETURN, _ERRNO | errno.ENOSYS)
    for name in DENIED:
        if name in numbers:
            program.answer(numbers[name], refuse)
    program.answer(numbers["clone3"], _ERRNO | errno.ENOSYS)  # its flags are behind a pointer; libc falls back to clone
    for name in ("clone", "unshare"):
        program.answer_if_bits(numbers[name], 0, _NEW_NAMESPACE, refuse)
    program.answer_by_value(numbers["ioctl"], 1, _TERMINAL_INJECTION, refuse, ALLOW)
    program.answer_by_value(numbers["socket"], 0, _SOCKET_FAMILIES, ALLOW, _ERRNO | errno.EAFNOSUPPORT)
    if pin_cpus:
        program.answer(numbers["sched_setaffinity"], refuse)
    if fake_root:
        for name in _PRETENDED:
            if name in numbers:
                program.answer(numbers[name], _ERRNO)
        for name, argument in (("mknod", 1), ("mknodat", 2)):
            if name in numbers:
                program.answer_if_bits(numbers[name], argument, _DEVICE_BIT, _ERRNO)
    program.answer_rest(ALLOW)
    return bytes(program.code)
