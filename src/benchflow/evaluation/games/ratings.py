"""Ratings of players from games: Bradley–Terry strengths with intervals, as far as the games determine them.

In a game each player is compared with every other one by their rewards; these comparisons share the weight of one game,
so that a table of three counts no more for a player than a game of two. A tie is half a win for both. The weights are
added up exactly: the order of the games never matters.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Final

from benchflow.record import Rating, RatingGroup

ELO: Final = 400 / math.log(10)
"""Points of one unit of log odds: 400 points are odds of 10 to 1."""
_Z: Final = NormalDist().inv_cdf(0.975)
_CHANCE: Final = 0.025
_DECIMALS: Final = 6
"""Of ratings: what is left then does not depend on the order of the arithmetic."""
_STEPS: Final = 200
MOST_SEATS: Final = 64
"""A game of more is not compared: its pairs would be too many."""
MOST_RATED: Final = 200
"""A group of more players has no ratings: they would take minutes."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A player in a game."""

    role: str
    player: str
    reward: float | None
    """None if the game gave none; such a seat is not compared with others."""


Seats = Sequence[Seat]
"""The seats of one game."""
Wins = Mapping[str, Mapping[str, Fraction]]
"""The games that a player won against another, by both."""

Bounded = tuple[float | None, float | None]


def ratings(games: Iterable[Seats]) -> tuple[RatingGroup, ...]:
    """The ratings of all players that met another one, by group of players that games connect; the largest first.

    Groups that are too large are left out.
    """
    played = list(games)
    wins = _wins(played)
    met = Counter(player for seats in played for player in {seat.player for pair in compared(seats) for seat in pair})
    groups = [_rated(members, wins, met) for members in _connected(wins) if len(members) <= MOST_RATED]
    return tuple(sorted(groups, key=lambda group: (-len(group.ratings), group.reference)))


def compared(seats: Seats) -> list[tuple[Seat, Seat]]:
    """The pairs of seats of a game whose players differ and whose rewards are known."""
    known = [seat for seat in seats if seat.reward is not None]
    if len(known) > MOST_SEATS:
        return []
    return [(one, other) for at, one in enumerate(known) for other in known[at + 1 :] if one.player != other.player]


def _wins(games: Iterable[Seats]) -> Wins:
    """Every player that met another has a row, also without a win."""
    found: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for seats in games:
        opponents = sum(seat.reward is not None for seat in seats) - 1
        for one, other in compared(seats):
            share = _share(one, other)
            found[one.player][other.player] += share / opponents
            found[other.player][one.player] += (1 - share) / opponents
    return {player: {other: row[other] for other in sorted(row)} for player, row in sorted(found.items())}


def _share(one: Seat, other: Seat) -> Fraction:
    """What the first has won of a comparison."""
    mine, theirs = one.reward or 0.0, other.reward or 0.0
    return Fraction(1, 2) if mine == theirs else Fraction(int(mine > theirs))


def _connected(wins: Wins) -> list[list[str]]:
    """The players by whether a chain of games leads from one to the other."""
    steps = {player: set(row) for player, row in wins.items()}
    found: list[list[str]] = []
    seen: set[str] = set()
    for player in wins:
        if player not in seen:
            group = _reached(player, steps)
            seen |= group
            found.append(sorted(group))
    return found


def _mutual(members: Sequence[str], wins: Wins) -> list[list[str]]:
    """Members by whether a chain of wins leads from each to each other one: only then is their distance finite."""
    beaten = {one: {other for other, won in wins[one].items() if won and other in members} for one in members}
    return _classes(members, beaten)


def _classes(players: Iterable[str], steps: Mapping[str, set[str]]) -> list[list[str]]:
    """The players by whether steps lead from one to the other and back."""
    ahead = {player: _reached(player, steps) for player in players}
    found: dict[frozenset[str], list[str]] = {}
    for player, reached in ahead.items():
        both = frozenset(other for other in reached if player in ahead[other])
        found.setdefault(both, []).append(player)
    return list(found.values())


def _reached(start: str, steps: Mapping[str, set[str]]) -> set[str]:
    seen, left = {start}, [start]
    while left:
        fresh = steps[left.pop()] - seen
        seen |= fresh
        left.extend(fresh)
    return seen


def _rated(members: Sequence[str], wins: Wins, met: Mapping[str, int]) -> RatingGroup:
    score = {one: _score(one, wins) for one in members}
    # As many as possible get a value: the reference is the largest set of players at finite distances.
    reference = max(
        _mutual(members, wins), key=lambda part: (len(part), _played(part, wins), max(score[one] for one in part))
    )
    strengths, errors = fitted(reference, wins)
    rated = []
    for one in members:
        value = strengths.get(one)
        low, high = _one_sided(one, strengths, wins) if value is None else _around(value, errors[one])
        rated.append(Rating(one, _points(value), _points(low), _points(high), met[one], float(score[one])))
    return RatingGroup(tuple(sorted(reference)), tuple(sorted(rated, key=_standing)))


def _around(value: float, error: float) -> Bounded:
    return value - _Z * error, value + _Z * error


def _points(strength: float | None) -> float | None:
    return None if strength is None else round(strength * ELO, _DECIMALS) + 0.0  # never -0.0


def _score(one: str, wins: Wins) -> Fraction:
    won = sum(wins[one].values(), Fraction())
    return won / (won + sum((wins[other][one] for other in wins[one]), Fraction()))


def _played(part: Sequence[str], wins: Wins) -> Fraction:
    """How much the members of a part played among each other."""
    return sum((won for one in part for other, won in wins[one].items() if other in part), Fraction())


def _standing(rating: Rating) -> tuple[int, float, float, str]:
    """Sorts ratings: above the reference without an upper bound, the reference, below it, and what has no bound."""
    if rating.value is not None:
        return 1, -rating.value, 0.0, rating.player
    kind = 0 if rating.low is not None else 2 if rating.high is not None else 3
    return kind, -rating.score, 0.0, rating.player


def fitted(players: Sequence[str], wins: Wins) -> tuple[dict[str, float], dict[str, float]]:
    """The most likely strengths in log odds, with a mean of 0, and their standard errors.

    A chain of wins must lead from every player to every other one; otherwise the likelihood has no maximum.
    """
    size = len(players)
    won = [[float(wins[one].get(other, 0)) for other in players] for one in players]
    strengths = [0.0] * size
    likelihood = _likelihood(strengths, won)
    for _ in range(_STEPS):
        slope, curve = _derivatives(strengths, won)
        step = _times(_inverse(curve), slope)
        scale = 1.0
        while True:  # Newton's step may be too long far from the maximum
            tried = [now + scale * change for now, change in zip(strengths, step, strict=True)]
            better = _likelihood(tried, won)
            if better >= likelihood or scale < 1e-9:
                break
            scale /= 2
        strengths, likelihood = tried, better
        if max(map(abs, step), default=0.0) < 1e-10:
            break
    middle = math.fsum(strengths) / size
    spread = _inverse(_derivatives(strengths, won)[1])
    return (
        {player: strengths[at] - middle for at, player in enumerate(players)},
        {player: math.sqrt(max(0.0, spread[at][at])) for at, player in enumerate(players)},
    )


def _likelihood(strengths: Sequence[float], won: Sequence[Sequence[float]]) -> float:
    return math.fsum(
        times * log_chance(strengths[one] - strengths[other])
        for one, row in enumerate(won)
        for other, times in enumerate(row)
        if times
    )


def _derivatives(strengths: Sequence[float], won: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """The slope of the likelihood, and its curvature (the information on the strengths)."""
    size = len(strengths)
    slope, curve = [0.0] * size, [[0.0] * size for _ in range(size)]
    for one in range(size):
        for other in range(one):
            games = won[one][other] + won[other][one]
            if not games:
                continue
            chance = math.exp(log_chance(strengths[one] - strengths[other]))
            surprise = won[one][other] - games * chance
            weight = games * chance * (1 - chance)
            slope[one] += surprise
            slope[other] -= surprise
            for row, column, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
                curve[row][column] += sign * weight
    return slope, curve


def log_chance(difference: float) -> float:
    """The logarithm of the chance to win for a player that is stronger by this."""
    return -math.log1p(math.exp(-difference)) if difference > 0 else difference - math.log1p(math.exp(difference))


def _inverse(curve: Sequence[Sequence[float]]) -> list[list[float]]:
    """The inverse on all strengths with a mean of 0: equal changes of all strengths have no curvature."""
    size = len(curve)
    scale = max((curve[at][at] for at in range(size)), default=0.0) or 1.0
    shift = scale / size
    rows = [
        [*(value + shift for value in row), *(float(at == to) for to in range(size))] for at, row in enumerate(curve)
    ]
    for at in range(size):
        best = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[best] = rows[best], rows[at]
        pivot = rows[at][at]
        rows[at] = [value / pivot for value in rows[at]]
        for row in range(size):
            if row != at and rows[row][at]:
                factor = rows[row][at]
                rows[row] = [value - factor * own for value, own in zip(rows[row], rows[at], strict=True)]
    back = 1 / (shift * size * size)
    return [[value - back for value in row[size:]] for row in rows]


def _times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [math.fsum(map(float.__mul__, row, vector)) for row in matrix]


def _one_sided(player: str, strengths: Mapping[str, float], wins: Wins) -> Bounded:
    """The bounds of a player that won, or lost, every game with the reference; none if it played none of these.

    At the bound, so one-sided a result still has a chance of 2.5 %, with the strengths of the reference as estimated.
    """
    met = {other: wins[player][other] + wins[other][player] for other in strengths if other in wins[player]}
    if not met:
        return None, None
    sign = 1 if any(wins[player][other] for other in met) else -1

    def chance(distance: float) -> float:
        """The logarithm of the chance of this result at a distance in the direction of the result."""
        return math.fsum(float(met[other]) * log_chance(distance - sign * strengths[other]) for other in met)

    low, high = -1.0, 1.0
    while chance(low) > math.log(_CHANCE):
        low *= 2
    while chance(high) < math.log(_CHANCE):
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < math.log(_CHANCE) else (low, middle)
    return (high, None) if sign > 0 else (None, -high)
