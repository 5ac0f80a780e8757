"""Opens sockets in the network namespace of another process and passes them back.

Run as a module in a process of its own, because a process with threads must not enter a namespace. The one argument is
a JSON object: `pid`, the `socket` to answer on, and either the `port` to connect to or the message of an `EgressPlan`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Final

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.egress_gateway import EgressPlan, open_gateway

REFUSED: Final = 111
"""The exit code when nothing listens on the port."""
_DIAL_SEC: Final = 10.0


def main(request: str) -> int:
    """Enter, open, pass the sockets back."""
    wanted = json.loads(request)
    sc.setns(os.open(f"/proc/{wanted['pid']}/ns/net", os.O_RDONLY | os.O_CLOEXEC), sc.CLONE_NEWNET)
    if "port" in wanted:
        try:
            sockets = [socket.create_connection(("127.0.0.1", wanted["port"]), timeout=_DIAL_SEC)]
        except OSError:
            return REFUSED
        sockets[0].settimeout(None)
    else:
        sockets = open_gateway(EgressPlan.from_message(wanted))
    with socket.socket(fileno=wanted["socket"]) as channel:
        socket.send_fds(channel, [b"sockets"], [opened.fileno() for opened in sockets])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
