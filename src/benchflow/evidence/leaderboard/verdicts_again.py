"""Verdicts computed again: the kept workspaces of a leaderboard file, scored by the packages of the one who checks it.

Only where verification is pure: what a judge model, an external scorer or a running service decided is named, with the
reason, and never taken as confirmed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.errors import BenchflowError
from benchflow.evaluation.packages import PackageRunner
from benchflow.evidence.leaderboard.board_claims import folder_of, job_folder, rollout_folder
from benchflow.evidence.leaderboard.board_file import BoardFile
from benchflow.evidence.leaderboard.board_selection import BoardProblem
from benchflow.evidence.leaderboard.board_trajectory import events
from benchflow.evidence.leaderboard.package_agreement import (
    isolation_problem,
    metric_difference,
    parts_of_strategies,
    score_problem,
    strategy_problem,
    tools_problem,
)
from benchflow.evidence.leaderboard.published_job import PublishedJob, is_whole
from benchflow.files.scratch import scratch
from benchflow.record import Counted, JobRequest, RescoreNote, Result, RolloutFolder, TaskId
from benchflow.rollout.drivers.replay import NotRescoredError, counts
from benchflow.rollout.policies import judges
from benchflow.task.package import VERIFIER_PART, TaskPackage, package_parts

_DECIDED_ELSEWHERE: Final = {
    "assessor": "an assessor decided it during the exchange",
    "leaderboard-submission": "an external scorer decided it",
    "ors-episode": "its rewards were given during the episode",
}
NO_SCORE: Final = "it has no score"
_LISTED: Final = 5
"""Packages without results that are named."""


@dataclass(frozen=True, slots=True)
class NotRecomputed:
    """A verdict that stands unconfirmed, and why."""

    job: str
    rollout: str
    task: str
    attempt: int
    reason: str


@dataclass(slots=True)
class VerdictReport:
    """Which verdicts were confirmed, which could not be, and which are wrong."""

    confirmed: int = 0
    not_recomputed: list[NotRecomputed] = field(default_factory=list)
    problems: list[BoardProblem] = field(default_factory=list)

    def unconfirmed(self) -> Iterator[BoardProblem]:
        """Each verdict that was not confirmed, as a problem; what has no score claims nothing."""
        for one in self.not_recomputed:
            if one.reason != NO_SCORE:
                yield BoardProblem("verdict-unconfirmed", rollout_folder(one.job, one.rollout), one.reason)


@dataclass(frozen=True, slots=True)
class _Item:
    job: PublishedJob
    counted: Counted
    package: TaskPackage

    @property
    def folder(self) -> str:
        return rollout_folder(self.job.record.name, self.counted.rollout)

    def given(self, sandbox: str | None) -> JobRequest:
        """The request of the job, here."""
        request = self.job.record.request
        return replace(request, sources=(), directory="", sandbox=sandbox or request.sandbox)

    def request(self, sandbox: str | None) -> JobRequest:
        """The request under which the verifier sees what it saw then."""
        given, verifier = self.given(sandbox), self.counted.result.verifier
        by_proof = verifier is not None and verifier.isolation.chosen_by == "proof"
        return replace(given, isolation=verifier.isolation.rung) if verifier is not None and by_proof else given


class VerdictCheck:
    """Scores the rollouts of a file again: `items` can be, and `run` does it; the report has the rest."""

    def __init__(
        self, file: BoardFile, jobs: Sequence[PublishedJob], packages: Sequence[Path], sandbox: str | None
    ) -> None:
        self.report: Final = VerdictReport()
        self._file: Final = file
        self._sandbox: Final = sandbox
        self._parts: Final[dict[str, list[str]]] = defaultdict(list)
        for path in file.places:
            self._parts[folder_of(path)].append(path)
        tasks = PackageRunner(packages, JobRequest((), "nop")).packages()
        self._known: Final = {task.id: task for task in tasks}
        for job in jobs:
            self._missing(job)
        found = [self._item(job, counted) for job in jobs for counted in job.counted]
        self.items: Final = [item for item in found if item is not None]

    def _missing(self, job: PublishedJob) -> None:
        """Leaving out the tasks that went badly is selection."""
        done = {result.task.id for _, result in job.counted}
        left = sorted(task.label() for task in self._known.keys() - done)
        if left and self._known.keys() & done:
            more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
            message = (
                f"{len(left)} of the {len(self._known)} packages have no result: {', '.join(left[:_LISTED])}{more}"
            )
            self.report.problems.append(
                BoardProblem("task-missing", f"{job_folder(job.record.name)}/results.jsonl", message)
            )

    def _item(self, job: PublishedJob, counted: Counted) -> _Item | None:
        result, file = counted.result, rollout_folder(job.record.name, counted.rollout)
        known = self._known.get(result.task.id)
        if known is None:
            code, message = self._unknown(result.task.id)
            self.report.problems.append(BoardProblem(code, file, message))
            return None
        package: TaskPackage = known.payload
        reason = _why_not(job, result, package)
        if reason is not None:
            self._leave(job, counted, reason)
            return None
        problem = strategy_problem(result, package.view) or self._tools_problem(file, package)
        if problem is not None:
            self.report.problems.append(BoardProblem("record-edited", file, problem))
            return None
        return _Item(job, counted, package)

    def _unknown(self, task: TaskId) -> tuple[str, str]:
        """The code and the message for a task that is not among the packages."""
        alike = [known for known in self._known if known.name == task.name]
        if any(known.content_digest == task.content_digest for known in alike):
            return "other-package", f"it is of {task.label()}, and there are fewer packages of that name here"
        if alike:
            return "other-package", f"the package {task.name} has another content digest here"
        return "package-missing", f"{task.name} is missing"

    def _tools_problem(self, folder: str, package: TaskPackage) -> str | None:
        path = f"{folder}/trajectory.jsonl"
        if package.view.namespace.agent_policy is None or path not in self._file.places:
            return None
        return tools_problem(events(self._file.chunks(path)), package.view)

    def _leave(self, job: PublishedJob, counted: Counted, reason: str) -> None:
        rollout, result = counted
        found = NotRecomputed(job.record.name, rollout, result.task.name, result.attempt, reason)
        self.report.not_recomputed.append(found)

    async def run(self, *, concurrency: int, done: Callable[[], None] = lambda: None) -> VerdictReport:
        """Score all items; `done` is called after each."""
        runners: dict[JobRequest, PackageRunner] = {}
        limit = anyio.CapacityLimiter(concurrency)

        def runner(request: JobRequest) -> PackageRunner:
            return runners.setdefault(request, PackageRunner((), request))

        async def score(item: _Item) -> None:
            async with limit:
                if await self._is_comparable(item, runner(item.given(self._sandbox))):
                    await self._score(item, runner(item.request(self._sandbox)))
            done()

        try:
            async with anyio.create_task_group() as group:
                for item in self.items:
                    group.start_soon(score, item)
        finally:
            for one in runners.values():
                await one.close()
        self.report.problems.sort(key=str)
        self.report.not_recomputed.sort(key=lambda one: (one.job, one.rollout))
        return self.report

    async def _is_comparable(self, item: _Item, runner: PackageRunner) -> bool:
        """Whether the verifier saw then what it may see, and its verdict can be computed from what was kept."""
        result, view = item.counted.result, item.package.view
        try:
            problem = isolation_problem(result, view, await runner.isolation(item.package))
        except BenchflowError as error:
            self._leave(item.job, item.counted, f"its isolation cannot be determined here: {error}")
            return False
        if problem is not None:
            self.report.problems.append(BoardProblem("isolation-wrong", item.folder, problem))
            return False
        reason = "the verifier used services that the agent had started" if result.rung == "services" else None
        reason = reason or _decided_by(item.package)
        if reason is not None:
            self._leave(item.job, item.counted, reason)
        return reason is None

    async def _score(self, item: _Item, runner: PackageRunner) -> None:
        recorded = item.counted.result
        note = RescoreNote(package_parts(item.package)[VERIFIER_PART], item.package.digest)
        with scratch("verdict-") as folder:
            await anyio.to_thread.run_sync(self._extract, item.folder, folder)
            try:
                again = await runner.rescore(item.package, RolloutFolder(folder), recorded, note)
            except NotRescoredError as error:
                self._leave(item.job, item.counted, str(error))
                return
        if not counts(again):
            reason = again.error.message if again.error is not None else "it could not be scored"
            self._leave(item.job, item.counted, reason)
            return
        problem, other = score_problem(recorded, again), metric_difference(recorded, again)
        if problem is not None and recorded.rung == "open":
            other = "it was verified in the agent's own sandbox, whose processes are gone; rescored, it differs"
            problem = None
        if problem is not None:
            self.report.problems.append(BoardProblem("verdict-wrong", item.folder, problem))
        elif other is not None:
            self._leave(item.job, item.counted, other)
        else:
            self.report.confirmed += 1

    def _extract(self, base: str, folder: Path) -> None:
        for path in self._parts[base]:
            place = folder / path.removeprefix(f"{base}/")
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as stream:
                self._file.copy(path, stream)


def _why_not(job: PublishedJob, result: Result, package: TaskPackage) -> str | None:
    """Why nothing can be said about a result, as far as that is known before trying."""
    if result.reward is None:
        return NO_SCORE
    if not is_whole(job.record.request.base_image):
        return "its base image is a path of the machine it was made on"
    return None if package.valid else "the package is not valid here"


def _decided_by(package: TaskPackage) -> str | None:
    """Who besides the workspace decides verdicts of a package, in words."""
    view = package.view
    elsewhere = next((kind for kind in parts_of_strategies(view) if kind in _DECIDED_ELSEWHERE), None)
    if elsewhere is not None:
        return _DECIDED_ELSEWHERE[elsewhere]
    steps: list[str | None] = [step.config.name for step in view.steps]
    try:
        models = judges(view, os.environ, steps or [None])
    except BenchflowError as error:
        return str(error)
    return f"a judge model decided it ({models[0].name})" if models else None
