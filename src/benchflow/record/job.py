"""A job as a reader sees it: its request, and the results that count. Nothing here changes a job.

`results.jsonl` is read once, line by line. A damaged line is reported by its number and left out; its content
is unknown, so it counts as missing work.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from benchflow.errors import InfrastructureFailure, UsageError, did_you_mean
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.arena_record import Player
from benchflow.record.codec import FLAT, encoded_line, plain, read, whole_lines
from benchflow.record.identity import Settings, Shard, WholePlan, WorkKey
from benchflow.record.layout import JobPlaces, is_folder_name
from benchflow.record.result import Result
from benchflow.rewards.numbers import shown

JOB_SCHEMA: Final = "benchcube.job.v2"
Part = TypeVar("Part")
_LISTED: Final = 20
"""Jobs that a message names."""


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """Which of the tasks that were found are run."""

    include: tuple[str, ...] = ()
    """Patterns of names or paths; empty for all."""
    exclude: tuple[str, ...] = ()
    limit: int | None = None
    """The first so many."""
    sample: int | None = None
    """So many at random, by `seed`."""
    seed: int = 0


ALL_TASKS: Final = TaskChoice()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The request of a job."""

    sources: tuple[str, ...]
    """Paths of packages or folders above them as they were given, and `cube:NAME`."""
    agent: str
    model: str | None = None
    attempts: int = 1
    sandbox: str = "auto"
    base_image: str | None = None
    pull: str = "missing"
    """When images are pulled: `missing`, `always` or `never`; it does not change what the work is."""
    max_steps: int | None = None
    max_calls: int | None = None
    """Of models, by each rollout; so are the next three."""
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_model_time: float | None = None
    """Seconds, added up."""
    token_ids: bool = False
    """Whether token ids are asked for and recorded."""
    job_max_calls: int | None = None
    """Of models, by all rollouts of one run of the job together; so are the next three."""
    job_max_tokens: int | None = None
    job_max_cost_usd: float | None = None
    job_max_model_time: float | None = None
    concurrent_calls: int | None = None
    """Calls of models at once."""
    agent_timeout_sec: float | None = None
    timeout_sec: float | None = None
    """The deadline of a whole rollout."""
    isolation: str | None = None
    """A rung, or `auto`, that replaces what packages declare."""
    keep_workspace: bool = True
    """Whether workspaces are kept, so that rollouts can be rescored."""
    directory: str = ""
    """Where relative sources begin; empty for the working directory."""
    choice: TaskChoice = ALL_TASKS
    """Which of the tasks of the sources; its seed is that of games too."""
    participants: Mapping[str, Player] = field(default_factory=dict, hash=False)
    """Who plays which role of the arenas of the job, where that is not left to documents."""
    rotation: tuple[Player, ...] = ()
    """Players that have each role of an arena in turn; `agent` and `model` are the first of them. Empty: `agent` has
    the first role."""
    shard: Shard | None = None
    """The part of the plan that the job carries out; None for all of it."""

    @property
    def players(self) -> tuple[Player, ...]:
        """Everybody who has the place of the agent of the job, and the participants that were named."""
        return tuple(dict.fromkeys((*self.agents, *self.participants.values())))

    @property
    def agents(self) -> tuple[Player, ...]:
        """The agent of the job, or the agents that take turns."""
        return self.rotation or (Player(self.agent, self.model),)

    def words(self) -> str:
        """Who plays, for people."""
        if self.rotation:
            return f"agents {', '.join(map(str, self.rotation))}, in turn"
        return f"agent {self.agent}, model {self.model or '–'}"

    def settings(self) -> Settings:
        """What besides the task and the attempt decides an outcome."""
        return Settings(
            agent=self.agent,
            model=self.model,
            sandbox=self.sandbox,
            base_image=self.base_image,
            max_steps=self.max_steps,
            max_tokens=self.max_tokens,
            max_cost_usd=self.max_cost_usd,
            max_calls=self.max_calls,
            max_model_time=self.max_model_time,
            agent_timeout_sec=self.agent_timeout_sec,
            timeout_sec=self.timeout_sec,
            isolation=self.isolation,
            participants={role: str(player) for role, player in self.participants.items()} or None,
        )


@dataclass(frozen=True, slots=True)
class MergedJob:
    """A job whose results are part of a merged one."""

    job: str
    results: int
    """Lines of `results.jsonl` that came from it."""
    shard: Shard | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`job.json`: the request as it was given, and how much work it is."""

    name: str
    request: JobRequest = field(metadata=FLAT)
    planned: int
    """Rollouts: line-ups of tasks times attempts; of a shard its own."""
    created_at: str
    superseded: tuple[WorkKey, ...] = ()
    """Keys of results that no longer count, because their packages had changed or were gone when it was last run."""
    plan: WholePlan | None = None
    """What the request asks for without its shard, when it was last run; None in jobs that do not record it."""
    merged: tuple[MergedJob, ...] = ()
    """The jobs that it was merged from."""
    upgraded: bool = False
    """Whether the job was written by an older version: it can be read but not resumed."""

    def words(self) -> str:
        """Who plays, and which part of what plan it is, for people."""
        if self.request.shard is None:
            return self.request.words()
        of = f" of a plan of {self.plan.rollouts} rollouts" if self.plan is not None else ""
        return f"{self.request.words()}, shard {self.request.shard}{of}"

    def to_dict(self) -> dict[str, Any]:
        request = {**asdict(self.request), "sources": list(self.request.sources)}
        request["rotation"] = list(request["rotation"])
        given = {"choice": self.request.choice != ALL_TASKS, "participants": request["participants"]}
        for name, differs in {**given, "rotation": request["rotation"], "shard": request["shard"]}.items():
            if not differs:
                del request[name]
        return {
            "schema": JOB_SCHEMA,
            "name": self.name,
            **request,
            "planned": self.planned,
            "created_at": self.created_at,
            **({"superseded": list(self.superseded)} if self.superseded else {}),
            **({"plan": plain(self.plan)} if self.plan is not None else {}),
            **({"merged": plain(self.merged)} if self.merged else {}),
        }

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """The record of a document, also of an older schema; raises `ValueError` when it is not one."""
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        if document.get("schema") != JOB_SCHEMA:
            from benchflow.record.version1 import upgraded_job

            return replace(read(cls, upgraded_job(document, JOB_SCHEMA)), upgraded=True)
        return replace(read(cls, document), upgraded=False)


class Counted(NamedTuple):
    """A result and the rollout it is of."""

    rollout: str
    result: Result

    def to_dict(self) -> dict[str, Any]:
        """A line of `results.jsonl`."""
        return {**self.result.to_dict(), "rollout": self.rollout}


class DamagedLine(NamedTuple):
    """A line of `results.jsonl` that cannot be read."""

    number: int
    reason: str


@dataclass(slots=True)
class JobResults:
    """The results of a job that count, by key, in the order their keys came.

    Parts that many results have in common are kept once: a job of 10,000 results fits in a few megabytes.
    """

    latest: dict[WorkKey, Counted] = field(default_factory=dict)
    damaged: list[DamagedLine] = field(default_factory=list)
    lines: int = 0
    """How many results there are, with those that no longer count."""
    _parts: dict[Any, Any] = field(default_factory=dict)

    def add(self, rollout: str, result: Result) -> None:
        """Add the next line: of several tries at one item a scored one counts, otherwise the last.

        Of a rollout that was scored again, the newest verdict is its result.
        """
        self.lines += 1
        known = self.latest.get(result.key)
        if known is None or counts_instead((known.rollout, known.result.error), (rollout, result.error)):
            self.latest[result.key] = Counted(rollout, self._sharing(result))

    def _sharing(self, result: Result) -> Result:
        return replace(
            result,
            task=self._shared(result.task),
            agent=self._shared(result.agent),
            sandbox=self._shared(result.sandbox),
            verifier=self._shared(result.verifier),
            notes=self._shared(result.notes),
            timing={self._shared(name): seconds for name, seconds in result.timing.items()},
        )

    def _shared(self, part: Part) -> Part:
        try:
            shared: Part = self._parts.setdefault(part, part)
        except TypeError:  # there is a mapping in it
            return part
        return shared

    def take(self, number: int, line: bytes) -> Counted | None:
        """Add the line of this number, as it was written; one that cannot be read is noted, and None is returned."""
        counted = read_line(number, line)
        if isinstance(counted, DamagedLine):
            self.damaged.append(counted)
            return None
        self.add(*counted)
        return counted

    def __iter__(self) -> Iterator[Counted]:
        return iter(self.latest.values())


def counts_instead(known: tuple[str, object | None], later: tuple[str, object | None]) -> bool:
    """Whether the later of two tries at one item counts; each is given by its rollout and its error."""
    return known[0] == later[0] or known[1] is not None or later[1] is None


def read_line(number: int, line: bytes) -> Counted | DamagedLine:
    """A line of `results.jsonl`, or why it cannot be read."""
    try:
        return read_counted(parse_json(line))
    except StrictJSONError as error:
        return DamagedLine(number, f"it {error}")
    except ValueError as error:
        return DamagedLine(number, " ".join(str(error).split()))


def read_results(path: Path) -> JobResults:
    """All complete lines of a `results.jsonl`; none if there is no such file."""
    results = JobResults()
    for number, line in whole_lines(path):
        results.take(number, line)
    return results


def read_counted(document: Any) -> Counted:
    """A result with the name of its rollout; raises `ValueError`.

    The name is never a path, since files are read and written in that folder.
    """
    result = Result.from_dict(document)
    if "rollout" not in document:
        raise ValueError("the key 'rollout' is missing")
    rollout = document["rollout"]
    if not isinstance(rollout, str) or not is_folder_name(rollout):
        raise ValueError(f"rollout: {shown(rollout)} is not a plain folder name")
    return Counted(rollout, result)


class Job:
    """One job for reading, running or not."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.places: Final = JobPlaces(folder)
        self._record: JobRecord | None = None
        self._results: JobResults | None = None

    @classmethod
    def find(cls, jobs_dir: Path, name: str) -> Self:
        """The job by its name below `jobs_dir`, or by its path; an unknown one is a `UsageError`."""
        is_path = "/" in name
        folder = Path(name) if is_path else jobs_dir / safe_job_name(name)
        if not JobPlaces(folder).job.exists():
            if is_path:
                why = "it has no job.json" if folder.is_dir() else "there is no such folder"
                raise UsageError(f"{folder} is not a job: {why}.", code="no-job")
            known = list_jobs(jobs_dir)
            message = f"{jobs_dir} has no job '{name}'; available: {_listed(known)}.{did_you_mean(name, known)}"
            raise UsageError(message, code="no-job")
        return cls(folder)

    @property
    def record(self) -> JobRecord:
        """The request; read once. Raises `InfrastructureFailure`."""
        if self._record is None:
            try:
                self._record = JobRecord.from_dict(parse_json(self.places.job.read_bytes()))
            except OSError as error:
                raise _damaged(self.places.job, error.strerror or str(error)) from error
            except StrictJSONError as error:
                raise _damaged(self.places.job, f"it {error}") from error
            except ValueError as error:
                raise _damaged(self.places.job, str(error)) from error
        return self._record

    @property
    def results(self) -> JobResults:
        """The results that count; read once. Raises `InfrastructureFailure`."""
        if self._results is None:
            try:
                self._results = read_results(self.places.results)
            except OSError as error:
                raise _damaged(self.places.results, error.strerror or str(error)) from error
        return self._results

    @property
    def counted(self) -> tuple[Counted, ...]:
        """The results that count, without those of packages that have changed or are gone. Raises the same."""
        superseded = frozenset(self.record.superseded)
        return tuple(counted for counted in self.results if counted.result.key not in superseded)

    @property
    def torn(self) -> bool:
        """Whether the last line of the results was not written to its end, which is normal only while a job runs."""
        try:
            with self.places.results.open("rb") as stream:
                stream.seek(-1, os.SEEK_END)
                return stream.read(1) != b"\n" and not self.running
        except OSError:  # no results, or not one byte of them
            return False

    @property
    def running(self) -> bool:
        """Whether a process holds the job's lock."""
        try:
            with self.places.lock.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False


def _listed(names: list[str]) -> str:
    """The newest names; of many only some."""
    more = f" and {len(names) - _LISTED} older ones" if len(names) > _LISTED else ""
    return (", ".join(names[-_LISTED:]) or "none") + more


def _damaged(path: Path, reason: str) -> InfrastructureFailure:
    return InfrastructureFailure(f"{path} cannot be read: {reason}.", code="job-damaged")


def result_line(rollout: str, result: Result) -> bytes:
    """A result as a line of `results.jsonl`."""
    return encoded_line(Counted(rollout, result).to_dict())


def list_jobs(jobs_dir: Path) -> list[str]:
    """Names of the jobs in a folder, oldest first."""
    folders = [path.parent for path in jobs_dir.glob("*/job.json") if is_folder_name(path.parent.name)]
    return [folder.name for folder in sorted(folders, key=lambda folder: (folder.stat().st_mtime, folder.name))]


def safe_job_name(name: str) -> str:
    """The name, if it is a plain folder name."""
    if not is_folder_name(name):
        raise UsageError(f"'{name}' is not a valid job name: it must be a plain folder name.", code="job-name")
    return name
