"""Does the file work of a driver in a process of its own beside the zygote, with the same mounts and user ids.

What sandboxes are cloned from stays small that way. Removing a small tree takes less time than forking a child for it;
everything else gets a child, so that nobody waits for it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Final, NoReturn

from benchflow.sandbox.local import children, wire
from benchflow.sandbox.local import syscalls as sc
from benchflow.sandbox.local.supervisor import answer

if TYPE_CHECKING:
    from benchflow.sandbox.local.zygote import Zygote

_SMALL: Final = 300


def run(zygote: Zygote, requests: socket.socket) -> NoReturn:
    """Serve until the driver or the zygote is gone."""
    os.setpgid(0, 0)
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(zygote.driver, select.POLLIN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if zygote.driver in dict(poll.poll()):
            os._exit(0)
        message, fds = wire.receive(requests)
        if message is None:
            os._exit(0)
        with socket.socket(fileno=fds[0]) as reply:
            _serve(message, zygote, reply)


def _serve(message: wire.Message, zygote: Zygote, reply: socket.socket) -> None:
    from benchflow.sandbox.local import tasks  # not needed by sandboxes, which are cloned from the zygote

    at_once = message["op"] in tasks.AT_ONCE
    if message["op"] == "remove":
        at_once = sum(_entries(zygote.plain(item)) for item in message["locations"]) <= _SMALL
    if at_once:
        try:
            answer(reply, tasks.TASKS[message["op"]](message, zygote))
        except OSError as error:
            answer(reply, children.failure(error))
    elif os.fork() == 0:
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        children.run(reply, lambda: tasks.run(message, zygote, reply))


def _entries(path: str) -> int:
    """How much there is to remove, as far as it matters."""
    count = 0
    waiting = [path]
    while waiting and count <= _SMALL:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
    return count
