"""Jobs on real file systems whose locks do not hold: refused with a sentence, and nothing is left there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow.errors import UsageError
from benchflow.evaluation.shards.merge import merge_jobs
from benchflow.evaluation.store import NO_LOCKS, JobStore
from benchflow.record import Job, JobRecord, JobRequest, WholePlan

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems")]
SFTP_SERVER = "/usr/lib/openssh/sftp-server"
RECORD = JobRecord("job", JobRequest(("tasks",), "oracle"), 0, "now", plan=WholePlan(0, "d", "o"))


@pytest.fixture
def lockless(tmp_path: Path) -> Iterator[Path]:
    """A file system that grants every lock."""
    folder = tmp_path / "lockless"
    folder.mkdir()
    script = Path(__file__).parents[1] / "lockless_mount.py"
    with subprocess.Popen([sys.executable, script, folder], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "mounted\n"
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
            server.wait(60)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Path]:
    """A folder over SFTP, without the connection between: sshfs and the server talk through pipes."""
    folder, shown = tmp_path / "remote", tmp_path / "shown"
    folder.mkdir()
    shown.mkdir()
    from_server, to_client = os.pipe()
    from_client, to_server = os.pipe()
    with (
        subprocess.Popen([SFTP_SERVER], stdin=from_client, stdout=to_client) as server,
        subprocess.Popen(
            ["sshfs", f":{shown}", folder, "-o", "slave", "-f"], stdin=from_server, stdout=to_server
        ) as client,
    ):
        for descriptor in (from_server, to_client, from_client, to_server):
            os.close(descriptor)
        try:
            while not folder.is_mount():
                assert client.poll() is None
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)  # files that were closed are released later
            client.wait(60)
            server.wait(60)


def refused(folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        JobStore.create(folder / "jobs", RECORD)
    assert caught.value.code == NO_LOCKS
    assert list(folder.iterdir()) == [], "something was left"
    return str(caught.value)


def test_a_folder_that_grants_a_lock_twice_is_refused(lockless):
    assert "is on a file system that grants a lock twice" in refused(lockless)
    (lockless / "job").mkdir()
    with pytest.raises(UsageError, match="grants a lock twice"):
        JobStore.create(lockless, RECORD)
    assert (lockless / "job").is_dir(), "what was there before stays"


def test_a_folder_whose_locks_end_at_this_machine_is_refused_although_they_hold_here(remote, tmp_path):
    assert f"keeps locks to one machine (fuse.sshfs at {remote})" in refused(remote)
    JobStore.create(tmp_path / "jobs", RECORD).close()
    job = Job(tmp_path / "jobs" / "job")
    with pytest.raises(UsageError, match="keeps locks to one machine"):
        merge_jobs([job], remote, "merged")
    assert list(remote.iterdir()) == []
    subprocess.run(["cp", "-r", job.folder, remote / "copied"], check=True)
    with pytest.raises(UsageError, match="keeps locks to one machine"):
        JobStore.open(remote, "copied")
    merge_jobs([Job(remote / "copied")], tmp_path / "jobs", "merged")  # reading from there is fine
