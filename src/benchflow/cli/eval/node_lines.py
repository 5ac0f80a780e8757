"""The nodes of a job on a cluster, in lines for a terminal."""

from __future__ import annotations

from typing import Final

from benchflow.cli.terminal import printable, shortened
from benchflow.record import JobNode, JobNodes

_MOST: Final = 12
"""Nodes that are shown; those that are not ready come first."""
_WIDE: Final = 160


def node_lines(nodes: JobNodes | None, width: int | None = None) -> list[str]:
    """One line for each node: what it does, what it has free; and why rollouts wait. None without a cluster."""
    if nodes is None or nodes.state != "running":
        return []
    shown = sorted(nodes.nodes, key=lambda node: (node.state == "ready", node.name))
    lines = [f"  {_node(node)}" for node in shown[:_MOST]]
    if len(shown) > _MOST:
        running = sum(len(node.rollouts) for node in shown[_MOST:])
        lines.append(f"  … and {len(shown) - _MOST} more nodes, {running} running")
    if nodes.waiting:
        why = f": {nodes.message}" if nodes.message else ""
        lines.append(f"  {nodes.waiting} waiting for a node{why}")
    return [shortened(printable(line), width or _WIDE) for line in lines]


def _node(node: JobNode) -> str:
    counts = f"{len(node.rollouts)} running, {node.finished} done" + (f", {node.lost} lost" if node.lost else "")
    if node.state in ("lost", "refused"):
        reason = (node.reason or "not used").split(" was lost: ", 1)[-1]  # its name and state are shown already
        return f"node {node.name}: {node.state}; {reason}"
    state = "" if node.state == "ready" else f"{node.state}, "
    parts = [f"node {node.name}: {state}{counts}"]
    sizes = ((node.memory_free_mb, "memory"), (node.disk_free_mb, "disk"))
    if free := [f"{_gb(size)} GB {kind}" for size, kind in sizes if size is not None]:
        parts.append(f"free: {', '.join(free)}")
    if node.clock_offset_sec is not None:
        ahead = "ahead" if node.clock_offset_sec > 0 else "behind"
        parts.append(f"clock {abs(node.clock_offset_sec):g} s {ahead}")
    if node.reason is not None:
        parts.append(node.reason)
    return ", ".join(parts)


def _gb(mb: int) -> str:
    return f"{mb / 1024:.1f}"
