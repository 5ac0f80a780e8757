"""The claims of a leaderboard file, computed from what it contains; and where given claims differ from them. Pure."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from benchflow.evaluation.compare import compare
from benchflow.evaluation.summary import sample, statistics_of
from benchflow.evidence.leaderboard.published_job import PublishedJob
from benchflow.record import Counted
from benchflow.record.layout import RESCORES
from benchflow.record.leaderboard_index import (
    Leaderboard,
    LeftOut,
    ListedComparison,
    ListedFile,
    ListedJob,
    ListedRollout,
    ListedTask,
)
from benchflow.record.outcome import Status
from benchflow.rewards.numbers import shown

WORKSPACE: Final = "workspace.tar.gz"
PUBLISHED: Final = frozenset({
    WORKSPACE, RESCORES, "result.json", "trajectory.jsonl", "user_rounds.jsonl", "rewards.jsonl",
    "agent", "verifier", "artifacts", "steps", "rounds", "branches", "a2a",
})  # fmt: skip
"""What is published of the folder of a rollout: what its verdict rests on, and nothing that describes the machine."""
_CLOSE: Final = 1e-9
"""Numbers that differ by less are equal: mathematical libraries of machines differ in the last digits."""


def job_folder(name: str) -> str:
    """Where a job is in the file."""
    return f"jobs/{name}"


def rollout_folder(job: str, rollout: str) -> str:
    return f"{job_folder(job)}/rollouts/{rollout}"


def folder_of(path: str) -> str:
    """The folder of the rollout that a part belongs to."""
    return "/".join(path.split("/")[:4])


def verdict_folder(job: str, counted: Counted) -> str:
    """Where the newest verdict on a rollout is."""
    base, note = rollout_folder(job, counted.rollout), counted.result.notes.rescore
    return f"{base}/{note.folder}" if note is not None and note.folder is not None else base


def is_workspace(path: str) -> bool:
    """Whether a part, by its path below the rollout, is what the agent left."""
    return path == WORKSPACE or (path.startswith("steps/") and path.endswith(f"/{WORKSPACE}"))


def claims(jobs: Sequence[PublishedJob], files: Sequence[ListedFile]) -> Leaderboard:
    """Everything that `leaderboard.json` says of these jobs and files, unsigned."""
    hashes = {file.path: file.sha256 for file in files}
    comparisons = []
    for first, second in combinations(jobs, 2):
        found = compare(first.record.name, first, second.record.name, second)
        comparisons.append(ListedComparison(found.first, found.second, found.difference, found.verdict))
    return Leaderboard(tuple(_job(job, hashes) for job in jobs), tuple(comparisons), tuple(files))


def _job(job: PublishedJob, hashes: Mapping[str, str]) -> ListedJob:
    record = job.record
    by_rollout: dict[str, dict[str, str]] = {}
    start = f"{job_folder(record.name)}/rollouts/"
    for path, sha256 in hashes.items():
        if path.startswith(start):
            rollout, _, name = path.removeprefix(start).partition("/")
            by_rollout.setdefault(rollout, {})[name] = sha256
    tasks = Counter(result.task.id for _, result in job.counted)
    return ListedJob(
        record.name,
        ", ".join(map(str, record.request.rotation)) or record.request.agent,
        None if record.request.rotation else record.request.model,
        record.request.settings(),
        job.settings_digest,
        record.request.attempts,
        record.planned,
        tuple(job.marks()),
        tuple(ListedTask(task.name, task.content_digest, count, task.ordinal) for task, count in tasks.items()),
        tuple(_rollout(counted, by_rollout.get(counted.rollout, {})) for counted in job.counted),
        tuple(_left_out(counted, reason) for counted, reason in job.left_out()),
        statistics_of([sample(result) for _, result in job.counted]),
    )


def _rollout(counted: Counted, hashes: Mapping[str, str]) -> ListedRollout:
    rollout, result = counted
    note = result.notes.rescore
    newest = f"{note.folder}/" if note is not None and note.folder is not None else ""
    left = {
        path: sha256
        for path, sha256 in hashes.items()
        if path.startswith(newest) and "verifier" in path.removeprefix(newest).split("/")[:-1]
    }
    return ListedRollout(
        rollout,
        result.task.name,
        result.task.content_digest,
        result.attempt,
        result.key,
        "unscored" if result.reward is None else "scored",
        result.reward,
        result.sandbox,
        result.verifier.isolation if result.verifier is not None else None,
        hashes.get(f"{newest}result.json"),
        hashes.get("trajectory.jsonl"),
        {path: sha256 for path, sha256 in sorted(hashes.items()) if is_workspace(path)},
        _digest(left) if left else None,
        result.task.ordinal,
    )


def _digest(hashes: Mapping[str, str]) -> str:
    text = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(hashes.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _left_out(counted: Counted, reason: str) -> LeftOut:
    rollout, result = counted
    task = result.task
    status: Status = "unscored" if result.reward is None else "scored"
    return LeftOut(rollout, task.name, task.content_digest, result.attempt, result.key, status, result.reward, reason)


def differences(given: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where given claims are not what the file amounts to, as sentences that name the key."""
    if isinstance(given, dict) and isinstance(found, dict):
        for key in (*found, *(key for key in given if key not in found)):
            inner = f"{path}.{key}" if path else key
            if key not in given or key not in found:
                yield f"{inner} is {'missing' if key not in given else 'not what the results give'}"
            else:
                yield from differences(given[key], found[key], inner)
    elif isinstance(given, list) and isinstance(found, list):
        if len(given) != len(found):
            yield f"{path} has {len(given)} entries, and the results give {len(found)}"
        for index, (one, other) in enumerate(zip(given, found, strict=False)):
            yield from differences(one, other, f"{path}[{index}]")
    elif not _equal(given, found):
        yield f"{path} is {shown(given)}, and the results give {shown(found)}"


def _equal(given: Any, found: Any) -> bool:
    if isinstance(given, float) and isinstance(found, float):
        return math.isclose(given, found, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return type(given) is type(found) and bool(given == found)
