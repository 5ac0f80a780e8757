"""Opens sockets inside a container's network namespace and brings them here: the way out, and ways in.

A short-lived helper process enters the namespace, which a process with threads must not do, opens the sockets there
and passes them back. Run as a module it is that helper.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.machine.ownership import ANCHOR
from benchflow.sandbox.host_process import run_process
from benchflow.sandbox.inside.egress_gateway import open_gateway
from benchflow.sandbox.network.egress_plan import plan_egress
from benchflow.sandbox.protocol import NetworkPolicy

_NEW_NETWORK: Final = 0x40000000
_MOST_SOCKETS: Final = 64
_HELPER_SEC: Final = 30.0
_DIAL_SEC: Final = 10.0
_REFUSED: Final = 111


async def open_gateway_of(pid: int, policy: NetworkPolicy) -> list[socket.socket]:
    """The listening sockets of `plan_egress(policy)`, in its order, in the namespace of the anchor `pid`."""
    return await _opened_inside(pid, {"mode": policy.mode, "hosts": policy.hosts})


async def dial_into(pid: int, port: int) -> socket.socket:
    """A socket connected to a port in the namespace of the anchor `pid`."""
    (connected,) = await _opened_inside(pid, {"port": port})
    return connected


async def _opened_inside(pid: int, wanted: dict[str, Any]) -> list[socket.socket]:
    if not _is_anchor(pid):
        raise SandboxFailure("The container's first process is not on this machine.", code="network-failed")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        request = json.dumps({**wanted, "pid": pid, "socket": there.fileno()})
        done = await run_process(
            [sys.executable, "-P", "-m", __name__, request], timeout=_HELPER_SEC, pass_fds=(there.fileno(),)
        )
        if done.exit_code == _REFUSED:
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


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def main(request: str) -> int:
    """The helper: enter, open, pass the sockets back."""
    wanted = json.loads(request)
    namespace = os.open(f"/proc/{wanted['pid']}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _enter(namespace)
    if "port" in wanted:
        try:
            sockets = [socket.create_connection(("127.0.0.1", wanted["port"]), timeout=_DIAL_SEC)]
        except OSError:
            return _REFUSED
        sockets[0].settimeout(None)
    else:
        plan = plan_egress(NetworkPolicy(wanted["mode"], tuple(wanted["hosts"])))
        sockets = open_gateway(plan, unshare_network=_unshare, enter_network=_enter)
    descriptors = array.array("i", [opened.fileno() for opened in sockets])
    with socket.socket(fileno=wanted["socket"]) as channel:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if sockets else []
        channel.sendmsg([b"sockets"], passed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
