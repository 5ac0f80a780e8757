"""The strategies by type: each module's `score` takes a `Run` and returns a verdict.

Plugins add types in the entry-point group `benchflow.verifier_strategies`; an entry point is such a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from benchflow.errors import InfrastructureFailure, UnsupportedError
from benchflow.task.verifier.declared_strategies import PLUGINS
from benchflow.verifier.strategy_run import Score

_BUILT_IN: Final[Mapping[str, str]] = {
    "script": "script",
    "reward-kit": "reward_kit",
    "llm-judge": "llm_judge",
    "agent-judge": "agent_judge",
    "ors-episode": "ors_episode",
    "hybrid": "hybrid",
    "gain": "gain",
    "leaderboard-submission": "leaderboard",
    "assessor": "assessor",
}


def load_strategy(kind: str) -> Score:
    """The function that scores by a strategy of this type; `UnsupportedError` if there is none."""
    if kind in _BUILT_IN:
        score: Score = import_module(f"{__name__}.{_BUILT_IN[kind]}").score
        return score
    found = next(iter(entry_points(group=PLUGINS, name=kind)), None)
    if found is None:
        known = ", ".join(_BUILT_IN)
        raise UnsupportedError(f"Unknown strategy {kind!r}; known: {known}.", code="unknown-strategy")
    try:
        plugin: Score = found.load()
    except Exception as error:  # boundary: a plugin's code may raise anything
        message = f"The verifier strategy {kind!r} ({found.value}) cannot be loaded: {error}"
        raise InfrastructureFailure(message, code="plugin-invalid") from error
    return plugin
