"""Runs the items of a job: so many at a time, what must be built first built once, trouble retried, every result kept.

Workers pull items one by one, so that a job of ten thousand costs no more per item than one of ten. A result is in the
store before the next item begins. Cancelling ends what runs; what was cut short leaves no line and is run again on
resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import anyio

from benchflow.evaluation.store import JobStore
from benchflow.evaluation.work import Runner, WorkItem
from benchflow.rollout.record import Result

DEFAULT_RETRIES: Final[Mapping[str, int]] = MappingProxyType({"infrastructure": 2, "sandbox": 2, "judge": 2})
"""How often a result of this error category is tried again; other categories are not."""
FINAL_CATEGORIES: Final = frozenset({"package", "unsupported"})
"""Errors that another try cannot change."""


class Observer:
    """Who wants to know: a live display, a log. Override what is of interest."""

    def started(self, item: WorkItem) -> None:
        """A try at an item begins."""

    def finished(self, item: WorkItem, result: Result, rollout: str) -> None:
        """An item is over."""

    def retrying(self, item: WorkItem, result: Result, delay: float) -> None:
        """A try failed, and another follows after `delay` seconds."""


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
    _builds: dict[str, anyio.Event] = field(default_factory=dict)

    async def run(self, items: Iterator[WorkItem]) -> None:
        """Carry out all items; each is in the store when this returns."""
        running = anyio.CapacityLimiter(self.concurrency)
        building = anyio.CapacityLimiter(self.build_concurrency)

        async def worker() -> None:
            for item in items:
                await self._prepare(item, building)
                async with running:
                    await self._run_with_retries(item)

        async with anyio.create_task_group() as group:
            for _ in range(self.concurrency + self.build_concurrency):
                group.start_soon(worker)

    async def _prepare(self, item: WorkItem, building: anyio.CapacityLimiter) -> None:
        """Build the environment of an item, or wait until whoever came first has built it."""
        environment = item.task.environment
        if environment is None:
            return
        done = self._builds.get(environment)
        if done is not None:
            await done.wait()
            return
        done = self._builds[environment] = anyio.Event()
        try:
            async with building:
                await self.runner.prepare(item.task)
        finally:
            done.set()

    async def _run_with_retries(self, item: WorkItem) -> None:
        tries = 0
        while True:
            self.observer.started(item)
            rollout = item.folder_name()
            result = await self.runner.run(item, self.store.rollout_folder(rollout))
            if self.counts(result):
                self.store.append(result, rollout)
            tries += 1
            if result.error is None or tries > self.retries.get(result.error.category, 0):
                self.observer.finished(item, result, rollout)
                return
            delay = self.backoff(tries)
            self.observer.retrying(item, result, delay)
            await anyio.sleep(delay)


def last_results(store: JobStore) -> dict[str, tuple[str, Result]]:
    """The result that counts for each key: a scored one if there is one, else the last try.

    Of a rollout that was scored again, the newest verdict is its result.
    """
    latest: dict[str, tuple[str, Result]] = {}
    for rollout, result in store.results():
        known = latest.get(result.key)
        if known is None or known[0] == rollout or known[1].status == "unscored" or result.status == "scored":
            latest[result.key] = (rollout, result)
    return latest


def remaining(items: Iterator[WorkItem], store: JobStore) -> Iterator[WorkItem]:
    """The items that a resumed job has to run: those without a result, and those whose trouble may have passed."""
    done = {
        known
        for key, (_, result) in last_results(store).items()
        if result.error is None or result.error.category in FINAL_CATEGORIES
        for known in (key, result.extra.get("rescore", {}).get("key"))
    }
    return (item for item in items if item.key not in done)
