"""Rescoring a job: every finished rollout verified again by its package's verifier as it is now; no agent runs.

A pass has a number. A new verdict is a new line of `results.jsonl` for the same rollout, so the earlier ones stay. A
interrupted pass is continued: what it has scored with the current verifier is not scored again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.engine import Engine, Observer
from benchflow.evaluation.games.lineups import planned_items
from benchflow.evaluation.job import run_until_stopped, write_summary
from benchflow.evaluation.packages import PackageRunner
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.work import TaskRef, WorkItem
from benchflow.record import (
    ErrorRecord,
    Player,
    RescoreNote,
    Result,
    RolloutFolder,
    Summary,
    WorkKey,
    labels,
    write_document,
)
from benchflow.rollout.drivers.replay import (
    NotRescoredError,
    counts,
    discard_unfinished,
    why_not,
)
from benchflow.task.package import VERIFIER_PART, TaskPackage, changed_parts, package_parts

_CUBE: Final = "cube:"


@dataclass(frozen=True, slots=True)
class RescoreItem(WorkItem):
    """One finished rollout to score again."""

    rollout: str
    result: Result
    note: RescoreNote

    def folder_name(self) -> str:
        return self.rollout


@dataclass(frozen=True, slots=True)
class NotRescored:
    """A rollout that keeps its verdict, and why."""

    rollout: str
    task: str
    attempt: int
    reason: str


@dataclass(slots=True)
class RescoreReport:
    """The outcome of a pass."""

    number: int
    completed: bool = False
    already: int = 0
    """Scored by this pass before it was interrupted."""
    rescored: list[dict[str, Any]] = field(default_factory=list)
    """`rollout`, `task`, `attempt`, and the score `before` and `after`."""
    not_rescored: list[NotRescored] = field(default_factory=list)
    changed_packages: dict[str, list[str]] = field(default_factory=dict)
    """Packages that changed in other parts than their verifier since their rollouts, with those parts."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Rescorer:
    """A job's rollouts as work of the engine: `plan` what there is to do, then `run` it."""

    def __init__(self, store: JobStore) -> None:
        self._store: Final = store
        self._request: Final = store.record.request
        paths = [Path(source) for source in self._request.sources if not source.startswith(_CUBE)]
        there = [path for path in paths if Path(self._request.directory, path).exists()]
        self._packages: Final = PackageRunner(there, self._request)
        self.labels: Final = labels(result.task.id for _, result in store.results)
        """Of the tasks of the results."""
        self.summary: Summary | None = None
        """Of the job, once it was run."""
        self.report: Final = RescoreReport(_pass_number(store.places.rescore))

    def plan(self) -> list[RescoreItem]:
        """The rollouts that can be scored again; the report says why the others cannot, and which packages changed."""
        tasks = self._packages.packages()
        alone = Player(self._request.agent, self._request.model)
        keys = {
            (item.task, item.attempt, item.line_up.agent if item.line_up is not None else alone): item.key
            for item in planned_items(tasks, self._request)
        }
        counted = list(self._store.results)
        known = _Known(tasks, [result for _, result in counted])
        items = []
        for rollout, result in counted:
            found = known.of(result)
            reason = found if isinstance(found, str) else self._why_not(rollout, result, found)
            if reason is not None or isinstance(found, str):
                self._keep(rollout, result, reason or "")
                continue
            player = Player(result.agent.name, result.agent.model)
            item = self._item(rollout, result, found, keys.get((found, result.attempt, player)), known.parts(found))
            if item is None:
                self.report.already += 1
            else:
                items.append(item)
        return items

    def labels_of_rollouts(self) -> dict[str, str]:
        """The label of the task of each rollout."""
        return {rollout: self.labels[result.task.id] for rollout, result in self._store.results}

    async def run(self, items: Sequence[RescoreItem], *, concurrency: int, observer: Observer) -> RescoreReport:
        """Score the items; the summary of the job is rewritten, also after an interrupt."""
        for item in items:
            discard_unfinished(self._store.places.rollout(item.rollout))
        self._record_pass(finished=False)
        scorer = _Scorer(self._packages)
        engine = Engine(
            self._store, scorer, concurrency=concurrency, observer=observer, counts=counts, command="rescore"
        )
        try:
            self.report.completed = await run_until_stopped(engine, iter(items))
        finally:
            await self._packages.close()
            self.summary = write_summary(self._store)
            for item, result in scorer.outcomes.values():
                self._tell(item, result)
        if self.report.completed:
            self._record_pass(finished=True)
        return self.report

    def _record_pass(self, *, finished: bool) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        document = {"number": self.report.number, "finished_at": now if finished else None}
        write_document(self._store.places.rescore, document, sync=True)

    def _why_not(self, rollout: str, result: Result, task: TaskRef) -> str | None:
        package: TaskPackage = task.payload
        if not package.valid:
            issue = next(issue for issue in package.issues if issue.severity == "error")
            return f"Its package is invalid now: {issue.message}"
        return why_not(self._store.places.rollout(rollout), result, package)

    def _item(
        self, rollout: str, result: Result, task: TaskRef, key: WorkKey | None, parts: Mapping[str, str]
    ) -> RescoreItem | None:
        """The item of a rollout; None if this pass has already done it."""
        number = self.report.number
        last = result.notes.rescore
        if last is not None and last.pass_number == number and last.verifier_digest == parts[VERIFIER_PART]:
            return None
        before = _parts_then(self._store.places.rollout(rollout))
        changed = [part for part in changed_parts(before, parts) if part != VERIFIER_PART] if before else []
        if changed:
            self.report.changed_packages[self.labels[result.task.id]] = changed
        same = key if before and not changed else None
        note = RescoreNote(parts[VERIFIER_PART], task.digest, tuple(changed), pass_number=number, key=same)
        return RescoreItem(task, result.attempt, result.key, rollout, result, note)

    def _keep(self, rollout: str, result: Result, reason: str) -> None:
        self.report.not_rescored.append(NotRescored(rollout, result.task.name, result.attempt, reason))

    def _tell(self, item: RescoreItem, result: Result) -> None:
        if not counts(result) and result.error is not None:
            self._keep(item.rollout, item.result, result.error.message)
            return
        before, after = ({"status": score.status, "reward": score.reward} for score in (item.result, result))
        named = {"rollout": item.rollout, "task": item.task.name, "attempt": item.attempt}
        self.report.rescored.append({**named, "before": before, "after": after})


class _Scorer:
    """Scores rollouts again for the engine, and records how each ended."""

    def __init__(self, packages: PackageRunner) -> None:
        self.outcomes: Final[dict[str, tuple[RescoreItem, Result]]] = {}
        self._packages: Final = packages

    async def prepare(self, task: TaskRef) -> None:
        await self._packages.prepare(task)

    async def run(self, item: WorkItem, folder: Path) -> Result:
        if not isinstance(item, RescoreItem):
            raise TypeError("Only finished rollouts can be rescored.")
        try:
            result = await self._packages.rescore(item.task.payload, RolloutFolder(folder), item.result, item.note)
        except NotRescoredError as error:
            reason = ErrorRecord("unsupported", "not-rescored", "verify", str(error))
            result = replace(item.result, outcome=reason)
        self.outcomes[item.rollout] = (item, result)
        return result

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        del item, folder, result
        return True

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        del result
        return await self.run(item, folder.path)


class _Known:
    """The packages of a job as they are now. A result belongs to one by content, else by path; nothing is guessed."""

    def __init__(self, tasks: Sequence[TaskRef], results: Sequence[Result]) -> None:
        self._by_id: Final = {task.id: task for task in tasks}
        self._by_path: Final = {task.path: task for task in tasks}
        self._recorded: Final[dict[tuple[str, str | None], set[str]]] = defaultdict(set)
        """The paths of the results, by the name and the digests of their packages, then and when last rescored."""
        for part, rescore in ((result.task, result.notes.rescore) for result in results):
            self._recorded[part.name, part.content_digest].add(part.path)
            if rescore is not None:
                self._recorded[part.name, rescore.package_digest].add(part.path)
        self._parts: dict[TaskRef, dict[str, str]] = {}

    def of(self, result: Result) -> TaskRef | str:
        """The package of a result, or why there is none."""
        if result.task.path.startswith(_CUBE):
            return "It is a task of a cube, which keeps no state after the episode."
        part = result.task
        there, same = self._by_path.get(part.path), self._by_id.get(part.id)
        if there is not None and (there.name, there.id.content_digest) == (part.name, part.content_digest):
            return there
        edited = False
        if there is not None and there.name == part.name:
            paths = self._paths_of(there)
            edited = not paths or part.path in paths  # otherwise it was moved here from another path
        if same is not None and not (edited and same.path in self._paths_of(same)):
            return same  # it was moved
        if there is not None and edited:
            return there
        if there is not None:
            return f"{part.path} now contains another package."
        return "Its package is no longer in the sources of the job."

    def _paths_of(self, task: TaskRef) -> set[str]:
        """Where a package of this name and content was when its rollouts were made or rescored."""
        digests = {task.id.content_digest, task.digest}
        return set[str]().union(*(self._recorded.get((task.name, digest), ()) for digest in digests))

    def parts(self, task: TaskRef) -> dict[str, str]:
        if task not in self._parts:
            self._parts[task] = package_parts(task.payload)
        return self._parts[task]


def _parts_then(folder: RolloutFolder) -> dict[str, str]:
    """The parts of a package when a rollout of it began; empty when it does not say."""
    try:
        parts: dict[str, str] = json.loads(folder.config.read_bytes()).get("parts", {})
    except (OSError, ValueError):
        return {}
    return parts


def _pass_number(path: Path) -> int:
    """The pass to continue, else the next one."""
    try:
        last = json.loads(path.read_bytes())
        return int(last["number"]) + (last["finished_at"] is not None)
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureFailure(f"{path} cannot be read: {error}.", code="job-damaged") from error
