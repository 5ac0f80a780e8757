"""A game under way, as a pure state machine: who is asked what, what an answer does, and what everyone gets at the end.

`begin` draws the values of a seed, `question` says who is asked next, `answered` takes what was said, `payoffs` is the
end of it.
Nothing that a participant writes has an effect except a move of the protocol on a line of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from benchflow.task.verifier.game_expressions import EvaluationError, Scalar
from benchflow.task.verifier.game_protocol import Game, Move, Turn
from benchflow.task.verifier.game_records import DrawRecord
from benchflow.task.verifier.game_texts import lines_of

MAX_SHOWN: Final = 200
SILENT: Final = "(no message)"


@dataclass(frozen=True, slots=True)
class Heard:
    """What a role will read at its next turn."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Played:
    """What was done in a turn; `move` None: nothing that counts."""

    round: int
    role: str
    move: str | None
    parameters: Mapping[str, Scalar]
    text: str
    """The message, as far as its limit; it is recorded elsewhere."""

    def to_dict(self) -> dict[str, Any]:
        return {"round": self.round, "role": self.role, "move": self.move, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Failure:
    """A participant that broke the rules, where the protocol does not say what that costs."""

    role: str
    message: str


@dataclass(frozen=True, slots=True)
class Question:
    """Who is asked, and with which text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Play:
    """The state of a game."""

    game: Game
    seed: int
    values: Mapping[str, Scalar]
    state: Mapping[str, Scalar]
    round: int = 1
    turn: int = 0
    """Position in `game.turns`; the number of turns when the game is over."""
    misses: int = 0
    complaint: str | None = None
    """Why the last answer of this turn did not count."""
    briefed: frozenset[str] = frozenset()
    heard: tuple[tuple[str, Heard], ...] = ()
    """By whom what was heard since the last turn."""
    played: tuple[Played, ...] = ()
    out: frozenset[str] = frozenset()
    """Roles that forfeited: they are not asked any more."""
    ended: str | None = None
    """`move`, `until`, `rounds` or `forfeit`, when the game is over."""
    failure: Failure | None = None

    @property
    def over(self) -> bool:
        return self.ended is not None or self.failure is not None

    @property
    def current(self) -> Turn:
        return self.game.turns[self.turn]

    def scope(self, role: str) -> dict[str, Scalar]:
        return {**self.values, **self.state, "role": role, "round": self.round, "rounds": self.game.rounds}


def begin(game: Game, seed: int) -> Play:
    """The first state of the game with a seed: the same seed, the same values, whatever else is drawn."""
    values = {
        name: _drawn(value, seed, name) if isinstance(value, DrawRecord) else value
        for name, value in game.values.items()
    }
    return _arrive(Play(game, seed, values, dict(game.state)))


def _drawn(record: DrawRecord, seed: int, name: str) -> Scalar:
    number = int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest(), "big")
    if record.choose is not None:
        chosen: Scalar = record.choose[number % len(record.choose)]
        return chosen
    low, high = record.between or (0, 0)
    return int(low) + number % (int(high) - int(low) + 1)


def question(play: Play) -> Question:
    """The message to the role whose turn it is: its brief, what it heard, and what it may do."""
    turn, scope = play.current, play.scope(play.current.role)
    if play.complaint is not None:
        return Question(turn.role, f"{play.complaint}\n\n{_ask(turn, scope)}")
    told: list[str] = []
    if turn.role not in play.briefed:
        texts = (play.game.rules, play.game.briefs[turn.role])
        told += [text.fill(scope).strip() for text in texts if text is not None]
    told += [f"{each.speaker}:\n{_quoted(each.text)}" for role, each in play.heard if role == turn.role]
    return Question(turn.role, "\n\n".join([*told, _ask(turn, scope)]))


def _ask(turn: Turn, scope: Mapping[str, Scalar]) -> str:
    forms = "\n".join(str(move.form) for move in turn.moves)
    return turn.ask.fill({**scope, "forms": forms}).strip()


def _quoted(text: str) -> str:
    """A message with a mark before each line: no participant can pretend that another one spoke."""
    return "\n".join(f"> {line}" for line in text.splitlines()) or f"> {SILENT}"


def answered(play: Play, message: str) -> Play:
    """The state after the role whose turn it is has answered. Raises `EvaluationError`."""
    turn = play.current
    found = _move(play, turn, message)
    if not isinstance(found, str):
        move, parameters = found
        return _applied(play, message, move, parameters)
    if play.misses < play.game.retries:
        return replace(play, misses=play.misses + 1, complaint=f"That does not count: {found}")
    then = play.game.then
    if then == "fail":
        sentence = f"{turn.role} made no legal move in round {play.round}: {found}"
        return replace(play, failure=Failure(turn.role, sentence))
    if then == "forfeit":
        return forfeited(play, turn.role)
    default = play.game.moves.get(then)
    if default is not None and default in turn.moves and _is_legal(default, play.scope(turn.role)):
        return _applied(play, message, default, {})
    return _passed_on(play, message, None, {})


def _move(play: Play, turn: Turn, message: str) -> tuple[Move, dict[str, Scalar]] | str:
    """The last line that is a legal move; otherwise why there is none."""
    limit = play.game.message_limit
    if len(message) > limit:
        return f"your message has {len(message)} characters, and the limit is {limit}."
    for line in lines_of(message):
        for move in turn.moves:
            read = move.form.read(line)
            if read is None:
                continue
            if isinstance(read, str):
                return f"{line[:MAX_SHOWN]!r}: {read}."
            if not _is_legal(move, {**play.scope(turn.role), **read}):
                return f"{line[:MAX_SHOWN]!r} is not allowed now."
            return move, read
    return "no line of your message is one of the moves."


def _is_legal(move: Move, scope: Mapping[str, Scalar]) -> bool:
    return move.legal is None or bool(move.legal.value(scope))


def _applied(play: Play, message: str, move: Move, parameters: dict[str, Scalar]) -> Play:
    scope = {**play.scope(play.current.role), **parameters}
    changes = {name: expression.value(scope) for name, expression in move.set.items()}
    changed = replace(play, state={**play.state, **changes}, ended="move" if move.ends else None)
    return _passed_on(changed, message, move, parameters)


def _passed_on(play: Play, message: str, move: Move | None, parameters: dict[str, Scalar]) -> Play:
    """The turn is over: its hearers will read it, and the next one comes."""
    turn, game = play.current, play.game
    said = text = message[: game.message_limit]
    if turn.shows == "move":
        text = move.form.write(parameters) if move is not None else ""
    kept = tuple(each for each in play.heard if each[0] != turn.role)
    done = replace(
        play,
        misses=0,
        complaint=None,
        briefed=play.briefed | {turn.role},
        heard=(*kept, *((role, Heard(turn.role, text)) for role in turn.to)),
        played=(*play.played, Played(play.round, turn.role, move.name if move else None, parameters, said)),
    )
    if done.over:
        return done
    if game.until is not None and game.until.value(done.scope(turn.role)):
        return replace(done, ended="until")
    return _arrive(replace(done, turn=done.turn + 1))


def _arrive(play: Play) -> Play:
    """Go on to the first turn that takes place, or to the end."""
    while True:
        if play.turn >= len(play.game.turns):
            if play.round >= play.game.rounds:
                return replace(play, ended="rounds")
            play = replace(play, round=play.round + 1, turn=0)
        turn = play.current
        if turn.role not in play.out and (turn.when is None or turn.when.value(play.scope(turn.role))):
            return play
        play = replace(play, turn=play.turn + 1)


def forfeited(play: Play, role: str) -> Play:
    """The state after a participant has lost by failing: the game is over, or continues without it."""
    done = replace(play, out=play.out | {role}, misses=0, complaint=None)
    rule = play.game.forfeit
    if rule is None or rule.others is not None or len(done.out) >= len(play.game.roles) - 1:
        return replace(done, ended="forfeit")
    return _arrive(done)


def payoffs(play: Play, judged: Mapping[str, float] | None = None) -> dict[str, float]:
    """What everyone gets. Raises `EvaluationError`."""
    game, rule = play.game, play.game.forfeit
    if play.out and rule is not None and rule.others is not None:
        return {role: rule.reward if role in play.out else rule.others for role in game.roles}
    scope = _end_scope(play, judged)
    made = {role: float(expression.value(scope)) for role, expression in game.payoffs.items()}
    return {role: rule.reward if rule is not None and role in play.out else made[role] for role in game.roles}


def winner(play: Play, rewards: Mapping[str, float], judged: Mapping[str, float] | None = None) -> str | None:
    """Who won: as the protocol says, else the role with more than everyone else. Raises `EvaluationError`."""
    if play.game.winner is not None and not play.out:
        named = str(play.game.winner.value(_end_scope(play, judged)))
        if named and named not in play.game.roles:
            raise EvaluationError(f"{play.game.winner.text!r} is {named[:60]!r}, which is not a role")
        return named or None
    best = max(rewards.values())
    first = [role for role, reward in rewards.items() if reward == best]
    return first[0] if len(first) == 1 and first[0] not in play.out and len(rewards) > 1 else None


def progress(play: Play) -> dict[str, float]:
    """The rewards on the way, after a turn. Raises `EvaluationError`."""
    if not play.played:
        return {}
    scope = play.scope(play.played[-1].role)
    return {role: float(expression.value(scope)) for role, expression in play.game.progress.items()}


def _end_scope(play: Play, judged: Mapping[str, float] | None) -> dict[str, Scalar]:
    grades = dict.fromkeys(play.game.criteria, 0.0) | dict(judged or {})
    ended = play.ended or ""
    return {**play.values, **play.state, **grades, "ended": ended, "round": play.round, "rounds": play.game.rounds}


def told(play: Play) -> str:
    """One line about the last turn, for the live log."""
    if not play.played:
        return "The game began."
    last = play.played[-1]
    words = "made no move" if last.move is None else f"played {play.game.moves[last.move].form.write(last.parameters)}"
    return f"Round {last.round}: {last.role} {words[:MAX_SHOWN]}"


def facts(play: Play) -> dict[str, Any]:
    """What the record of a game keeps beside its rewards."""
    return {
        "seed": play.seed,
        "rounds": play.round,
        "ended": play.ended,
        "values": dict(play.values),
        "state": dict(play.state),
        "moves": [each.to_dict() for each in play.played],
        "forfeited": sorted(play.out),
    }
