"""A job as a leaderboard file has it: its request and every line of its results, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from benchflow.evaluation.games.lineups import line_ups, too_many
from benchflow.evaluation.work import LineUp
from benchflow.files.redaction import MARK
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record import Counted, JobRecord, JobResults, Result, TaskId, WorkKey, always_wins, work_key
from benchflow.record.job import read_counted
from benchflow.record.result import RESULT_SCHEMA

REPEATABLE: Final = frozenset({"infrastructure", "sandbox", "environment", "judge", "cancelled"})
"""Failures after which a try may be repeated: nothing that the agent did decides whether they happen."""
_OVERRIDES: Final = (
    "base_image",
    "max_steps",
    "max_calls",
    "max_tokens",
    "max_cost_usd",
    "max_model_time",
    "agent_timeout_sec",
    "timeout_sec",
)


class PlannedItem(NamedTuple):
    """One attempt at a task, and who takes part, where the job decides that."""

    attempt: int
    line_up: LineUp | None


@dataclass(frozen=True)
class PublishedJob:
    """A job without its folder."""

    record: JobRecord
    lines: tuple[Counted, ...]
    settings_digest: str

    @cached_property
    def results(self) -> JobResults:
        results = JobResults()
        for rollout, result in self.lines:
            results.add(rollout, result)
        return results

    @cached_property
    def counted(self) -> tuple[Counted, ...]:
        """The results that count, by task and attempt."""
        superseded = frozenset(self.record.superseded)
        found = (counted for counted in self.results if counted.result.key not in superseded)
        return tuple(sorted(found, key=_place))

    @cached_property
    def planned(self) -> dict[TaskId, dict[WorkKey, PlannedItem]]:
        """What the request asks for, by the tasks that have results: their attempts and line-ups, by key."""
        request = self.record.request
        roles = {result.task.id: tuple(result.arena.roles) for _, result in self.lines if result.arena is not None}
        found: dict[TaskId, dict[WorkKey, PlannedItem]] = {}
        for task in dict.fromkeys(result.task.id for _, result in self.lines):
            items = found[task] = {}
            if too_many(request, roles.get(task, ())):
                continue
            for attempt in range(1, request.attempts + 1):
                seated = list(line_ups(request, task, roles.get(task, ()), attempt))
                for one in seated:
                    items[work_key(task, self.settings_digest, attempt, one.content())] = PlannedItem(attempt, one)
                if not seated:
                    items[work_key(task, self.settings_digest, attempt)] = PlannedItem(attempt, None)
        return found

    def left_out(self) -> Iterator[tuple[Counted, str]]:
        """Every rollout that does not count, by its last line, with the reason."""
        superseded = frozenset(self.record.superseded)
        last = {rollout: Counted(rollout, result) for rollout, result in self.lines}
        counting = {rollout for rollout, _ in self.counted}
        for rollout, counted in sorted(last.items()):
            error = counted.result.error
            if rollout in counting:
                continue
            if counted.result.key in superseded:
                yield counted, "its package had changed or was gone when the job was last run"
            elif error is not None:
                yield counted, f"repeated after a failure ({error.category}/{error.code})"
            else:
                yield counted, "another rollout counts in its place"

    def marks(self) -> Iterator[str]:
        """What a reader has to know before comparing this job with another."""
        request = self.record.request
        for name in dict.fromkeys(player.agent.partition(":")[0] for player in request.agents):
            if always_wins(name):
                yield f"reference agent: {name}"
        if request.isolation is not None:
            yield f"isolation set by the user: {request.isolation}"
        settings = request.settings()
        for name in _OVERRIDES:
            value = getattr(settings, name)
            if value is not None:
                yield f"{name} set by the user: {value}"
        counted = [result for _, result in self.counted]
        counts = {
            "verified at open": sum(result.rung == "open" for result in counted),
            "on a substituted image": sum(result.sandbox.fidelity == "substituted" for result in counted),
            "ended by a time limit": sum(result.agent.timed_out for result in counted),
            "unscored": sum(result.error is not None for result in counted),
            "without a kept workspace": sum(_has_no_workspace(result) for result in counted),
            "repeated or superseded": sum(1 for _ in self.left_out()),
        }
        yield from (f"rollouts {what}: {count}" for what, count in counts.items() if count)


def _has_no_workspace(result: Result) -> bool:
    """Whether nobody can compute the verdict on a rollout again."""
    note = result.notes.workspace
    return result.error is None and (note is None or not note.kept)


def _place(counted: Counted) -> tuple[Any, ...]:
    task = counted.result.task
    return task.name, task.content_digest or "", task.ordinal, counted.result.attempt, counted.rollout


def parse_job(job: bytes, results: bytes, settings_digest: str) -> PublishedJob:
    """The job of two documents; raises `ValueError` with the file and what is wrong with it."""
    try:
        record = JobRecord.from_dict(parse_json(job))
    except StrictJSONError as error:
        raise ValueError(f"job.json {error}") from error
    except ValueError as error:
        raise ValueError(f"job.json cannot be read: {error}") from error
    if record.upgraded:
        raise ValueError("job.json was written by version 0.1; run the job again")
    lines = []
    *whole, rest = results.split(b"\n")
    if rest:
        raise ValueError("results.jsonl ends in an incomplete line")
    for number, line in enumerate(whole, 1):
        try:
            document = parse_json(line)
            if isinstance(document, dict) and document.get("schema") != RESULT_SCHEMA:
                raise ValueError(f"it is not a document of the schema {RESULT_SCHEMA}")
            lines.append(read_counted(document))
        except StrictJSONError as error:
            raise ValueError(f"results.jsonl, line {number} {error}") from error
        except ValueError as error:
            raise ValueError(f"results.jsonl, line {number} cannot be read: {error}") from error
    return PublishedJob(record, tuple(lines), settings_digest)


def is_whole(text: str | None) -> bool:
    """Whether nothing was taken out of a text before it was published."""
    return text is None or MARK not in text


def same_score(one: Result, other: Result) -> bool:
    return one.status == other.status and one.reward == other.reward
