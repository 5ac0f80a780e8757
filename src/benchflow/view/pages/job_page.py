"""One job: its summary with intervals, facets, and the table of its rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

from benchflow.evaluation.store import job_argument
from benchflow.record.reading.rollout_story import RolloutStory
from benchflow.view.facets import Query, histogram
from benchflow.view.games_view import games_view
from benchflow.view.job_index import Row, Rows
from benchflow.view.known_jobs import JobHead, KnownJob, Missing
from benchflow.view.page_addresses import Fields, address, quoted
from benchflow.view.viewer import Live, Viewer

PER_PAGE: Final = 100
MOST_EXPORTED: Final = 20_000
MOST_STORIES: Final = 200
"""Rollouts that an exported file explains."""


def job_page(viewer: Viewer, name: str, fields: Fields) -> str:
    """The page of a job."""
    job = viewer.jobs.get(name)
    head = job.head
    chooser = job.chooser(head, soon=not viewer.exported)
    known = chooser.known
    query = Query.of(fields)
    chosen = chooser.choose(query)
    per_page = MOST_EXPORTED if viewer.exported else PER_PAGE
    pages = max(1, -(-len(chosen.rows) // per_page))
    page = min(fields.number("page", 1, least=1), pages)
    state = job.state(head, len(known.rows), known.share)
    several_agents = len({(row.agent, row.model) for row in known.rows}) > 1 or known.statistics.arena is not None
    costs = "cost_usd" in known.statistics.usage
    stories = _stories(job, chosen.rows) if viewer.exported else None
    return viewer.page(
        "job.html",
        name,
        [("Jobs", "/"), (name, None)],
        live=Live(address("live", "job", name), live_version(job, head, known), state),
        page_class="wide",
        name=name,
        head=head,
        state=state,
        damaged=known.damaged,
        superseded=known.superseded,
        statistics=known.statistics,
        games=games_view(known.statistics.arena) if known.statistics.arena is not None else None,
        share=known.share,
        left=head.planned - len(known.rows) if known.share == 1 else 0,
        can_resume=job.harbor is None and not head.note,
        resume=job_argument(job.folder),
        bins=histogram(known.rows),
        facets=chosen.facets,
        query=query,
        found=len(chosen.rows),
        rows=chosen.rows[(page - 1) * per_page : page * per_page],
        labels=known.labels,
        why=job.why,
        stories=stories or {},
        substitutes=sum(row.fidelity == "substituted" for row in known.rows),
        running=job.running(state),
        nodes=job.nodes(state),
        several_agents=several_agents,
        costs=costs,
        columns=_columns(several_agents=several_agents, costs=costs),
        page=page,
        pages=pages,
        others=[other for other in viewer.jobs.names() if other != name][:200],
        **_addresses(name, query, stories),
    )


def _addresses(name: str, query: Query, stories: Mapping[str, RolloutStory] | None) -> dict[str, Any]:
    """Where the links of the page lead; in an exported file, to the stories in it."""
    asked = query.fields()

    def rollout_url(row: Row) -> str:
        if stories is not None:
            return f"#{quoted(row.rollout)}" if row.rollout in stories else ""
        return address("job", name, "rollout", row.rollout, **asked)

    return {
        "base_url": address("job", name),
        "clear_url": address("job", name, sort=asked["sort"]),
        "page_url": lambda number: address("job", name, **asked, page=number),
        "facet_url": lambda facet, value: address("job", name, **query.with_value(facet, value).fields()),
        "sort_url": lambda sort: address("job", name, **query.sorted_by(sort).fields()),
        "rollout_url": rollout_url,
        "running_url": lambda rollout: address("job", name, "rollout", rollout),
    }


def _stories(job: KnownJob, rows: Iterable[Row]) -> dict[str, RolloutStory]:
    """The rollouts that an exported file explains: those without the full reward first, up to a number."""
    found: dict[str, RolloutStory] = {}
    for row in sorted(rows, key=lambda row: row.outcome == "full"):
        if len(found) == MOST_STORIES:
            break
        with suppress(Missing):
            found[row.rollout] = job.story(row.rollout)
    return found


def live_version(job: KnownJob, head: JobHead, known: Rows | None = None) -> str:
    """Differs whenever the page of a job would; of the rows that are `known`, or as they are now."""
    rows = job.rows(head, soon=True) if known is None else known
    state = job.state(head, len(rows.rows), rows.share)
    now = "".join(f"-{one.rollout}.{one.phase}.{one.events}" for one in job.running(state))
    nodes = job.nodes(state)
    now += "".join(f"-{node.id}.{node.state}" for node in nodes.nodes) if nodes is not None else ""
    return f"{rows.version}-{state}-{crc32(now.encode(errors='replace')):x}"


def _columns(*, several_agents: bool, costs: bool) -> list[tuple[str, str, str]]:
    """The columns of the table: what they sort by, their title, their class."""
    return [
        ("reward", "Reward", ""),
        ("task", "Task", ""),
        ("attempt", "Attempt", "right"),
        *([("agent", "Agent", "")] if several_agents else []),
        ("rung", "Isolation", ""),
        ("time", "Time", "right"),
        *([("cost", "Cost", "right")] if costs else []),
        ("", "Notes", ""),
    ]
