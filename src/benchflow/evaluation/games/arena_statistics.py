"""The games among the results of a job: who met whom, rewards by role and opponent, ratings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchflow.evaluation.games.ratings import MOST_SEATS, Seat, compared, ratings
from benchflow.evaluation.statistics import Span, mean, span_of
from benchflow.record import ArenaStatistics, CrossPlay, Estimate, Pairing, RoleMean, TaskId


@dataclass(frozen=True, slots=True)
class Game:
    """One game: its task, and who had which role and reward."""

    task: TaskId
    seats: tuple[Seat, ...]
    scored: bool = True


def arena_statistics(games: Iterable[Game]) -> ArenaStatistics | None:
    """What the games amount to; None without any. Their order does not matter."""
    everything = list(games)
    if not everything:
        return None
    scored = [game for game in everything if game.scored]
    return ArenaStatistics(
        games=len(scored),
        unscored=len(everything) - len(scored),
        groups=ratings(game.seats for game in scored),
        pairings=tuple(_pairings(scored)),
        roles=tuple(RoleMean(role, player, reward) for (role, player, _), reward in _means(scored, _by_role).items()),
        cross_play=tuple(CrossPlay(*key, reward) for key, reward in _means(scored, _by_opponent).items()),
        uneven=_uneven(scored),
    )


def _pairings(games: Iterable[Game]) -> Iterator[Pairing]:
    found: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for game in games:
        for pair in compared(game.seats):
            one, other = sorted(pair, key=lambda seat: seat.player)
            mine, theirs = one.reward or 0.0, other.reward or 0.0
            found[one.player, other.player][(mine > theirs) - (mine < theirs)] += 1
    for (first, second), count in sorted(found.items()):
        yield Pairing(first, second, count[1], count[0], count[-1])


Key = tuple[str, str, str]
"""A role, a player, and an opponent if it matters."""
Keyed = Iterator[tuple[Key, float]]


def _by_role(game: Game) -> Keyed:
    return (((seat.role, seat.player, ""), seat.reward) for seat in game.seats if seat.reward is not None)


def _by_opponent(game: Game) -> Keyed:
    """A reward belongs to each of the others in the game once, whatever roles it had."""
    for seat in game.seats:
        if seat.reward is not None and len(game.seats) <= MOST_SEATS:
            others = {other.player for other in game.seats if other is not seat}
            yield from (((seat.role, seat.player, other), seat.reward) for other in sorted(others))


def _means(games: Sequence[Game], keyed: Callable[[Game], Keyed]) -> dict[Key, Estimate]:
    """The mean reward of each key. Its unit is the task; of one task alone, the game."""
    found: dict[Key, dict[TaskId, list[float]]] = defaultdict(lambda: defaultdict(list))
    for game in games:
        for key, reward in keyed(game):
            found[key][game.task].append(reward)
    span = span_of(seat.reward for game in games for seat in game.seats if seat.reward is not None)
    order = {role: at for at, role in enumerate(_roles(games))}
    keys = sorted(found, key=lambda key: (order[key[0]], *key))
    return {key: _mean(found[key], span) for key in keys}


def _roles(games: Iterable[Game]) -> Iterator[str]:
    """The roles as the tasks declare them, whatever the order of the games."""
    declared = {(_order(game.task), tuple(seat.role for seat in game.seats)) for game in games}
    return iter(dict.fromkeys(role for _, roles in sorted(declared) for role in roles))


def _order(task: TaskId) -> tuple[str, str, int]:
    return task.name, task.content_digest or "", task.ordinal


def _mean(by_task: Mapping[TaskId, Sequence[float]], span: Span) -> Estimate:
    if len(by_task) > 1:
        return mean(by_task, span)
    [rewards] = by_task.values()
    return replace(mean({at: [reward] for at, reward in enumerate(rewards)}, span), tasks=1)


def _uneven(games: Iterable[Game]) -> tuple[str, ...]:
    """Players that had, in the games of some task, one role more often than another."""
    roles: dict[TaskId, set[str]] = defaultdict(set)
    had: Counter[tuple[TaskId, str, str]] = Counter()
    for game in games:
        for seat in game.seats:
            roles[game.task].add(seat.role)
            had[game.task, seat.player, seat.role] += 1
    found = {(task, player) for task, player, _ in had}
    return tuple(
        sorted({player for task, player in found if len({had[task, player, role] for role in roles[task]}) > 1})
    )
