"""What was said in an arena, as text for a terminal and as plain JSON values: messages, tool calls and rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from benchflow.cli.pull_lines import size
from benchflow.cli.tasks.rendering import counted
from benchflow.cli.terminal import Colour, columns, printable, printable_lines, shortened, style

if TYPE_CHECKING:
    from benchflow.record import ArenaMessage, MessagePart, RolloutFolder
    from benchflow.record.reading.arena_exchange import Entry

_WIDE: Final = 160
_LINES: Final = 3
"""Lines of a message, unless all are wanted."""


def exchange_lines(folder: RolloutFolder, *, whole: bool = False) -> Iterator[str]:
    """Who said what to whom, in order of time; `whole` shows every text in full."""
    for entry in _entries(folder):
        if entry.message is not None:
            yield from _message_lines(folder, entry.message, whole=whole)
        elif entry.call is not None:
            call = entry.call
            asked = json.dumps(dict(call.arguments), ensure_ascii=False)
            yield _head("", call.time, f"{call.role} uses {call.tool}{'' if call.ok else ', which failed'}")
            yield from _folded(asked, whole=whole)
            yield from _folded(f"→ {call.output}", whole=whole)
        elif entry.reward is not None:
            reward = entry.reward
            kind = "final reward" if reward.type == "terminal" else "reward"
            yield _head("", reward.ts, f"{kind} {reward.value:g}  {reward.tag}, by the {reward.source}", "green")
        else:
            yield _head(str(entry.place[1]), "", "a damaged line")


def exchange_document(folder: RolloutFolder) -> list[dict[str, Any]]:
    """The same as plain JSON values; large parts of messages by their digest."""
    from benchflow.record.codec import plain

    found = []
    for entry in _entries(folder):
        kinds = {"message": entry.message, "tool_call": entry.call, "reward": entry.reward}
        found += [{name: plain(value)} for name, value in kinds.items() if value is not None]
    return found


def _entries(folder: RolloutFolder) -> Iterator[Entry]:
    from benchflow.record.reading.arena_exchange import exchange_page

    place: tuple[int, int] | None = (0, 1)
    while place is not None:
        page = exchange_page(folder, *place, limit=500)
        yield from page.entries
        place = page.next


def _message_lines(folder: RolloutFolder, message: ArenaMessage, *, whole: bool) -> Iterator[str]:
    marks = [] if message.kind == "message" else [message.kind, message.state or "", message.code or ""]
    took = "" if message.latency_ms is None else f"after {message.latency_ms / 1000:.1f} s"
    more = ", ".join(part for part in (*marks, took) if part)
    words = f"{message.sender} → {message.receiver}{f'  ({more})' if more else ''}"
    yield _head(str(message.seq), message.time, words, "red" if message.kind == "error" else "cyan")
    for part in message.parts:
        yield from _folded(_text(folder, part, whole=whole) or "(empty)", whole=whole)


def _text(folder: RolloutFolder, part: MessagePart, *, whole: bool) -> str:
    from benchflow.record import MessageParts

    if part.part is not None and not whole:
        return f"[{size(part.bytes)}; --full shows it]"
    try:
        content = MessageParts(folder).content(part)
    except (ValueError, RecursionError) as error:
        return f"[{error}]"
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)


def _head(number: str, time: str, words: str, colour: Colour = "dim") -> str:
    return f"  {printable(number):>4}  {printable(time)[11:19]:>8}  {style(printable(words), colour)}"


def _folded(text: str, *, whole: bool) -> Iterator[str]:
    lines = [line for line in printable_lines(text, 1_000_000 if whole else 4_000) if whole or line]
    width = max((columns() or _WIDE) - 24, 40)
    for line in lines if whole else lines[:_LINES]:
        yield " " * 18 + (line if whole else shortened(line, width))
    if not whole and len(lines) > _LINES:
        yield " " * 18 + style(f"[+{counted(len(lines) - _LINES, 'line')}]", "dim")
