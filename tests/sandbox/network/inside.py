"""Stands for a sandbox's supervisor: enters new namespaces, hands out the gateway's sockets, runs commands.

`inside.py FD PRIVILEGE MODE HOST...` speaks JSON over the stream socket FD. PRIVILEGE `user` drops root for
an ordinary user first and uses a user namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile

from benchflow.sandbox.inside import netlink
from benchflow.sandbox.inside.egress_gateway import EgressPlan, open_gateway
from benchflow.sandbox.network.egress_plan import plan_egress
from benchflow.sandbox.protocol import NetworkPolicy

NEWNS, NEWUSER, NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_BIND, MS_PRIVATE_RECURSIVE = 0x1000, 0x4000 | 0x40000
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter(privilege: str) -> None:
    if privilege == "root":
        check(libc.unshare(NEWNET | NEWNS))
    else:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            check(libc.prctl(4, 1, 0, 0, 0))  # PR_SET_DUMPABLE: else its own maps belong to root
        uid, gid = os.getuid(), os.getgid()
        check(libc.unshare(NEWUSER | NEWNET | NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - like a shell would
                file.write(text)
    check(libc.mount(b"none", b"/", None, MS_PRIVATE_RECURSIVE, None))
    netlink.send(netlink.link_up(socket.if_nametoindex("lo")))


def bind_over(target: str, content: str) -> None:
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)  # noqa: PTH101 - what every program may read
    check(libc.mount(file.name.encode(), target.encode(), None, MS_BIND, None))
    os.unlink(file.name)  # noqa: PTH108 - the mount keeps it


def hand_out(control: socket.socket, plan: EgressPlan) -> None:
    sockets = open_gateway(plan)
    socket.send_fds(control, [b"{}\n"], [sock.fileno() for sock in sockets])
    for sock in sockets:
        sock.close()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    plan = plan_egress(NetworkPolicy(sys.argv[3], tuple(sys.argv[4:])))
    enter(sys.argv[2])
    if plan.resolv_conf:
        bind_over("/etc/resolv.conf", plan.resolv_conf)
    hand_out(control, plan)
    base = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    for line in control.makefile("r"):
        order = json.loads(line)
        if "policy" in order:
            mode, hosts = order["policy"]
            hand_out(control, plan_egress(NetworkPolicy(mode, tuple(hosts))))
            continue
        env = base | (dict(plan.environment or {}) if order["proxy"] else {})
        done = subprocess.run(order["argv"], env=env, capture_output=True, text=True, timeout=30, check=False)
        control.sendall(json.dumps([done.returncode, done.stdout, done.stderr]).encode() + b"\n")


main()
