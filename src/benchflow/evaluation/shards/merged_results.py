"""Whether jobs belong together, and their results as those of one job. Nothing is written here.

Jobs belong together if they carry out the same plan: the same tasks by content, agents, models, settings and attempts.
Where packages are, and which shard a job is, does not count.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final, NamedTuple

from benchflow.errors import UsageError
from benchflow.evaluation.store import job_argument
from benchflow.record import Job, JobRecord, JobRequest, MergedJob, WholePlan, WorkKey
from benchflow.record.codec import whole_lines
from benchflow.record.job import DamagedLine, read_line

_MAY_DIFFER: Final = frozenset({"sources", "directory", "pull", "concurrent_calls", "shard"})
"""Parts of a request that change neither the work nor what is recorded of it."""
_NAMED: Final = 3


class Line(NamedTuple):
    """A line of `results.jsonl` as it was written, with what decides its place in a merged job."""

    raw: bytes
    rollout: str
    key: WorkKey
    finished_at: str
    scored: bool
    task: str
    content: str | None
    attempt: int


@dataclass(frozen=True)
class Source:
    """A job to be merged."""

    job: Job
    lines: tuple[Line, ...]
    damaged: tuple[bytes, ...]
    """Lines that cannot be read; they are kept as they are."""
    torn: bool
    """Whether the last line was not written to its end; it is left out."""

    @property
    def name(self) -> str:
        return self.job.folder.name

    @property
    def record(self) -> JobRecord:
        return self.job.record

    @cached_property
    def by_rollout(self) -> Mapping[str, tuple[Line, ...]]:
        grouped: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            grouped[line.rollout].append(line)
        return {rollout: tuple(lines) for rollout, lines in grouped.items()}


def read_source(job: Job) -> Source:
    """Everything that a job has to say; one of an older version is refused."""
    if job.record.upgraded:
        message = f"Job '{job.folder.name}' was written by version 0.1 and can only be shown, not merged."
        raise UsageError(message, code="job-outdated")
    lines: list[Line] = []
    damaged: list[bytes] = []
    size = 0
    for number, raw in whole_lines(job.places.results):
        size += len(raw)
        found = read_line(number, raw)
        if isinstance(found, DamagedLine):
            damaged.append(raw)
            continue
        rollout, result = found
        task = result.task
        lines.append(
            Line(
                raw,
                rollout,
                result.key,
                result.finished_at,
                result.error is None,
                task.name,
                task.content_digest,
                result.attempt,
            )
        )
    torn = job.places.results.exists() and job.places.results.stat().st_size > size
    return Source(job, tuple(lines), tuple(damaged), torn)


@dataclass(frozen=True)
class Merged:
    """The results of several jobs as those of one."""

    record: JobRecord
    lines: tuple[bytes, ...]
    owners: Mapping[str, Source]
    """The job that each rollout with results is taken from."""
    sources: tuple[Source, ...]
    """In an order that does not depend on the one they were named in."""


def merged(name: str, sources: Sequence[Source]) -> Merged:
    """The jobs as one; raises `UsageError` if they do not belong together. The request is that of the first."""
    plan = _same_plan(sources)
    ordered = tuple(sorted(sources, key=_place))
    owners = _owners(ordered)
    superseded = tuple(dict.fromkeys(key for source in ordered for key in source.record.superseded))
    _refuse_second_scores(ordered, owners, frozenset(superseded))
    kept = [[line for line in source.lines if owners[line.rollout] is source] for source in ordered]
    lines = [line.raw for line in _in_time(kept)]
    lines += dict.fromkeys(raw for source in ordered for raw in source.damaged)
    parts = zip(ordered, kept, strict=True)
    record = JobRecord(
        name,
        replace(sources[0].record.request, shard=None),
        plan.rollouts,
        min(source.record.created_at for source in sources),
        superseded,
        plan,
        tuple(MergedJob(source.name, len(own), source.record.request.shard) for source, own in parts),
    )
    return Merged(record, tuple(lines), owners, ordered)


def _same_plan(sources: Sequence[Source]) -> WholePlan:
    """The plan of all jobs; says in what they differ if there is not one."""
    first = sources[0]
    plan = _plan(first)
    for source in sources[1:]:
        other = _plan(source)
        both = f"Jobs '{first.name}' and '{source.name}' cannot be merged"
        for key, here, there in _differing(first.record.request, source.record.request):
            raise UsageError(f"{both}: they differ in {key}, {here} and {there}.", code="different-plans")
        if other.digest != plan.digest:
            raise UsageError(f"{both}: {_other_packages(first, source)}", code="different-plans")
    return plan


def _plan(source: Source) -> WholePlan:
    plan = source.record.plan
    if plan is None:
        message = f"Job '{source.name}' does not record its plan, as older jobs do not. To add it: bench eval resume"
        raise UsageError(f"{message} {job_argument(source.job.folder)}", code="no-plan")
    return plan


def _differing(one: JobRequest, other: JobRequest) -> Iterator[tuple[str, object, object]]:
    for name in (field.name for field in fields(JobRequest)):
        here, there = getattr(one, name), getattr(other, name)
        if name not in _MAY_DIFFER and here != there:
            yield name, here, there


def _other_packages(one: Source, other: Source) -> str:
    """Which packages are not the same, as far as the results tell."""
    first, second = _contents(one), _contents(other)
    changed = sorted(name for name in first.keys() & second.keys() if first[name] != second[name])
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return f"they have other versions of {', '.join(changed[:_NAMED])}{more}."
    return "the packages that they were last run with are not the same. Resume both with the same packages first."


def _contents(source: Source) -> dict[str, set[str | None]]:
    superseded = frozenset(source.record.superseded)
    found: dict[str, set[str | None]] = defaultdict(set)
    for line in source.lines:
        if line.key not in superseded:
            found[line.task].add(line.content)
    return found


def _place(source: Source) -> tuple[object, ...]:
    shard = source.record.request.shard
    index = (shard.index, shard.count) if shard is not None else (0, 0)
    return (*index, source.record.created_at, source.name, str(source.job.folder))


def _owners(sources: Sequence[Source]) -> dict[str, Source]:
    """Of a rollout that several jobs have, as merged jobs may, the one that knows most of it."""
    owners: dict[str, Source] = {}
    for source in sources:
        for rollout, lines in source.by_rollout.items():
            known = owners.setdefault(rollout, source)
            before, after = (tuple(line.raw for line in each) for each in (known.by_rollout[rollout], lines))
            if before == after[: len(before)]:
                owners[rollout] = source if len(after) > len(before) else known
            elif after != before[: len(after)]:
                message = f"Jobs '{known.name}' and '{source.name}' have different results of the rollout {rollout}"
                raise UsageError(f"{message}: merge one of them.", code="different-results")
    return owners


def _refuse_second_scores(
    sources: Sequence[Source], owners: Mapping[str, Source], superseded: frozenset[WorkKey]
) -> None:
    """Choosing between two scores of the same work would be selection; failed tries are kept beside a score."""
    scored: dict[WorkKey, tuple[Source, str]] = {}
    for source in sources:
        for line in source.lines:
            if not line.scored or line.key in superseded or owners[line.rollout] is not source:
                continue
            known, rollout = scored.setdefault(line.key, (source, line.rollout))
            if known is not source and rollout != line.rollout:
                message = (
                    f"Jobs '{known.name}' and '{source.name}' have both scored {line.task}, attempt {line.attempt}, in "
                    f"different rollouts ({rollout} and {line.rollout}): merge one of them."
                )
                raise UsageError(message, code="scored-twice")


def _in_time(parts: Sequence[Sequence[Line]]) -> Iterator[Line]:
    """All lines by the time they were written, each job's in its own order: later lines count instead of earlier."""

    def timed(number: int, lines: Sequence[Line]) -> Iterator[tuple[str, int, int, Line]]:
        latest = ""
        for place, line in enumerate(lines):
            latest = max(latest, line.finished_at)  # a rescored rollout has the time of its agent
            yield latest, number, place, line

    ordered = heapq.merge(*(timed(number, lines) for number, lines in enumerate(parts)), key=lambda each: each[:3])
    return (line for *_, line in ordered)
