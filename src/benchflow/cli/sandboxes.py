"""`bench sandboxes`: which backends work on this machine, what each supports, and how to enable what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from benchflow.cli.arguments import json_option
from benchflow.cli.failures import GOOD
from benchflow.cli.terminal import emit, emit_json, printable, style, warn, wrapped

if TYPE_CHECKING:
    from benchflow.sandbox.protocol import BackendStatus


@click.command()
@json_option
def sandboxes(as_json: bool) -> int:
    """Show which sandboxes work on this machine, what each supports, and how to enable what is missing."""
    import anyio

    from benchflow.plugins import SANDBOXES
    from benchflow.sandbox.backends import all_statuses

    statuses = anyio.run(all_statuses)
    warn(SANDBOXES.ignored())
    if as_json:
        emit_json({"sandboxes": [_document(status) for status in statuses]})
    else:
        emit("\n\n".join(_text(status) for status in statuses))
    return GOOD


def _document(status: BackendStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "usable": status.usable,
        "reason": status.reason,
        "capabilities": sorted(status.capabilities),
        "missing": [{"capability": item.capability, "how": item.how} for item in status.missing],
        "notes": list(status.notes),
    }


def _text(status: BackendStatus) -> str:
    state = style("usable", "green") if status.usable else style("not usable", "red")
    lines = [f"{style(printable(status.name), 'bold')}: {state}"]
    if status.reason:
        lines.append(wrapped(printable(status.reason), 2))
    if status.capabilities:
        lines.append(wrapped(f"supports {', '.join(sorted(status.capabilities))}", 2))
    lines += [wrapped(f"lacks {item.capability}: {printable(item.how)}", 2) for item in status.missing]
    lines += [wrapped(f"note: {printable(note)}", 2) for note in status.notes]
    return "\n".join(lines)
