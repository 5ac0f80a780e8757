"""The jobs of a folder as pages see them: looked up by name each time, with their rows kept while they are in use.

A job can appear, grow, be replaced or vanish while pages are open. Whatever is not there is a `Missing` with one
sentence and what to do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import Final, Literal

from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.compare import Results
from benchflow.record import Job, JobNodes, JobPlaces, JobRecord, RolloutFolder, WorkKey
from benchflow.record.layout import is_folder_name
from benchflow.record.reading.harbor_job import HarborJob, harbor_result, is_harbor_job
from benchflow.record.reading.live_rollouts import LiveRollout, LiveRollouts
from benchflow.record.reading.rollout_story import RolloutStory, read_result, read_story, why_not_full
from benchflow.view.facets import Chooser
from benchflow.view.job_index import ResultsFile, Row, Rows, row_of
from benchflow.view.plain_text import one_line

State = Literal["running", "finished", "unfinished", "damaged", "reading"]
MOST_KEPT: Final = 64
"""The rows of so many jobs stay in memory."""
SOON_SEC: Final = 0.5
"""A page that does not need all results waits so long for them; the rest is read while it is shown."""
PAINTED_SEC: Final = 1.0
"""The rest is read from then on: beside a thread that reads, making the page takes several times as long."""
LARGE_LIST: Final = 48 << 20
"""A list of jobs does not count the results of a job whose log is larger; its own page does."""


class Missing(Exception):
    """Something that is not there, or not any more."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class JobHead:
    """What is known of a job besides its results."""

    agent: str = ""
    model: str = ""
    sources: tuple[str, ...] = ()
    planned: int = 0
    created_at: str = ""
    note: str = ""
    """What a reader has to know about where it comes from."""
    problem: str = ""
    directory: str = ""
    shard: str = ""
    """Which part of its plan the job is; empty for all of it."""
    superseded: tuple[str, ...] = ()


class KnownJob:
    """One job of benchcube, or one that Harbor wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.name: Final = folder.name
        self.places: Final = JobPlaces(folder)
        self.harbor: Final = HarborJob(folder) if is_harbor_job(folder) else None
        self._results = ResultsFile(self.places.results)
        self._live = LiveRollouts(folder)
        self._live_lock = Lock()
        self._whys: dict[str, tuple[str, str]] = {}
        self._chooser: Chooser | None = None
        self._harbor_rows = Rows("none")
        self._reading: Timer | None = None

    @property
    def exists(self) -> bool:
        return self.places.job.exists() or is_harbor_job(self.folder)

    @property
    def head(self) -> JobHead:
        """The request, or why it cannot be read."""
        if self.harbor is not None:
            facts = self.harbor.facts
            return JobHead(facts.agent, facts.model, (), facts.planned, facts.started_at, "written by Harbor")
        try:
            record: JobRecord = Job(self.folder).record
        except InfrastructureFailure as error:
            return JobHead(problem=str(error))
        request = record.request
        return JobHead(
            ", ".join(map(str, request.rotation)) or request.agent,
            "" if request.rotation else request.model or "",
            request.sources,
            record.planned,
            record.created_at,
            "written by version 0.1: it can be shown, but not resumed" if record.upgraded else "",
            directory=request.directory,
            shard="" if request.shard is None else str(request.shard),
            superseded=tuple(record.superseded),
        )

    def rows(self, head: JobHead | None = None, *, soon: bool = False) -> Rows:
        """The results that count, as they are now; `soon`: of a large job the first ones, while the rest is read."""
        if self.harbor is not None:
            return self._read_harbor(self.harbor)
        superseded: tuple[WorkKey, ...] = (head or self.head).superseded  # type: ignore[assignment]  # keys are texts
        try:
            rows = self._results.refresh(superseded, SOON_SEC if soon else None)
        except OSError as error:
            raise Missing(f"The results of {self.name} cannot be read: {error.strerror or error}.") from error
        if rows.share < 1 and (self._reading is None or not self._reading.is_alive()):
            self._reading = Timer(PAINTED_SEC, self._read_rest, (superseded,))
            self._reading.daemon = True
            self._reading.start()
        return rows

    def _read_rest(self, superseded: tuple[WorkKey, ...]) -> None:
        with suppress(OSError):  # the next request meets it too, and reports it
            self._results.refresh(superseded)

    def chooser(self, head: JobHead | None = None, *, soon: bool = False) -> Chooser:
        """Answers queries over the rows as they are now; `soon` as for `rows`."""
        rows = self.rows(head, soon=soon)
        if self._chooser is None or self._chooser.known is not rows:
            self._chooser = Chooser(rows)
        return self._chooser

    def _read_harbor(self, job: HarborJob) -> Rows:
        version = job.version()
        if version != self._harbor_rows.version:
            read = job.read()
            rows = tuple(row_of(rollout, result) for rollout, result in read.counted)
            self._harbor_rows = Rows(version, rows, tuple(read.damaged))
        return self._harbor_rows

    @property
    def is_large(self) -> bool:
        try:
            return self.places.results.stat().st_size > LARGE_LIST
        except OSError:
            return False

    def state(self, head: JobHead, results: int, share: float = 1.0) -> State:
        """`results` of a job whose results were read to that share."""
        if head.problem:
            return "damaged"
        if share < 1:
            return "reading"
        if self.harbor is None and Job(self.folder).running:
            return "running"
        return "finished" if results >= head.planned else "unfinished"

    def results(self) -> Results:
        """All results in full, as comparisons take them."""
        return Job(self.folder) if self.harbor is None else self.harbor.read()

    def running(self, state: State) -> tuple[LiveRollout, ...]:
        """What the rollouts of a running job do now."""
        if state != "running":
            return ()
        with self._live_lock:
            return self._live.look()

    def nodes(self, state: State) -> JobNodes | None:
        """The nodes of a running job on a cluster."""
        if state != "running":
            return None
        with self._live_lock:
            return self._live.nodes()

    def why(self, row: Row) -> str:
        """The most telling reason why a rollout has not the full reward, from its folder; empty if it has."""
        if row.reward is None or row.reward >= 1 or self.harbor is not None:
            return ""
        folder = self.places.rollout(row.rollout).newest()
        known = self._whys.get(row.rollout)
        if known is None or known[0] != str(folder.path):
            result, _ = read_result(folder.result)
            reasons = why_not_full(result, folder) if result is not None else ()
            text = next((reason.text for reason in reasons if reason.kind != "reward"), "")
            known = self._whys[row.rollout] = (str(folder.path), one_line(text, 200))
        return known[1]

    def rollout(self, name: str) -> RolloutFolder:
        """The folder of a rollout; the name is never a path."""
        if not is_folder_name(name):
            raise Missing("There is no such rollout.", "Go back to the job.")
        folder = RolloutFolder(self.folder / name) if self.harbor is not None else self.places.rollout(name)
        if folder.path.is_symlink() or not folder.path.is_dir():
            raise Missing(f"The folder of the rollout {name} does not exist.", "It may have been removed or moved.")
        return folder

    def story(self, name: str) -> RolloutStory:
        """A rollout as a reader wants it; raises `Missing`."""
        folder = self.rollout(name)
        result = None
        if self.harbor is not None:
            try:
                result = harbor_result(folder.path)
            except (OSError, ValueError) as error:
                raise Missing(f"The result of {name} cannot be read: {error}.") from error
        return read_story(folder.path, result)


class KnownJobs:
    """All jobs below a folder, or a single one."""

    def __init__(self, folder: Path) -> None:
        self.single: Final = is_job(folder)
        self.folder: Final = folder.absolute().parent if self.single else folder
        self._only: Final = folder.absolute().name if self.single else None
        self._kept: OrderedDict[str, KnownJob] = OrderedDict()
        self._lock = Lock()

    def names(self) -> list[str]:
        """Names of all jobs, the newest first."""
        if self._only is not None:
            return [self._only]
        return [name for _, name in sorted(self._dated(), reverse=True)]

    def _dated(self) -> Iterator[tuple[float, str]]:
        try:
            folders = list(self.folder.iterdir())
        except OSError:
            return
        for folder in folders:
            if not is_folder_name(folder.name) or folder.is_symlink():
                continue
            for marker in ("job.json", "result.json"):
                try:
                    changed = (folder / marker).stat().st_mtime
                except OSError:
                    continue
                if marker == "job.json" or is_harbor_job(folder):
                    yield changed, folder.name
                    break

    def get(self, name: str) -> KnownJob:
        """The job of a name; raises `Missing`."""
        if not is_folder_name(name) or (self._only is not None and name != self._only):
            raise Missing("There is no such job.", "Choose one from the list of jobs.")
        with self._lock:
            known = self._kept.pop(name, None)
            if known is None or not known.exists:
                known = KnownJob(self.folder / name)
            if not known.exists:
                raise Missing(f"{self.folder} has no job {name}.", "It may have been removed or renamed.")
            self._kept[name] = known
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return known


def is_job(folder: Path) -> bool:
    """Whether a folder is one job and not a folder of jobs."""
    return JobPlaces(folder).job.is_file() or is_harbor_job(folder)
