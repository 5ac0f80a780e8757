"""One agent on one task: plan, environment, agent, freeze, verify, record.

Names are imported on first use, so that reading records does not load what only running needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.rollout.config": "Role RolloutConfig Scene Turn",
        "benchflow.rollout.rollout": "Rollout run_rollout",
        "benchflow.rollout.users": (
            "BaseUser DocumentNudgeUser FunctionUser ModelDocumentNudgeUser PassthroughUser RoundResult"
        ),
    },
)
