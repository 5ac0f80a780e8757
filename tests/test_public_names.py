"""What plugins, the viewer and scripts may rely on: the names of a package are those in `__all__`, and cost nothing
until they are used."""

import subprocess
import sys
from importlib import import_module

import pytest

FACED = ("evaluation", "record", "rewards", "rollout", "sandbox", "task")
PACKAGES = ["benchflow", *(f"benchflow.{name}" for name in FACED)]
FACES = {
    "benchflow.evaluation": (
        "Compared Comparison Engine JobStore NotRescored Observer RescoreReport Rescorer "
        "Runner Sample Sources TaskRef WorkItem compare comparison_lines create_job default_name job_summary "
        "plan_items plan_job remaining run_job summarise summary_lines work_left write_summary"
    ),
    "benchflow.record": (
        "ALWAYS_WIN AgentEnd AgentPart ArenaMessage ArenaPart ArenaRole ArenaStatistics Artifact Bounds "
        "BranchOption BranchRecord CallAnswer CallParts CallPlace CallRetry CleanupFailure Counted CrossPlay "
        "DamagedLine EarlierScore ErrorRecord Estimate Event Fidelity Isolation Job JobNode JobNodes JobPlaces "
        "JobRecord JobRequest JobResults JsonLines Leaderboard LiveRollout MergedJob MessageFile MessagePart "
        "MessageParts ModelCall ModelCalls NoOutcome NodeNote NotCarriedOver Notes Outcome Pair Pairing PartOutcome "
        "Phase Player Proof ProofKey Rating RatingGroup RescoreNote Result RewardLine RoleMean RoleStatus "
        "RoleToolCall RolloutFolder Rung RungOutcome SandboxPart Score Settings Shard Statistics StepFolder "
        "StepProof StepRecord StepVerifier Summary TaskChoice TaskId TaskPart ToolAudit Trajectory VerifierPart "
        "WholePlan WiderCheck WiderCounts WithheldChange WorkKey Workspace always_wins identify labels list_jobs "
        "outcome_of pair read_leaderboard read_lines read_messages read_model_calls read_nodes read_rewards "
        "read_summary read_tool_calls read_trajectory schema work_key write_document"
    ),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_that_is_offered_is_there_and_no_other(name):
    package = import_module(name)
    assert len(set(package.__all__)) == len(package.__all__)
    for offered in package.__all__:
        assert getattr(package, offered) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


@pytest.mark.parametrize("name", FACES)
def test_the_face_of_a_package_changes_on_purpose_only(name):
    assert sorted(import_module(name).__all__) == sorted(FACES[name].split())


def test_a_backend_is_written_against_names_of_sandbox_alone():
    offered = set(import_module("benchflow.sandbox").__all__)
    needed = {"BackendStatus", "ExecResult", "Sandbox", "SandboxBackend", "SandboxProcess", "SandboxSpec", "Snapshot"}
    assert offered >= needed


@pytest.mark.parametrize("name", ["evaluation", "record", "sandbox"])
def test_a_package_is_light_until_its_names_are_used(name):
    script = f"import sys, benchflow.{name}; print(sorted({{'anyio', 'pydantic', 'yaml', 'cube'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"
