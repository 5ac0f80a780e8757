"""Whether the locks of a folder can be relied on: measured on this machine, and known from the mount for others.

A lock that is held is tried by a second open file, which must be refused. That shows nothing of other machines: some
network file systems keep locks to the machine that took them, so for these their mount options or their kind decide.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Reach = Literal["everywhere", "machine", "unknown", "none"]
_NFS, _FUSE, _9P, _LUSTRE = 0x6969, 0x65735546, 0x01021997, 0x0BD00BD0
_SMB: Final = (0x517B, 0xFF534D42, 0xFE534D42)
_LOOKED_UP: Final = frozenset({_NFS, _FUSE, _9P, _LUSTRE, *_SMB})
"""Kinds of file systems, by the number that `statfs` gives, whose mounts are looked at. All others are local, or their
locks hold on all machines, as with Ceph or GFS2."""
_LOCAL_ONLY: Final = {
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "nfs4": frozenset({"local_lock=all", "local_lock=flock"}),
    "cifs": frozenset({"nobrl"}),
    "smb3": frozenset({"nobrl"}),
    "lustre": frozenset({"localflock"}),
}
"""Options with which a file system keeps locks to one machine."""
_REMOTE_FUSE: Final = frozenset(
    {
        *("sshfs", "curlftpfs", "davfs", "davfs2", "afpfs", "smbnetfs", "gvfsd-fuse", "rclone", "hdfs"),
        *("s3fs", "gcsfuse", "goofys", "geesefs", "mount-s3", "mountpoint-s3", "blobfuse", "blobfuse2"),
    }
)
"""Programs that show files of another machine and do not pass on locks, so that the kernel keeps them here."""
_CLUSTERED_FUSE: Final = frozenset({"glusterfs", "ceph-fuse"})
"""Programs that pass on locks to the machines that share their files."""
_OF_THE_HOST: Final = frozenset({"9p", "virtiofs"})
"""Folders of the machine that this virtual one runs on. Whether it sees locks cannot be found out from here."""
_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EIO})


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, its kind, and its options."""

    point: str
    kind: str
    options: frozenset[str]
    source: str = ""
    """What is mounted: a device, or `HOST:/PATH`."""


def supports_no_locks(error: OSError) -> bool:
    """Whether a lock failed because the file system has none."""
    return error.errno in _UNSUPPORTED


def lock_reach(path: Path) -> tuple[Reach, Mount | None]:
    """How far the lock on `path` reaches, which this process holds through another open file; and its mount, if known.

    Raises `OSError` when the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return "none", None
    finally:
        os.close(descriptor)
    if sys.platform != "linux" or _kind_number(path) not in _LOOKED_UP:
        return "everywhere", None
    mount = mount_of(path, Path("/proc/self/mountinfo").read_text())
    return ("everywhere", None) if mount is None else (reach_of(mount), mount)


def reach_of(mount: Mount) -> Reach:
    """What a mount says of its locks."""
    unknown: Reach = "everywhere" if mount.point == "/" else "unknown"
    """The root of a machine is its own."""
    if mount.kind in _OF_THE_HOST:
        return unknown
    if mount.kind == "fuse" or mount.kind.startswith("fuse."):
        program = mount.kind.removeprefix("fuse.")
        remote = program in _REMOTE_FUSE or ":" in mount.source or mount.source.startswith("//")
        return "everywhere" if program in _CLUSTERED_FUSE else "machine" if remote else unknown
    return "machine" if _LOCAL_ONLY.get(mount.kind, frozenset()) & mount.options else "everywhere"


def mount_of(path: Path, mounts: str) -> Mount | None:
    """The mount of a path in a text like `/proc/self/mountinfo`; of several at one place the last is seen."""
    real = os.path.realpath(path)
    found: Mount | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        words, of_kind = before.split(" "), after.split(" ")
        point = _unescaped(words[4])
        inside = point == "/" or real == point or real.startswith(f"{point}/")
        if inside and (found is None or len(point) >= len(found.point)):
            found = Mount(point, of_kind[0], frozenset(f"{words[5]},{of_kind[2]}".split(",")), _unescaped(of_kind[1]))
    return found


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _kind_number(path: Path) -> int | None:
    """The kind of the file system as `statfs` numbers it; None where that cannot be asked."""
    status = ctypes.create_string_buffer(256)
    try:
        if ctypes.CDLL(None).statfs(os.fsencode(path), status) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF
