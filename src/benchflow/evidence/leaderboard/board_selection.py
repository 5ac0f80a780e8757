"""What makes results unfit for a leaderboard: selection, other settings, other packages, jobs that are not finished.

`job_problems` looks at one job, `table_problems` at jobs of one table. Both are pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from benchflow.evaluation.work import LineUp
from benchflow.evidence.leaderboard.published_job import (
    REPEATABLE,
    PlannedItem,
    PublishedJob,
    is_whole,
    same_score,
)
from benchflow.record import Counted, JobRequest, Player, Result, TaskId, WorkKey, labels


@dataclass(frozen=True, slots=True)
class BoardProblem:
    """One reason not to trust a file."""

    code: str
    file: str
    """The part of the file it was found in."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.message}" if self.file else self.message


def job_problems(job: PublishedJob, file: str) -> Iterator[BoardProblem]:
    """Why the results of a job are not exactly what its plan asked for."""
    names = labels(result.task.id for _, result in job.lines)
    for code, message in (
        *_settings(job, names),
        *_plan(job, names),
        *_ordinals(job),
        *_tries(job, names),
        *_superseded(job),
        *_environments(job, names),
    ):
        yield BoardProblem(code, file, message)


Found = Iterator[tuple[str, str]]
Names = dict[TaskId, str]


def _settings(job: PublishedJob, names: Names) -> Found:
    """Every key follows from the settings of the job, so that no rollout of another one can be put in."""
    request = job.record.request
    if is_whole(request.agent) and is_whole(request.base_image) and request.settings().digest() != job.settings_digest:
        yield "mixed-settings", "the settings of the job are not those of its results"
    if not all(is_whole(player.agent) for player in request.players) and any(
        item.line_up is not None for items in job.planned.values() for item in items.values()
    ):
        yield "mixed-settings", "who played whom cannot be checked: name the agents of games by relative paths"
        return
    for rollout, result in job.lines:
        item = job.planned[result.task.id].get(result.key)
        if item is None or item.attempt != result.attempt:
            message = f"{rollout} was not made with the settings of the job, as that task and attempt"
            yield "mixed-settings", f"{message} ({names[result.task.id]}, attempt {result.attempt})"
        else:
            yield from _players(request, rollout, result, item.line_up)


def _players(request: JobRequest, rollout: str, result: Result, line_up: LineUp | None) -> Found:
    """Whether a result is of those that its key names."""
    agent = line_up.agent if line_up is not None else Player(request.agent, request.model)
    if (result.agent.name, result.agent.model) != (agent.agent, agent.model):
        yield "mixed-settings", f"{rollout} is of another agent or model than the job"
    elif result.arena is not None and line_up is not None:
        named = {role: player.agent for role, player in line_up.others.items()}
        played = {role: result.arena.rotation.get(role) for role in named}
        if played != named or result.arena.seed != line_up.seed:
            yield "mixed-settings", f"{rollout} was played by others, or with another seed, than the job plans"


def _plan(job: PublishedJob, names: Names) -> Found:
    """Exactly k attempts at each task, by everybody who has it."""
    attempts = job.record.request.attempts
    if job.record.request.shard is not None:
        yield "not-finished", f"the job is shard {job.record.request.shard} of its plan: publish the merged job"
    made: dict[TaskId, Counter[PlannedItem]] = defaultdict(Counter)
    for _, result in job.counted:
        item = job.planned[result.task.id].get(result.key)
        made[result.task.id][PlannedItem(result.attempt, item.line_up if item is not None else None)] += 1
    for task, counts in made.items():
        planned = set(job.planned[task].values())
        missing = sorted({_named(item) for item in planned if not counts[item]})
        added = sorted({_named(item) for item, count in counts.items() if count > 1 or item not in planned})
        if missing:
            yield "attempt-missing", f"{names[task]} has no result of attempt {', '.join(missing)} of {attempts}"
        if added:
            yield "attempt-added", f"{names[task]} has more results than planned: attempt {', '.join(added)}"
    planned_here = sum(len(job.planned[task]) for task in made)
    if not job.counted:
        yield "not-finished", "the job has no results"
    elif job.record.planned != planned_here:
        each = f"{len(made)} tasks with {attempts} attempts each" if attempts > 1 else f"{len(made)} tasks"
        yield "not-finished", f"the job plans {job.record.planned} rollouts, and its results are of {each}"


def _named(item: PlannedItem) -> str:
    return str(item.attempt) if item.line_up is None else f"{item.attempt} ({item.line_up})"


def _ordinals(job: PublishedJob) -> Found:
    """Tasks of one name and content are counted, so that none of them stands for others that were left out."""
    counted: dict[tuple[str, str | None], set[int]] = defaultdict(set)
    for _, result in job.counted:
        counted[result.task.name, result.task.content_digest].add(result.task.ordinal)
    for (name, _), numbers in counted.items():
        if numbers != set(range(1, len(numbers) + 1)):
            yield (
                "attempt-missing",
                f"tasks called {name} are not numbered from 1: {', '.join(map(str, sorted(numbers)))}",
            )


def _tries(job: PublishedJob, names: Names) -> Found:
    """One try counts for each item, and the others failed for reasons that are not the agent's."""
    by_key: dict[WorkKey, dict[str, list[Counted]]] = defaultdict(lambda: defaultdict(list))
    keys: dict[str, WorkKey] = {}
    for counted in job.lines:
        by_key[counted.result.key][counted.rollout].append(counted)
        if keys.setdefault(counted.rollout, counted.result.key) != counted.result.key:
            yield "attempt-added", f"{counted.rollout} is the result of two attempts"
    for key, rollouts in by_key.items():
        one = job.results.latest[key]
        what = f"{names[one.result.task.id]}, attempt {one.result.attempt}"
        for verdicts in rollouts.values():
            yield from _verdicts(verdicts)
        for rollout, verdicts in rollouts.items():
            error = verdicts[-1].result.error
            if rollout == one.rollout:
                continue
            if error is None:
                yield "best-of-n", f"{what} was scored more than once: by {rollout} and by {one.rollout}"
            elif error.category not in REPEATABLE:
                failure = f"a failure of the {error.category} ({error.code})"
                yield "best-of-n", f"{what} was rerun after {failure}, which is a result and must not be repeated"


def _verdicts(verdicts: Sequence[Counted]) -> Found:
    """A rollout may be scored again by the same package if that changes nothing, or if a judge was not available."""
    for rollout, result in verdicts:
        note = result.notes.rescore
        if note is not None and note.package_digest not in (None, result.task.digest):
            yield "other-package", f"{rollout} was rescored by another version of its package"
    first = verdicts[0]
    note = first.result.notes.rescore
    if note is not None and note.before is not None and note.before.status == "scored":
        yield "attempt-missing", f"{first.rollout} was scored before, and that result is missing"
    for (rollout, before), (_, after) in pairwise(verdicts):
        if after.notes.rescore is None:
            yield "attempt-added", f"{rollout} has two results"
        elif before.error is not None and before.error.category not in REPEATABLE:
            yield "best-of-n", f"{rollout} was rescored after its verifier had failed ({before.error.code})"
        elif before.error is None and not same_score(before, after):
            yield "best-of-n", f"{rollout} was scored {before.reward} and, rescored, {after.reward}"


def _superseded(job: PublishedJob) -> Found:
    """Results may give way to those of a changed package, but no task may be dropped."""
    planned = {result.task.name for _, result in job.counted}
    known = {result.key: result for _, result in job.lines}
    for key in job.record.superseded:
        if key not in known:
            yield "attempt-missing", f"job.json names a superseded result {key} that results.jsonl does not have"
        elif known[key].task.name not in planned:
            yield "attempt-missing", f"{known[key].task.name} was dropped from the job after it had been run"


def _environments(job: PublishedJob, names: Names) -> Found:
    found: dict[TaskId, set[object]] = defaultdict(set)
    for _, result in job.counted:
        if result.sandbox.base is not None:
            found[result.task.id].add(replace(result.sandbox, lacks=()))
    for task, sandboxes in found.items():
        if len(sandboxes) > 1:
            yield "mixed-settings", f"attempts at {names[task]} ran in different environments"


def table_problems(jobs: Sequence[PublishedJob], file: str) -> Iterator[BoardProblem]:
    """Why jobs cannot stand in one table: they have to differ in agent and model, and in nothing else."""
    first = jobs[0]
    seen: dict[tuple[Player, ...], str] = {}
    for job in jobs:
        request, name = job.record.request, job.record.name
        known = seen.setdefault(request.agents, name)
        if known != name:
            message = f"{known} and {name} are of the same agent and model: publish one job of each"
            yield BoardProblem("best-of-n", file, message)
        for key, here, there in _differing(first, job):
            message = f"{first.record.name} and {name} differ in {key}: {here} and {there}"
            yield BoardProblem("mixed-settings", file, message)
        ours, theirs = _tasks(first), _tasks(job)
        for task in sorted(ours.keys() | theirs.keys()):
            if ours.get(task) != theirs.get(task):
                message = f"{first.record.name} and {name} do not have the same packages: {task}"
                yield BoardProblem("other-package", file, message)


def _differing(first: PublishedJob, job: PublishedJob) -> Iterator[tuple[str, object, object]]:
    one, other = first.record.request, job.record.request
    settings, others = one.settings(), other.settings()
    for key in (field.name for field in fields(settings)):
        if key not in ("agent", "model") and getattr(settings, key) != getattr(others, key):
            yield key, getattr(settings, key), getattr(others, key)
    if one.attempts != other.attempts:
        yield "attempts per task", one.attempts, other.attempts


def _tasks(job: PublishedJob) -> dict[str, set[TaskId]]:
    found: dict[str, set[TaskId]] = defaultdict(set)
    for _, result in job.counted:
        found[result.task.name].add(result.task.id)
    return found
