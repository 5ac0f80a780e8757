"""The games of a job as its page lays them out: what is in which row and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.evaluation.reports.arena_report import arena_notes, rating_cell, reference_words
from benchflow.record import ArenaStatistics, Estimate, Rating, RatingGroup

_LEAST_SPAN: Final = 100.0


@dataclass(frozen=True, slots=True)
class GamesView:
    """Tables of ratings and rewards."""

    roles: tuple[str, ...]
    means: Mapping[tuple[str, str], Estimate]
    """By role and player."""
    cells: Mapping[tuple[str, str, str], Estimate]
    """By role, player and opponent."""
    players: Mapping[str, tuple[str, ...]]
    """By role."""
    opponents: Mapping[str, tuple[str, ...]]
    alone: tuple[str, ...]
    """Players that have no rating."""
    notes: tuple[str, ...]
    span: float
    """The axis of ratings ends at so many points on both sides."""

    @staticmethod
    def rating(rating: Rating) -> str:
        return rating_cell(rating)

    @staticmethod
    def reference(group: RatingGroup) -> str:
        return reference_words(group)


def games_view(arena: ArenaStatistics) -> GamesView:
    """The tables of the games of a job."""
    roles = tuple(dict.fromkeys(mean.role for mean in arena.roles))
    cells = {(cell.role, cell.player, cell.opponent): cell.reward for cell in arena.cross_play}
    rated = [rating for group in arena.groups for rating in group.ratings]
    known = {rating.player for rating in rated}
    far = [abs(end) for rating in rated for end in (rating.value, rating.low, rating.high) if end is not None]
    return GamesView(
        roles,
        {(mean.role, mean.player): mean.reward for mean in arena.roles},
        cells,
        {role: tuple(sorted({player for at, player, _ in cells if at == role})) for role in roles},
        {role: tuple(sorted({opponent for at, _, opponent in cells if at == role})) for role in roles},
        tuple(sorted({mean.player for mean in arena.roles} - known)),
        tuple(arena_notes(arena)),
        max([_LEAST_SPAN, *far]),
    )
