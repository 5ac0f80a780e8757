"""Records: the types of identity, results, trajectories and jobs, and their readers.

All code that shows or compares runs reads through this package. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.record.arena_record import (
        ArenaMessage,
        ArenaPart,
        ArenaRole,
        MessageFile,
        MessagePart,
        MessageParts,
        Player,
        RoleStatus,
        RoleToolCall,
        read_messages,
        read_tool_calls,
    )
    from benchflow.record.codec import JsonLines, read_lines, write_document
    from benchflow.record.identity import (
        ALWAYS_WIN,
        Pair,
        Settings,
        Shard,
        TaskId,
        WholePlan,
        WorkKey,
        always_wins,
        identify,
        labels,
        pair,
        work_key,
    )
    from benchflow.record.job import (
        Counted,
        DamagedLine,
        Job,
        JobRecord,
        JobRequest,
        JobResults,
        MergedJob,
        TaskChoice,
        list_jobs,
    )
    from benchflow.record.layout import JobPlaces, RolloutFolder, StepFolder
    from benchflow.record.leaderboard_index import Leaderboard, read_leaderboard
    from benchflow.record.model_calls import (
        CallAnswer,
        CallParts,
        CallPlace,
        CallRetry,
        ModelCall,
        ModelCalls,
        read_model_calls,
    )
    from benchflow.record.outcome import ErrorRecord, NoOutcome, Outcome, PartOutcome, Score, outcome_of
    from benchflow.record.proof import Proof, ProofKey, RungOutcome, StepProof
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
        NodeNote,
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
        WiderCheck,
        WithheldChange,
        Workspace,
    )
    from benchflow.record.schemas import schema
    from benchflow.record.summaries.arena_summary import (
        ArenaStatistics,
        CrossPlay,
        Pairing,
        Rating,
        RatingGroup,
        RoleMean,
    )
    from benchflow.record.summaries.estimates import Bounds, Estimate
    from benchflow.record.summaries.job_nodes import JobNode, JobNodes, LiveRollout, read_nodes
    from benchflow.record.summaries.job_summary import Statistics, Summary, WiderCounts, read_summary
    from benchflow.record.trajectory import Event, RewardLine, Trajectory, read_rewards, read_trajectory
    from benchflow.rewards.verdict import Phase

__all__ = [
    "ALWAYS_WIN",
    "AgentEnd",
    "AgentPart",
    "ArenaMessage",
    "ArenaPart",
    "ArenaRole",
    "ArenaStatistics",
    "Artifact",
    "Bounds",
    "BranchOption",
    "BranchRecord",
    "CallAnswer",
    "CallParts",
    "CallPlace",
    "CallRetry",
    "CleanupFailure",
    "Counted",
    "CrossPlay",
    "DamagedLine",
    "EarlierScore",
    "ErrorRecord",
    "Estimate",
    "Event",
    "Fidelity",
    "Isolation",
    "Job",
    "JobNode",
    "JobNodes",
    "JobPlaces",
    "JobRecord",
    "JobRequest",
    "JobResults",
    "JsonLines",
    "Leaderboard",
    "LiveRollout",
    "MergedJob",
    "MessageFile",
    "MessagePart",
    "MessageParts",
    "ModelCall",
    "ModelCalls",
    "NoOutcome",
    "NodeNote",
    "NotCarriedOver",
    "Notes",
    "Outcome",
    "Pair",
    "Pairing",
    "PartOutcome",
    "Phase",
    "Player",
    "Proof",
    "ProofKey",
    "Rating",
    "RatingGroup",
    "RescoreNote",
    "Result",
    "RewardLine",
    "RoleMean",
    "RoleStatus",
    "RoleToolCall",
    "RolloutFolder",
    "Rung",
    "RungOutcome",
    "SandboxPart",
    "Score",
    "Settings",
    "Shard",
    "Statistics",
    "StepFolder",
    "StepProof",
    "StepRecord",
    "StepVerifier",
    "Summary",
    "TaskChoice",
    "TaskId",
    "TaskPart",
    "ToolAudit",
    "Trajectory",
    "VerifierPart",
    "WholePlan",
    "WiderCheck",
    "WiderCounts",
    "WithheldChange",
    "WorkKey",
    "Workspace",
    "always_wins",
    "identify",
    "labels",
    "list_jobs",
    "outcome_of",
    "pair",
    "read_leaderboard",
    "read_lines",
    "read_messages",
    "read_model_calls",
    "read_nodes",
    "read_rewards",
    "read_summary",
    "read_tool_calls",
    "read_trajectory",
    "schema",
    "work_key",
    "write_document",
]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.record.arena_record": (
            "ArenaMessage ArenaPart ArenaRole MessageFile MessagePart MessageParts Player RoleStatus RoleToolCall "
            "read_messages read_tool_calls"
        ),
        "benchflow.record.summaries.arena_summary": "ArenaStatistics CrossPlay Pairing Rating RatingGroup RoleMean",
        "benchflow.record.summaries.estimates": "Bounds Estimate",
        "benchflow.record.identity": (
            "ALWAYS_WIN Pair Settings Shard TaskId WholePlan WorkKey always_wins identify labels pair work_key"
        ),
        "benchflow.record.job": (
            "Counted DamagedLine Job JobRecord JobRequest JobResults MergedJob TaskChoice list_jobs"
        ),
        "benchflow.record.summaries.job_nodes": "JobNode JobNodes LiveRollout read_nodes",
        "benchflow.record.codec": "JsonLines read_lines write_document",
        "benchflow.record.layout": "JobPlaces RolloutFolder StepFolder",
        "benchflow.record.model_calls": (
            "CallAnswer CallParts CallPlace CallRetry ModelCall ModelCalls read_model_calls"
        ),
        "benchflow.record.outcome": "ErrorRecord NoOutcome Outcome PartOutcome Score outcome_of",
        "benchflow.record.result": (
            "AgentEnd AgentPart Artifact BranchOption BranchRecord CleanupFailure EarlierScore Fidelity Isolation "
            "NodeNote NotCarriedOver Notes RescoreNote Result Rung SandboxPart StepRecord StepVerifier TaskPart "
            "ToolAudit VerifierPart WiderCheck WithheldChange Workspace"
        ),
        "benchflow.record.proof": "Proof ProofKey RungOutcome StepProof",
        "benchflow.record.leaderboard_index": "Leaderboard read_leaderboard",
        "benchflow.record.schemas": "schema",
        "benchflow.record.summaries.job_summary": "Statistics Summary WiderCounts read_summary",
        "benchflow.record.trajectory": "Event RewardLine Trajectory read_rewards read_trajectory",
        "benchflow.rewards.verdict": "Phase",
    },
)
