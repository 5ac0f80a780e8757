"""Before anything is launched: every task has a node that can run it, or the job is refused with one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from benchflow.errors import UsageError
from benchflow.evaluation.scaled.abilities import Demand, NodeFacts, refusal

NO_NODE: Final = "no-node"
_NAMED: Final = 5
"""Tasks or nodes that a message names."""
_REASONS: Final = 3


def check_launch(tasks: Sequence[tuple[str, Demand]], nodes: Sequence[NodeFacts]) -> list[str]:
    """Sentences about nodes that some of the tasks cannot run on. A `UsageError` if a task can run on none.

    `tasks` are names and demands; what is equal is looked at once.
    """
    reasons: dict[Demand, list[str | None]] = {}
    for _, demand in tasks:
        if demand not in reasons:
            reasons[demand] = [refusal(demand, node) for node in nodes]
    stranded: dict[tuple[str, ...], list[str]] = {}
    for name, demand in tasks:
        found = reasons[demand]
        if None not in found:
            stranded.setdefault(tuple(why for why in found if why is not None), []).append(name)
    if stranded:
        raise UsageError(_refused(stranded, len(tasks), nodes), code=NO_NODE)
    return [note for place, node in enumerate(nodes) if (note := _note(place, node, tasks, reasons))]


def _refused(stranded: Mapping[tuple[str, ...], list[str]], total: int, nodes: Sequence[NodeFacts]) -> str:
    count = sum(map(len, stranded.values()))
    parts = []
    for reasons, names in list(stranded.items())[:_REASONS]:
        parts.append(f"{_listed(names)}: {by_node(zip(reasons, nodes, strict=True))}" if nodes else _listed(names))
    more = f" (and {len(stranded) - _REASONS} more reasons)" if len(stranded) > _REASONS else ""
    whole = f"{count} of the {total} tasks" if total > 1 else "the task"
    return f"No node of the cluster can run {whole}. {'. '.join(parts)}{more}."


def by_node(reasons: Iterable[tuple[str, NodeFacts]]) -> str:
    """Each reason with the nodes that it is true of."""
    by_reason: dict[str, list[str]] = {}
    for why, node in reasons:
        by_reason.setdefault(why, []).append(node.name)
    shown = [f"{_nodes(names)} {why}" for why, names in list(by_reason.items())[:_REASONS]]
    more = f"; and {len(by_reason) - _REASONS} other reasons" if len(by_reason) > _REASONS else ""
    return "; ".join(shown) + more


def _nodes(names: Sequence[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"each of the nodes {_listed(names)}"


def _note(
    place: int,
    node: NodeFacts,
    tasks: Sequence[tuple[str, Demand]],
    reasons: Mapping[Demand, Sequence[str | None]],
) -> str | None:
    refused = [why for _, demand in tasks if (why := reasons[demand][place]) is not None]
    if not refused:
        return None
    kinds = list(dict.fromkeys(refused))
    more = f" (and {len(kinds) - 1} more reasons)" if len(kinds) > 1 else ""
    if len(refused) == len(tasks):
        return f"Node {node.name} gets no rollouts: it {kinds[0]}{more}."
    return f"Node {node.name} cannot run {len(refused)} of the {len(tasks)} tasks: it {kinds[0]}{more}."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
