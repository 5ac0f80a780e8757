"""What is written down: the types of identity, results, trajectories and jobs, and their readers.

Everything that shows or compares runs reads through this package. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchflow.record.identity import (
        ALWAYS_WIN,
        Pair,
        Settings,
        TaskId,
        WorkKey,
        always_wins,
        identify,
        labels,
        pair,
        work_key,
    )
    from benchflow.record.job import Counted, DamagedLine, Job, JobRecord, JobRequest, JobResults, list_jobs
    from benchflow.record.json_files import JsonLines, read_lines, write_document
    from benchflow.record.layout import JobPlaces, RolloutFolder, StepFolder
    from benchflow.record.outcome import ErrorRecord, NoOutcome, Outcome, PartOutcome, Score, outcome_of
    from benchflow.record.result import (
        AgentEnd,
        AgentPart,
        Artifact,
        BranchOption,
        BranchRecord,
        CleanupFailure,
        EarlierScore,
        Fidelity,
        Isolation,
        NotCarriedOver,
        Notes,
        RescoreNote,
        Result,
        Rung,
        SandboxPart,
        StepRecord,
        StepVerifier,
        TaskPart,
        ToolAudit,
        VerifierPart,
        WithheldChange,
        Workspace,
    )
    from benchflow.record.reward_log import RewardLine, read_rewards
    from benchflow.record.schemas import schema
    from benchflow.record.trajectory import Event, Trajectory, read_trajectory
    from benchflow.rewards.verdict import Phase

_HOMES = {
    "identity": (
        "ALWAYS_WIN", "Pair", "Settings", "TaskId", "WorkKey", "always_wins", "identify", "labels", "pair", "work_key",
    ),
    "job": ("Counted", "DamagedLine", "Job", "JobRecord", "JobRequest", "JobResults", "list_jobs"),
    "layout": ("JobPlaces", "RolloutFolder", "StepFolder"),
    "json_files": ("JsonLines", "read_lines", "write_document"),
    "outcome": ("ErrorRecord", "NoOutcome", "Outcome", "PartOutcome", "Phase", "Score", "outcome_of"),
    "result": (
        "AgentEnd", "AgentPart", "Artifact", "BranchOption", "BranchRecord", "CleanupFailure", "EarlierScore",
        "Fidelity", "Isolation", "NotCarriedOver", "Notes", "RescoreNote", "Result", "Rung", "SandboxPart",
        "StepRecord", "StepVerifier", "TaskPart", "ToolAudit", "VerifierPart", "WithheldChange", "Workspace",
    ),
    "reward_log": ("RewardLine", "read_rewards"),
    "schemas": ("schema",),
    "trajectory": ("Event", "Trajectory", "read_trajectory"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ALWAYS_WIN",
    "AgentEnd",
    "AgentPart",
    "Artifact",
    "BranchOption",
    "BranchRecord",
    "CleanupFailure",
    "Counted",
    "DamagedLine",
    "EarlierScore",
    "ErrorRecord",
    "Event",
    "Fidelity",
    "Isolation",
    "Job",
    "JobPlaces",
    "JobRecord",
    "JobRequest",
    "JobResults",
    "JsonLines",
    "NoOutcome",
    "NotCarriedOver",
    "Notes",
    "Outcome",
    "Pair",
    "PartOutcome",
    "Phase",
    "RescoreNote",
    "Result",
    "RewardLine",
    "RolloutFolder",
    "Rung",
    "SandboxPart",
    "Score",
    "Settings",
    "StepFolder",
    "StepRecord",
    "StepVerifier",
    "TaskId",
    "TaskPart",
    "ToolAudit",
    "Trajectory",
    "VerifierPart",
    "WithheldChange",
    "WorkKey",
    "Workspace",
    "always_wins",
    "identify",
    "labels",
    "list_jobs",
    "outcome_of",
    "pair",
    "read_lines",
    "read_rewards",
    "read_trajectory",
    "schema",
    "work_key",
    "write_document",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
