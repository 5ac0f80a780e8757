"""A Ray cluster as a `Cluster`: one asynchronous actor per node, bound to it, never restarted or retried by Ray.

The actor belongs to the process that started it: Ray ends it when that process does, however it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import anyio
import anyio.to_thread

from benchflow.cluster.host_actor import HostActor
from benchflow.cluster.node_link import Link, Node, NodeLost, NodeRefused
from benchflow.cluster.ray_connection import connect, disconnect
from benchflow.cluster.source_digest import installed

START_SEC: Final = 120.0
"""How long a node may take to start a process and import what the host needs."""
_CALLS: Final = 100_000
"""Calls at once; the host decides how many of them work."""
_DETAIL: Final = re.compile(r"(?:exit detail|temporarily unavailable): ([^\n]+?)(?:\. (?:Some|The task)|\n|$)")
_WORDS: Final = {
    "ActorDiedError": "the process of its host has ended",
    "ActorUnavailableError": "the connection to it broke",
    "NodeDiedError": "Ray declares it dead",
    "LocalRayletDiedError": "the Ray node of this machine has ended",
    "OutOfMemoryError": "Ray ended a process there for lack of memory",
    "OutOfDiskError": "its disk is full",
    "ObjectStoreFullError": "its object store is full",
}


class RayLink:
    """The host on one node."""

    def __init__(self, node: Node, actor: Any) -> None:
        self.node: Final = node
        self._actor: Final = actor
        self._killed = False

    async def call(self, method: str, /, *arguments: object) -> Any:
        if self._killed:  # Ray would connect again, to any cluster of this machine, to find out
            raise NodeLost(f"The host on {self.node} was killed.")
        try:
            return await self._actor.call.remote(method, arguments)
        except Exception as error:  # noqa: BLE001  # the boundary: what Ray raises becomes one of three things
            _raise(self.node, error)

    async def hello(self) -> None:
        """Wait until the host exists. Raises `NodeRefused` if it cannot be made, or `NodeLost`."""
        from ray.exceptions import ActorDiedError, RayTaskError

        try:
            await self._actor.hello.remote()
        except ActorDiedError as error:
            if not error.actor_init_failed:
                _raise(self.node, error)
            raise NodeRefused(_why_not_made(str(error))) from None
        except RayTaskError as error:
            raise NodeRefused(_why_not_made(str(error))) from None
        except Exception as error:  # noqa: BLE001  # as above
            _raise(self.node, error)

    def kill(self) -> None:
        import ray

        self._killed = True
        if ray.is_initialized():
            ray.kill(self._actor, no_restart=True)


class RayCluster:
    """Nodes of a Ray cluster that have processors; one without them (`--num-cpus=0`) gets no host."""

    def __init__(self, address: str | None, host: str, arguments: Sequence[object] = ()) -> None:
        """`host` is `module:Class`, made with `arguments`, on every node; nothing secret may be among them."""
        self._wanted: Final = address
        self._host: Final = host
        self._arguments: Final = tuple(arguments)
        self._links: Final[list[RayLink]] = []
        self.address: str | None = None

    def connect(self) -> str:
        """Connect, unless that is done; returns the address. A `UsageError` says why it is not possible."""
        if self.address is None:
            self.address = connect(self._wanted)
        return self.address

    async def members(self) -> Mapping[str, Node]:
        import ray

        try:
            found: list[dict[str, Any]] = await anyio.to_thread.run_sync(ray.nodes, abandon_on_cancel=True)
        except Exception as error:  # whatever Ray raises when its head is gone
            raise NodeLost(f"The Ray cluster at {self.address} cannot be reached: {_first_line(error)}") from error
        return {
            each["NodeID"]: Node(
                each["NodeID"], each["NodeManagerHostname"], each["NodeManagerAddress"], each["Resources"]["CPU"]
            )
            for each in found
            if each["Alive"] and each["Resources"].get("CPU", 0) > 0
        }

    async def start(self, node: Node) -> Link:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = ray.remote(HostActor).options(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        link = RayLink(node, actor.remote(installed(), self._host, self._arguments))
        try:
            with anyio.fail_after(START_SEC):
                await link.hello()
        except TimeoutError:
            link.kill()
            raise NodeLost(f"Node {node} did not start a host within {START_SEC:g} s.") from None
        except BaseException:
            link.kill()
            raise
        self._links.append(link)
        return link

    async def close(self) -> None:
        if self.address is None:
            return
        self.address = None
        for link in self._links:
            link.kill()
        self._links.clear()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(disconnect)


def _raise(node: Node, error: Exception) -> NoReturn:
    """What the host raised, or that the node is lost."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from None
    if isinstance(error, RayError):
        raise NodeLost(f"Node {node} was lost: {_what_is_known(error)}") from None
    raise error


def _what_is_known(error: Exception) -> str:
    """Ray's reason, in a few words."""
    found = _DETAIL.search(str(error))
    detail = (found[1] if found is not None else _first_line(error))[:300].strip().rstrip(".")
    return f"{_WORDS.get(type(error).__name__, type(error).__name__)} ({detail})."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _why_not_made(text: str) -> str:
    """The last line of a traceback is what the host raised; a class that cannot be imported is a missing package."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    missing = next((line for line in lines if "No module named 'benchflow" in line), None)
    if missing is not None:
        return "benchcube is not installed for the Python of its Ray."
    last = lines[-1] if lines else "no reason is known"
    return last.removeprefix("benchflow.cluster.node_link.NodeRefused: ")
