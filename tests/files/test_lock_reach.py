"""Locks that can be relied on: tried on this machine, and read from mounts where a trial cannot show it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from benchflow.files.lock_reach import Mount, lock_reach, mount_of, reach_of

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
41 22 0:40 / /data rw,relatime shared:1 - nfs4 server:/x rw,vers=4.2,hard,local_lock=none
42 22 0:41 / /data/old rw,relatime - nfs server:/y rw,vers=3,nolock,local_lock=all
43 22 0:42 / /two\\040words rw - fuse.sshfs me@host:/ rw,user_id=0
44 22 0:43 / /twice rw - tmpfs tmpfs rw
45 44 0:44 / /twice rw - virtiofs share rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "reach"),
    [
        ("/home/me/jobs/.lock", "ext4", "everywhere"),
        ("/data/jobs", "nfs4", "everywhere"),
        ("/database", "ext4", "everywhere"),
        ("/data/old/jobs", "nfs", "machine"),
        ("/two words/jobs", "fuse.sshfs", "machine"),
        ("/twice", "virtiofs", "unknown"),
    ],
)
def test_the_mount_of_a_path_is_the_innermost_and_the_last(path, kind, reach):
    mount = mount_of(Path(path), MOUNTS)
    assert mount is not None
    assert (mount.kind, reach_of(mount)) == (kind, reach)


@pytest.mark.parametrize(
    ("kind", "options", "point", "reach"),
    [
        ("nfs4", "local_lock=flock", "/x", "machine"),
        ("nfs", "local_lock=posix", "/x", "everywhere"),
        ("cifs", "nobrl", "/x", "machine"),
        ("lustre", "flock", "/x", "everywhere"),
        ("lustre", "localflock", "/x", "machine"),
        ("fuse.glusterfs", "rw", "/x", "everywhere"),
        ("fuse.rclone", "rw", "/x", "machine"),
        ("fuse.mergerfs", "rw", "/x", "unknown"),
        ("fuse", "rw", "/x", "unknown"),
        ("fuse.fuse-overlayfs", "rw", "/", "everywhere"),
        ("9p", "rw", "/x", "unknown"),
        ("9p", "rw", "/", "everywhere"),
    ],
)
def test_what_mounts_say_of_locks(kind, options, point, reach):
    assert reach_of(Mount(point, kind, frozenset(options.split(",")))) == reach


@pytest.mark.parametrize("source", ["me@host:/data", "host:", "//host/share", "remote:bucket"])
def test_a_program_of_any_name_that_mounts_another_machine_keeps_locks_here(source):
    assert reach_of(Mount("/x", "fuse.of-my-own", frozenset(), source)) == "machine"


def test_a_held_lock_reaches_everywhere_on_a_local_disk_and_one_that_is_not_held_is_noticed(tmp_path):
    path = tmp_path / ".lock"
    with path.open("ab") as stream:
        assert lock_reach(path)[0] == "none"
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert lock_reach(path) == ("everywhere", None)
