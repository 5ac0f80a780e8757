"""One agent on one task: plan, environment, agent, freeze, verify, record.

Names are loaded when they are used, so that reading records costs nothing of what running needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchflow.rollout.config import Role, RolloutConfig, Scene, Turn
    from benchflow.rollout.rollout import Rollout, run_rollout
    from benchflow.rollout.users import (
        BaseUser,
        DocumentNudgeUser,
        FunctionUser,
        ModelDocumentNudgeUser,
        PassthroughUser,
        RoundResult,
    )

_HOMES = {
    "config": ("Role", "RolloutConfig", "Scene", "Turn"),
    "rollout": ("Rollout", "run_rollout"),
    "users": (
        "BaseUser",
        "DocumentNudgeUser",
        "FunctionUser",
        "ModelDocumentNudgeUser",
        "PassthroughUser",
        "RoundResult",
    ),
}

__all__ = [
    "BaseUser",
    "DocumentNudgeUser",
    "FunctionUser",
    "ModelDocumentNudgeUser",
    "PassthroughUser",
    "Role",
    "Rollout",
    "RolloutConfig",
    "RoundResult",
    "Scene",
    "Turn",
    "run_rollout",
]


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
