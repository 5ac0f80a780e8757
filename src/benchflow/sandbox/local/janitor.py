"""Removes what sandboxes leave behind, in a process of its own beside the zygote, with its mounts and user ids.

Small trees are gone before a child could be forked for them; a large one gets a child, so that nobody waits for it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Final, NoReturn

from benchflow.sandbox.local import children, tasks, wire
from benchflow.sandbox.local import syscalls as sc
from benchflow.sandbox.local.supervisor import answer

if TYPE_CHECKING:
    from benchflow.sandbox.local.zygote import Zygote

_SMALL: Final = 300


def run(zygote: Zygote, requests: socket.socket) -> NoReturn:
    """Serve until the driver or the zygote is gone."""
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
    if sum(_entries(zygote.plain(location)) for location in message["locations"]) > _SMALL:
        if os.fork() == 0:
            children.run(reply, lambda: _remove(message, zygote, reply))
    else:
        try:
            _remove(message, zygote, reply)
        except OSError as error:
            answer(reply, children.failure(error))


def _remove(message: wire.Message, zygote: Zygote, reply: socket.socket) -> int:
    answer(reply, tasks.remove(message, zygote))
    return 0


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
