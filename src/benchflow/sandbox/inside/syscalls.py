"""The kernel calls that Python 3.11 has no name for, as plain functions that raise `OSError`.

Used by the helper processes of a sandbox; numbers for x86-64 and AArch64. Importing works everywhere, calling
needs Linux.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import struct
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_BIND: Final = 4096
MS_MOVE: Final = 8192
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
MNT_DETACH: Final = 2

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_NAME: Final = 15
PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_READ: Final = 23
PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
SECBIT_NO_SETUID_FIXUP: Final = 1 << 2
"""Changes of user id leave capabilities alone."""

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE_IN_ROOT: Final = 0x10

AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 1
_AT_RECURSIVE: Final = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_MOVE_MOUNT_T_EMPTY_PATH: Final = 0x40
_MOUNT_ATTR_RDONLY: Final = 0x1
_MOUNT_ATTR_NOSUID: Final = 0x2
_MOUNT_ATTR_NODEV: Final = 0x4
_MOUNT_ATTR_IDMAP: Final = 0x00100000
_CAPABILITY_VERSION_3: Final = 0x20080522
_SIGCHLD: Final = 17
_SET_MODE_FILTER: Final = 1
_NEW_LISTENER: Final = 1 << 3

MACHINE: Final = os.uname().machine

_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "write": 1, "rt_sigaction": 13, "bind": 49, "clone": 56, "execve": 59, "exit": 60, "kill": 62, "chdir": 80,
        "umask": 95, "setsid": 112, "setgroups": 116, "setresuid": 117, "setresgid": 119, "capget": 125, "capset": 126,
        "pivot_root": 155, "prctl": 157, "sched_setaffinity": 203, "openat": 257, "unshare": 272, "prlimit64": 302,
        "seccomp": 317,
    },
    "aarch64": {
        "pivot_root": 41, "chdir": 49, "openat": 56, "write": 64, "capget": 90, "capset": 91, "exit": 93, "unshare": 97,
        "sched_setaffinity": 122, "rt_sigaction": 134, "setresuid": 147, "setresgid": 149, "setsid": 157,
        "setgroups": 159, "umask": 166, "prctl": 167, "kill": 129, "bind": 200, "clone": 220, "execve": 221,
        "prlimit64": 261, "seccomp": 277,
    },
}  # fmt: skip
NUMBER: Final = {
    "open_tree": 428,
    "move_mount": 429,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    **_NUMBERS.get(MACHINE, {}),
}
"""The numbers of this machine's calls."""
SUPPORTED: Final = MACHINE in _NUMBERS
"""Whether this machine's processor has its numbers here."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_libc.unshare.argtypes = (ctypes.c_int,)
_libc.setns.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc_holding_the_lock = ctypes.PyDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(name: str, *arguments: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(NUMBER[name]), *arguments), name)


def _path(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _checked(_libc.setns(fd, kind), "setns")


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    return _checked(_libc.prctl(option, first, second, 0, 0), f"prctl({option})")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    result = _libc.mount(_path(source), _path(target), _path(kind), flags, _path(data) if data else None)
    _checked(result, f"mount {kind or 'bind'} at {target}")


def bind(source: str, target: str) -> None:
    mount(source, target, None, MS_BIND | MS_REC)


def bind_alone(source: str, target: str) -> None:
    """Without the mounts below it."""
    mount(source, target, None, MS_BIND)


def remount_read_only(target: str, extra: int = 0) -> None:
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | extra)


def unmount(target: str) -> None:
    """Detach a mount; it goes away when its last user does."""
    _checked(_libc.umount2(_path(target), MNT_DETACH), f"umount {target}")


def pivot_root_here() -> None:
    """Make the current directory the root and detach the old one."""
    _call("pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")


def clone_process(flags: int) -> int:
    """`os.fork` with new namespaces: 0 in the child, its process id in the parent. The caller has one thread."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _libc_holding_the_lock.syscall(
        ctypes.c_long(NUMBER["clone"]), ctypes.c_ulong(flags | _SIGCHLD), None, None, None, None
    )
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"clone({flags:#x}): {os.strerror(number)}")
    return pid


def open_tree(path: str, *, recursive: bool = False) -> int:
    """A descriptor of a detached copy of the mount at `path`."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _call("open_tree", ctypes.c_int(AT_FDCWD), _path(path), ctypes.c_uint(flags))


def set_mount_attributes(tree: int, *, user_namespace: int | None = None, read_only: bool = False) -> None:
    """Shift the owners of a detached mount through a user namespace, make it read-only."""
    attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV if read_only else 0
    if user_namespace is not None:
        attributes |= _MOUNT_ATTR_IDMAP
    record = struct.pack("QQQQ", attributes, 0, 0, user_namespace or 0)
    _call("mount_setattr", ctypes.c_int(tree), b"", ctypes.c_uint(_AT_EMPTY_PATH), record, len(record))


def attach_tree(tree: int, target: str | int) -> None:
    """Attach a detached mount at a path, or at the file or directory behind a descriptor."""
    if isinstance(target, int):
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        _call("move_mount", ctypes.c_int(tree), b"", ctypes.c_int(target), b"", ctypes.c_uint(flags))
    else:
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        _call("move_mount", ctypes.c_int(tree), b"", ctypes.c_int(AT_FDCWD), _path(target), ctypes.c_uint(flags))


def open_beneath(directory: int, path: str, flags: int, mode: int = 0, resolve: int = RESOLVE_BENEATH) -> int:
    """`openat2`: open with rules for what the path may pass through."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _call("openat2", ctypes.c_int(directory), _path(path), how, len(how))


def close_from(first: int, last: int = 0xFFFFFFFF) -> None:
    """Close every descriptor from `first` upwards, up to and with `last`."""
    try:
        _call("close_range", ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0))
    except OSError:
        os.closerange(first, min(last + 1, 4096))


def close_but(keep: set[int]) -> None:
    """Close every descriptor that is not named."""
    first = 0
    for fd in sorted(keep):
        if fd > first:
            close_from(first, fd - 1)
        first = fd + 1
    close_from(first)


def kill_with(pid: int, number: int, first: int, second: int) -> None:
    """`kill` with two more words, which the kernel ignores and a filter can see."""
    words = (ctypes.c_long(0), ctypes.c_ulong(first), ctypes.c_ulong(second))
    _call("kill", ctypes.c_long(pid), ctypes.c_long(number), *words)


PASS: Final = struct.unpack("<4I", os.urandom(16))
"""What calls of this process carry in arguments that they do not have, so that a filter can tell them from others."""


def bind_socket(opened: socket.socket, address: tuple[str, int] | str | bytes) -> None:
    """`opened.bind(address)` with two more words, which the kernel ignores and a filter can see."""
    family = struct.pack("=H", opened.family)
    if not isinstance(address, tuple):
        name = os.fsencode(address)
        packed = family + name + (b"" if name.startswith(b"\0") else b"\0")
    elif opened.family == socket.AF_INET:
        packed = family + struct.pack(">H4s8x", address[1], socket.inet_pton(socket.AF_INET, address[0]))
    else:
        packed = family + struct.pack(">HI16sI", address[1], 0, socket.inet_pton(socket.AF_INET6, address[0]), 0)
    bind_packed(opened, packed)


def bind_packed(opened: socket.socket, packed: bytes) -> None:
    """The same for an address in the form of the kernel."""
    first, second, third, fourth = PASS
    words = (ctypes.c_long(len(packed)), ctypes.c_ulong(first | second << 32), ctypes.c_ulong(third | fourth << 32))
    _call("bind", ctypes.c_long(opened.fileno()), packed, *words)


def get_descriptor(process: int, number: int) -> int:
    """A copy of a descriptor of another process, which `process` refers to."""
    return _call("pidfd_getfd", ctypes.c_long(process), ctypes.c_long(number), ctypes.c_long(0))


def install_listener(program: bytes) -> int:
    """Install a filter for this process and all it starts; gives the descriptor that announced calls arrive at."""
    code = ctypes.create_string_buffer(program, len(program))
    record = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    return _call("seccomp", ctypes.c_long(_SET_MODE_FILTER), ctypes.c_long(_NEW_LISTENER), record)


def permitted_capabilities() -> int:
    """The capabilities this process may use, as a bit mask."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    record = ctypes.create_string_buffer(24)
    _call("capget", header, record)
    _, low, _, _, high, _ = struct.unpack("6I", record.raw)
    return int(low) | int(high) << 32


@functools.cache
def last_capability() -> int:
    """The highest capability this kernel knows."""
    number = 0
    while True:
        try:
            prctl(_PR_CAPBSET_READ, number + 1)
        except OSError:
            return number
        number += 1


def capability_records(mask: int) -> tuple[bytes, bytes]:
    """What `capset` is given to keep exactly these capabilities, none of them inheritable."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    return struct.pack("Ii", _CAPABILITY_VERSION_3, 0), struct.pack("6I", low, low, 0, high, high, 0)


def set_capabilities(mask: int) -> None:
    """Keep exactly these capabilities."""
    _call("capset", *capability_records(mask))


def rename_process(name: str) -> None:
    """Show this name instead of the command line in process lists."""
    title = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(title))
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, min(len(title), end - start))
