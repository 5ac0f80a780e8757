"""A job while it is written: `job.json`, an append-only `results.jsonl`, `summary.json`, and a folder per rollout.

One process writes a job at a time (a lock that ends with the process). A result is a whole line or none: a torn last
line, as left by a kill, is removed when the job is opened again. Nothing that was written whole is ever changed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.files.lock_reach import lock_reach, supports_no_locks
from benchflow.record import Job, JobPlaces, JobRecord, Result, Summary, write_document
from benchflow.record.job import result_line, safe_job_name

DEFAULT_JOBS_DIR: Final = "jobs"
NO_LOCKS: Final = "locks-do-not-hold"
"""The code of a refusal of a folder whose locks cannot be relied on."""


class JobStore(Job):
    """The folder of one job. `create` and `open` hold its lock until `close`."""

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        super().__init__(folder)
        self._lock: IO[bytes] | None = lock
        self._log: IO[bytes] | None = None

    @classmethod
    def create(cls, jobs_dir: Path, job: JobRecord) -> Self:
        """A new job; refused if one of that name exists.

        A folder without `job.json` and without a lock, as left by a kill, is not a job and is
        taken.
        """
        folder = jobs_dir / safe_job_name(job.name)
        _require_free(folder)
        made = [path for path in (folder, jobs_dir) if not path.exists()]
        try:
            JobPlaces(folder).rollouts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureFailure(
                f"Cannot create {folder}: {error.strerror}.", code="store-unwritable"
            ) from error
        store = cls(folder, _locked_new(folder, made))
        try:
            _require_free(folder)  # another process may have been faster until now
        except UsageError:
            store.close()
            raise
        try:
            write_document(store.places.job, job.to_dict(), sync=True)
        except OSError as error:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise InfrastructureFailure(
                f"Cannot create {folder}: {error.strerror}.", code="store-unwritable"
            ) from error
        return store

    @property
    def caution(self) -> str | None:
        """What a user has to know about the lock of the job, where it may not hold everywhere."""
        reach, mount = lock_reach(self.places.lock)
        if reach != "unknown" or mount is None:
            return None
        where = f"{self.folder} is on a file system that other machines may share ({mount.kind} at {mount.point})"
        return f"{where} without seeing its lock: run the job on only one of them."

    @staticmethod
    def require_new(jobs_dir: Path, name: str) -> None:
        """Refuse a name that a new job cannot have."""
        _require_free(jobs_dir / safe_job_name(name))

    @classmethod
    def open(cls, jobs_dir: Path, name: str) -> Self:
        """An existing job, to continue it; refused while another process does, and when an older version wrote it."""
        found = Job.find(jobs_dir, name)
        if found.record.upgraded:
            message = (
                f"Job '{found.folder.name}' was written by version 0.1, which hashed its inputs differently: it can "
                "only be shown. Run it again under another name."
            )
            raise UsageError(message, code="job-outdated")
        store = cls(found.folder, _locked(found.folder))
        _repair(store.places.results)
        return store

    def append(self, result: Result, rollout: str) -> None:
        """Add a result; it is on disk when this returns."""
        if self._lock is None:
            raise RuntimeError("A job that was closed cannot be written.")
        results = self.results
        try:
            if self._log is None:
                self._log = self.places.results.open("ab", buffering=0)
            _append_whole(self._log, result_line(rollout, result))
        except OSError as error:
            raise self._unwritable(error) from error
        results.add(rollout, result)

    def _unwritable(self, error: OSError) -> InfrastructureFailure:
        code = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "store-unwritable"
        message = f"Cannot write {self.folder}: {error.strerror}. Fix this, then run: bench eval resume"
        return InfrastructureFailure(f"{message} {job_argument(self.folder)}", code=code)

    def write_plan(self, record: JobRecord) -> None:
        """Replace the record of the job, if it differs."""
        if record == self.record:
            return
        try:
            write_document(self.places.job, record.to_dict(), sync=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._record = record

    def write_summary(self, summary: Summary) -> None:
        try:
            summary.write(self.places.summary)
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Release the lock; safe to call again."""
        for stream in (self._log, self._lock):
            if stream is not None:
                stream.close()
        self._log = self._lock = None


def job_argument(folder: Path) -> str:
    """What a command takes to find this job: its name if it is in the default folder, else its path."""
    if folder.parent == Path(DEFAULT_JOBS_DIR):
        return shlex.quote(folder.name)
    return shlex.quote(str(folder) if "/" in str(folder) else f"./{folder}")


def _append_whole(stream: IO[bytes], data: bytes) -> None:
    """Write everything or nothing to disk; a raw write may be partial, for example on a full disk."""
    before = stream.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[stream.write(data) :]
        os.fdatasync(stream.fileno())
    except OSError:
        with suppress(OSError):
            stream.truncate(before)  # so that a later result does not follow half of this one
        raise


def _require_free(folder: Path) -> None:
    """Refuse a place where there is a job, or anything that would be mixed up with one."""
    if JobPlaces(folder).job.exists():
        next_step = f"Choose another name, or continue it: bench eval resume {job_argument(folder)}"
        if not _can_continue(folder):
            next_step = "It cannot be continued; choose another name."
        raise UsageError(f"Job '{folder.name}' exists in {folder.parent}. {next_step}", code="job-exists")
    if os.path.lexists(folder) and not (folder.is_dir() and _never_began(folder)):
        raise UsageError(f"{folder} exists but is not a job; choose another name.", code="job-exists")


def _can_continue(folder: Path) -> bool:
    """Whether a job can be read and is not of an older version."""
    try:
        return not Job(folder).record.upgraded
    except InfrastructureFailure:
        return False


def _never_began(folder: Path) -> bool:
    """Whether nothing is there but what comes before `job.json`, itself half written at most."""
    places = JobPlaces(folder)
    left = {path for path in folder.iterdir() if path.suffix != ".tmp"}
    return left <= {places.lock, places.rollouts} and not any(places.rollouts.glob("*"))


def _locked_new(folder: Path, made: Sequence[Path]) -> IO[bytes]:
    """The lock of a new job; of one that is refused nothing is left of the folders that were made for it."""
    try:
        return _locked(folder)
    except UsageError as error:
        if error.code == NO_LOCKS and folder in made:
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made[1:]:
                with suppress(OSError):
                    parent.rmdir()
        raise


def _locked(folder: Path) -> IO[bytes]:
    """The lock of a job: held as long as the returned file is open, and not by another process.

    A folder whose locks do not hold is refused: two processes would write the same job.
    """
    stream = JobPlaces(folder).lock.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        require_holding(JobPlaces(folder).lock, folder)
    except BlockingIOError:
        stream.close()
        raise UsageError(f"Job '{folder.name}' is being run by another process.", code="job-running") from None
    except OSError as error:
        stream.close()
        if supports_no_locks(error):
            raise _without_locks(folder, "does not support locks") from error
        raise InfrastructureFailure(f"Cannot lock {folder}: {error.strerror}.", code="store-unwritable") from error
    except UsageError:
        stream.close()
        raise
    os.utime(stream.fileno())  # readers tell by it which rollouts are of this run, and which an earlier one left
    return stream


def require_holding(lock: Path, folder: Path) -> None:
    """Refuse the folder of a job if others could take its lock, which this process holds."""
    reach, mount = lock_reach(lock)
    if reach == "none":
        raise _without_locks(folder, "grants a lock twice")
    if reach == "machine" and mount is not None:
        raise _without_locks(folder, f"keeps locks to one machine ({mount.kind} at {mount.point})")


def _without_locks(folder: Path, how: str) -> UsageError:
    message = (
        f"{folder} is on a file system that {how}, so two processes could write the same job. Choose a folder of a "
        "local disk with --jobs-dir; `bench eval merge` joins jobs of several machines."
    )
    return UsageError(message, code=NO_LOCKS)


def _repair(path: Path) -> None:
    """Remove a partial line left by a kill."""
    if not path.exists():
        return
    with path.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            stream.seek(start)
            found = stream.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            stream.truncate(end)
            os.fsync(stream.fileno())
