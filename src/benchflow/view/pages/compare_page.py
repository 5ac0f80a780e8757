"""Two to four jobs side by side: by task, those first on which they differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchflow.evaluation.statistics import average
from benchflow.record import Statistics, TaskId
from benchflow.view.addresses import Fields, address
from benchflow.view.job_index import Row
from benchflow.view.known_jobs import JobHead, Missing
from benchflow.view.viewer import Viewer

LEAST, MOST = 2, 4
PER_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    link: str
    head: JobHead
    statistics: Statistics
    difference: Estimated


@dataclass(frozen=True, slots=True)
class Estimated:
    """How a job differs from the first one."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int = 0
    verdict: str = ""


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


def compare_page(viewer: Viewer, fields: Fields) -> str:
    """The comparison of the jobs in the address."""
    names = fields.all("job")
    if not LEAST <= len(names) <= MOST:
        raise Missing("Two to four jobs can be compared.", "Choose them in the list of jobs.")
    jobs = [viewer.jobs.get(name) for name in names]
    rows = [job.rows() for job in jobs]
    tables = [_by_task(found.rows) for found in rows]
    tasks = [_task_row(task, names, tables) for task in sorted(set().union(*tables))]
    tasks.sort(key=lambda row: (-row.spread, row.name))
    same = sum(1 for row in tasks if row.spread == 0)
    differing = fields.one("only") == "differences"
    shown = [row for row in tasks if row.spread > 0] if differing else tasks
    pages = max(1, -(-len(shown) // PER_PAGE))
    page = min(fields.number("page", 1, least=1), pages)
    heads = [
        _Job(
            name,
            address("job", name),
            job.head,
            found.statistics,
            _difference(tables[0], tables[index]) if index else Estimated(),
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


def _by_task(rows: tuple[Row, ...]) -> dict[str, list[Row]]:
    """The rows of each task by its name, across contents."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.task.name, []).append(row)
    return found


def _task_row(task: str, names: tuple[str, ...], tables: list[dict[str, list[Row]]]) -> _TaskRow:
    cells = tuple(
        _cell(name, task, table[task]) if task in table else None for name, table in zip(names, tables, strict=True)
    )
    means = [cell.mean for cell in cells if cell is not None and cell.mean is not None]
    spread = max(means) - min(means) if len(means) > 1 else 0.0
    contents: set[TaskId] = {row.task for table in tables for row in table.get(task, [])}
    return _TaskRow(task, cells, spread, len({one.content_digest for one in contents}) > 1)


def _cell(job: str, task: str, rows: list[Row]) -> _Cell:
    rewards = [row.reward for row in rows if row.reward is not None]
    mean = average(rewards) if rewards else None
    outcome = "unscored" if mean is None else "full" if mean >= 1 else "zero" if mean <= 0 else "partial"
    link = address("job", job, "rollout", rows[0].rollout) if len(rows) == 1 else address("job", job, task=task)
    return _Cell(mean, len(rows), outcome, link)


def _difference(first: dict[str, list[Row]], second: dict[str, list[Row]]) -> Estimated:
    """The mean difference over the tasks that both have scored, paired by name."""
    from benchflow.evaluation.statistics import mean, span_of

    pairs = {}
    for task in first.keys() & second.keys():
        both = [[row.reward for row in table[task] if row.reward is not None] for table in (first, second)]
        if both[0] and both[1]:
            pairs[task] = (average(both[0]), average(both[1]))
    low, high = span_of(value for pair in pairs.values() for value in pair)
    found = mean({task: [pair[1] - pair[0]] for task, pair in pairs.items()}, (low - high, high - low))
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        verdict = "no clear difference"
    else:
        verdict = "better" if found.low > 0 else "worse"
    return Estimated(found.value, found.low, found.high, found.tasks, verdict if found.value is not None else "")
