"""`RemoteEpisode`: an episode that a node of a cluster plays, for the wires the same as one that is played here.

What is called, and with what, is checked here as everywhere; the node carries it out. A node that is lost ends the
episode without a score (`infrastructure`, `node-lost`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio

from benchflow.cluster import NodeLost
from benchflow.errors import InfrastructureFailure
from benchflow.rewards import Attributed, Unscored, Verdict
from benchflow.rewards.verdict import Phase
from benchflow.serve.discretion import Discretion
from benchflow.serve.episode import Block, Call, CallRefused, CallResult, Episode, ToolSpec
from benchflow.serve.package_episode import PACKAGE_TOOLS
from benchflow.serve.remote.episode_orders import Answer, Ended, EpisodeOrder
from benchflow.serve.remote.session_places import Place, SessionPlaces

NODE_LOST: Final = "node-lost"
_SENDS: Final = 2
"""How often a package is sent to a node that finds it damaged."""
Prepare = Callable[[Place], Awaitable[EpisodeOrder]]
"""Sends a node what it needs, and returns the order."""
OnRecords = Callable[[Mapping[str, bytes]], Awaitable[None]]


class ToldThere(Discretion):
    """The node decides what clients learn, since it knows its own folders; those of this machine are hidden too."""

    def __init__(self, here: Discretion) -> None:
        self._here: Final = here
        self._told: dict[Unscored, Unscored] = {}

    def note(self, verdict: Verdict | None, told: Verdict | None) -> None:
        if isinstance(verdict, Unscored) and isinstance(told, Unscored):
            self._told[verdict] = told

    def told_unscored(self, verdict: Unscored) -> Unscored:
        return self._here.told_unscored(self._told.get(verdict, verdict))


class RemoteEpisode(Episode):
    """One episode on a node. Its place there is freed when it ends."""

    def __init__(
        self,
        places: SessionPlaces,
        place: Place,
        prepare: Prepare,
        discretion: Discretion,
        on_records: OnRecords | None = None,
    ) -> None:
        self._told: Final = ToldThere(discretion)
        super().__init__(self._told)
        self._places: Final = places
        self._place: Final = place
        self._prepare: Final = prepare
        self._on_records: Final = on_records
        self._tools: tuple[ToolSpec, ...] = PACKAGE_TOOLS
        self._groups = False
        self._placed = True
        self._ordered = False

    @property
    def node(self) -> str:
        """The machine that plays it."""
        return str(self._place.host.node)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    async def _begin(self) -> tuple[Block, ...]:
        self._ordered = True
        return self._result(await ordered(self._place, "begin", self._prepare), "environment").blocks

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        with lost_in("agent"):
            answer: Answer = await self._place.call("call", self._place.name, name, dict(arguments))
        result = self._result(answer, "agent")
        if result.finished:
            self.progress.verdict = answer.verdict
        return result

    async def _finish(self) -> Verdict:
        with lost_in("agent"):
            answer: Answer = await self._place.call("finish", self._place.name)
        self._result(answer, "agent")
        if answer.verdict is None:
            raise RuntimeError("The node ended the episode without a verdict.")
        return answer.verdict

    def _result(self, answer: Answer, phase: Phase) -> CallResult:
        """What a call gave; raises what it would have raised here."""
        self._told.note(answer.verdict, answer.told)
        self._groups = answer.scores_groups
        if answer.tools is not None:
            self._tools = answer.tools
        if answer.refused is not None:
            raise CallRefused(*answer.refused)
        if answer.gone is not None:
            reason = f"{answer.gone.rstrip('.')} (node {self.node})."
            raise Attributed(Unscored("infrastructure", phase, "episode-gone", reason))
        if answer.result is None:
            failed = answer.verdict if isinstance(answer.verdict, Unscored) else answer.told
            if not isinstance(failed, Unscored):
                raise RuntimeError("The node answered neither with a result nor with a reason.")
            raise Attributed(failed)
        return answer.result

    @property
    def scores_groups(self) -> bool:
        return self._groups

    async def scored_copy(self, calls: Sequence[Call]) -> Verdict:
        with lost_in("verify"):
            found: list[Verdict] | None = await self._place.call("score", self._place.name, [list(calls)])
        if found is None:
            raise CallRefused("episode_finished", "The episode is over: no further calls are accepted.")
        return found[0]

    async def _release(self) -> None:
        if not self._placed:
            return
        self._placed = False
        with anyio.CancelScope(shield=True):
            try:
                if self._ordered:
                    ended: Ended = await self._place.call("end", self._place.name)
                    if ended.records and self._on_records is not None:
                        await self._on_records(ended.records)
            except NodeLost:
                pass  # all that ran there ends with it, or by its lease
            finally:
                self._places.free(self._place)


async def ordered(place: Place, method: str, prepare: Prepare) -> Answer:
    """What a node answers to an order. A package that it does not have, or not whole any more, is sent again.

    `Attributed` if the node is lost, or refuses.
    """
    for _ in range(_SENDS):
        with lost_in("environment"):
            order = await prepare(place)
            answer: Answer = await place.call(method, order)
        if not answer.missing:
            return answer
        place.host.parcels.pop(order.parcel or "", None)
    message = f"The package {order.task} is damaged on node {place.host.node} each time it arrives."
    raise InfrastructureFailure(message, code="parcel-damaged")


class lost_in:  # noqa: N801 - used as a statement: with lost_in("agent")
    """A node that is lost in the block is raised as a failure of the infrastructure in this phase."""

    def __init__(self, phase: Phase) -> None:
        self._phase: Final[Phase] = phase

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NodeLost):
            raise Attributed(Unscored("infrastructure", self._phase, NODE_LOST, str(error))) from error
