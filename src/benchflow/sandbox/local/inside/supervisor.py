"""The first process of a sandbox: it waits for requests of the driver and does them inside.

It was forked from the driver's interpreter, so the environment needs no Python. It never looks up names,
never imports and never runs code of the environment: children do, after they have given up their privileges.
When the driver is gone it ends, and with it, as process 1, everything in the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.accounts import Accounts
from benchflow.sandbox.local.inside import children, kill_watch, messages, process_tree, requests
from benchflow.sandbox.local.inside.entrance import Entrance
from benchflow.sandbox.local.inside.kill_watch import KillWatch
from benchflow.sandbox.local.inside.messages import Plan
from benchflow.sandbox.local.inside.seccomp import build_filter

_WATCH_MILLISECONDS: Final = 200
_IMPORTS: Final = (sys.path, sys.meta_path, sys.path_hooks)
"""Held so that they are not taken apart in every sandbox: what a process writes to it no longer shares."""


class Supervisor:
    """One sandbox from the inside."""

    def __init__(
        self,
        plan: Plan,
        control: socket.socket,
        entrance: Entrance,
        groups: tuple[int, ...],
        driver: int,
        resolver: int,
        watch: KillWatch | None = None,
    ) -> None:
        self.plan = plan
        self.control = control
        self.entrance = entrance
        self.groups = groups
        """Descriptors of the control groups that children join; this process stays outside, so no limit can end it."""
        self.driver = driver
        """Readable when the driver's process has ended."""
        self.resolver = resolver
        self.watch = watch
        """Knows what was killed from inside; None where the kernel does not help."""
        fake_root = plan.identity == "single"
        self.filters = (
            build_filter(fake_root=fake_root, pin_cpus=plan.pin_cpus),
            build_filter(pin_cpus=plan.pin_cpus),
        )
        """For root, and for everybody else."""
        self.accounts = Accounts()
        self.running: dict[int, socket.socket] = {}
        """Children, and where their end is reported."""
        self.tags: dict[int, int] = {}
        """Children that are commands, and the tags they carry."""
        self.passing: set[int] = set()
        """Children that touch no file and are gone in a moment."""

    def run(self) -> NoReturn:
        """Serve until the driver is gone. The zygote's handlers of signals are inherited."""
        seal()
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self.control.fileno(), readable, self.driver, *((self.watch.listener,) if self.watch else ())):
            poll.register(fd, select.POLLIN)
        while True:
            watch = _WATCH_MILLISECONDS if self.plan.memory_watch and self.running else None
            events = dict(poll.poll(watch))
            if self.driver in events:
                os._exit(0)
            if self.watch is not None and self.watch.listener in events:
                self.watch.serve()
            if readable in events:
                with contextlib.suppress(BlockingIOError):
                    os.read(readable, 4096)
                self.reap()
            if self.control.fileno() in events:
                self._serve()
            if watch is not None:
                self._hold_memory()

    def _serve(self) -> None:
        message, fds = messages.receive(self.control)
        if message is None:
            os._exit(0)
        reply = socket.socket(fileno=fds[0])
        try:
            if not requests.OPERATIONS[message["op"]](self, message, reply, fds[1:]):
                reply.close()
        except (OSError, LookupError, ValueError) as error:
            answer(reply, children.failure(error))
            reply.close()
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _hold_memory(self) -> None:
        pid = process_tree.too_large(self.plan.memory_watch)
        if pid is not None:
            self.expect_end(pid)
            with contextlib.suppress(ProcessLookupError):
                kill_watch.kill(pid)

    def expect_end(self, pid: int | None) -> None:
        """A process, or all of them, will be killed: not from outside."""
        if self.watch is not None:
            self.watch.expect(pid)

    def reap(self, *, until_none: bool = False) -> None:
        """Reap ended processes, including orphans; wait for the last one if requested."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0 if until_none else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.entrance.gone(pid)
            command = self.tags.pop(pid, None) is not None
            self.passing.discard(pid)
            reply = self.running.pop(pid, None)
            if reply is not None:
                code = os.waitstatus_to_exitcode(status)
                unasked = command and code == -signal.SIGKILL and not (self.watch is None or self.watch.suspects(pid))
                answer(reply, {"exit": code, "cpu": usage.ru_utime + usage.ru_stime, "unasked": unasked})
                reply.close()

    def fork(self, reply: socket.socket, work: Callable[[], int], *, passing: bool = False) -> bool:
        """Run `work` in a child; its error and its end are reported through `reply`, which is kept until then."""
        pid = os.fork()
        if pid == 0:
            children.run(reply, work)
        if passing:
            self.passing.add(pid)
        return self.adopt(pid, reply)

    def adopt(self, pid: int, reply: socket.socket, tag: int | None = None) -> bool:
        """Tell the end of a child through `reply`, which is kept until then."""
        self.running[pid] = reply
        if tag is not None:
            self.tags[pid] = tag
        return True


def answer(reply: socket.socket, message: messages.Message, fds: tuple[int, ...] = ()) -> None:
    """Send, unless the caller has closed the connection."""
    with contextlib.suppress(OSError):
        messages.send(reply, message, fds)


def seal() -> None:
    """From here on nothing can be imported: the files in the sandbox are not trusted."""
    sc.prctl(sc.PR_SET_DUMPABLE, 0)
    sys.path, sys.meta_path, sys.path_hooks = [], [], []
