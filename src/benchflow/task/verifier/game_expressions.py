"""Expressions of game protocols: arithmetic, comparisons and choices over named values, checked before a game begins.

The syntax is a small part of Python's. Every name has a type (number, text or flag), so a mistake is found when the
package is checked, not in the middle of a game. Evaluating an expression has no effects.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import floor, isfinite
from typing import Any, Final, Literal

Type = Literal["number", "text", "flag"]
Scalar = float | int | str | bool
Scope = Mapping[str, Scalar]
_Evaluate = Callable[[Scope], Any]
MAX_TEXT: Final = 500
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
FUNCTIONS: Final[Mapping[str, tuple[range, Callable[..., Any]]]] = {
    "abs": (range(1, 2), abs),
    "min": (range(2, 9), min),
    "max": (range(2, 9), max),
    "floor": (range(1, 2), floor),
    "clip": (range(3, 4), lambda value, low, high: max(low, min(high, value))),
}
"""The functions of expressions: how many numbers each takes."""


class ExpressionError(ValueError):
    """An expression that is not valid; the message continues a sentence that starts with its path."""


class EvaluationError(Exception):
    """An expression without a value, such as a division by zero; `str()` says which."""


def type_of(value: Any) -> Type | None:
    """The type of a scalar; None for anything else, and for numbers that are not finite."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, (int, float)):
        return "number" if abs(value) <= 1e15 and isfinite(value) else None
    return "text" if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression."""

    text: str
    type: Type
    _evaluate: _Evaluate = field(repr=False, compare=False)

    def value(self, scope: Scope) -> Scalar:
        """Its value for the names of a scope. Raises `EvaluationError`."""
        try:
            found: Scalar = self._evaluate(scope)
        except (ArithmeticError, ValueError) as error:
            raise EvaluationError(f"{self.text!r} has no value: {error}") from error
        if type_of(found) is None:
            raise EvaluationError(f"{self.text!r} has no finite value")
        return found


def parse_expression(text: str, types: Mapping[str, Type], wanted: Type | None = None) -> Expression:
    """Check an expression over names of known types. Raises `ExpressionError`."""
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"must have at most {MAX_TEXT} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        found, evaluate = _Compiler(types).compile(tree.body)
    except SyntaxError as error:
        raise ExpressionError(f"is not an expression: {error.msg}; it is {text[:60]!r}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(f"is not an expression; it is {text[:60]!r}") from error
    if wanted is not None and found != wanted:
        raise ExpressionError(f"must be a {wanted}, and is a {found}: {text[:60]!r}")
    return Expression(text, found, evaluate)


class _Compiler:
    """From syntax to a type and a function."""

    def __init__(self, types: Mapping[str, Type]) -> None:
        self._types: Final = types

    def compile(self, node: ast.expr) -> tuple[Type, _Evaluate]:
        match node:
            case ast.Constant(value=value) if (found := type_of(value)) is not None:
                return found, lambda _: value
            case ast.Name(id="true" | "false" as name):
                flag = name == "true"
                return "flag", lambda _: flag
            case ast.Name(id=name):
                if name not in self._types:
                    known = ", ".join(sorted(self._types)) or "no names"
                    raise ExpressionError(f"uses {name[:60]!r}, which is not known here; available: {known}")
                return self._types[name], lambda scope: scope[name]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._of(operand, "flag", "not")
                return "flag", lambda scope: not inner(scope)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self._of(operand, "number", "-")
                return "number", lambda scope: -inner(scope)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return "number", self._arithmetic(left, _ARITHMETIC[type(op)], right)
            case ast.BoolOp(op=op, values=values):
                parts = [self._of(each, "flag", "and, or") for each in values]
                return "flag", self._logic(parts, every=isinstance(op, ast.And))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return "flag", self._comparison(left, ops, others)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(test, body, orelse)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return "number", self._call(name, args)
        raise ExpressionError(f"contains {ast.unparse(node)[:60]!r}, which expressions do not have")

    def _of(self, node: ast.expr, wanted: Type, of: str) -> _Evaluate:
        found, evaluate = self.compile(node)
        if found != wanted:
            raise ExpressionError(f"applies {of} to {ast.unparse(node)[:60]!r}, which is a {found} and not a {wanted}")
        return evaluate

    def _arithmetic(self, left: ast.expr, operation: Callable[[Any, Any], Any], right: ast.expr) -> _Evaluate:
        one, other = self._of(left, "number", "arithmetic"), self._of(right, "number", "arithmetic")
        return lambda scope: operation(one(scope), other(scope))

    @staticmethod
    def _logic(parts: list[_Evaluate], *, every: bool) -> _Evaluate:
        combine = all if every else any
        return lambda scope: combine(part(scope) for part in parts)

    def _comparison(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> _Evaluate:
        sides = [self.compile(each) for each in (left, *others)]
        tests: list[_Evaluate] = []
        for op, (first, one), (second, other) in zip(ops, sides, sides[1:], strict=False):
            if type(op) not in _ORDER:
                raise ExpressionError("has a comparison other than == != < <= > >=")
            if first != second:
                raise ExpressionError(f"compares a {first} with a {second}")
            if first != "number" and not isinstance(op, (ast.Eq, ast.NotEq)):
                raise ExpressionError(f"orders a {first}; only numbers have an order")
            tests.append(_compared(_ORDER[type(op)], one, other))
        return lambda scope: all(test(scope) for test in tests)

    def _choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> tuple[Type, _Evaluate]:
        condition = self._of(test, "flag", "if")
        first, one = self.compile(body)
        second, other = self.compile(orelse)
        if first != second:
            raise ExpressionError(f"is a {first} or a {second}, depending on {ast.unparse(test)[:60]!r}")
        return first, lambda scope: one(scope) if condition(scope) else other(scope)

    def _call(self, name: str, args: list[ast.expr]) -> _Evaluate:
        allowed, function = FUNCTIONS[name]
        if len(args) not in allowed:
            raise ExpressionError(f"calls {name} with {len(args)} arguments")
        parts = [self._of(each, "number", name) for each in args]
        return lambda scope: function(*(part(scope) for part in parts))


def _compared(test: Callable[[Any, Any], bool], one: _Evaluate, other: _Evaluate) -> _Evaluate:
    return lambda scope: test(one(scope), other(scope))
