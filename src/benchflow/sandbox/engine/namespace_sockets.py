"""Opens sockets inside a container's network namespace and brings them here: the way out, and ways in.

A short-lived helper process (`inside.namespace_entry`) enters the namespace and passes the sockets back.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.machine.ownership import ANCHOR
from benchflow.sandbox.host_process import run_process
from benchflow.sandbox.inside import namespace_entry
from benchflow.sandbox.inside.egress_gateway import EgressPlan

_MOST_SOCKETS: Final = 64
_HELPER_SEC: Final = 30.0


async def open_gateway_of(pid: int, plan: EgressPlan) -> list[socket.socket]:
    """The listening sockets of a plan, in its order, in the namespace of the anchor `pid`."""
    return await _opened_inside(pid, plan.message())


async def dial_into(pid: int, port: int) -> socket.socket:
    """A socket connected to a port in the namespace of the anchor `pid`."""
    (connected,) = await _opened_inside(pid, {"port": port})
    return connected


async def _opened_inside(pid: int, wanted: Mapping[str, Any]) -> list[socket.socket]:
    if not _is_anchor(pid):
        raise SandboxFailure("The container's first process is not on this machine.", code="network-failed")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        request = json.dumps({**wanted, "pid": pid, "socket": there.fileno()})
        helper = [sys.executable, "-P", "-m", namespace_entry.__name__, request]
        done = await run_process(helper, timeout=_HELPER_SEC, pass_fds=(there.fileno(),))
        if done.exit_code == namespace_entry.REFUSED:
            raise ConnectionRefusedError(f"No process listens on port {wanted.get('port')} of the sandbox.")
        if done.exit_code != 0:
            words = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise SandboxFailure(f"The sandbox's network could not be entered: {words[-1]}", code="network-failed")
        _, descriptors, _, _ = socket.recv_fds(here, 16, _MOST_SOCKETS)
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def _is_anchor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(ANCHOR.encode() + b"\0hold")
    except OSError:
        return False
