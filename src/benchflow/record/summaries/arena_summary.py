"""What the games of a job amount to, as `summary.json` has it: ratings, who met whom, rewards by role and opponent.

The numbers are computed in `benchflow.evaluation`; here is their shape. A value that is not known is None.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchflow.record.summaries.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Rating:
    """The strength of one player with its 95 % interval, in Elo points from the reference of its group.

    A side that is None has no bound: a player that only ever lost to the reference may be weaker by any amount, and one
    with such a side has no value either.
    """

    player: str
    value: float | None
    low: float | None
    high: float | None
    games: int
    """Games with at least one other player of the group."""
    score: float
    """The mean share of a game: 1 for a win against everybody in it, a half for ties, 0 for losses."""


@dataclass(frozen=True, slots=True)
class RatingGroup:
    """Players that games connect. Nothing is known of how players of different groups compare."""

    reference: tuple[str, ...]
    """Players whose mean rating is 0."""
    ratings: tuple[Rating, ...]
    """The strongest first."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """How often one player had a higher, the same, or a lower reward than another in the same game."""

    first: str
    second: str
    won: int
    tied: int
    lost: int


@dataclass(frozen=True, slots=True)
class RoleMean:
    """The mean reward of a player in one role."""

    role: str
    player: str
    reward: Estimate


@dataclass(frozen=True, slots=True)
class CrossPlay:
    """The mean reward of a player in one role, over the games in which another one had one of the other roles."""

    role: str
    player: str
    opponent: str
    reward: Estimate


@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """The games of a job."""

    games: int
    """Those with a score."""
    unscored: int
    """Those without: they are in no rating and in no mean."""
    groups: tuple[RatingGroup, ...]
    """Empty if no two different players met."""
    pairings: tuple[Pairing, ...]
    roles: tuple[RoleMean, ...]
    cross_play: tuple[CrossPlay, ...]
    uneven: tuple[str, ...] = ()
    """Players that did not play all roles equally often: their ratings also show what the roles are worth."""
