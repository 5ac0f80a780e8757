"""Who of a team works when, and what counts of what they hand over. Pure.

A stage is what happens between two handoffs: one turn of a sequential team, one scene of a parallel one, in which every
role has a line of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from benchflow.rollout.plan import PlannedTurn


@dataclass(frozen=True, slots=True)
class Line:
    """The turns of one role in a stage, with their numbers in the step, in order."""

    role: str
    turns: tuple[tuple[int, PlannedTurn], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """Lines that run at the same time."""

    scene: str | None
    lines: tuple[Line, ...]


def stages(turns: Sequence[PlannedTurn], *, parallel: bool) -> tuple[Stage, ...]:
    """The stages of a step; the lines of a stage are in the order in which their roles first appear."""
    numbered = list(enumerate(turns))
    if not parallel:
        return tuple(Stage(turn.scene, (Line(turn.role.name, ((number, turn),)),)) for number, turn in numbered)
    found: list[Stage] = []
    for scene, group in groupby(numbered, key=lambda item: item[1].scene):
        lines: dict[str, list[tuple[int, PlannedTurn]]] = {}
        for number, turn in group:
            lines.setdefault(turn.role.name, []).append((number, turn))
        found.append(Stage(scene, tuple(Line(role, tuple(own)) for role, own in lines.items())))
    return tuple(found)


Digests = Mapping[str, str]
"""Absolute path of a file to the digest of its content."""


@dataclass(slots=True)
class Ledger:
    """What the team has handed over so far, and what each box has of it.

    A role hands over the files that differ from what its box had when it last received. Of two roles that hand over the
    same file in one stage, the one that comes later in the scene counts.
    """

    handed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Path to the digest of the content that counts, and the role it is from."""
    _known: dict[str, dict[str, str]] = field(default_factory=dict)

    def receive(self, role: str, found: Digests) -> None:
        """What the box of a role has now."""
        self._known[role] = dict(found)

    def changed(self, role: str, found: Digests) -> tuple[str, ...]:
        """The files that a role hands over, of those found in its box."""
        known = self._known.get(role, {})
        return tuple(path for path, digest in found.items() if known.get(path) != digest)

    def take(self, role: str, path: str, digest: str) -> str | None:
        """Let a file count; the role whose file it replaces, if another's."""
        before = self.handed.get(path)
        for other in [known for known in self.handed if known.startswith(f"{path}/") or path.startswith(f"{known}/")]:
            del self.handed[other]  # a file in place of a folder, or the other way round
        self.handed[path] = (digest, role)
        self._known.setdefault(role, {})[path] = digest
        return before[1] if before is not None and before[1] != role and before[0] != digest else None

    def missing(self, role: str) -> tuple[str, ...]:
        """The files that count and that the box of a role does not have."""
        known = self._known.get(role, {})
        return tuple(path for path, (digest, _) in self.handed.items() if known.get(path) != digest)
