"""What a result must have in common with the package it is of, and with its own recomputation. Pure.

A record can be edited to say that nobody can compute its verdict again: that services, an assessor or a wider
isolation decided it. What the package declares, and what is proven for it, does not follow from the record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from benchflow.record import Isolation, Result, Rung
from benchflow.record.trajectory import tool_names
from benchflow.rollout.policies import Chosen, audit
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.task.verifier.declared_strategies import GainStrategy, HybridStrategy
from benchflow.verifier.scope import Scope, scope_of

_CLOSE: Final = 1e-9
_WIDER: Final = get_args(Rung)
"""From the strictest rung to the most open one."""


def strategies(view: TaskRuntimeView) -> dict[str | None, str]:
    """The type of the strategy of each step, by its name."""
    return {step: scope_of(view, step).strategy()[1].type for step in _steps(view)}


def parts_of_strategies(view: TaskRuntimeView) -> Iterator[str]:
    """The types of all strategies that a verdict rests on, with those that others combine."""
    for step in _steps(view):
        yield from _types(scope_of(view, step), None, frozenset())


def _types(scope: Scope, name: str | None, known: frozenset[str]) -> Iterator[str]:
    found, strategy = scope.strategy(name)
    yield strategy.type
    parts: Iterable[str] = ()
    if isinstance(strategy, HybridStrategy):
        parts = [factor.strategy for factor in strategy.factors.values()]
    elif isinstance(strategy, GainStrategy):
        parts = [strategy.strategy]
    for part in parts if found not in known else ():
        yield from _types(scope, part, known | {found})


def strategy_problem(result: Result, view: TaskRuntimeView) -> str | None:
    """How the strategies of a scored result differ from those that the package declares."""
    declared = strategies(view)
    if result.verifier is None:
        return "it has a score, and no verifier"
    recorded: dict[str | None, str] = {None: result.verifier.strategy}
    if view.steps:
        scored = (step for step in result.steps if step.reward is not None)
        recorded = {step.name: step.verifier.strategy for step in scored if step.verifier is not None}
    for step, strategy in recorded.items():
        if declared.get(step) != strategy:
            return f"its verdict is of the strategy {strategy}, and the package declares {declared.get(step)}"
    return None


def isolation_problem(result: Result, view: TaskRuntimeView, chosen: Chosen) -> str | None:
    """Whether a verifier saw more of the agent than it may see by the package and what is proven for it."""
    recorded: dict[str | None, Isolation | None] = {
        step.name: step.verifier.isolation for step in result.steps if step.verifier is not None
    }
    if not view.steps and result.verifier is not None:
        recorded = {None: result.verifier.isolation}
    for step in _steps(view):
        found, known = recorded.get(step), chosen.get(step)
        allowed = known.isolation if known is not None else scope_of(view, step).isolation
        if found is not None and _WIDER.index(found.rung) > _WIDER.index(allowed.rung):
            return f"it was verified at '{found.rung}', and the package is verified at '{allowed.rung}'"
    return None


def tools_problem(events: Iterable[Mapping[str, Any]], view: TaskRuntimeView) -> str | None:
    """Whether a rollout has calls of tools for which the package refuses a score."""
    calls: Counter[frozenset[str]] = Counter()
    for event in events:
        if event["type"] == "tool_call" and "branch" not in event:
            calls[tool_names(event)] += 1
    found = audit(view.namespace.agent_policy, calls)
    if found is None or not found.required or not found.forbidden:
        return None
    return f"it has a score, and the agent called tools that the package forbids: {', '.join(sorted(found.forbidden))}"


def score_problem(recorded: Result, again: Result) -> str | None:
    """How a verdict that was computed again differs from the recorded one: in the reward, or in that of a step."""
    if not _same(recorded.reward, again.reward):
        here = again.reward if again.error is None else f"no score ({again.error.code})"
        return f"its verdict is {recorded.reward}, and its workspace gives {here}"
    steps = {step.name: step.reward for step in again.steps}
    for step in recorded.steps:
        if not _same(step.reward, steps.get(step.name)):
            return f"its step {step.name} has {step.reward}, and its workspace gives {steps.get(step.name)}"
    return None


def metric_difference(recorded: Result, again: Result) -> str | None:
    """The first metric that is another one now. A verifier may measure time, so that this is not a wrong verdict."""
    for name in {**recorded.rewards, **again.rewards}:
        one, other = recorded.rewards.get(name), again.rewards.get(name)
        if not _same(one, other):
            return f"its reward is confirmed, but its metric {name} is {one}, and its workspace gives {other}"
    return None


def _steps(view: TaskRuntimeView) -> list[str | None]:
    return [step.config.name for step in view.steps] or [None]


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
