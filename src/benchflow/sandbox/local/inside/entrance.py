"""How the supervisor starts commands: as lists of system calls that a small program follows (`entry/entry.c`).

Without control groups the program is started for each command. With them it is started once, joins the groups, which
can take the kernel many milliseconds, and from then on starts the commands as the supervisor's children.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final, Self

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.accounts import IDS, Account
from benchflow.sandbox.local.inside import calls, kill_watch, process_tree
from benchflow.sandbox.local.inside import messages as wire
from benchflow.sandbox.local.inside.calls import Calls, Part, Rule
from benchflow.sandbox.local.inside.confinement import ROOT_CAPABILITIES
from benchflow.sandbox.local.inside.messages import Identity, Plan

_REQUEST: Final = 3
_FIRST_GROUP: Final = 4
_ABOVE: Final = 64
"""Descriptors from here on are out of the way of those that a program begins with."""
_PATIENCE: Final = 10.0
_REST: Final = 0xFFFFFFFF
_REHEARSALS: Final = 10
_RESERVED_SIGNALS: Final = (32, 33)
"""Which the C library ignores in what it spawns, and lets nobody set."""


def confinement(account: Account, plan: Plan, program: bytes, groups: int) -> Part:
    """The calls that close the sandbox behind an account's command: groups to join, limits, identity, capabilities and
    the filter, in this order."""
    part = Calls(calls.reasons()[3])
    part.add("setsid", rule=Rule.GO_ON)
    for number in range(groups):
        part.add("write", _FIRST_GROUP + number, part.place(b"0"), 1)
    if groups:
        part.add("unshare", sc.CLONE_NEWCGROUP)  # so that its own group is the root of what it sees
    part.add("close_range", _REQUEST, _REST)
    part.add("umask", 0o022)
    default = part.place(bytes(32))
    for number in _RESERVED_SIGNALS:
        part.add("rt_sigaction", number, default, 0, 8)
    _limit(part, plan)
    single = plan.identity == "single"
    if single and account.uid != 0:
        _appear_as(part, account)
    keep = ROOT_CAPABILITIES if account.uid == 0 else frozenset()
    for number in range(sc.last_capability() + 1):
        if number not in keep:
            part.add("prctl", sc.PR_CAPBSET_DROP, number)
    if not single:
        if not (0 <= account.uid < IDS and 0 <= account.gid < IDS):
            part.say(f"The user id {account.uid} or group id {account.gid} is outside 0-{IDS - 1}.", calls.NOT_CONFINED)
        others = [gid for gid in account.groups if gid < IDS]
        part.add("setgroups", len(others), part.place(struct.pack(f"<{len(others)}I", *others)))
        part.add("setresgid", account.gid, account.gid, account.gid)
        part.add("setresuid", account.uid, account.uid, account.uid)
    mask = sum(1 << number for number in keep) & sc.permitted_capabilities()
    part.add("capset", *(part.place(record) for record in sc.capability_records(mask)))
    part.add("prctl", sc.PR_SET_NO_NEW_PRIVS, 1)
    record = struct.pack("<H6xq", len(program) // 8, part.place(program))
    part.add("prctl", sc.PR_SET_SECCOMP, 2, part.place(record))
    return part.finish()


def _limit(part: Calls, plan: Plan) -> None:
    if plan.cpus:
        size = ctypes.sizeof(ctypes.c_ulong) * (max(plan.cpus) // 64 + 1)
        mask = sum(1 << cpu for cpu in plan.cpus).to_bytes(size, "little")
        part.add("sched_setaffinity", 0, size, part.place(mask))
    for name, value in plan.rlimits.items():
        number: int = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        part.add("prlimit64", 0, number, part.place(struct.pack("<QQ", ceiling, ceiling)))


def _appear_as(part: Calls, account: Account) -> None:
    """With one user id: a nested user namespace in which that id has the account's number.

    The process must be readable for the moment of writing its maps; it has nothing open but its own streams.
    """
    part.add("prctl", sc.PR_SET_DUMPABLE, 1)
    part.add("unshare", sc.CLONE_NEWUSER)
    for name, value in (("gid_map", account.gid), ("uid_map", account.uid)):
        line = f"{value} 0 1".encode()
        part.add("openat", sc.AT_FDCWD, part.text(f"/proc/self/{name}"), os.O_WRONLY)
        part.add("write", _REQUEST, part.place(line), len(line))
        part.add("close_range", _REQUEST, _REST)


def command(start: int, argv: Sequence[str], environment: Mapping[str, str], folder: str) -> tuple[Part, int]:
    """The calls that become the command, found on its PATH, and the address of its name; they begin at `start`."""
    _check(argv, environment, folder)
    part = Calls(start)
    name = part.text(argv[0])
    if not folder.startswith("/"):
        part.say(f"{folder}: not an absolute path", calls.NOT_EXECUTABLE)
    where = part.text(folder)
    part.add("chdir", where, text=where, code=calls.NOT_EXECUTABLE)
    words = part.pointers([part.text(word) for word in argv])
    variables = part.pointers([part.text(f"{key}={value}") for key, value in environment.items()])
    program = argv[0]
    folders = [""] if "/" in program else [f"{entry or '.'}/" for entry in environment.get("PATH", "").split(":")]
    for path in folders:
        part.add("execve", part.text(path + program), words, variables, rule=Rule.TRY)
    return part.finish(), name


def _check(argv: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
    """What cannot be handed over is an error, never cut short."""
    if any("\0" in text for text in (*argv, *environment, *environment.values(), folder)):
        raise ValueError("Words, variables and folders of a command cannot contain a null character.")
    if any(not key or "=" in key for key in environment):
        raise ValueError("The name of a variable is empty or contains '='.")


def rehearse(program: bytes, identity: Identity) -> None:
    """Go through the work before sandboxes are cloned: what the interpreter learns on the way they need not copy."""
    plan = Plan("", identity, (), (), {"PATH": "/bin"}, {"CORE": 0})
    for _ in range(_REHEARSALS):
        part = confinement(Account(0, 0, (), "root", "/"), plan, program, 1)
        command(calls.reasons()[3] + len(part.data), ["true"], plan.environment, "/")


class Entrance:
    """Starts commands of one sandbox."""

    def __init__(self, program: int, groups: Sequence[int]) -> None:
        """`program` is a descriptor of the entry program, `groups` are those that commands join."""
        self._path = f"/proc/self/fd/{program}"
        self._groups = [_out_of_the_way(fd) for fd in groups]
        self._confined: dict[Account, tuple[Part, Part]] = {}
        self.porter = 0
        """The process that starts commands from inside the groups; 0 when there is none."""
        self._door: socket.socket | None = None
        self._joined = False

    def prepare(self) -> None:
        """Have the groups joined while there is other work to do."""
        if self._groups and not self.porter:
            ours, theirs = wire.channel()
            moves = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _REQUEST)]
            self.porter = self._spawn(["serve", str(len(self._groups))], [*moves, *self._group_moves()])
            theirs.close()
            ours.settimeout(_PATIENCE)
            self._door, self._joined = ours, False

    def start(
        self,
        account: Account,
        plan: Plan,
        program: bytes,
        words: tuple[Sequence[str], Mapping[str, str], str],
        streams: Sequence[int],
    ) -> int:
        """A new child that becomes a command; its words, variables and folder are given. Gives its process id."""
        if account not in self._confined:
            with_groups = confinement(account, plan, program, len(self._groups))
            without = confinement(account, plan, program, 0) if self._groups else with_groups
            self._confined[account] = (with_groups, without)
        joining, inside = self._confined[account]
        if self._groups:
            self.prepare()
            pid = self._ask(inside, words, streams)
            if pid:
                return pid
        with _Listing(joining, words) as listing:
            moves = [(os.POSIX_SPAWN_DUP2, listing.fd, _REQUEST)]
            moves += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams[:3])]
            return self._spawn(["once"], [*moves, *self._group_moves()])

    def _spawn(self, words: list[str], moves: list[tuple[int, int, int]]) -> int:
        return os.posix_spawn(self._path, ["sandbox", *words], {}, file_actions=moves)

    def _group_moves(self) -> list[tuple[int, int, int]]:
        return [(os.POSIX_SPAWN_DUP2, fd, _FIRST_GROUP + number) for number, fd in enumerate(self._groups)]

    def _ask(self, inside: Part, words: tuple[Sequence[str], Mapping[str, str], str], streams: Sequence[int]) -> int:
        """The process id of a command that the porter started; 0 if there is no porter or no process is left."""
        door = self._door
        if door is None:
            return 0
        asked = False
        tag = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _Listing(inside, words) as listing:
                os.kill(self.porter, signal.SIGCONT)  # root inside may have stopped it
                if not self._joined:
                    self._number(door)
                    self._joined = True
                wire.send_descriptors(door, (listing.fd, *streams[:3], tag))
            asked = True
            return max(self._number(door), 0)
        except OSError:  # it was ended by someone inside, whom that must not spare a result
            self._dismiss()
            if asked:  # the command may run already, unknown to us: it starts once more, and only once
                process_tree.kill_tagged(os.fstat(tag).st_ino, {})
            return 0
        finally:
            os.close(tag)

    @staticmethod
    def _number(door: socket.socket) -> int:
        """What the porter says; a system error before its first command is one here."""
        data = door.recv(8)
        if len(data) != 8:
            raise ConnectionResetError("The starter process of commands is gone.")
        number: int = struct.unpack("<q", data)[0]
        return number

    def _dismiss(self) -> None:
        if self.porter:
            kill_watch.kill(self.porter)
        self.gone(self.porter)

    def gone(self, pid: int) -> None:
        """A child has ended; when it was the porter, the next command gets a new one."""
        if pid and pid == self.porter:
            self.porter = 0
            if self._door is not None:
                self._door.close()
            self._door = None


class _Listing:
    """A list of calls in its own file."""

    def __init__(self, first: Part, words: tuple[Sequence[str], Mapping[str, str], str]) -> None:
        second, name = command(calls.reasons()[3] + len(first.data), *words)
        self.fd = os.memfd_create("calls", os.MFD_CLOEXEC)
        view = memoryview(calls.join(first, second, name))
        while view:
            view = view[os.write(self.fd, view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _out_of_the_way(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(fd)
    return moved
