"""`EpisodeHost`: plays the episodes and gym tasks of one node, and knows nothing of what carries the calls.

A driver orders episodes under ids of its own, calls them, ends them, and says all the time which ones it still wants.
Others are ended, and when it has not been heard for the length of the lease, all are: a node that is cut off from its
driver plays for nobody.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.evaluation.scaled.abilities import NodeFacts
from benchflow.evaluation.scaled.facts import find_facts, places
from benchflow.evaluation.scaled.machine_room import vitals
from benchflow.evaluation.scaled.node_host import cube_payload
from benchflow.evaluation.scaled.orders import Pulse
from benchflow.evaluation.scaled.parcels import Arrivals
from benchflow.evaluation.work import TaskRef
from benchflow.files.scratch import scratch_folder, sweep_after_death
from benchflow.files.user_store import default_store
from benchflow.record import TaskId
from benchflow.rewards import Attributed, Unscored, Verdict, attribute
from benchflow.serve.episode import Call, CallRefused, CallResult, Episode, score_calls
from benchflow.serve.opening import EpisodeMaker
from benchflow.serve.remote.episode_orders import Answer, Ended, EpisodeOrder, HostSettings
from benchflow.serve.remote.held_episodes import Held
from benchflow.serve.remote.staged_task import StagedTask
from benchflow.serve.served_tasks import ServedTask
from benchflow.task.taken import CHANGED

_MISSED: Final = 2
"""Lists without an episode before it is ended: the first may have left before the order."""
_NODE: Final = "node"
_GONE: Final = Answer(gone="The node has ended the episode: it was not heard of for too long.")


class EpisodeHost:
    """All episodes and gym tasks of one driver on this node. `close` ends them, and what they share."""

    def __init__(self, settings: HostSettings) -> None:
        sweep_after_death()
        self._settings: Final = settings
        self._maker: Final = EpisodeMaker(settings.episodes, places=[default_store()])
        self._place: Final = scratch_folder("episodes-")
        self._arrivals: Final = Arrivals(self._place)
        self._held: Final[dict[str, Held]] = {}
        self._heard = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._ending: Final[set[asyncio.Task[None]]] = set()

    async def facts(self, name: str, processors: float | None) -> NodeFacts:
        """What this machine is."""
        self._hear()
        return await find_facts(name, self._settings.asked, self._place, processors=processors)

    async def pulse(self, finished: Collection[str] = ()) -> Pulse:
        """The driver is there; what this node has free. `finished` is about rollouts, of which it has none."""
        del finished
        self._hear()
        return Pulse(vitals(places(self._place)), time.time())

    async def keep(self, wanted: frozenset[str]) -> None:
        """The driver wants these episodes, and no others."""
        self._hear()
        for name, held in list(self._held.items()):
            held.missed = 0 if name in wanted else held.missed + 1
            if held.missed >= _MISSED:
                self._abandon(name)

    async def take(self, digest: str, offset: int, size: int, data: bytes) -> None:
        """A piece of a parcel."""
        self._hear()
        await anyio.to_thread.run_sync(self._arrivals.take, digest, offset, size, data)

    async def begin(self, order: EpisodeOrder) -> Answer:
        """Start an episode; the result is its prompt."""
        self._hear()
        task = self._ordered(order)
        if not isinstance(task, ServedTask):
            return task
        records = scratch_folder("records-") if self._settings.keeps_records else None
        episode = self._maker.open(task, records=records)
        held = self._held[order.id] = Held(episode, records)

        async def begin() -> CallResult:
            return CallResult(await episode.begin())

        answer = await _answered(held, episode, begin)
        if isinstance(answer.verdict, Unscored) and answer.verdict.code == CHANGED and order.parcel is not None:
            self._arrivals.forget(order.parcel)  # the copy in the cache of this node was changed
            await self.end(order.id)
            return Answer(missing=True)
        return answer

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """A call of an episode."""
        held, episode = self._played(name)
        if held is None or episode is None:
            return _GONE
        return await _answered(held, episode, lambda: episode.call(tool, arguments))

    async def finish(self, name: str) -> Answer:
        """End an episode with the verdict on what is there."""
        held, episode = self._played(name)
        if held is None or episode is None:
            return _GONE

        async def finish() -> CallResult:
            await episode.finish()
            return CallResult(())

        return await _answered(held, episode, finish)

    async def score(self, name: str, candidates: Sequence[Sequence[Call]]) -> list[Verdict] | None:
        """The verdicts on what each list of calls makes of the state; None if the episode cannot be scored so."""
        held, episode = self._played(name)
        verdicts = None
        if held is not None and episode is not None:
            with held.running(), suppress(CallRefused):
                verdicts = await score_calls(episode, candidates)
        return verdicts

    async def stage(self, order: EpisodeOrder) -> Answer:
        """Open a gym task, which `rpc` drives."""
        self._hear()
        task = self._ordered(order)
        if not isinstance(task, ServedTask):
            return task
        try:
            self._held[order.id] = Held(StagedTask(await self._maker.stage(task)))
        except Exception as error:  # noqa: BLE001 - a cube may raise anything
            verdict = attribute(error, "environment", "environment")
            return Answer(verdict=verdict, told=verdict)
        return Answer()

    async def rpc(self, name: str, question: bytes) -> bytes | None:
        """The response to a request about a gym task; None if it is not here any more."""
        held, answer = self._held.get(name), None
        if held is not None and isinstance(held.playing, StagedTask):
            with held.running():
                answer = await held.playing.answer(question)
        return answer

    async def end(self, name: str) -> Ended:
        """Close an episode or a gym task at any time; what it recorded. One that is not there has ended."""
        held = self._held.pop(name, None)
        return Ended() if held is None else await held.end()

    async def close(self) -> None:
        """End everything; safe to call again."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        await self._end_all()
        async with self._maker:
            shutil.rmtree(self._place, ignore_errors=True)

    async def _end_all(self) -> None:
        async with anyio.create_task_group() as ending:
            for name in list(self._held):
                ending.start_soon(self.end, name)

    def _played(self, name: str) -> tuple[Held, Episode] | tuple[None, None]:
        held = self._held.get(name)
        return (held, held.playing) if held is not None and isinstance(held.playing, Episode) else (None, None)

    def _ordered(self, order: EpisodeOrder) -> ServedTask | Answer:
        """The task that is ordered, or why it cannot be played here."""
        if order.cube is not None:
            digest = order.cube.digest
            try:
                payload = cube_payload(order.cube.name, order.cube.config, digest)
            except Exception as error:  # noqa: BLE001 - the config is the cube's own code
                verdict = attribute(error, "infrastructure", "environment")
                return Answer(verdict=verdict, told=verdict)
            ref = TaskRef(TaskId(order.task, digest), order.task, digest, payload=payload)
            return ServedTask(_NODE, _NODE, 0, order.task, digest, ref).seeded(order.seed)
        package = self._arrivals.known(order.parcel or "")
        if package is None:
            return Answer(missing=True)
        digests = package.content_digest, package.path, package.digest
        return ServedTask(_NODE, _NODE, 0, order.task, *digests).seeded(order.seed)

    def _hear(self) -> None:
        """The driver was heard; from the first time on it is watched for."""
        self._heard = anyio.current_time()
        if self._watch is None:  # a host has no block of its own in which a task group could live
            self._watch = asyncio.get_running_loop().create_task(self._watch_driver())

    async def _watch_driver(self) -> None:
        while True:
            await anyio.sleep(self._settings.lease_sec / 8)
            if anyio.current_time() - self._heard > self._settings.lease_sec:
                await self._end_all()

    def _abandon(self, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._end_quietly(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_quietly(self, name: str) -> None:
        with suppress(Exception):  # what cannot be closed ends with this process
            await self.end(name)


async def _answered(held: Held, episode: Episode, work: Callable[[], Awaitable[CallResult]]) -> Answer:
    """Carry out work on an episode; every outcome is a value, since errors do not travel well."""
    answer = Answer(gone="The episode was ended while the call ran.")
    with held.running():
        try:
            answer = Answer(await work())
        except CallRefused as refused:
            answer = Answer(refused=(refused.reason, str(refused)))
        except Attributed as error:
            answer = Answer(told=error.verdict)
    verdict, tools = episode.verdict, episode.tools()
    changed, held.sent = tools if tools != held.sent else None, tools
    told = answer.told or (await episode.finish() if verdict is not None else None)
    return replace(answer, verdict=verdict, told=told, tools=changed, scores_groups=episode.scores_groups)
