"""Distinguishes processes killed from inside their sandbox from those killed from outside.

The kernel does not say who sent SIGKILL. But a process inside needs a system call for it, and all of them carry a
filter that announces such calls to the supervisor, which notes the target and lets them continue. A command that ended
by SIGKILL without such a call, and that the supervisor did not end itself, was killed from outside, or by the memory
limit of its sandbox, which the driver can see.

What is announced: signals that are sent, and everything that makes the kernel send one later (the end of a parent or a
child, timers, files, processor time, tracing). A signal number that lies in memory, where it could be changed after a
look at it, counts as SIGKILL. What was noted holds until no process is left: a call may take effect long after it was
announced. In doubt the kill came from inside, so an agent gains nothing by killing itself.

The same filter announces that a process binds an address: where a service of another sandbox is forwarded to that port,
the forwarding gives way, so that what a verifier serves itself stands before what an agent serves. The supervisor then
binds the socket for the process, so that nobody takes the address in between; the driver listens again once it is free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable
from typing import Final

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.local.inside.seccomp import ALLOW, ANNOUNCE, Condition, Program

_KILL: Final = int(signal.SIGKILL)
_PTRACE_KILL: Final = 8
_PTRACE_OPTIONS: Final = (0x4200, 0x4206)  # PTRACE_SETOPTIONS, PTRACE_SEIZE: may ask for the end of the traced
_CPU_TIME: Final = (0, 15)  # RLIMIT_CPU, RLIMIT_RTTIME
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE: Final = struct.Struct("<QIIiIQ6Q")
_ANSWER: Final = struct.Struct("<QqiI")
_CONTINUE: Final = 1
_INTERNET: Final = (16, 28)
"""The sizes of addresses of the internet."""
_FAMILIES: Final = tuple(struct.pack("=H", family) for family in (socket.AF_INET, socket.AF_INET6))
_GIVE_WAY_SEC: Final = 2.0
_PAUSE_SEC: Final = 0.005

NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "bind": 49, "clone": 56, "kill": 62, "fcntl": 72, "ptrace": 101, "rt_sigqueueinfo": 129, "prctl": 157,
        "setrlimit": 160, "tkill": 200, "timer_create": 222, "tgkill": 234, "mq_notify": 244, "rt_tgsigqueueinfo": 297,
        "prlimit64": 302,
    },
    "aarch64": {
        "fcntl": 25, "timer_create": 107, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131,
        "rt_sigqueueinfo": 138, "setrlimit": 164, "prctl": 167, "mq_notify": 184, "bind": 200, "clone": 220,
        "rt_tgsigqueueinfo": 240, "prlimit64": 261,
    },
}  # fmt: skip
_PIDFD_SEND_SIGNAL: Final = 424
_SENDERS: Final = (("tkill", 1), ("tgkill", 2), ("rt_sigqueueinfo", 1), ("rt_tgsigqueueinfo", 2))
"""Calls that send a signal, and which argument says which."""
_SENDING: Final = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""Calls whose first argument is whom they end: a process, or a thread, which stands for its own."""
_OWN: Final = ("prctl", "timer_create", "mq_notify", "clone", "setrlimit", "prlimit64")
"""Calls that can end only the caller's own process, now or later."""


def watch_program() -> bytes:
    """The filter of this machine; none before Linux 5.16, where a crash could end a process that shared memory with the
    crashed one, without any call."""
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    return build_watch() if (major, minor) >= (5, 16) else b""


def build_watch(machine: str | None = None) -> bytes:
    """The filter program that announces calls by which a process can end by SIGKILL."""
    numbers = NUMBERS[machine or os.uname().machine]
    kills = (_KILL,)
    program = Program()
    program.load_number()
    own = tuple(Condition(3 + word // 2, (value,), high=bool(word % 2)) for word, value in enumerate(sc.PASS))
    program.choose(numbers["kill"], (own, ALLOW), ((Condition(1, kills),), ANNOUNCE))
    for name, argument in _SENDERS:
        program.choose(numbers[name], ((Condition(argument, kills),), ANNOUNCE))
    program.choose(_PIDFD_SEND_SIGNAL, ((Condition(1, kills),), ANNOUNCE))
    program.choose(numbers["clone"], ((Condition(0, kills, mask=0xFF),), ANNOUNCE))  # the parent's signal at its end
    program.choose(numbers["prctl"], ((Condition(0, (sc.PR_SET_PDEATHSIG,)), Condition(1, kills)), ANNOUNCE))
    program.choose(numbers["fcntl"], ((Condition(1, (fcntl.F_SETSIG,)), Condition(2, kills)), ANNOUNCE))
    requests = Condition(0, (_PTRACE_KILL, *_PTRACE_OPTIONS))
    program.choose(numbers["ptrace"], ((requests,), ANNOUNCE), ((Condition(3, kills),), ANNOUNCE))
    program.choose(numbers["setrlimit"], ((Condition(0, _CPU_TIME),), ANNOUNCE))
    program.choose(numbers["prlimit64"], (_is_null(2), ALLOW), ((Condition(1, _CPU_TIME),), ANNOUNCE))
    for name, argument in (
        ("timer_create", 1),
        ("mq_notify", 1),
    ):  # the signal's number lies behind a pointer, or is fixed
        program.choose(numbers[name], (_is_null(argument), ALLOW), ((), ANNOUNCE))
    program.choose(numbers["bind"], (own, ALLOW), ((Condition(2, _INTERNET),), ANNOUNCE))
    program.answer_rest(ALLOW)
    return bytes(program.code)


def _is_null(argument: int) -> tuple[Condition, Condition]:
    return Condition(argument, (0,)), Condition(argument, (0,), high=True)


def kill(pid: int) -> None:
    """SIGKILL by the supervisor itself."""
    first, second, third, fourth = sc.PASS
    sc.kill_with(pid, _KILL, first | second << 32, third | fourth << 32)


class KillWatch:
    """What is known of kills in one sandbox."""

    def __init__(self, listener: int) -> None:
        self.listener = listener
        """Readable when a call waits to be let through."""
        self._targets: set[int] = set()
        """Processes that a process inside, or the supervisor, may have killed."""
        self._any = False
        """Whether that may be any process."""
        self._forwarded: dict[int, list[socket.socket]] = {}
        """By port, sockets that stand for services of another sandbox."""
        self._holders: dict[int, set[str]] = {}
        """By such a port, the sockets of processes inside that have bound it, as descriptors name them."""

    @classmethod
    def install(cls, program: bytes) -> KillWatch | None:
        """Watch everything this process starts from now on; None without a program, or where the kernel refuses."""
        try:
            return cls(sc.install_listener(program)) if program else None
        except OSError:
            return None

    def suspects(self, pid: int) -> bool:
        """Whether this process may have been killed from inside, or by the supervisor."""
        return self._any or pid in self._targets

    def forget(self) -> None:
        """No process is left that could still kill one."""
        self._targets.clear()
        self._any = False

    def expect(self, pid: int | None) -> None:
        """A process may be killed from now on; None for any of them."""
        if pid is None:
            self._any = True
        else:
            self._targets.add(pid)

    def forward(self, opened: Iterable[socket.socket]) -> None:
        """Let these listening sockets give way to processes inside that bind their ports themselves."""
        for item in opened:
            if item.family in (socket.AF_INET, socket.AF_INET6) and item.type == socket.SOCK_STREAM:
                self._forwarded.setdefault(item.getsockname()[1], []).append(item.dup())

    def holds(self, port: int) -> bool:
        """Whether a process inside still has a socket that it bound to this port, whether it listens or not.

        Binding alone would not tell: an address is shared until one of its sockets listens, and the next would fail.
        """
        holders = self._holders.get(port)
        if not holders:
            return False
        holders.intersection_update(_open_files())
        return bool(holders)

    def _give_way(self, port: int) -> None:
        """Stop the sockets at a port, and wait until the driver has closed them too, but not for ever."""
        deadline = time.monotonic() + _GIVE_WAY_SEC
        sockets, self._forwarded[port] = self._forwarded[port], []
        for item in sockets:
            with item:
                family, address = item.family, item.getsockname()[:2]
                with contextlib.suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)
            while not _is_free(family, address) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SEC)

    def serve(self) -> None:
        """Note the waiting call and let it continue."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notice)
        except OSError:  # the caller has ended meanwhile
            return
        number, caller, _, call, _, _, *arguments = _NOTICE.unpack(notice)
        answer = _ANSWER.pack(number, 0, 0, _CONTINUE)
        if call == NUMBERS[sc.MACHINE]["bind"]:
            result = self._bind(caller, arguments)
            answer = answer if result is None else _ANSWER.pack(number, 0, -result, 0)
        else:
            self.expect(_target(call, arguments, caller))
        try:
            fcntl.ioctl(self.listener, _SEND, answer)
        except OSError:
            return

    def _bind(self, caller: int, arguments: list[int]) -> int | None:
        """Bind an address that is forwarded, for the caller; the error or 0, or None for the call to continue."""
        address = _address(caller, arguments[1], arguments[2])
        port = int.from_bytes(address[2:4], "big")
        if port not in self._forwarded:
            return None
        try:
            opened = _socket_of(caller, arguments[0] & 0xFFFF_FFFF)
        except OSError:
            return None
        with opened:
            if opened.type != socket.SOCK_STREAM or opened.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            self._give_way(port)
            try:
                sc.bind_packed(opened, address)
            except OSError as error:
                return error.errno or errno.EINVAL
            self._holders.setdefault(port, set()).add(f"socket:[{os.fstat(opened.fileno()).st_ino}]")
        return 0


def _address(caller: int, place: int, size: int) -> bytes:
    """The address of the internet that a process binds; empty for what is none, or cannot be read."""
    try:
        fd = os.open(f"/proc/{caller}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.pread(fd, size, place)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)
    return data if len(data) == size and data[:2] in _FAMILIES else b""


def _socket_of(caller: int, number: int) -> socket.socket:
    """A socket that another process has open."""
    process = os.pidfd_open(process_of(caller) or caller)
    try:
        return socket.socket(fileno=sc.get_descriptor(process, number))
    finally:
        os.close(process)


def _open_files() -> set[str]:
    """What processes have open, sockets among it, as their descriptors name it."""
    found: set[str] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            numbers = os.listdir(f"/proc/{name}/fd")
        except OSError:  # it has ended meanwhile
            continue
        for number in numbers:
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(f"/proc/{name}/fd/{number}"))
    return found


def _is_free(family: socket.AddressFamily, address: tuple[str, int]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            sc.bind_socket(probe, address)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _target(call: int, arguments: list[int], caller: int) -> int | None:
    """The one process that a call can end; None for what reaches any: groups, descriptors, files, tracing."""
    names = {number: name for name, number in NUMBERS[sc.MACHINE].items()}
    name = names.get(call, "")
    first = arguments[0] & 0xFFFF_FFFF
    if name in _SENDING:
        return process_of(first)
    if name in _OWN and not (name == "prlimit64" and first):  # what is set for others they hand down
        return process_of(caller)
    return None


def process_of(thread: int) -> int | None:
    """The process that a thread belongs to."""
    try:
        fd = os.open(f"/proc/{thread}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = os.read(fd, 4096).partition(b"\nTgid:\t")[2].split()
        return int(fields[0]) if fields else None
    except OSError:
        return None
    finally:
        os.close(fd)
