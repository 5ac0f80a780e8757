"""The nodes of a job as people see them: the state of each, what runs there, and why others wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchflow.evaluation.scaled.abilities import Demand, refusal
from benchflow.evaluation.scaled.admission import why_not_now
from benchflow.evaluation.scaled.launch_check import by_node
from benchflow.evaluation.scaled.live.node_watch import NodeWatch
from benchflow.evaluation.scaled.orders import Order
from benchflow.evaluation.scaled.placement import Candidate
from benchflow.record import JobNode, LiveRollout

if TYPE_CHECKING:
    from benchflow.evaluation.scaled.fleet import Host

SILENT_SEC: Final = 8.0
"""After this time without a pulse people are shown that a node is silent."""


def seen_node(id_: str, watch: NodeWatch, host: Host, candidate: Candidate, now: float) -> JobNode:
    """A node with a host."""
    resting = watch.resting(now)
    silent = now - host.heard_at > SILENT_SEC
    vitals = candidate.load.vitals
    return JobNode(
        id_,
        watch.name,
        "resting" if resting else "silent" if silent else "ready",
        resting or (f"no pulse for {now - host.heard_at:.0f} s" if silent else None),
        candidate.facts.processors,
        candidate.facts.memory_mb,
        vitals.memory_free_mb,
        vitals.disk_free_mb,
        watch.skew.noted,
        watch.finished,
        watch.lost,
        tuple(_rollouts(host, watch)),
    )


def gone_node(id_: str, watch: NodeWatch, refused: str | None, lost: str | None) -> JobNode:
    """A node without a host."""
    return JobNode(
        id_,
        watch.name,
        "refused" if refused is not None else "lost",
        refused or lost,
        finished=watch.finished,
        lost=watch.lost,
    )


def _rollouts(host: Host, watch: NodeWatch) -> Iterator[LiveRollout]:
    """What runs there: the orders that are open, with what the last pulse said of them."""
    running: Mapping[str, LiveRollout] = host.pulse.running if host.pulse is not None else {}
    for id_, order in host.orders.items():
        live = running.get(id_) or _begun(order)
        yield live if watch.skew.noted is None else replace(live, started_at=watch.skew.here(live.started_at))


def _begun(order: Order) -> LiveRollout:
    return LiveRollout(
        order.rollout, order.task.id.name, order.attempt, "", None, "", "environment", None, "", 0, usage={}
    )


def why_waiting(demand: Demand | None, nodes: Mapping[str, Candidate]) -> str | None:
    """Why the first in line waits; None if nobody does."""
    if demand is None:
        return None
    if not nodes:
        return "no node is left in the cluster"
    found = ((refusal(demand, node.facts) or why_not_now(demand, *node), node.facts) for node in nodes.values())
    return by_node((why, facts) for why, facts in found if why is not None) or None
