"""One task over all attempts, agents and jobs of the folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchflow.evaluation.statistics import summarise
from benchflow.record import Statistics
from benchflow.view.job_index import Row
from benchflow.view.known_jobs import JobHead, Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.viewer import Viewer

MOST_JOBS: Final = 40
"""The newest jobs that are looked through."""
MOST_ROWS: Final = 400


@dataclass(frozen=True, slots=True)
class _Group:
    """The attempts of one agent in one job."""

    job: str
    link: str
    agent: str
    model: str
    statistics: Statistics
    rows: tuple[Row, ...]
    changed: bool
    """Whether the content of the task differs from that of the job the page was opened from."""


def task_page(viewer: Viewer, job_name: str, fields: Fields) -> str:
    """All attempts at a task: those of the job first, then those of other jobs."""
    name = fields.one("name")
    job = viewer.jobs.get(job_name)
    own = [row for row in job.rows().rows if row.task.name == name]
    if not own:
        raise Missing(f"{job_name} has no results of the task {name}.", "They appear when its first rollout finishes.")
    digests = {row.task.content_digest for row in own}
    groups = _groups(job_name, job.head, own, digests)
    others = [other for other in viewer.jobs.names() if other != job_name]
    for other in others[:MOST_JOBS]:
        try:
            known = viewer.jobs.get(other)
            if not known.is_large:
                rows = [row for row in known.rows().rows if row.task.name == name]
                groups += _groups(other, known.head, rows, digests)
        except Missing:
            continue
    return viewer.page(
        "task.html",
        f"{name} · {job_name}",
        [("Jobs", "/"), (job_name, address("job", job_name)), (name, None)],
        name=name,
        groups=groups,
        attempts=sum(len(group.rows) for group in groups),
        not_looked_at=max(0, len(others) - MOST_JOBS),
        rollout_url=lambda group, row: address("job", group.job, "rollout", row.rollout, task=name),
        package_url=address("job", job_name, "package", task=name),
        evidence_url=address("job", job_name, "evidence", task=name),
    )


def _groups(job: str, _head: JobHead, rows: list[Row], digests: set[str | None]) -> list[_Group]:
    by_agent: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_agent.setdefault((row.agent, row.model), []).append(row)
    return [
        _Group(
            job,
            address("job", job, task=rows[0].task.name),
            agent,
            model,
            summarise(row.sample for row in found),
            tuple(sorted(found, key=lambda row: row.attempt)[:MOST_ROWS]),
            not {row.task.content_digest for row in found} <= digests,
        )
        for (agent, model), found in sorted(by_agent.items())
    ]
