"""A job on disk: `job.json`, an append-only `results.jsonl`, `summary.json`, and a folder per rollout.

One process writes a job at a time (a lock that ends with the process). A result is a whole line or none: a torn last
line, as a kill leaves it, is cut off when the job is opened again. Nothing that was written whole is ever changed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.files import write_atomic
from benchflow.rollout.record import Result

JOB_SCHEMA: Final = "benchcube.job.v1"
_LINE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class JobStore:
    """The folder of one job. `create` and `open` hold its lock until `close`; `read` looks without it."""

    def __init__(self, folder: Path, lock: IO[bytes] | None) -> None:
        self.folder = folder
        self._rollouts: Final = folder / "rollouts"
        self._lock = lock
        self._results: IO[bytes] | None = None

    @classmethod
    def create(cls, jobs_dir: Path, name: str, job: Mapping[str, Any]) -> JobStore:
        """A new job; refused when one of that name is there.

        What a kill left of one that never began, a folder without `job.json` that nobody holds, is no job and is taken.
        """
        folder = jobs_dir / safe_job_name(name)
        _require_free(folder)
        try:
            (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureFailure(
                f"Cannot create {folder}: {error.strerror}.", code="store-unwritable"
            ) from error
        store = cls(folder, _locked(folder))
        try:
            _require_free(folder)  # another process may have been faster until now
        except UsageError:
            store.close()
            raise
        try:
            write_atomic(folder / "job.json", _pretty({"schema": JOB_SCHEMA, "name": name, **job}))
        except OSError as error:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise InfrastructureFailure(
                f"Cannot create {folder}: {error.strerror}.", code="store-unwritable"
            ) from error
        return store

    @classmethod
    def open(cls, jobs_dir: Path, name: str) -> JobStore:
        """An existing job, to go on with it; refused while another process does."""
        folder = _existing(jobs_dir, name)
        store = cls(folder, _locked(folder))
        _repair(folder / "results.jsonl")
        return store

    @classmethod
    def read(cls, jobs_dir: Path, name: str) -> JobStore:
        """An existing job, to look at it, running or not."""
        return cls(_existing(jobs_dir, name), None)

    @property
    def job(self) -> dict[str, Any]:
        try:
            job = json.loads((self.folder / "job.json").read_bytes())
        except (OSError, ValueError) as error:
            raise InfrastructureFailure(
                f"{self.folder / 'job.json'} cannot be read: {error}.", code="job-damaged"
            ) from error
        if not isinstance(job, dict):
            raise InfrastructureFailure(f"{self.folder / 'job.json'} is no JSON object.", code="job-damaged")
        return job

    def rollout_folder(self, name: str) -> Path:
        return self._rollouts / name

    def append(self, result: Result, rollout: str) -> None:
        """Add a result; it is on disk when this returns."""
        if self._lock is None:
            raise RuntimeError("A job that is only read cannot be written.")
        line = _LINE.encode({**result.to_dict(), "rollout": rollout})
        try:
            if self._results is None:
                self._results = (self.folder / "results.jsonl").open("ab", buffering=0)
            _append_whole(self._results, line.encode() + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> InfrastructureFailure:
        code = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "store-unwritable"
        message = f"Cannot write {self.folder}: {error.strerror}. Go on when that is mended: bench eval resume"
        return InfrastructureFailure(f"{message} {self.folder.name}", code=code)

    def results(self) -> Iterator[tuple[str, Result]]:
        """Every whole line: the rollout's name and its result, in the order they came."""
        for number, line in enumerate(_lines(self.folder / "results.jsonl"), 1):
            try:
                data = json.loads(line)
                yield data["rollout"], Result.from_dict(data)
            except (ValueError, KeyError, TypeError) as error:
                raise InfrastructureFailure(
                    f"{self.folder / 'results.jsonl'}, line {number} is damaged: {error}.", code="job-damaged"
                ) from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        try:
            write_atomic(self.folder / "summary.json", _pretty(summary))
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Let go of the lock; safe to call again."""
        for stream in (self._results, self._lock):
            if stream is not None:
                stream.close()
        self._results = self._lock = None


def _append_whole(stream: IO[bytes], data: bytes) -> None:
    """All of it, on the disk, or nothing; raw files may write less than they are given, as on a disk that fills up."""
    before = stream.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[stream.write(data) :]
        os.fdatasync(stream.fileno())
    except OSError:
        with suppress(OSError):
            stream.truncate(before)  # so that a later result does not follow half of this one
        raise


def list_jobs(jobs_dir: Path) -> list[str]:
    """Names of the jobs in a folder, oldest first."""
    folders = [path.parent for path in jobs_dir.glob("*/job.json")]
    return [folder.name for folder in sorted(folders, key=lambda folder: (folder.stat().st_mtime, folder.name))]


def is_running(folder: Path) -> bool:
    """Whether a process holds the job's lock."""
    try:
        with (folder / ".lock").open("ab") as stream, _exclusive(stream):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def safe_job_name(name: str) -> str:
    """The name, if it can be a folder's and stays one."""
    if not name or name in (".", "..") or name.startswith(".") or any(c in name for c in "/\\\0") or len(name) > 200:
        raise UsageError(f"'{name}' cannot be a job's name: it must be a plain folder name.", code="job-name")
    return name


def _require_free(folder: Path) -> None:
    """Refuse the place of a job when there is one, or anything else that would be mixed up with it."""
    if (folder / "job.json").exists():
        message = f"Job '{folder.name}' exists in {folder.parent}. Go on with it: bench eval resume {folder.name}"
        raise UsageError(message, code="job-exists")
    if os.path.lexists(folder) and not (folder.is_dir() and _never_began(folder)):
        raise UsageError(f"{folder} exists and is no job; choose another name.", code="job-exists")


def _never_began(folder: Path) -> bool:
    """Whether nothing is there but what comes before `job.json`, itself half written at most."""
    left = {path.name for path in folder.iterdir() if path.suffix != ".tmp"}
    return left <= {".lock", "rollouts"} and not any((folder / "rollouts").glob("*"))


def _existing(jobs_dir: Path, name: str) -> Path:
    """The job's folder by name below `jobs_dir`, or by path."""
    candidates = [Path(name)] if "/" in name else [jobs_dir / safe_job_name(name)]
    for folder in candidates:
        if (folder / "job.json").is_file():
            return folder
    known = ", ".join(list_jobs(jobs_dir)) or "none"
    raise UsageError(f"There is no job '{name}' in {jobs_dir}; there are: {known}.", code="no-job")


def _locked(folder: Path) -> IO[bytes]:
    """The lock of a job: held as long as the returned file is open, and not by another process."""
    stream = (folder / ".lock").open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise UsageError(f"Job '{folder.name}' is being run by another process.", code="job-running") from None
    return stream


@contextmanager
def _exclusive(stream: IO[bytes]) -> Iterator[None]:
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield


def _repair(path: Path) -> None:
    """Cut off what a kill left of a line that was not written whole."""
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


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return


def _pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
