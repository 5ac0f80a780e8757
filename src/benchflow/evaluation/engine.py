"""Runs the items of a job concurrently: environments are built once, transient failures retried, every result kept.

Workers pull items one by one, so that the cost per item is the same for ten and for ten thousand. A result is in the
store before the next item begins. If only the judge failed, the agent's work is scored again, not done again.
Cancelling ends running items; an interrupted item leaves no line and is run again on resume. While the machine keeps
failing, a breaker holds back what has not started.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

import anyio

from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.breaker import Breaker, evidence_of
from benchflow.evaluation.store import JobStore, job_argument
from benchflow.evaluation.work import Builds, Runner, WorkItem
from benchflow.record import Counted, JobResults, Result, WorkKey
from benchflow.task.taken import CHANGED

DEFAULT_RETRIES: Final[Mapping[str, int]] = MappingProxyType({"infrastructure": 2, "sandbox": 2, "judge": 2})
"""How often a result of this error category is retried. Others are not: a package, agent or verifier that fails would
fail again, and a retry would hide it and cost as much."""
FINAL_CATEGORIES: Final = frozenset({"package", "unsupported"})
"""Errors that a retry cannot change, except that of a package whose files did not stay as planned."""


class Observer:
    """Receives the progress of a job, for a live display or a log. Override what is of interest."""

    def started(self, item: WorkItem) -> None:
        """A try at an item begins."""

    def finished(self, item: WorkItem, result: Result, rollout: str) -> None:
        """An item has finished."""

    def retrying(self, item: WorkItem, result: Result, delay: float) -> None:
        """A try failed, and another follows after `delay` seconds."""

    def paused(self, result: Result, delay: float) -> None:
        """The machine keeps failing, at last with this result: nothing new starts for `delay` seconds, then one try."""

    def continued(self) -> None:
        """That try has started, and everything continues."""


def exponential_backoff(failures: int) -> float:
    """Seconds to wait after so many failures: 1, 2, 4, … up to 30."""
    return min(30.0, 2.0 ** (failures - 1))


@dataclass(slots=True)
class Engine:
    """One run over the items of a job."""

    store: JobStore
    runner: Runner
    concurrency: int = 4
    build_concurrency: int = 2
    retries: Mapping[str, int] = field(default_factory=lambda: DEFAULT_RETRIES)
    observer: Observer = field(default_factory=Observer)
    backoff: Callable[[int], float] = exponential_backoff
    counts: Callable[[Result], bool] = lambda _: True
    """Which results go into the store."""
    unjudged: Mapping[WorkKey, Counted] = field(default_factory=dict)
    """Rollouts of earlier runs that are unscored only because of a judge, by key; see `unjudged`."""
    breaker: Breaker = field(default_factory=Breaker)
    command: str = "resume"
    """What continues the job, where the breaker gives up."""
    _changed: anyio.Event = field(default_factory=anyio.Event)
    """Set when the state of the breaker has changed."""
    _last_failure: Result | None = None

    async def run(self, items: Iterator[WorkItem]) -> None:
        """Carry out all items; each is in the store when this returns.

        If the breaker gives up, running items are finished and `InfrastructureFailure` is raised: the others are left.
        """
        running = anyio.CapacityLimiter(self.concurrency)
        builds = Builds(self.build_concurrency)

        async def worker() -> None:
            for item in items:
                if self.breaker.state == "given-up":
                    return
                await builds.prepare(self.runner, item.task)
                async with running:
                    await self._run_with_retries(item)

        async with anyio.create_task_group() as group:
            for _ in range(self.concurrency + self.build_concurrency):
                group.start_soon(worker)
        if self.breaker.state == "given-up" and self._last_failure is not None:
            raise self._gave_up(self._last_failure)

    async def _run_with_retries(self, item: WorkItem) -> None:
        tries = 0
        following: Counted | None = await self._tried(item, lambda: self._begin(item))
        last = following
        while following is not None:
            last, following = following, None
            tries += 1
            if self._may_try_again(item, last, tries):
                delay = self.backoff(tries)
                self.observer.retrying(item, last.result, delay)
                await anyio.sleep(delay)
                again = (
                    partial(self._score_again, item, last) if _is_unjudged(last.result) else partial(self._run, item)
                )
                following = await self._tried(item, again)
                if following is None and self.breaker.state == "given-up":
                    return
        if last is not None:
            self.observer.finished(item, last.result, last.rollout)

    async def _tried(self, item: WorkItem, begin: Callable[[], Awaitable[Counted | None]]) -> Counted | None:
        """One try, once the breaker lets it start; None if it never does, or if there is nothing to try."""
        while not self._may_start(item):
            if self.breaker.state == "given-up":
                return None
            with anyio.move_on_after(self.breaker.wait_sec(anyio.current_time())):
                await self._changed.wait()
        self.observer.started(item)
        tried: Counted | None = None
        try:
            tried = await begin()
        finally:
            self._report(item, tried.result if tried is not None else None)
        return tried

    def _may_start(self, item: WorkItem) -> bool:
        before = self.breaker.state
        allowed = self.breaker.may_start(anyio.current_time(), item.key)
        if before != "closed" and self.breaker.state == "closed":
            self.observer.continued()
        return allowed

    def _report(self, item: WorkItem, result: Result | None) -> None:
        """Tell the breaker how a try ended, and those who wait for it or watch it what follows."""
        before, now = self.breaker.state, anyio.current_time()
        evidence = "nothing" if result is None else evidence_of(result)
        self.breaker.report(now, item.key, evidence)
        if result is not None and evidence == "failed":
            self._last_failure = result
        if self.breaker.state == before:
            return
        if self.breaker.state == "open" and result is not None and evidence == "failed":
            self.observer.paused(result, self.breaker.wait_sec(now))
        elif self.breaker.state == "closed":
            self.observer.continued()
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _gave_up(self, result: Result) -> InfrastructureFailure:
        reason = result.error.message if result.error is not None else ""
        command = f"bench eval {self.command} {job_argument(self.store.folder)}"
        why = f"The job was stopped, because the machine keeps failing: {reason.rstrip('.')}."
        return InfrastructureFailure(f"{why} Fix this, then run: {command}", code="starts-failing")

    def _may_try_again(self, item: WorkItem, last: Counted, tries: int) -> bool:
        """Whether the failure is transient, and a retry would not run an agent again only because of a judge."""
        error = last.result.error
        if error is None or tries > self.retries.get(error.category, 0):
            return False
        return not _is_unjudged(last.result) or self._can_score_again(item, last)

    async def _begin(self, item: WorkItem) -> Counted:
        left = self.unjudged.get(item.key)
        scored = None
        if left is not None and self._can_score_again(item, left):
            scored = await self._score_again(item, left)
        return scored or await self._run(item)

    async def _run(self, item: WorkItem) -> Counted:
        rollout = item.folder_name()
        result = await self.runner.run(item, self.store.places.rollout(rollout).path)
        return self._kept(rollout, result)

    def _can_score_again(self, item: WorkItem, left: Counted) -> bool:
        rollout, result = left
        return self.runner.can_score_again(item, self.store.places.rollout(rollout), result)

    async def _score_again(self, item: WorkItem, left: Counted) -> Counted | None:
        rollout, result = left
        again = await self.runner.score_again(item, self.store.places.rollout(rollout), result)
        return None if again is None else self._kept(rollout, again)

    def _kept(self, rollout: str, result: Result) -> Counted:
        if self.counts(result):
            self.store.append(result, rollout)
        return Counted(rollout, result)


def unjudged(results: JobResults) -> dict[WorkKey, Counted]:
    """Of the results that count, those with a kept workspace that only need a judge."""
    return {key: counted for key, counted in results.latest.items() if _is_unjudged(counted.result)}


def _is_unjudged(result: Result) -> bool:
    """Whether a judge failed, or something else while the work was scored again for that reason."""
    error = result.error
    if error is None:
        return False
    return error.category == "judge" or (error.category in DEFAULT_RETRIES and result.notes.rescore is not None)


def remaining(items: Iterator[WorkItem], results: JobResults) -> Iterator[WorkItem]:
    """The items that a resumed job has to run: those without a result, and those with a transient failure."""
    done: set[WorkKey] = set()
    for key, (_, result) in results.latest.items():
        if result.error is None or (result.error.category in FINAL_CATEGORIES and result.error.code != CHANGED):
            rescore = result.notes.rescore
            done |= {key} if rescore is None or rescore.key is None else {key, rescore.key}
    return (item for item in items if item.key not in done)
