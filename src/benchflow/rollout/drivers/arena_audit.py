"""The audit of what was said in a game: hidden files of the package, and instructions that only one role has.

What an assessor tells a participant must not repeat its own files, and a participant that repeats its instructions has
revealed them. Both are noted with the record of the verification; neither changes the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import anyio.to_thread

from benchflow.arena.peers.message_log import MessageLog
from benchflow.errors import Issue
from benchflow.rollout.seats import Seat
from benchflow.verifier.strategies.agent_judge import Leak, audit, hidden_folders
from benchflow.verifier.strategy_run import Run

AUDIT: Final = "arena-audit.json"
_SHORTEST: Final = 24
"""Shorter lines appear everywhere."""
_SHOWN: Final = 10


async def audit_messages(run: Run, log: MessageLog, seats: Sequence[Seat], roles: Sequence[str]) -> None:
    """Write `arena-audit.json`, and add a note for what was revealed."""
    await anyio.to_thread.run_sync(_audit, run, log, seats, roles)


def _audit(run: Run, log: MessageLog, seats: Sequence[Seat], roles: Sequence[str]) -> None:
    declared = frozenset(_lines(run.strategy.config))
    told = {
        f"message to {role}": "\n".join(_without(text, declared) for _, to, text in log.said if to == role)
        for role in roles
    }
    leaks = audit(told, hidden_folders(run))
    revealed = [
        {"role": seat.role.name, "lines": count}
        for seat in seats
        if (count := _repeated(seat.instructions, seats, seat, log))
    ]
    record = {"leaks": [leak.to_dict() for leak in leaks], "revealed": revealed, "clean": not leaks and not revealed}
    (run.output / AUDIT).write_text(json.dumps(record, indent=2) + "\n")
    run.findings.add(*(_note(leak) for leak in leaks[:_SHOWN]))
    for found in revealed:
        message = f"The participant '{found['role']}' repeated {found['lines']} lines of its own instructions."
        run.findings.add(Issue("private-facts-revealed", "warning", "", message))


def _note(leak: Leak) -> Issue:
    message = f"{leak.lines} lines of {leak.hidden} appear in a {leak.found_in}, from line {leak.line}."
    return Issue("assessor-leak", "warning", "", message, leak.hidden, leak.line)


def _repeated(instructions: str, seats: Sequence[Seat], own: Seat, log: MessageLog) -> int:
    """How many lines of instructions that only this role has are in what it said."""
    others = {line.strip() for seat in seats if seat is not own for line in seat.instructions.splitlines()}
    private = {line.strip() for line in instructions.splitlines()} - others
    said = "\n".join(text for sender, _, text in log.said if sender == own.role.name)
    return sum(len(line) >= _SHORTEST and line in said for line in private)


def _without(text: str, declared: frozenset[str]) -> str:
    """A message without lines that the strategy declares to be said."""
    return "\n".join(line for line in text.splitlines() if line.strip() not in declared)


def _lines(value: Any) -> Iterator[str]:
    """Every line of every text in a value."""
    if isinstance(value, str):
        yield from (line.strip() for line in value.splitlines())
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _lines(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _lines(item)
