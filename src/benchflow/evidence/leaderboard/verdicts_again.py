"""Verdicts computed again: the kept workspaces of a leaderboard file, scored by the packages of the one who checks it.

Only where verification is pure: what a judge model, an external scorer or a running service decided is named, with the
reason, and never taken as confirmed.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.errors import BenchflowError
from benchflow.evaluation.packages import PackageRunner
from benchflow.evidence.leaderboard.board_claims import folder_of, rollout_folder
from benchflow.evidence.leaderboard.board_file import BoardFile
from benchflow.evidence.leaderboard.board_selection import BoardProblem
from benchflow.evidence.leaderboard.published_job import PublishedJob, is_whole
from benchflow.files.scratch import scratch
from benchflow.record import Counted, JobRequest, RescoreNote, Result, RolloutFolder
from benchflow.rollout.drivers.replay import NotRescoredError, counts
from benchflow.rollout.policies import judges
from benchflow.task.package import VERIFIER_PART, TaskPackage, package_parts

_DECIDED_ELSEWHERE: Final = {
    "assessor": "an assessor decided it during the exchange",
    "leaderboard-submission": "an external scorer decided it",
}
_CLOSE: Final = 1e-9


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


@dataclass(frozen=True, slots=True)
class _Item:
    job: PublishedJob
    counted: Counted
    package: TaskPackage

    @property
    def folder(self) -> str:
        return rollout_folder(self.job.record.name, self.counted.rollout)

    def request(self, sandbox: str | None) -> JobRequest:
        """The request under which the verifier sees what it saw then."""
        given, verifier = self.job.record.request, self.counted.result.verifier
        isolation = given.isolation
        if verifier is not None and verifier.isolation.chosen_by == "proof":
            isolation = verifier.isolation.rung
        return replace(given, sources=(), directory="", sandbox=sandbox or given.sandbox, isolation=isolation)


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
        self._known: Final = {(task.name, task.id.content_digest): task for task in tasks}
        self._names: Final = {task.name for task in tasks}
        found = [self._item(job, counted) for job in jobs for counted in job.counted]
        self.items: Final = [item for item in found if item is not None]

    def _item(self, job: PublishedJob, counted: Counted) -> _Item | None:
        task = counted.result.task
        known = self._known.get((task.name, task.content_digest))
        if known is None:
            file = rollout_folder(job.record.name, counted.rollout)
            there = task.name in self._names
            message = f"the package {task.name} has another content digest here" if there else f"{task.name} is missing"
            self.report.problems.append(BoardProblem("other-package" if there else "package-missing", file, message))
            return None
        package: TaskPackage = known.payload
        reason = _why_not(job, counted.result, package)
        if reason is None:
            return _Item(job, counted, package)
        self._leave(job, counted, reason)
        return None

    def _leave(self, job: PublishedJob, counted: Counted, reason: str) -> None:
        rollout, result = counted
        found = NotRecomputed(job.record.name, rollout, result.task.name, result.attempt, reason)
        self.report.not_recomputed.append(found)

    async def run(self, *, concurrency: int, done: Callable[[], None] = lambda: None) -> VerdictReport:
        """Score all items; `done` is called after each."""
        runners: dict[JobRequest, PackageRunner] = {}
        limit = anyio.CapacityLimiter(concurrency)

        async def score(item: _Item) -> None:
            request = item.request(self._sandbox)
            runner = runners.setdefault(request, PackageRunner((), request))
            async with limit:
                await self._score(item, runner)
            done()

        try:
            async with anyio.create_task_group() as group:
                for item in self.items:
                    group.start_soon(score, item)
        finally:
            for runner in runners.values():
                await runner.close()
        self.report.problems.sort(key=str)
        self.report.not_recomputed.sort(key=lambda one: (one.job, one.rollout))
        return self.report

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
        elif _same(recorded.reward, again.reward):
            self.report.confirmed += 1
        elif recorded.rung == "open":
            reason = "it was verified in the agent's own box, whose processes are gone; scored again it differs"
            self._leave(item.job, item.counted, reason)
        else:
            here = again.reward if again.error is None else f"no score ({again.error.code})"
            message = f"its verdict is {recorded.reward}, and its workspace gives {here}"
            self.report.problems.append(BoardProblem("verdict-wrong", item.folder, message))

    def _extract(self, base: str, folder: Path) -> None:
        for path in self._parts[base]:
            place = folder / path.removeprefix(f"{base}/")
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as stream:
                self._file.copy(path, stream)


def _why_not(job: PublishedJob, result: Result, package: TaskPackage) -> str | None:
    """Why a verdict cannot be computed again, as far as that is known before trying."""
    if result.reward is None or result.verifier is None:
        return "it has no score"
    if not is_whole(job.record.request.base_image):
        return "its base image is a path of the machine it was made on"
    if not package.valid:
        return "the package is not valid here"
    if result.verifier.strategy in _DECIDED_ELSEWHERE:
        return _DECIDED_ELSEWHERE[result.verifier.strategy]
    if result.rung == "services":
        return "the verifier used services that the agent had started"
    steps: list[str | None] = [step.config.name for step in package.view.steps]
    try:
        models = judges(package.view, os.environ, steps or [None])
    except BenchflowError as error:
        return str(error)
    return f"a judge model decided it ({models[0].name})" if models else None


def _same(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
