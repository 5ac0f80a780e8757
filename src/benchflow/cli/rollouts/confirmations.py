"""`confirmation_policy: human` in the terminal of `bench run`: shows each permission request and reads the answer.

Without a terminal nobody can answer, so such a run is refused before launch. No answer within the limit is a refusal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from benchflow.cli.terminal import is_terminal, note, printable, printable_lines, shortened, style
from benchflow.errors import UsageError

if TYPE_CHECKING:
    from benchflow.agents.protocol import PermissionHandler, PermissionRequest
    from benchflow.task.package import TaskPackage

ANSWER_SEC: Final = 300.0
"""Time for one answer; it is part of the agent's own time."""
_LINES: Final = 20


def confirmation_handler(
    package: TaskPackage, agent: str, paused: Callable[[], AbstractContextManager[object]]
) -> PermissionHandler | None:
    """Who answers the permission requests of a package; None if no human has to. `paused` clears the screen for it.

    Refuses as wrong usage a run in which a human would have to answer and there is no terminal.
    """
    from benchflow.record import always_wins
    from benchflow.rollout.drivers.turns import confirms

    if not package.valid or not confirms(package.view.prompt_plan.user_runtime.confirmation_policy):
        return None
    if always_wins(agent):
        return None
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        message = (
            f"{package.name} has the confirmation policy 'human': `bench run` asks in the terminal, and there is none."
            " Run it in a terminal; `bench eval run` refuses every request of the agent."
        )
        raise UsageError(message, code="no-terminal")

    async def ask(request: PermissionRequest) -> str | None:
        import termios

        with paused():
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before does not answer
            for line in request_lines(agent, request):
                note(line)
            return await _answer(request)

    return ask


def request_lines(agent: str, request: PermissionRequest) -> list[str]:
    """A request for people: who asks, for what, the options, and the time for an answer."""
    lines = [style(f"{printable(agent)} asks for permission: ", "bold", sys.stderr) + printable(request.title)]
    given = request.tool_call.get("rawInput", request.tool_call.get("arguments"))
    if given:
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, indent=2, default=str)
        shown = list(printable_lines(text, 200))
        lines += [f"  | {line}" for line in shown[:_LINES]]
        if len(shown) > _LINES:
            lines.append(f"  | … {len(shown) - _LINES} more lines")
    for number, option in enumerate(request.options, 1):
        kind = f" ({printable(option.kind)})" if option.kind else ""
        lines.append(f"  {number}  {shortened(printable(option.name or option.id), 100)}{kind}")
    return [*lines, f"  Number of an option, or Enter to refuse (within {ANSWER_SEC:g} s):"]


async def _answer(request: PermissionRequest) -> str | None:
    import anyio

    descriptor = sys.stdin.fileno()
    with anyio.move_on_after(ANSWER_SEC):
        while True:
            await anyio.wait_readable(descriptor)
            typed = os.read(descriptor, 4096).decode(errors="replace")
            word = typed.strip()
            if not word:
                note("  refused")
                return None
            if word.isdecimal() and 1 <= int(word) <= len(request.options):
                return request.options[int(word) - 1].id
            note(f"  Type a number from 1 to {len(request.options)}, or Enter to refuse:")
    note(f"  refused: no answer within {ANSWER_SEC:g} s")
    return None
