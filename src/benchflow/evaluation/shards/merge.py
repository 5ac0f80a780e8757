"""Writes a merged job: built beside its place under a hidden name, and renamed when it is whole.

Rollouts are copied, never linked: the merged job stays as it is when a source is changed or removed. Where the file
system can share blocks, large files take no space. The sources are held against being run while they are read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.evaluation.shards.merged_results import Merged, Source, merged, read_source
from benchflow.evaluation.store import JobStore, require_holding
from benchflow.evaluation.summary import job_summary
from benchflow.files.atomic import copy_file, staged_folder, sync_folder, write_atomic
from benchflow.files.lock_reach import supports_no_locks
from benchflow.files.locks import free_lock, new_lock
from benchflow.files.strict_json import parse_json
from benchflow.record import Job, JobPlaces, JobRecord, Summary, write_document
from benchflow.sandbox.inside.removal import remove_tree


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What was merged, and what the sources lack."""

    folder: Path
    record: JobRecord
    summary: Summary
    without_folder: tuple[str, ...]
    """Rollouts with a result whose folder is not in the job that they are from."""
    torn: tuple[str, ...]
    """Jobs whose last line is incomplete and left out."""

    @property
    def missing(self) -> int:
        """Planned rollouts without a result."""
        return self.record.planned - len(self.summary.counted)


def merge_jobs(jobs: Sequence[Job], jobs_dir: Path, name: str) -> MergeReport:
    """One new job out of jobs of the same plan. Raises `UsageError` where they do not belong together."""
    _refuse_repeated(jobs)
    JobStore.require_new(jobs_dir, name)
    with ExitStack() as held:
        for job in jobs:
            held.enter_context(_not_running(job))
        everything = merged(name, [read_source(job) for job in jobs])
        _sweep(jobs_dir)
        try:
            return _write(everything, jobs_dir / name)
        except FileExistsError as error:
            message = f"{jobs_dir / name} exists but is not a job; choose another name."
            raise UsageError(message, code="job-exists") from error
        except OSError as error:
            code = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "store-unwritable"
            where = f" ({error.filename})" if error.filename is not None else ""
            message = f"Cannot merge into {jobs_dir / name}: {error.strerror or error}{where}. Nothing was written."
            raise InfrastructureFailure(message, code=code) from error


def _refuse_repeated(jobs: Sequence[Job]) -> None:
    seen: set[Path] = set()
    for job in jobs:
        place = job.folder.resolve()
        if place in seen:
            raise UsageError(f"Job '{job.folder.name}' is named twice.", code="named-twice")
        seen.add(place)


@contextmanager
def _not_running(job: Job) -> Iterator[None]:
    """Keep a job from being run; one that is running is refused. Readers need no permission to write."""
    try:
        # Whatever lies in its place, opening it waits for nobody.
        lock = os.open(job.places.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # copied without its lock, so nothing runs it here
        yield
        return
    except OSError as error:
        message = f"{job.places.lock} cannot be opened: {error.strerror}, so it is unknown whether the job is running."
        raise UsageError(message, code="job-running") from error
    with os.fdopen(lock, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"Job '{job.folder.name}' is being run by another process; merge it when it has ended."
            raise UsageError(message, code="job-running") from None
        except OSError as error:  # where there are no locks no job is run
            if not supports_no_locks(error):
                raise
        yield


def _write(everything: Merged, folder: Path) -> MergeReport:
    with ExitStack() as held, staged_folder(folder, sync=False) as staging:
        try:
            places = JobPlaces(staging)
            lock = new_lock(places.lock)  # tells a later merge that this one has not been killed
            if lock is None:
                raise OSError(errno.EAGAIN, "another merge cleaned up at the same time; run the command again")
            held.callback(os.close, lock)
            require_holding(places.lock, folder)
            without_folder = tuple(_copy_rollouts(everything, places))
            summary = _write_records(everything, places)
        except BaseException:
            held.close()  # some file systems cannot remove a folder with an open file
            raise
    sync_folder(folder.parent)
    torn = tuple(source.name for source in everything.sources if source.torn)
    return MergeReport(folder, everything.record, summary, without_folder, torn)


def _write_records(everything: Merged, places: JobPlaces) -> Summary:
    """The files of the job itself; the one that makes the folder a job comes last but one, its summary needs it."""
    write_atomic(places.results, b"".join(everything.lines))
    rescore = _last_pass(everything.sources)
    if rescore is not None:
        write_document(places.rescore, rescore, sync=True)
    write_document(places.job, everything.record.to_dict(), sync=True)
    summary = replace(job_summary(Job(places.path)), job=everything.record.name)
    summary.write(places.summary)
    return summary


def _copy_rollouts(everything: Merged, places: JobPlaces) -> Iterator[str]:
    """Copy the folders of all rollouts, also of those that were killed; yields results whose folder is missing.

    Of a rollout that several jobs share, the folder is that of the job its results are from, if it has one.
    """
    places.rollouts.mkdir()
    found: dict[str, Path] = {}
    for source in everything.sources:
        for folder in _rollouts(source.job.places.rollouts):
            if everything.owners.get(folder.name) is source:
                found[folder.name] = folder
            else:
                found.setdefault(folder.name, folder)
    for name, folder in found.items():
        _copy_tree(folder, places.rollouts / name)
    yield from (rollout for rollout in everything.owners if rollout not in found)


def _rollouts(parent: Path) -> list[Path]:
    """The folders of rollouts. A link is none: it can lead to anything outside of the job."""
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    return [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]


def _copy_tree(source: Path, target: Path) -> None:
    """Folders, regular files and links, with their permissions and times. Raises `OSError` for anything else."""
    left, made = [(source, target)], []
    while left:  # no recursion: folders that came out of a sandbox can be nested deeply
        origin, copy = left.pop()
        copy.mkdir()
        made.append((origin, copy))
        with os.scandir(origin) as entries:
            for entry in entries:
                path, place = Path(entry.path), copy / entry.name
                if entry.is_symlink():
                    place.symlink_to(path.readlink())
                elif entry.is_dir():
                    left.append((path, place))
                else:
                    status = copy_file(path, place)
                    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    for origin, copy in reversed(made):
        shutil.copystat(origin, copy)


def _last_pass(sources: Sequence[Source]) -> dict[str, Any] | None:
    """The last pass of `rescore` over any of the jobs; unfinished if one of them has to be continued."""
    passes = []
    for source in sources:
        path = source.job.places.rescore
        try:
            document = parse_json(path.read_bytes())
            number, end = int(document["number"]), document["finished_at"]
            if not isinstance(end, str | None):
                raise ValueError("'finished_at' is not a time")
            passes.append((number, end))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise InfrastructureFailure(f"{path} cannot be read: {error}.", code="job-damaged") from error
    if not passes:
        return None
    number = max(each for each, _ in passes)
    ends = [end for each, end in passes if each == number]
    finished = [end for end in ends if end is not None]
    return {"number": number, "finished_at": max(finished) if len(finished) == len(ends) else None}


def _sweep(jobs_dir: Path) -> None:
    """Remove what killed merges left: hidden folders with the lock of a merge that nobody holds."""
    for lock in jobs_dir.glob(".benchflow-*.tmp/.lock"):
        descriptor = free_lock(lock)
        if descriptor is not None:
            with suppress(OSError):
                remove_tree(lock.parent)
            os.close(descriptor)
