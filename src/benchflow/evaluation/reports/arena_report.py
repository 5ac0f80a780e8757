"""The games of a job in words: ratings, rewards by role, and who plays how against whom."""

from __future__ import annotations

from collections.abc import Iterator

from benchflow.evaluation.reports.text_table import estimate_cell, number, table
from benchflow.record import ArenaStatistics, Rating, RatingGroup


def arena_lines(arena: ArenaStatistics) -> Iterator[str]:
    """Tables of players, each after an empty line; of a single player only its rewards by role."""
    yield ""
    unscored = f", {arena.unscored} without a score" if arena.unscored else ""
    yield f"{arena.games} {'game' if arena.games == 1 else 'games'}{unscored}"
    roles = list(dict.fromkeys(mean.role for mean in arena.roles))
    rewards = {(mean.player, mean.role): estimate_cell(mean.reward) for mean in arena.roles}
    for group in arena.groups:
        yield f"ratings: Elo points from {reference_words(group)}, with 95 % intervals; mean rewards by role"
        rows = [
            (
                rating.player,
                rating_cell(rating),
                str(rating.games),
                number(rating.score),
                *(rewards.get((rating.player, role), "") for role in roles),
            )
            for rating in group.ratings
        ]
        yield from table(
            ("player", "rating", "games", "score", *(f"as {role}" for role in roles)), rows, keep_last=True
        )
    rated = {rating.player for group in arena.groups for rating in group.ratings}
    alone = [player for player in dict.fromkeys(mean.player for mean in arena.roles) if player not in rated]
    if alone:
        yield "not rated, because it met no other player with a reward; mean rewards by role"
        rows = [(player, *(rewards.get((player, role), "") for role in roles)) for player in alone]
        yield from table(("player", *(f"as {role}" for role in roles)), rows, keep_last=True)
    yield from arena_notes(arena)
    if rated:
        for role in roles:
            yield from _cross_lines(arena, role)


def reference_words(group: RatingGroup) -> str:
    """What ratings are measured from."""
    *first, last = group.reference
    if first and len(group.reference) == len(group.ratings):
        return "their mean"
    return f"the mean of {', '.join(first)} and {last}" if first else last


def rating_cell(rating: Rating) -> str:
    """A rating with its interval; a bound where it has only one, a dash where it has none."""
    if rating.value is not None:
        if rating.low == rating.high:
            return f"{rating.value:.0f}"
        return f"{rating.value:+.0f} [{rating.low:+.0f}, {rating.high:+.0f}]"
    if rating.low is not None:
        return f"above {rating.low:+.0f}"
    return "–" if rating.high is None else f"below {rating.high:+.0f}"


def arena_notes(arena: ArenaStatistics) -> Iterator[str]:
    """What a reader of the ratings has to know."""
    if len(arena.groups) > 1:
        yield f"The {len(arena.groups)} groups of players never met, so their ratings cannot be compared."
    if any(rating.value is None for group in arena.groups for rating in group.ratings):
        yield "A player that always won, or always lost, against those that ratings start from has only a bound."
    if arena.groups and arena.uneven:
        them = "its rating also shows" if len(arena.uneven) == 1 else "their ratings also show"
        yield f"{', '.join(arena.uneven)} did not play all roles equally often: {them} what the roles are worth."


def _cross_lines(arena: ArenaStatistics, role: str) -> Iterator[str]:
    cells = {(cell.player, cell.opponent): estimate_cell(cell.reward) for cell in arena.cross_play if cell.role == role}
    players, opponents = (sorted(set(names)) for names in zip(*cells, strict=True))
    yield ""
    yield f"mean reward as {role} against"
    rows = [(player, *(cells.get((player, opponent), "") for opponent in opponents)) for player in players]
    yield from table(("", *opponents), rows, keep_last=True)
