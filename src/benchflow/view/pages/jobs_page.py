"""The list of jobs: a page of them is read, the newest first, so that a thousand jobs cost no more than a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from benchflow.record import Statistics
from benchflow.view.known_jobs import JobHead, KnownJob, Missing, State
from benchflow.view.page_addresses import Fields, address
from benchflow.view.viewer import Live, Viewer

PER_PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class _JobRow:
    name: str
    link: str
    head: JobHead
    state: State
    statistics: Statistics | None
    """None for a job that is too large to be counted for a list, or damaged."""
    version: str


def jobs_page(viewer: Viewer, fields: Fields) -> str:
    """All jobs, or those whose name has the text that is searched for."""
    names = viewer.jobs.names()
    text = fields.one("q")[:200]
    found = [name for name in names if text.lower() in name.lower()]
    pages = max(1, -(-len(found) // PER_PAGE))
    page = min(fields.number("page", 1, least=1), pages)
    rows = [row for name in found[(page - 1) * PER_PAGE : page * PER_PAGE] if (row := _row(viewer, name)) is not None]
    return viewer.page(
        "jobs.html",
        "Jobs",
        [("Jobs", None)],
        live=Live(address("live", "jobs"), jobs_version(viewer), "list"),
        total=len(names),
        text=text,
        rows=rows,
        page=page,
        pages=pages,
        page_url=lambda number: address("", q=text, page=number),
    )


def jobs_version(viewer: Viewer) -> str:
    """Differs when a job of the list appeared, vanished or got a result."""
    parts = []
    for name in viewer.jobs.names()[: 4 * PER_PAGE]:
        folder = viewer.jobs.folder / name
        for file in ("results.jsonl", "job.json", "result.json"):
            try:
                status = (folder / file).stat()
            except OSError:
                continue
            parts.append(f"{name}-{status.st_size}-{status.st_mtime_ns}")
    return f"{crc32(' '.join(parts).encode(errors='replace')):x}"


def _row(viewer: Viewer, name: str) -> _JobRow | None:
    """None for a job that vanished meanwhile."""
    try:
        job: KnownJob = viewer.jobs.get(name)
        head = job.head
        link = address("job", name)
        if head.problem or job.is_large:
            state: State = "damaged" if head.problem else job.state(head, head.planned)
            return _JobRow(name, link, head, state, None, "")
        rows = job.rows(head)
        return _JobRow(name, link, head, job.state(head, len(rows.rows)), rows.statistics, rows.version)
    except Missing:
        return None
