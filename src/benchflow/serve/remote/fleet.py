"""`Fleet`: the nodes of a cluster that play episodes for this process, as they come and go.

Every node is pulsed. One that leaves the cluster, or does not answer for a while, is lost: its open calls raise
`NodeLost`, and nothing that it says later counts. Nodes that join play from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

import anyio
from anyio.abc import TaskGroup

from benchflow.cluster import Cluster, Link, Node, NodeLost, NodeRefused
from benchflow.serve.remote.episode_orders import HostFacts
from benchflow.serve.server_log import Log, silent
from benchflow.serve.sessions import NoRoom

BEAT_SEC: Final = 2.0
LOST_SEC: Final = 30.0
"""How long a pulse may take to be answered before its node is lost."""
CLOSE_SEC: Final = 20.0
"""How long the hosts of nodes may take to end."""


@dataclass(eq=False, slots=True)
class Member:
    """A node that plays."""

    link: Link
    facts: HostFacts
    on_lost: Callable[[Member, str], None]
    """Told when a call shows that the node is lost: it must not be used after that."""
    episodes: set[str] = field(default_factory=set)
    """Those that were placed here and have not ended."""
    lost: str | None = None
    """Why it is lost."""
    taken: set[str] = field(default_factory=set)
    """The packages that it has, by content."""
    sending: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a package is sent: each is sent once."""
    _open: set[anyio.CancelScope] = field(default_factory=set)

    @property
    def node(self) -> Node:
        return self.link.node

    @property
    def room(self) -> int:
        return self.facts.most - len(self.episodes) if self.lost is None else 0

    async def call(self, method: str, *arguments: object) -> Any:
        """What the host answers; `NodeLost` as soon as the node is lost, whatever becomes of the call."""
        if self.lost is not None:
            raise NodeLost(self.lost)
        answer: list[Any] = []
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                answer.append(await self.link.call(method, *arguments))
            except NodeLost as error:
                self.on_lost(self, str(error))
                raise
            finally:
                self._open.discard(scope)
        if not answer:  # the scope was cancelled
            raise NodeLost(str(self.lost))
        return answer[0]

    def lose(self, sentence: str) -> None:
        self.lost = sentence
        for scope in list(self._open):
            scope.cancel()


class NoNode(NoRoom):
    """No node can play now; `str()` is a sentence for clients."""


class Fleet:
    """`async with` joins the nodes that are there; leaving ends the hosts of all nodes, and the cluster's link."""

    def __init__(
        self, cluster: Cluster, *, beat_sec: float = BEAT_SEC, lost_sec: float = LOST_SEC, log: Log = silent
    ) -> None:
        self.log: Log = log
        self._cluster: Final = cluster
        self._beat_sec: Final = beat_sec
        self._lost_sec: Final = lost_sec
        self._members: Final[dict[str, Member]] = {}
        self._refused: Final[dict[str, str]] = {}
        """Why nodes that are in the cluster do not play, by id."""
        self._joining: Final[set[str]] = set()
        self._group: TaskGroup | None = None
        self._changed = anyio.Event()
        """Set, and replaced, when there may be room where there was none."""

    @property
    def members(self) -> Mapping[str, Member]:
        """The nodes that play now, by id."""
        return self._members

    def room(self, cube: str | None = None) -> int:
        """How many more episodes can be played now."""
        return sum(member.room for member in self._able(cube))

    def place(self, cube: str | None = None) -> tuple[Member, str]:
        """The node with the fewest episodes among those that can play it, and the id of the new episode there.

        `NoNode` if there is none. The place is taken until `free` is called.
        """
        able = [member for member in self._able(cube) if member.room > 0]
        if not able:
            raise NoNode(self._why_none(cube))
        chosen = min(able, key=lambda member: len(member.episodes))
        name = token_hex(12)
        chosen.episodes.add(name)
        return chosen, name

    def free(self, member: Member, name: str) -> None:
        member.episodes.discard(name)
        self._change()

    async def wait_for_change(self) -> None:
        """Until there may be room where there was none."""
        await self._changed.wait()

    def _able(self, cube: str | None) -> list[Member]:
        return [member for member in self._members.values() if cube is None or cube in member.facts.cubes]

    def _why_none(self, cube: str | None) -> str:
        if self._able(cube):
            most = sum(member.facts.most for member in self._able(cube))
            return f"The nodes of the cluster play {most} episodes, as many as they may; try again later."
        if self._members:
            return f"No node of the cluster has the cube '{cube}'; install it there and start the node again."
        why = "".join(f" {sentence}" for sentence in dict.fromkeys(self._refused.values()))
        return f"No node of the cluster can play now; sessions begin again when one joins.{why}"

    async def __aenter__(self) -> Self:
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        try:
            async with anyio.create_task_group() as joining:
                for node in (await self._cluster.members()).values():
                    joining.start_soon(self._join, node)
        except BaseException:
            group.cancel_scope.cancel()
            with suppress(BaseException):
                await group.__aexit__(None, None, None)
            raise
        group.start_soon(self._watch)
        if not self._members:
            self._say_none()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group, self._group = self._group, None
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSE_SEC):
                async with anyio.create_task_group() as closing:
                    for member in self._members.values():
                        closing.start_soon(self._close, member)
            for member in self._members.values():
                member.link.kill()
            await self._cluster.close()
        if group is not None:
            group.cancel_scope.cancel()
            await group.__aexit__(kind, error, trace)

    async def _close(self, member: Member) -> None:
        with suppress(NodeLost):
            await member.call("close")

    async def _watch(self) -> None:
        """Nodes that join and leave."""
        while True:
            await anyio.sleep(self._beat_sec)
            try:
                present = await self._cluster.members()
            except NodeLost as error:  # nobody can say who is there: the pulses tell who still answers
                self.log("cluster_unreachable", reason=str(error))
                continue
            for name, member in list(self._members.items()):
                if name not in present:
                    self._lose(member, f"Node {member.node.host} left the cluster.")
            for name in [name for name in self._refused if name not in present]:
                del self._refused[name]
            known = {*self._members, *self._refused, *self._joining}
            for name, node in present.items():
                if name not in known and self._group is not None:
                    self._group.start_soon(self._join, node)

    async def _join(self, node: Node) -> None:
        self._joining.add(node.id)
        link: Link | None = None
        try:
            link = await self._cluster.start(node)
            with anyio.fail_after(self._lost_sec):
                facts = await link.call("facts")
            member = self._members[node.id] = Member(link, facts, self._lose)
        except NodeRefused as error:
            self._refused[node.id] = str(error)
            self.log("node_refused", node=node.host, reason=str(error))
        except Exception as error:  # noqa: BLE001  # a lost node, or whatever its host raised: tried again by the next beat
            self.log("node_lost", node=node.host, reason=str(error) or "It did not answer.")
            if link is not None:
                link.kill()
        else:
            self.log("node_joined", node=node.host, most=facts.most)
            if self._group is not None:
                self._group.start_soon(self._pulse, member)
            self._change()
        finally:
            self._joining.discard(node.id)

    async def _pulse(self, member: Member) -> None:
        """Keep the lease of a node, as long as it answers."""
        while member.lost is None:
            try:
                with anyio.fail_after(self._lost_sec):
                    await member.call("pulse", frozenset(member.episodes))
            except NodeLost:
                return
            except TimeoutError:
                self._lose(member, f"Node {member.node.host} did not answer for {self._lost_sec:g} s.")
            except Exception as error:  # noqa: BLE001  # a host that cannot say that it lives does not
                self._lose(member, f"The host on node {member.node.host} failed: {error}")
            await anyio.sleep(self._beat_sec)

    def _lose(self, member: Member, sentence: str) -> None:
        if member.lost is not None:
            return
        member.lose(sentence)
        self._members.pop(member.node.id, None)
        member.link.kill()
        self.log("node_lost", node=member.node.host, reason=sentence, episodes=len(member.episodes))
        if not self._members:
            self._say_none()
        self._change()

    def _say_none(self) -> None:
        self.log("no_nodes", reason=self._why_none(None))

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
