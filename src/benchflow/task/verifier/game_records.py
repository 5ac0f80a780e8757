"""The keys of a game protocol, as written in the `config` of an assessor without an agent: shapes only, no meaning."""

from __future__ import annotations

from typing import Any, Final

from benchflow.task.config import kinds
from benchflow.task.config.kinds import choice, flag, integer, listing, mapping, matching, number, some_text
from benchflow.task.config.parsed_record import (
    FrozenMap,
    InvalidValueError,
    IssueLog,
    Kind,
    Record,
    describe,
    field,
)
from benchflow.task.verifier.game_expressions import type_of

PROBLEMS: Final = ("unreachable", "silent", "protocol", "flood", "refused")
name: Final = matching(r"[a-z][a-z0-9_]{0,39}", "a name of lower-case letters, digits and '_'")
"""Of values, variables, parameters, moves and criteria."""


def _scalar(value: Any, _path: str, _problems: IssueLog) -> Any:
    if type_of(value) is None:
        raise InvalidValueError(f"must be a number, text or flag, not {describe(value)}", "invalid-type")
    return value


scalar: Final = Kind(_scalar)


def _drawn(value: Any, path: str, problems: IssueLog) -> Any:
    return DrawRecord.parse(value, path, problems) if isinstance(value, dict) else _scalar(value, path, problems)


def _turn(value: Any, path: str, problems: IssueLog) -> Any:
    return TurnRecord.parse({"role": value} if isinstance(value, str) else value, path, problems)


def _bounds(value: Any, path: str, problems: IssueLog) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidValueError("must be a list of two numbers")
    low, high = (number().parse(each, path, problems) for each in value)
    if low > high or type_of(low) is None or type_of(high) is None:
        raise InvalidValueError("must be two numbers, the lower one first")
    return low, high


bounds: Final = Kind(_bounds)


class DrawRecord(Record):
    """A value that the seed decides."""

    choose: tuple[Any, ...] | None = field(listing(scalar, least=1), default=None)
    between: tuple[float, float] | None = field(bounds, default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if len(values) != 1:
            problems.error("conflicting-keys", path, f"{path} needs exactly one of 'choose' and 'between'")
        if len({type_of(each) for each in values.get("choose", ())}) > 1:
            where = f"{path}.choose"
            problems.error("invalid-value", where, f"{where} must have values of one type")
        low, high = values.get("between", (0, 0))
        if low != int(low) or high != int(high):
            where = f"{path}.between"
            problems.error("invalid-value", where, f"{where} must be two integers")


class RoleRecord(Record):
    """What one role knows."""

    brief: str = field(some_text)


class ParameterRecord(Record):
    """What a participant writes in a place of a form."""

    integer: tuple[float, float] | None = field(bounds, default=None)
    number: tuple[float, float] | None = field(bounds, default=None)
    one_of: tuple[str, ...] | None = field(listing(kinds.name, least=1, unique=True), default=None)
    text: bool = field(flag, default=False)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if len(values) != 1 or values.get("text") is False:
            message = f"{path} needs exactly one of 'integer', 'number', 'one_of' and 'text: true'"
            problems.error("conflicting-keys", path, message)


class MoveRecord(Record):
    """Something that a participant can do."""

    form: str = field(some_text)
    parameters: FrozenMap = field(mapping(kinds.record(ParameterRecord), keys=name), default=FrozenMap())
    legal: str | None = field(some_text, default=None)
    set: FrozenMap = field(mapping(Kind(_scalar)), default=FrozenMap())
    ends: bool = field(flag, default=False)


class TurnRecord(Record):
    """Who acts, with which moves, and who hears of it."""

    role: str = field(kinds.name)
    moves: tuple[str, ...] = field(listing(name, least=1, unique=True), default=())
    to: tuple[str, ...] | None = field(listing(kinds.name, unique=True), default=None)
    shows: str = field(choice("message", "move"), default="message")
    when: str | None = field(some_text, default=None)
    ask: str | None = field(some_text, default=None)


class WithoutMoveRecord(Record):
    """What becomes of a message without a legal move."""

    retries: int = field(integer(least=0, most=10), default=1)
    then: str | None = field(name, default=None)


class ForfeitRecord(Record):
    """That a participant that fails has lost, and what the others get."""

    reward: float = field(number(), default=0.0)
    others: float | None = field(number(), default=None)


class GameJudgeRecord(Record):
    """A model that grades the talk."""

    model: str | None = field(some_text, default=None)
    criteria: FrozenMap = field(mapping(some_text, least=1, keys=name))


class GameRecord(Record):
    """A whole game."""

    roles: FrozenMap = field(mapping(kinds.record(RoleRecord), least=1, keys=kinds.name))
    moves: FrozenMap = field(mapping(kinds.record(MoveRecord), least=1, keys=name))
    turns: tuple[TurnRecord, ...] = field(Kind(listing(Kind(_turn), least=1).parse, TurnRecord, "list"))
    rounds: int = field(integer(least=1, most=1000))
    payoffs: FrozenMap = field(mapping(Kind(_scalar), least=1))
    values: FrozenMap = field(mapping(Kind(_drawn), keys=name), default=FrozenMap())
    state: FrozenMap = field(mapping(Kind(_scalar), keys=name), default=FrozenMap())
    rules_: str | None = field(some_text, default=None, key="rules")
    ask: str | None = field(some_text, default=None)
    until: str | None = field(some_text, default=None)
    progress: FrozenMap = field(mapping(Kind(_scalar)), default=FrozenMap())
    winner: str | None = field(some_text, default=None)
    message_limit: int = field(integer(least=20, most=100_000), default=4000)
    turn_timeout_sec: float = field(number(above=0, most=86_400), default=120.0)
    without_move: WithoutMoveRecord = field(kinds.record(WithoutMoveRecord), default=WithoutMoveRecord())
    forfeit: ForfeitRecord | None = field(kinds.record(ForfeitRecord), default=None)
    judge: GameJudgeRecord | None = field(kinds.record(GameJudgeRecord), default=None)
    seed: int | None = field(integer(least=0, most=2**53), default=None)
