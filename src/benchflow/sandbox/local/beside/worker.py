"""Does the file work of a driver in a separate process beside the zygote, with the same mounts and user ids.

What sandboxes are cloned from stays small that way. Work on small trees takes less time than forking a child for it;
everything else gets a child process, so that it blocks nothing.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import stat
from typing import TYPE_CHECKING, Final, NoReturn

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.local.inside import children, messages
from benchflow.sandbox.local.inside.supervisor import answer

if TYPE_CHECKING:
    from benchflow.sandbox.local.beside.file_tasks import Task
    from benchflow.sandbox.local.beside.zygote import Zygote

_SMALL: Final = 300
_BLOCKS: Final = 128
"""How many of 512 bytes take as long to read as an entry takes to look at."""


def run(zygote: Zygote, requests: socket.socket) -> NoReturn:
    """Serve until the driver or the zygote is gone. Deep trees are read with one descriptor per level and layer."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setpgid(0, 0)
    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(zygote.driver, select.POLLIN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if zygote.driver in dict(poll.poll()):
            os._exit(0)
        message, fds = messages.receive(requests)
        if message is None:
            os._exit(0)
        with socket.socket(fileno=fds[0]) as reply:
            _serve(message, zygote, reply)


def _serve(message: messages.Message, zygote: Zygote, reply: socket.socket) -> None:
    from benchflow.sandbox.local.beside import file_tasks as tasks

    trees = tasks.trees_of(message, zygote)
    if trees is not None and sum(map(_weight, trees)) <= _SMALL:
        try:
            answer(reply, tasks.TASKS[message["op"]](message, zygote))
        except OSError as error:
            answer(reply, children.failure(error))
    elif os.fork() == 0:
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        children.run(reply, lambda: _work(tasks.TASKS[message["op"]], message, zygote, reply))


def _work(task: Task, message: messages.Message, zygote: Zygote, reply: socket.socket) -> int:
    messages.send(reply, task(message, zygote))
    return 0


def _weight(path: str) -> int:
    """How much work a tree or a file is, as far as it matters."""
    try:
        info = os.lstat(path)
    except OSError:
        return 0
    weight = 1 + info.st_blocks // _BLOCKS
    waiting = [path] if stat.S_ISDIR(info.st_mode) else []
    while waiting and weight <= _SMALL:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    weight += 1 + entry.stat(follow_symlinks=False).st_blocks // _BLOCKS
        except OSError:
            continue
    return weight
