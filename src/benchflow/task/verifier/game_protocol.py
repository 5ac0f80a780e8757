"""A game protocol with its meaning: every name, expression, text and reference of a `GameRecord`, checked and compiled.

`read_game` reports each problem at its own key. A `Game` is what the built-in assessor plays (`benchflow.arena`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.verifier.game_expressions import (
    FUNCTIONS,
    Expression,
    ExpressionError,
    Scalar,
    Type,
    parse_expression,
    type_of,
)
from benchflow.task.verifier.game_records import (
    DrawRecord,
    ForfeitRecord,
    GameRecord,
    MoveRecord,
    ParameterRecord,
    TurnRecord,
)
from benchflow.task.verifier.game_texts import Form, Parameter, Template, TextError, parse_form, parse_template

OF_A_TURN: Final[Mapping[str, Type]] = {"role": "text", "round": "number", "rounds": "number"}
"""Names that every expression and question can use: whose turn it is, and which round of how many."""
OF_THE_END: Final[Mapping[str, Type]] = {"ended": "text", "round": "number", "rounds": "number"}
"""Names that payoffs can use: the move or the rule that ended the game (`move`, `until`, `rounds`), and when."""
THEN: Final = ("fail", "skip", "forfeit")


@dataclass(frozen=True, slots=True)
class Move:
    """Something that a participant can do."""

    name: str
    form: Form
    legal: Expression | None
    set: Mapping[str, Expression]
    ends: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """Who acts, with which moves, and who hears of it."""

    role: str
    moves: tuple[Move, ...]
    to: tuple[str, ...]
    shows: str
    when: Expression | None
    ask: Template


@dataclass(frozen=True, slots=True)
class Game:
    """A protocol that was checked."""

    roles: tuple[str, ...]
    rules: Template | None
    briefs: Mapping[str, Template]
    values: Mapping[str, Scalar | DrawRecord]
    state: Mapping[str, Scalar]
    moves: Mapping[str, Move]
    turns: tuple[Turn, ...]
    rounds: int
    until: Expression | None
    payoffs: Mapping[str, Expression]
    progress: Mapping[str, Expression]
    winner: Expression | None
    message_limit: int
    turn_timeout_sec: float
    retries: int
    then: str
    forfeit: ForfeitRecord | None
    judge_model: str | None
    criteria: Mapping[str, str]
    seed: int | None


DEFAULT_ASK: Final = (
    "Round {round} of {rounds}. It is your turn. End your message with exactly one of these lines, on a line of its"
    " own:\n{forms}"
)


def read_game(config: Mapping[str, Any], path: str, problems: IssueLog) -> Game | None:
    """The game of a configuration; every problem goes to `problems`, and then there is none."""
    before = len(problems.issues)
    record = GameRecord.parse(dict(config), path, problems)
    if record is None or len(problems.issues) > before:
        return None
    game = _Reader(record, path, problems).game()
    return game if len(problems.issues) == before else None


class _Reader:
    def __init__(self, record: GameRecord, path: str, problems: IssueLog) -> None:
        self._record: Final = record
        self._path: Final = path
        self._problems: Final = problems
        self._types: Final[dict[str, Type]] = {**dict(self._value_types()), **_types(record.state)}

    def game(self) -> Game:
        record = self._record
        self._check_names()
        values, state = frozenset(record.values), frozenset(record.state)
        told = values | {"role", "rounds"}
        moves = {name: self._move(name, each) for name, each in record.moves.items()}
        asked = values | state | OF_A_TURN.keys() | {"forms"}
        criteria = record.judge.criteria if record.judge is not None else {}
        ends: dict[str, Type] = {**self._types, **OF_THE_END, **dict.fromkeys(criteria, "number")}
        self._check_then(moves)
        return Game(
            roles=tuple(record.roles),
            rules=self._template("rules", record.rules_, told - {"role"}),
            briefs={
                name: self._template(f"roles.{name}.brief", each.brief, told) or Template("", frozenset())
                for name, each in record.roles.items()
            },
            values=record.values,
            state=record.state,
            moves=moves,
            turns=tuple(self._turn(index, each, moves, asked) for index, each in enumerate(record.turns)),
            rounds=record.rounds,
            until=self._expression("until", record.until, {**self._types, **OF_A_TURN}, "flag"),
            payoffs=self._payoffs("payoffs", record.payoffs, ends, every=True),
            progress=self._payoffs("progress", record.progress, {**self._types, **OF_A_TURN}, every=False),
            winner=self._expression("winner", record.winner, ends, "text"),
            message_limit=record.message_limit,
            turn_timeout_sec=record.turn_timeout_sec,
            retries=record.without_move.retries,
            then=record.without_move.then or ("fail" if record.forfeit is None else "forfeit"),
            forfeit=record.forfeit,
            judge_model=record.judge.model if record.judge is not None else None,
            criteria=criteria,
            seed=record.seed,
        )

    def _value_types(self) -> Iterator[tuple[str, Type]]:
        for name, value in self._record.values.items():
            found: Type | None = "number"
            if not isinstance(value, DrawRecord):
                found = type_of(value)
            elif value.choose is not None:
                found = type_of(value.choose[0])
            if found is not None:
                yield name, found

    def _check_names(self) -> None:
        """A name means one thing."""
        record = self._record
        criteria = record.judge.criteria if record.judge is not None else {}
        taken: dict[str, str] = dict.fromkeys({*OF_A_TURN, *OF_THE_END, *FUNCTIONS, "forms"}, "a name of every game")
        sections = {"values": record.values, "state": record.state, "judge.criteria": criteria}
        for section, names in sections.items():
            for name in names:
                self._take(taken, name, f"{section}.{name}")
        for move, each in record.moves.items():
            own = dict(taken)
            for name in each.parameters:
                self._take(own, name, f"moves.{move}.parameters.{name}")

    def _take(self, taken: dict[str, str], name: str, where: str) -> None:
        if name in taken:
            self._error(where, f"is a name that is already used: {taken[name]}")
        taken.setdefault(name, f"{self._path}.{where}")

    def _move(self, name: str, record: MoveRecord) -> Move:
        where = f"moves.{name}"
        parameters = {key: _parameter(each) for key, each in record.parameters.items()}
        here: dict[str, Type] = {
            **self._types,
            **OF_A_TURN,
            **{key: each.type for key, each in parameters.items()},
        }
        try:
            form = parse_form(record.form, parameters)
        except TextError as error:
            self._error(f"{where}.form", str(error))
            form = parse_form("x", {})
        changes: dict[str, Expression] = {}
        for key, text in record.set.items():
            if key not in self._record.state:
                self._error(f"{where}.set.{key}", "is not declared in state")
                continue
            made = self._expression(f"{where}.set.{key}", text, here, self._types.get(key))
            if made is not None:
                changes[key] = made
        return Move(name, form, self._expression(f"{where}.legal", record.legal, here, "flag"), changes, record.ends)

    def _turn(self, index: int, record: TurnRecord, moves: Mapping[str, Move], asked: frozenset[str]) -> Turn:
        where, roles = f"turns[{index}]", self._record.roles
        if record.role not in roles:
            self._error(f"{where}.role", f"is '{record.role[:60]}', which is not declared in roles")
        for number, each in enumerate(record.to or ()):
            if each not in roles or each == record.role:
                self._error(f"{where}.to[{number}]", f"is '{each[:60]}', which is not another role")
        for number, each in enumerate(record.moves):
            if each not in moves:
                self._error(f"{where}.moves[{number}]", f"is '{each[:60]}', which is not declared in moves")
        text, at = (record.ask, f"{where}.ask") if record.ask is not None else (self._record.ask, "ask")
        return Turn(
            role=record.role,
            moves=tuple(moves[each] for each in record.moves if each in moves) or tuple(moves.values()),
            to=record.to if record.to is not None else tuple(each for each in roles if each != record.role),
            shows=record.shows,
            when=self._expression(f"{where}.when", record.when, {**self._types, **OF_A_TURN}, "flag"),
            ask=self._template(at, text or DEFAULT_ASK, asked) or Template("", frozenset()),
        )

    def _check_then(self, moves: Mapping[str, Move]) -> None:
        then, where = self._record.without_move.then, "without_move.then"
        if then is None:
            return
        if then in moves:
            if moves[then].form.parameters:
                self._error(where, f"is the move '{then}', which has parameters; name one without")
        elif then not in THEN:
            self._error(where, f"must be one of {', '.join(THEN)}, or a move; it is '{then[:60]}'")
        elif then == "forfeit" and self._record.forfeit is None:
            self._error(where, "is 'forfeit', and there is no section forfeit")
        elif then == "fail" and self._record.forfeit is not None:
            self._error(where, "is 'fail', and the section forfeit says that a participant that fails has lost")

    def _payoffs(
        self, section: str, texts: Mapping[str, Any], types: Mapping[str, Type], *, every: bool
    ) -> dict[str, Expression]:
        roles, made = self._record.roles, {}
        for role, text in texts.items():
            if role not in roles:
                self._error(f"{section}.{role}", "is not declared in roles")
                continue
            expression = self._expression(f"{section}.{role}", text, types, "number")
            if expression is not None:
                made[role] = expression
        missing = [role for role in roles if role not in texts] if every else []
        if missing:
            self._error(section, f"has no entry for the role '{missing[0]}'")
        return made

    def _expression(self, where: str, text: Any, types: Mapping[str, Type], wanted: Type | None) -> Expression | None:
        if text is None:
            return None
        try:
            return parse_expression(text if isinstance(text, str) else repr(text), types, wanted)
        except ExpressionError as error:
            self._error(where, str(error))
            return None

    def _template(self, where: str, text: str | None, known: frozenset[str]) -> Template | None:
        if text is None:
            return None
        try:
            return parse_template(text, known)
        except TextError as error:
            self._error(where, str(error))
            return None

    def _error(self, where: str, clause: str) -> None:
        path = f"{self._path}.{where}" if self._path else where
        self._problems.error("invalid-game", path, f"{path} {clause}")


def _types(values: Mapping[str, Any]) -> dict[str, Type]:
    return {name: found for name, value in values.items() if (found := type_of(value)) is not None}


def _parameter(record: ParameterRecord) -> Parameter:
    if record.one_of is not None:
        return Parameter("text", words=record.one_of)
    limits = record.integer or record.number
    if limits is None:
        return Parameter("text")
    return Parameter("number", *limits, whole=record.integer is not None)
