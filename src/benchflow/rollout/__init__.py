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
    "BaseUser": "users",
    "DocumentNudgeUser": "users",
    "FunctionUser": "users",
    "ModelDocumentNudgeUser": "users",
    "PassthroughUser": "users",
    "Role": "config",
    "Rollout": "rollout",
    "RolloutConfig": "config",
    "RoundResult": "users",
    "Scene": "config",
    "Turn": "config",
    "run_rollout": "rollout",
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
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
