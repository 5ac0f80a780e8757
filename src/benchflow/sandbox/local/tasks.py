"""File work that needs the zygote's mounts and user ids, done in a child of it.

A task gets its message and answers through the reply socket; trees of sandboxes are read and removed by descriptor, never
through a link that stands in them.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchflow.sandbox.local import hostprofile, wire

Locate = Callable[[str], str]
Task = Callable[[wire.Message, Locate], wire.Message]


def run(message: wire.Message, locate: Locate, reply: socket.socket) -> int:
    """Do what the message asks and answer."""
    wire.send(reply, TASKS[message["op"]](message, locate))
    return 0


def remove(message: wire.Message, locate: Locate) -> wire.Message:
    """Remove trees; those that are gone already are fine."""
    for location in message["locations"]:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(locate(location))
    return {}


def compose_host(message: wire.Message, locate: Locate) -> wire.Message:
    """Write the host profile's layer, whole or not at all."""
    target = Path(locate(message["target"]))
    unfinished = Path(locate(message["unfinished"]))
    hostprofile.compose(unfinished, owners=message["owners"])
    try:
        unfinished.rename(target)
    except OSError:  # another driver was faster
        shutil.rmtree(unfinished)
    return {}


TASKS: Final[Mapping[str, Task]] = {"remove": remove, "compose-host": compose_host}
