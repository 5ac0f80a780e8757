"""The file system of a sandbox, put together by its first process in its own mount namespace.

Overlays, `/proc`, a small `/dev`, files that belong to this sandbox alone, read-only attachments; then the old root is
gone. Mount points are claimed without following anything there (`beneath`).
"""

from __future__ import annotations

import _socket  # the plain kind: every sandbox pays for what it touches
import contextlib
import fcntl
import functools
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from benchflow.sandbox.inside import accounts, beneath
from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.local.inside.messages import SHM_BYTES, Overlay, Plan

HOLD: Final = "/sys"
"""Where the zygote keeps its mounts: a folder that exists everywhere and is never offered to a sandbox."""
STORE: Final = f"{HOLD}/store"
VOLUMES: Final = f"{HOLD}/volumes"
ROOT: Final = f"{HOLD}/root"
SCRATCH: Final = f"{HOLD}/scratch"
_PROC: Final = f"{SCRATCH}/proc"
_DEV: Final = f"{SCRATCH}/dev"

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_PROC_READ_ONLY: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_PROC_HIDDEN: Final = ("kcore", "keys", "timer_list", "sched_debug", "latency_stats")


def volume_of(location: str) -> str:
    """The name of the volume of a location in a plan; empty if it is in none."""
    kind, _, rest = location.partition(":")
    return rest.partition("/")[0] if kind == "volume" else ""


def prepare() -> None:
    """Make what is the same for every sandbox, in this process's own mount namespace."""
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", SCRATCH, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=1m")
    for path in (_PROC, _DEV):
        os.mkdir(path)
    _mount_proc()
    _mount_dev()


def attach_layers(tree: int) -> str:
    """Attach a detached mount that holds layers; returns its path."""
    target = f"{SCRATCH}/layers-{tree}"
    os.mkdir(target)
    sc.attach_tree(tree, target)
    os.close(tree)
    return target


def _locate(location: str, roots: Mapping[str, str]) -> str:
    """A location of a plan as a path of this mount namespace."""
    kind, colon, rest = location.partition(":")
    if colon and kind == "store":
        return f"{STORE}/{rest}"
    if volume := volume_of(location):
        return roots[f"volume:{volume}"] + rest.removeprefix(volume)
    return roots.get(location, location)


def build_root(plan: Plan, roots: Mapping[str, str], trees: Sequence[int]) -> int:
    """Make the sandbox's root the root of this process. Gives the descriptor its `/etc/resolv.conf` is written through.

    `roots` says where volumes and folders of the machine are attached; `trees` are the detached mounts of the plan's
    attachments, in order. Called after `prepare`.
    """
    os.chdir(SCRATCH)
    for number, overlay in enumerate(plan.overlays):
        _mount_overlay(overlay, roots, f"{number}-")
    root = os.open(ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if plan.shm_bytes != SHM_BYTES:
        options = f"mode=1777,size={plan.shm_bytes}"
        sc.mount(None, f"{_DEV}/shm", None, sc.MS_REMOUNT | sc.MS_NOSUID | sc.MS_NODEV, options)
    for made, place in ((_PROC, "/proc"), (_DEV, "/dev")):
        sc.mount(made, _claimed(root, place), None, sc.MS_MOVE)
    os.close(beneath.claim_directory(root, "/sys", replace_all=True))
    resolver = _mount_own_files(root, plan)
    for tree, attachment in zip(trees, plan.attachments, strict=True):
        if attachment.directory:
            target = beneath.claim_directory(root, attachment.target, replace_all=True)
        else:
            target = beneath.claim_file(root, attachment.target)
        sc.attach_tree(tree, target)
        os.close(target)
        os.close(tree)
    os.close(root)
    os.chdir(ROOT)
    sc.pivot_root_here()
    return resolver


def _mount_overlay(overlay: Overlay, roots: Mapping[str, str], prefix: str) -> None:
    """Short names in the current folder for the layers: an option string is limited to 4,096 bytes and shown inside."""
    for name, location in (("u", overlay.upper), ("w", overlay.work)):
        os.symlink(_locate(location, roots), prefix + name)
    for index, location in enumerate(overlay.lowers):
        os.symlink(_locate(location, roots), f"{prefix}{index}")
    lowers = ":".join(f"{prefix}{index}" for index in range(len(overlay.lowers)))
    # Without an index, a layer that its sandbox has lent can be a lower one while it is still mounted there.
    options = f"lowerdir={lowers},upperdir={prefix}u,workdir={prefix}w,userxattr,volatile,index=off"
    target = ROOT
    if overlay.target != "/":
        root = os.open(ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        target = _claimed(root, overlay.target)
        os.close(root)
    sc.mount("overlay", target, "overlay", sc.MS_NODEV, options)


def _claimed(root: int, path: str) -> str:
    """A path for `mount` to the claimed directory itself; its descriptor is closed with this process."""
    return f"/proc/self/fd/{beneath.claim_directory(root, path, replace_all=True)}"


@functools.cache
def in_proc(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names that this kernel has; asked before sandboxes are cloned, so that each is spared the search."""
    return tuple(name for name in names if os.path.exists(f"/proc/{name}"))


def prime() -> None:
    """Find out beforehand what is the same for every sandbox."""
    in_proc(_PROC_READ_ONLY)
    in_proc(_PROC_HIDDEN)


def _mount_proc() -> None:
    sc.mount("proc", _PROC, "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    for name in in_proc(_PROC_READ_ONLY):
        sc.bind(f"{_PROC}/{name}", f"{_PROC}/{name}")
        sc.remount_read_only(f"{_PROC}/{name}", sc.MS_NOEXEC)
    for name in in_proc(_PROC_HIDDEN):
        sc.bind("/dev/null", f"{_PROC}/{name}")


def _mount_dev() -> None:
    sc.mount("tmpfs", _DEV, "tmpfs", sc.MS_NOSUID | sc.MS_NOEXEC, "mode=755,size=64k")
    for name in _DEVICES:
        os.close(os.open(f"{_DEV}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        sc.bind(f"/dev/{name}", f"{_DEV}/{name}")
    os.mkdir(f"{_DEV}/pts")
    os.mkdir(f"{_DEV}/shm")
    sc.mount("devpts", f"{_DEV}/pts", "devpts", sc.MS_NOSUID | sc.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    sc.mount("tmpfs", f"{_DEV}/shm", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"mode=1777,size={SHM_BYTES}")
    for name, leads_to in _DEVICE_LINKS.items():
        os.symlink(leads_to, f"{_DEV}/{name}")


def _mount_own_files(root: int, plan: Plan) -> int:
    """`hosts`, `hostname` and `resolv.conf` are this sandbox's, regardless of the environment."""
    hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    hosts += f"127.0.1.1\t{plan.hostname}\n" + "".join(f"127.0.0.1\t{name}\n" for name in plan.names)
    contents = {
        "hostname": f"{plan.hostname}\n",
        "hosts": hosts,
        "resolv.conf": "",
    }
    writers: dict[str, int] = {}
    for name, content in contents.items():
        writers[name] = os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        os.write(writers[name], content.encode())
        target = beneath.claim_file(root, f"/etc/{name}")
        sc.bind(f"{SCRATCH}/{name}", f"/proc/self/fd/{target}")
        os.close(target)
    for name in ("hostname", "hosts"):
        os.close(writers[name])
    return writers["resolv.conf"]


def make_workdir(plan: Plan) -> None:
    """The working folder exists and the sandbox's user may write there. Called inside, so links stay inside.

    Anything else at its place stays: commands then report that there is no such folder.
    """
    if os.path.isdir(plan.workdir):
        return
    try:
        os.makedirs(plan.workdir, 0o755)
    except (FileExistsError, NotADirectoryError):
        return
    if plan.identity != "single":
        account = accounts.read_account(plan.user)
        os.chown(plan.workdir, account.uid, account.gid)


def open_network() -> None:
    """Bring up the only interface of a fresh network namespace. Anybody may listen on any port, as in Docker, also root
    of another sandbox that shares the namespace and does not own it."""
    with contextlib.suppress(OSError):  # a kernel without the setting, which is only a convenience
        setting = os.open("/proc/sys/net/ipv4/ip_unprivileged_port_start", os.O_WRONLY | os.O_CLOEXEC)
        os.write(setting, b"0")
        os.close(setting)
    anything = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(anything.fileno(), _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))
    anything.close()
