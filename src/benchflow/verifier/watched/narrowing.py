"""A state that scores is verified again without what of the agent's may have won by its place alone.

`settled` takes a scope and how to verify in one, and gives the verdict that counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchflow.errors import Issue
from benchflow.sandbox.protocol import Change
from benchflow.verifier.scope import Scope

if TYPE_CHECKING:
    from benchflow.verifier.verifier import Verification

Stricter = tuple[Scope | None, Issue | None]
"""A scope without something of the agent's, None if there is nothing of that kind; and a note if that is not known."""
ScoresLess = Callable[[Scope], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """How to find out what may have won by its place. Each is None where it cannot have."""

    without_found: Callable[[Scope], Awaitable[Stricter]] | None
    """Without what programs find by themselves in the agent's system."""
    without_made: Callable[[Scope, Sequence[Change]], Awaitable[Stricter]] | None
    """Without what is where the verifier makes something itself on the environment as built."""
    without_suspects: (
        Callable[[Scope, Sequence[Change], Callable[[Scope], Awaitable[bool]]], Awaitable[Stricter]] | None
    )
    """The same for what it makes only if there is work; the last argument tells whether a scope scores less."""


async def settled(
    scope: Scope,
    verify: Callable[[Scope], Awaitable[Verification]],
    experiment: Callable[[Scope], Awaitable[Verification]],
    narrowing: Narrowing,
) -> Verification:
    """The verification that counts. An `experiment` verifies and leaves nothing."""
    found, seen = await verify(scope), scope

    async def narrowed(stricter: Scope | None, note: Issue | None) -> tuple[Verification, Scope]:
        if stricter is None:
            return found.noting(note), seen
        return (await verify(stricter)).noting(note), stricter

    async def scores_less(other: Scope) -> bool:
        return (await experiment(other)).reward < found.reward

    if found.reward > 0 and found.reachable and narrowing.without_found is not None:
        found, seen = await narrowed(*await narrowing.without_found(seen))
    if found.reward > 0 and narrowing.without_made is not None:
        found, seen = await narrowed(*await narrowing.without_made(seen, found.changes))
    if found.reward > 0 and narrowing.without_suspects is not None:
        found, _ = await narrowed(*await narrowing.without_suspects(seen, found.changes, scores_less))
    return replace(found, changes=())
