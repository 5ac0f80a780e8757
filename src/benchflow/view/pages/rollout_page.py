"""One rollout: its conversation, and behind tabs its arena, reward, verifier, files, changes, calls and details."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.record import Result
from benchflow.record.reading.arena_exchange import count_messages
from benchflow.record.reading.atif_events import read_atif
from benchflow.record.reading.call_lines import count_calls
from benchflow.record.reading.harbor_job import TRAJECTORY
from benchflow.record.reading.rollout_story import RolloutStory
from benchflow.record.reading.trajectory_steps import Step, steps_of, steps_page
from benchflow.view.conversation_pages import (
    SHOWABLE,
    Asked,
    Shown,
    arguments_text,
    page_of_file,
    page_of_steps,
    place_of,
)
from benchflow.view.facets import Query
from benchflow.view.known_jobs import KnownJob, Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.pages.arena_page import ARENA_HELPERS, ArenaView, arena_of, has_arena
from benchflow.view.pages.calls_page import calls_of, facts
from benchflow.view.pages.changes_page import changes_of
from benchflow.view.viewer import Live, Viewer

TABS: Final = {
    "conversation": "Conversation",
    "arena": "Arena",
    "reward": "Reward",
    "verifier": "Verifier",
    "files": "Files",
    "changes": "Changes",
    "calls": "Model calls",
    "details": "Details",
}
FOLDED: Final = 3_000
"""A longer text of a conversation is fetched when it is opened."""
MOST_PART: Final = 500_000


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where a rollout is among the rows that its table showed."""

    position: int = 0
    """From 1; 0 if it is not among them."""
    total: int = 0
    previous: str = ""
    next: str = ""


class OpenRollout:
    """A rollout of a job with its readers, wherever it was written."""

    def __init__(self, viewer: Viewer, job: KnownJob, name: str) -> None:
        self.viewer: Final = viewer
        self.job: Final = job
        self.name: Final = name
        self.folder: Final = job.rollout(name)
        self._foreign: list[Step] | None = None

    @property
    def foreign_steps(self) -> list[Step] | None:
        """The steps of a trajectory of another tool; None for our own."""
        if self.job.harbor is None:
            return None
        if self._foreign is None:
            try:
                self._foreign = list(steps_of(read_atif(self.folder.path / TRAJECTORY).events))
            except (OSError, ValueError):
                self._foreign = []
        return self._foreign

    def conversation(self, asked: Asked) -> Shown:
        foreign = self.foreign_steps
        if foreign is not None:
            return page_of_steps(foreign, asked)
        path = self.folder.trajectory
        return page_of_file(path, asked, self.viewer.indexes.of(path))

    def step(self, at: str) -> Step | None:
        """The step at a place."""
        offset, number = place_of(at)
        foreign = self.foreign_steps
        if foreign is not None:
            return foreign[number - 1] if number <= len(foreign) else None
        try:
            found = steps_page(self.folder.trajectory, offset, number, limit=1).steps
        except OSError:
            return None
        return found[0] if found else None

    def version(self) -> str:
        """Differs when the page would."""
        parts = []
        watched = (self.folder.trajectory, self.folder.model_calls, self.folder.a2a_messages, self.folder.rewards)
        for path in (*watched, self.folder.newest().result):
            try:
                status = path.stat()
            except OSError:
                continue
            parts.append(f"{status.st_size:x}.{status.st_mtime_ns:x}")
        return "-".join(parts) or "none"


def rollout_page(viewer: Viewer, job_name: str, name: str, fields: Fields) -> str:
    """The page of a rollout."""
    job = viewer.jobs.get(job_name)
    rollout = OpenRollout(viewer, job, name)
    story = job.story(name)
    query = Query.of(fields)
    game = has_arena(rollout.folder, story.result)
    tabs = {key: title for key, title in TABS.items() if key != "arena" or game}
    first = "arena" if game else "conversation"
    tab = fields.one("tab", first)
    tab = tab if tab in tabs else first
    asked = Asked.of(fields)
    kept = {**query.fields(), "tab": "" if tab == first else tab}
    head = job.head
    running = story.result is None and job.state(head, head.planned) == "running"
    task = story.result.task.name if story.result is not None else name

    def url(**changes: Any) -> str:
        return address("job", job_name, "rollout", name, **{**kept, **asked.fields(), **changes})

    if viewer.exported:
        asked = Asked()
    return viewer.page(
        "rollout.html",
        f"{task} · {job_name}",
        [("Jobs", "/"), (job_name, address("job", job_name, **query.fields())), (name, None)],
        live=Live(address("live", "rollout", job_name, name), rollout.version(), "running" if running else "ended"),
        job=job_name,
        name=name,
        story=story,
        result=story.result,
        running=running,
        by_harbor=job.harbor is not None,
        outcome=_outcome(story.result),
        neighbours=_neighbours(job, name, query, kept),
        tabs=tabs,
        tab=tab,
        wanted=lambda each: viewer.exported is not None or tab == each,
        url=url,
        task_url=address("job", job_name, "task", name=task),
        package_url=address("job", job_name, "package", task=task),
        **_addresses(job_name, name, query, first),
        has_tree=_has_tree(story),
        phases=phases_of(story.result),
        asked=asked,
        showable=SHOWABLE,
        conversation=rollout.conversation(asked) if tab == "conversation" or viewer.exported else None,
        arguments_text=arguments_text,
        folded=FOLDED if not viewer.exported else MOST_PART,
        changes=changes_of(story, head.directory) if tab == "changes" or viewer.exported else None,
        config=_text_of(rollout.folder.config) if tab == "details" or viewer.exported else "",
        images=IMAGES,
        calls=calls_of(rollout.folder, fields) if tab == "calls" or viewer.exported else None,
        call_count=count_calls(rollout.folder),
        arena=_arena(rollout, story, fields) if game and (tab == "arena" or viewer.exported) else None,
        arena_helpers=ARENA_HELPERS,
        message_count=count_messages(rollout.folder) if game else None,
        facts=facts,
    )


def _arena(rollout: OpenRollout, story: RolloutStory, fields: Fields) -> ArenaView:
    return arena_of(rollout.folder, story.result, fields, exported=rollout.viewer.exported is not None)


def _addresses(job_name: str, name: str, query: Query, first: str) -> dict[str, Any]:
    """Where the parts of the page lie."""
    place = ("job", job_name, "rollout", name)
    return {
        "tab_url": lambda tab: address(*place, **query.fields(), tab="" if tab == first else tab),
        "file_url": lambda path, **more: address(*place, "file", path=path, **more),
        "part_url": lambda step, part, what: address(
            *place, "part", at=f"{step.offset}-{step.number}", part=part, what=what
        ),
        "message_url": lambda entry, part: address(*place, "message", at="{}-{}".format(*entry.place), part=part),
        "call_url": lambda line, what: address(*place, "call", at=f"{line.offset}-{line.number}", what=what),
        "tree_url": address(*place, "tree"),
    }


IMAGES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def part_page(viewer: Viewer, job_name: str, name: str, fields: Fields) -> str:
    """One text of a step, whole."""
    rollout = OpenRollout(viewer, viewer.jobs.get(job_name), name)
    step = rollout.step(fields.one("at"))
    number = fields.number("part", 0)
    if step is None or number >= len(step.parts):
        raise Missing("This part of the trajectory does not exist.", "The trajectory may have been replaced.")
    part = step.parts[number]
    texts = {"output": part.output or "", "arguments": arguments_text(part.arguments)}
    text = texts.get(fields.one("what"), part.text)
    crumbs = [("Jobs", "/"), (job_name, address("job", job_name)), (name, address("job", job_name, "rollout", name))]
    return viewer.page("part.html", f"Step {step.number}", [*crumbs, (f"Step {step.number}", None)], text=text)


def _outcome(result: Result | None) -> str:
    if result is None or result.reward is None:
        return "unscored"
    return "full" if result.reward >= 1 else "zero" if result.reward <= 0 else "partial"


def _neighbours(job: KnownJob, name: str, query: Query, kept: dict[str, Any]) -> Neighbours:
    """The rollouts before and after in the order of the table; the tab stays. Unknown while a large job is read."""
    chooser = job.chooser(soon=True)
    if chooser.known.share < 1:
        return Neighbours()
    rows = chooser.rows(query)
    at = next((index for index, row in enumerate(rows) if row.rollout == name), None)
    if at is None:
        return Neighbours(total=len(rows))

    def link(index: int) -> str:
        return address("job", job.name, "rollout", rows[index].rollout, **kept) if 0 <= index < len(rows) else ""

    return Neighbours(at + 1, len(rows), link(at - 1), link(at + 1))


def _has_tree(story: RolloutStory) -> bool:
    result = story.result
    parts = result is not None and bool(result.steps or result.notes.branches)
    return parts or story.folder.user_rounds.is_file()


def phases_of(result: Result | None) -> list[tuple[str, float, float, float]]:
    """The phases of a rollout: name, seconds, and where each begins and how long it is, in percent of all."""
    if result is None:
        return []
    spans = [(name, seconds) for name, seconds in result.timing.items() if name != "total" and seconds > 0]
    total = sum(seconds for _, seconds in spans) or 1.0
    found, at = [], 0.0
    for name, seconds in spans:
        share = 100 * seconds / total
        found.append((name, seconds, at, share))
        at += share
    return found


def _text_of(path: Path) -> str:
    try:
        return read_regular(path, max_bytes=1 << 20).decode(errors="replace")
    except (OSError, RefusedFileError):
        return ""
