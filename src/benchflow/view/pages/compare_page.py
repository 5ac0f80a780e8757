"""Two to four jobs side by side: by task, those first on which they differ most.

Tasks pair across jobs as `bench eval compare` pairs them, and differences are computed by the same function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchflow.evaluation.compare import Comparison, compare
from benchflow.evaluation.statistics import average
from benchflow.record import Statistics, TaskId, labels, pair
from benchflow.view.job_index import Row, Rows
from benchflow.view.known_jobs import JobHead, Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.viewer import Viewer

LEAST, MOST = 2, 4
PER_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    link: str
    head: JobHead
    statistics: Statistics
    against_first: Comparison | None
    """None for the first one itself."""


@dataclass(frozen=True, slots=True)
class _Cell:
    mean: float | None
    """None if no attempt was scored."""
    attempts: int
    outcome: str
    link: str


@dataclass(frozen=True, slots=True)
class _TaskRow:
    name: str
    cells: tuple[_Cell | None, ...]
    """None for a job that does not have the task."""
    spread: float
    changed: bool
    """Whether its content differs between the jobs."""


def compare_page(viewer: Viewer, fields: Fields) -> str:
    """The comparison of the jobs in the address."""
    names = fields.all("job")
    if not LEAST <= len(names) <= MOST:
        raise Missing("Two to four jobs can be compared.", "Choose them in the list of jobs.")
    jobs = [viewer.jobs.get(name) for name in names]
    rows = [job.rows() for job in jobs]
    tasks = sorted(_task_rows(names, rows), key=lambda row: (-row.spread, row.name))
    same = sum(1 for row in tasks if row.spread == 0)
    differing = fields.one("only") == "differences"
    shown = [row for row in tasks if row.spread > 0] if differing else tasks
    pages = max(1, -(-len(shown) // PER_PAGE))
    page = min(fields.number("page", 1, least=1), pages)
    results = [job.results() for job in jobs]
    heads = [
        _Job(
            name,
            address("job", name),
            job.head,
            found.statistics,
            compare(names[0], results[0], name, results[index]) if index else None,
        )
        for index, (name, job, found) in enumerate(zip(names, jobs, rows, strict=True))
    ]
    return viewer.page(
        "compare.html",
        " and ".join(names),
        [("Jobs", "/"), ("Compare", None)],
        page_class="wide",
        jobs=heads,
        tasks=shown[(page - 1) * PER_PAGE : page * PER_PAGE],
        all_tasks=len(tasks),
        same=same,
        differing=differing,
        page=page,
        pages=pages,
        page_url=lambda number: address("compare", job=names, only=fields.one("only"), page=number),
        only_url=address("compare", job=names, only="" if differing else "differences"),
    )


def _task_rows(names: tuple[str, ...], jobs: list[Rows]) -> list[_TaskRow]:
    """A row for each task of any job; the tasks of later jobs pair with those that are there."""
    lines: dict[TaskId, list[TaskId | None]] = {}
    for index, job in enumerate(jobs):
        ordered = list(dict.fromkeys(row.task for row in sorted(job.rows, key=lambda row: row.path)))
        pairs, _, alone = pair(lines, ordered)
        for both in pairs:
            lines[both.first][index] = both.second
        for task in alone:
            lines[task] = [task if place == index else None for place in range(len(jobs))]
    grouped = [_by_task(job.rows) for job in jobs]
    titles = labels(lines)
    return [_task_row(titles[task], found, names, grouped) for task, found in lines.items()]


def _by_task(rows: tuple[Row, ...]) -> dict[TaskId, list[Row]]:
    found: dict[TaskId, list[Row]] = {}
    for row in rows:
        found.setdefault(row.task, []).append(row)
    return found


def _task_row(
    title: str, tasks: list[TaskId | None], names: tuple[str, ...], grouped: list[dict[TaskId, list[Row]]]
) -> _TaskRow:
    cells = tuple(
        _cell(name, table[task]) if task is not None else None
        for name, task, table in zip(names, tasks, grouped, strict=True)
    )
    means = [cell.mean for cell in cells if cell is not None and cell.mean is not None]
    spread = max(means) - min(means) if len(means) > 1 else 0.0
    return _TaskRow(title, cells, spread, len({task.content_digest for task in tasks if task is not None}) > 1)


def _cell(job: str, rows: list[Row]) -> _Cell:
    rewards = [row.reward for row in rows if row.reward is not None]
    mean = average(rewards) if rewards else None
    outcome = "unscored" if mean is None else "full" if mean >= 1 else "zero" if mean <= 0 else "partial"
    alone = address("job", job, "rollout", rows[0].rollout)
    return _Cell(mean, len(rows), outcome, alone if len(rows) == 1 else address("job", job, task=rows[0].task.name))
