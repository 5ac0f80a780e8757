"""Opens sockets in the namespaces of another process and passes them back.

Run as a module in a process of its own, because a process with threads must not enter a namespace. The one argument is
a JSON object: the `socket` to answer on, `pid`, whose network is entered, and either the message of an `EgressPlan`,
which is opened at once, or `files`, whose mounts are entered too. Then requests are served until the socket is closed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final

from benchflow.sandbox.inside import offers
from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.egress_gateway import EgressPlan, open_gateway

REQUEST_BYTES: Final = 1 << 18


def main(request: str) -> int:
    """Enter, open, pass the sockets back."""
    wanted = json.loads(request)
    channel = socket.socket(fileno=wanted["socket"])
    _enter(wanted["pid"], "net", sc.CLONE_NEWNET)
    if "files" not in wanted:
        _answer(channel, {}, open_gateway(EgressPlan.from_message(wanted)))
        return 0
    serve = _Serving(wanted["files"])
    _answer(channel, {})
    while data := channel.recv(REQUEST_BYTES):
        serve(channel, json.loads(data))
    return 0


class _Serving:
    """Serves requests inside. The machine's own `/proc` stays at hand: this process has none in there."""

    def __init__(self, files: int) -> None:
        own = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        tables = os.open("/proc/self/net", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        _enter(files, "mnt", sc.CLONE_NEWNS)
        os.fchdir(own)
        self._tables, self._processes = f"./{tables}", f"./{processes}"
        sys.path, sys.meta_path, sys.path_hooks = [], [], []  # nothing is imported from the files in there

    def __call__(self, channel: socket.socket, request: dict[str, Any]) -> None:
        if request["op"] == "offers":
            found, unusable = offers.read_offers(self._tables, self._processes)
            _answer(channel, {"offers": found, "unusable": unusable})
        elif request["op"] == "dial":
            try:
                opened = offers.connect(offers.Offer.from_message(request["offer"]), ".")
            except OSError as error:
                _answer(channel, {"refused": error.errno})
            else:
                _answer(channel, {}, [opened])
        else:
            sockets, reasons = offers.listen_all(request["offers"], request["closed"], ".")
            _answer(channel, {"reasons": reasons}, sockets)


def _enter(pid: int, name: str, kind: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    sc.setns(fd, kind)
    os.close(fd)


def _answer(channel: socket.socket, message: dict[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
    try:
        socket.send_fds(channel, [json.dumps(message).encode()], [opened.fileno() for opened in sockets])
    finally:
        for opened in sockets:
            opened.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
