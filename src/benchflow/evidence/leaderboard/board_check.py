"""Examines a leaderboard file offline: its bytes, the records in it against each other, its claims, and selection.

Nothing but the file is needed. What is wrong is listed, each problem with the part it was found in; verdicts are
recomputed in `verdicts_again`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchflow.errors import UsageError
from benchflow.evidence.leaderboard.board_claims import (
    PUBLISHED,
    claims,
    differences,
    folder_of,
    is_workspace,
    job_folder,
    rollout_folder,
    verdict_folder,
)
from benchflow.evidence.leaderboard.board_file import INDEX, INVALID, BoardFile, open_board
from benchflow.evidence.leaderboard.board_selection import BoardProblem, job_problems, table_problems
from benchflow.evidence.leaderboard.board_trajectory import (
    CLOCKS_SEC,
    MissingEventError,
    contradictions,
    events,
    moment,
)
from benchflow.evidence.leaderboard.published_job import PublishedJob, parse_job
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record import Counted, Result, RewardLine
from benchflow.record.codec import read

_MOST: Final = 200
"""Problems that are listed; a file with more is not better described by all of them."""
_MAX_RECORD: Final = 64 << 20
"""Bytes of a result or a list of rewards."""


@dataclass(frozen=True)
class CheckedBoard:
    """What a file is, and what is wrong with it."""

    file: BoardFile | None
    """None if it could not be opened."""
    jobs: tuple[PublishedJob, ...]
    problems: tuple[BoardProblem, ...]


def check_board(path: Path) -> CheckedBoard:
    """Examine everything but verdicts; a path where there is no file is a `UsageError`."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file.", code="no-file")
    try:
        file = open_board(path)
    except UsageError as error:
        if error.code != INVALID:
            raise
        return CheckedBoard(None, (), (BoardProblem(INVALID, "", str(error)),))
    problems = [BoardProblem("changed", part, "its content was changed") for part in file.changed()]
    jobs: list[PublishedJob] = []
    if not problems:
        jobs, problems = _jobs(file)
    if not problems:
        problems = list(_record_problems(file, jobs))
    return CheckedBoard(file, tuple(jobs), tuple(problems[:_MOST]))


def _jobs(file: BoardFile) -> tuple[list[PublishedJob], list[BoardProblem]]:
    jobs: list[PublishedJob] = []
    problems: list[BoardProblem] = []
    names = [listed.name for listed in file.board.jobs]
    if not names or len(set(names)) != len(names):
        problems.append(BoardProblem("claim-wrong", INDEX, "it does not name its jobs, each once"))
        return jobs, problems
    for listed in file.board.jobs:
        folder = job_folder(listed.name)
        job, results = file.text(f"{folder}/job.json"), file.text(f"{folder}/results.jsonl")
        if job is None or results is None:
            missing = "job.json" if job is None else "results.jsonl"
            problems.append(BoardProblem("part-missing", f"{folder}/{missing}", "it is missing"))
            continue
        try:
            parsed = parse_job(job, results, listed.settings_digest)
        except ValueError as error:
            problems.append(BoardProblem("record-damaged", folder, str(error)))
            continue
        if parsed.record.name != listed.name:
            problems.append(BoardProblem("claim-wrong", f"{folder}/job.json", f"it is of job '{parsed.record.name}'"))
        jobs.append(parsed)
    return jobs, problems


def _record_problems(file: BoardFile, jobs: list[PublishedJob]) -> Iterator[BoardProblem]:
    found = claims(jobs, file.board.files).to_dict()
    for difference in differences(replace(file.board, signature=None).to_dict(), found):
        yield BoardProblem("claim-wrong", INDEX, difference)
    for job in jobs:
        yield from job_problems(job, f"{job_folder(job.record.name)}/results.jsonl")
    yield from _parts(file, jobs)
    yield from table_problems(jobs, INDEX)
    yield from _extra(file, jobs)


def _extra(file: BoardFile, jobs: list[PublishedJob]) -> Iterator[BoardProblem]:
    known: set[str] = set()
    folders: set[str] = set()
    for job in jobs:
        name = job.record.name
        known |= {f"{job_folder(name)}/job.json", f"{job_folder(name)}/results.jsonl"}
        folders |= {rollout_folder(name, counted.rollout) for counted in job.counted}
    for path in file.places:
        if path in known:
            continue
        if folder_of(path) not in folders:
            yield BoardProblem("part-added", path, "it belongs to no rollout that counts")
        elif path.split("/")[4] not in PUBLISHED:
            yield BoardProblem("part-added", path, "no rollout leaves a part of that name")


def _parts(file: BoardFile, jobs: list[PublishedJob]) -> Iterator[BoardProblem]:
    """Compare the records of each rollout with its line, and look for copies, also between jobs."""
    trajectories: dict[str, list[str]] = defaultdict(list)
    below: dict[str, list[str]] = defaultdict(list)
    for path in file.places:
        below[folder_of(path)].append(path.removeprefix(f"{folder_of(path)}/"))
    for job in jobs:
        for counted in job.counted:
            folder = verdict_folder(job.record.name, counted)
            yield from _result(file, f"{folder}/result.json", counted)
            yield from _rewards(file, f"{folder}/rewards.jsonl", counted.result)
            base = rollout_folder(job.record.name, counted.rollout)
            yield from _workspace(base, below[base], counted.result)
            path = f"{base}/trajectory.jsonl"
            if path in file.places:
                yield from _trajectory(file, path, counted.result)
                trajectories[file.places[path][1].sha256].append(base)
            elif counted.result.error is None and not _does_nothing(counted.result):
                yield BoardProblem("part-missing", path, "a scored rollout has no trajectory")
    for rollouts in trajectories.values():
        if len(rollouts) > 1:
            first, *copies = rollouts
            yield BoardProblem("copied", first, f"{', '.join(copies)} has the same trajectory: one is a copy")


def _does_nothing(result: Result) -> bool:
    return result.agent.name == "nop"


def _result(file: BoardFile, path: str, counted: Counted) -> Iterator[BoardProblem]:
    text = file.text(path, _MAX_RECORD)
    if text is None:
        yield BoardProblem("part-missing", path, "it is missing")
        return
    yield from (BoardProblem("record-edited", path, message) for message in _inconsistencies(counted.result))
    try:
        document = parse_json(text)
        same = Result.from_dict(document) == counted.result
    except StrictJSONError as error:
        yield BoardProblem("record-damaged", path, f"it {error}")
    except ValueError as error:
        yield BoardProblem("record-damaged", path, f"it cannot be read: {error}")
    else:
        if not same:
            changes = list(differences(_comparable(document), _comparable(counted.result.to_dict())))
            where = changes[0] if changes else "a value differs"
            yield BoardProblem("record-edited", path, f"it differs from its line in results.jsonl: {where}")


def _inconsistencies(result: Result) -> Iterator[str]:
    """What a result says against itself."""
    if result.reward is not None and result.rewards.get("reward", result.reward) != result.reward:
        yield f"its reward is {result.reward}, and among its rewards it is {result.rewards['reward']}"
    begin, end = moment(result.started_at), moment(result.finished_at)
    if begin is None or end is None or (begin - end).total_seconds() > CLOCKS_SEC:
        yield f"it cannot have run from {result.started_at} to {result.finished_at}"
    if any(seconds < 0 for seconds in result.timing.values()):
        yield "it has a phase that took less than no time"
    if any(value < 0 for value in result.usage.values()):
        yield "it used less than nothing"


def _comparable(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "rollout"}


def _rewards(file: BoardFile, path: str, result: Result) -> Iterator[BoardProblem]:
    """The rewards that were written down are those of the result: the terminal one, its metrics, and those of steps."""
    text = file.text(path, _MAX_RECORD)
    if result.reward is None:
        return
    if text is None:
        yield BoardProblem("part-missing", path, "a scored rollout has no list of its rewards")
        return
    try:
        lines = [read(RewardLine, parse_json(line)) for line in text.splitlines()]
    except ValueError as error:
        yield BoardProblem("record-damaged", path, f"it cannot be read: {error}")
        return
    terminal = [line for line in lines if line.type == "terminal"]
    if not terminal or terminal[-1].value != result.reward:
        said = terminal[-1].value if terminal else None
        yield BoardProblem("record-edited", path, f"its final reward is {said}, and the result has {result.reward}")
        return
    metrics = terminal[-1].meta.get("metrics", {})
    if {"reward": result.reward, **metrics} != {"reward": result.reward, **result.rewards}:
        yield BoardProblem("record-edited", path, "its metrics are not those of the result")
    steps = {line.tag: line.value for line in lines if (line.type, line.source) == ("process", "verifier")}
    for step in result.steps:
        if step.reward is not None and steps.get(step.name, step.reward) != step.reward:
            message = f"its reward of step {step.name} is {steps[step.name]}, and the result has {step.reward}"
            yield BoardProblem("record-edited", path, message)


def _workspace(base: str, parts: list[str], result: Result) -> Iterator[BoardProblem]:
    note = result.notes.workspace
    kept = any(is_workspace(path) for path in parts)
    if note is not None and note.kept != kept:
        message = "the kept workspace is missing" if note.kept else "a workspace was added that was not kept"
        yield BoardProblem("part-missing" if note.kept else "part-added", f"{base}/workspace.tar.gz", message)


def _trajectory(file: BoardFile, path: str, result: Result) -> Iterator[BoardProblem]:
    """Events count from 1 without a gap, so that none was taken out or put in, and say what the result says."""
    try:
        for message in contradictions(events(file.chunks(path)), result):
            yield BoardProblem("record-edited", path, message)
    except MissingEventError as error:
        yield BoardProblem("record-edited", path, str(error))
    except ValueError as error:
        yield BoardProblem("record-damaged", path, str(error))
