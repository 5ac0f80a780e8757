"""Every key and value that the samples of the standard show parses and checks."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import yaml

from benchflow.task.checks import check_package
from benchflow.task.package import load_package
from benchflow.task.runtime_capabilities import validate_task_runtime_support

PATCH = "--- a/slug.py\n+++ b/slug.py\n"
DIGEST = hashlib.sha256(PATCH.encode()).hexdigest()
NAMESPACE: dict[str, Any] = {
    "document_version": "0.6",
    "prompt": {"composition": "append", "order": ["base", "role", "scene", "turn"]},
    "agent_policy": {
        "skill_access": "declared",
        "allowed_skill_roots": [],
        "search": "disabled",
        "forbidden_tools": ["web_search"],
        "trajectory_audit": {"require_no_forbidden_tool_calls": True},
    },
    "runtime_policy": {
        "backend": "kubernetes",
        "required_capabilities": ["gpu:B200", "private_mounts", "persistent_state"],
        "network": {
            "task_default": "no-network",
            "agent_egress": "model-and-dependencies",
            "allowed_hosts": [],
            "phase_overrides": {"verifier": "no-network"},
        },
        "private_mounts": [
            {"source": "vol://weights", "target": "/w", "mode": "ro", "visibility": "agent", "secret_ref": "pull"}
        ],
        "persistent_state": {"required": False, "scope": "task-run", "cleanup": "after-verifier"},
    },
    "verifier": {
        "entrypoint": "verifier/test.sh",
        "visibility": "hidden",
        "inputs": [{"path": "verifier/hidden.patch", "kind": "test_patch", "visibility": "hidden_verifier"}],
        "outputs": {"reward_text": "/logs/verifier/reward.txt", "reward_json": "/logs/verifier/reward.json"},
        "transfer": {"agent_to_verifier": ["/app/**/*.py"], "verifier_to_result": ["/logs/verifier/*"]},
    },
    "provenance": {
        "images": [
            {
                "field": "environment.docker_image",
                "reference": "registry.example.org/slug:1",
                "digest": f"sha256:{DIGEST}",
                "registry": "registry.example.org",
                "provider": "docker",
                "build_source": {
                    "path": "environment/Dockerfile",
                    "sha256": hashlib.sha256(b"FROM debian\n").hexdigest(),
                },
                "credential_secret_ref": "pull",
                "never_persist_credentials": True,
            }
        ]
    },
    "assets": [
        {
            "path": "verifier/hidden.patch",
            "visibility": "hidden_verifier",
            "sha256": DIGEST,
            "source": {"url": "https://example.org/slug", "revision": "abc"},
            "license": "mit",
            "generated": False,
            "mount_phase": "verifier",
        }
    ],
    "secrets": [{"name": "pull", "scope": "image-pull", "visibility": "runtime_secret", "never_persist": True}],
    "evidence": {
        "oracle_runs": {"required_reward": 1.0, "last_job": "nightly", "artifact": "evidence/oracle.json"},
        "verifier": {"reruns": 3, "flake_rate": 0.0, "report": "evidence/stability.json"},
        "review": {
            "anti_cheat": "passed",
            "instruction_alignment": "passed",
            "reviewer": "qa",
            "artifact": "evidence/review.json",
        },
        "calibration": {
            "no_op_reward_max": 0.0,
            "known_bad_reward_max": 0.2,
            "partial_solution_range": [0.3, 0.7],
            "report": "evidence/calibration/report.json",
            "human_or_reference_examples": [
                {"name": "gold", "expected_reward": 1.0, "artifact": "evidence/calibration/gold.json"}
            ],
            "judge_agreement": {"required": True, "sample_count": 40, "min_pairwise_agreement": 0.8},
        },
        "trajectories": [{"path": "evidence/gold.jsonl", "kind": "acp", "visibility": "evidence_only"}],
        "artifacts": [
            {"path": f"evidence/{kind}", "kind": kind, "mime_type": "application/json", "produced_by": "nightly"}
            for kind in (
                "critique",
                "oracle_run",
                "verifier_stability",
                "acceptance_review",
                "calibration_report",
                "reference_result",
                "har",
            )
        ],
    },
    "compatibility": {
        "harbor": {
            "export": "degraded",
            "emits": {"config": "task.toml", "prompt": "instruction.md", "oracle": "solution/", "verifier": "tests/"},
            "losses": ["benchflow.agent_policy"],
        }
    },
}
VERIFIER: dict[str, Any] = {
    "name": "slug",
    "default_strategy": "exact",
    "strategies": {
        "exact": {"type": "script", "command": "./test.sh"},
        "kit": {"type": "reward-kit", "root": "rewards/", "criteria": "rewards/criteria.toml"},
        "panel": {
            "type": "agent-judge",
            "role": "critic",
            "model": "gpt-5.5",
            "inputs": ["trajectory/acp_trajectory.jsonl"],
            "isolation": "verifier-only",
        },
        "episode": {"type": "ors-episode", "reward_aggregation": "last_non_null", "terminal_policy": "finished_true"},
    },
    "rubric": {
        "combine": "weighted_sum",
        "dimensions": {"right": {"weight": 0.7, "source": "exact"}, "neat": {"weight": 0.3, "source": "panel"}},
        "files": {"human": "rubric.md", "structured": "rubric.toml"},
    },
    "outputs": {
        "reward_text": "/logs/verifier/reward.txt",
        "reward_json": "/logs/verifier/reward.json",
        "details_json": "/logs/verifier/reward-details.json",
        "aggregate_policy": {"field": "reward", "fallback": "weighted_mean", "metrics": {"right": 3, "neat": 1}},
    },
}


def task_md(namespace: dict[str, Any], **rest: Any) -> str:
    root = {"task": {"name": "acme/slug"}, "verifier": {"type": "test-script", "timeout_sec": 60}, **rest}
    return f"---\n{yaml.safe_dump({**root, 'benchflow': namespace})}---\nWrite /app/slug.py.\n"


def verifier_md(verifier: dict[str, Any]) -> str:
    text = yaml.safe_dump({"document_version": "0.3", "verifier": verifier}, sort_keys=False)
    return f"---\n{text}---\n## role:critic\nJudge only the declared evidence.\n"


FILES = {
    "task.md": task_md(NAMESPACE),
    "verifier/verifier.md": verifier_md(VERIFIER),
    "verifier/hidden.patch": PATCH,
    "verifier/rubric.md": "Right and neat.\n",
    "verifier/rubric.toml": "",
}


def test_the_samples_of_the_standard_check_and_only_the_selected_strategy_must_be_complete(make_package) -> None:
    missing = {"verifier.strategies.kit.entrypoint", "verifier.strategies.kit.criteria"}
    chosen = verifier_md({**VERIFIER, "default_strategy": "kit"})
    for document, severity in ((FILES["verifier/verifier.md"], "warning"), (chosen, "error")):
        package = load_package(make_package({**FILES, "verifier/verifier.md": document}))
        found = {(issue.code, issue.severity, issue.path) for issue in check_package(package)}
        assert found == {("verifier-file-missing", severity, path) for path in missing}


def test_values_of_the_samples_are_kept(make_package) -> None:
    package = load_package(make_package(FILES))
    assert package.document is not None
    assert package.verifier_document is not None
    wiring = package.document.namespace.verifier
    assert wiring is not None
    assert [item.source for item in wiring.transfer.agent_to_verifier] == ["/app/**/*.py"]
    assert wiring.transfer.verifier_to_result == ("/logs/verifier/*",)
    assert [(item.path, item.kind) for item in wiring.inputs] == [("verifier/hidden.patch", "test_patch")]
    policy = package.verifier_document.outputs.aggregate_policy
    assert policy is not None
    assert policy.weights == {"right": 3, "neat": 1}


HANDOFF = {"handoff": {"mode": "sequential", "workspace_visibility": "shared", "trajectory_visibility": "metadata"}}


@pytest.mark.parametrize("teams", [{"core": HANDOFF}, [{"name": "core", **HANDOFF}]])
def test_a_user_with_nudges_and_a_team_can_be_run_however_the_team_is_written(make_package, teams: Any) -> None:
    namespace = {
        "teams": teams,
        "nudges": {
            "mode": "simulated-user",
            "nudge_budget": 3,
            "branchable": True,
            "branch_execution": "option-kinds-preserved",
            "confirmation_policy": {"destructive_actions": "human"},
        },
    }
    roles = {"writer": {"agent": "codex", "model": "gpt-5.5", "reasoning_effort": "high"}, "critic": {"agent": "codex"}}
    user = {"model": "scripted", "stop_rule": "satisfied-or-3-rounds", "private_facts": {"case": "lower"}}
    scenes = [{"name": "work", "roles": ["writer", "critic"], "turns": ["writer", "critic"]}]
    text = task_md(namespace, agents={"roles": roles}, user=user, scenes=scenes)
    package = load_package(make_package({"task.md": text}))
    assert package.issues == ()
    assert package.document is not None
    assert list(package.document.namespace.teams) == ["core"]
    assert validate_task_runtime_support(package, sandbox="local") == []


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        (
            {"inputs": [{"path": "environment/hidden.patch", "visibility": "hidden_verifier"}]},
            "exposed-asset",
            "inputs[0].visibility",
        ),
        ({"inputs": ["verifier/none.patch"]}, "missing-asset", "inputs[0].path"),
        ({"transfer": {"agent_to_verifier": ["/app/../etc"]}}, "unsafe-path", "transfer.agent_to_verifier[0].source"),
        ({"transfer": {"agent_to_verifer": []}}, "unknown-key", "transfer.agent_to_verifer"),
        ({"visibility": "agent"}, "invalid-value", "visibility"),
        ({"outputs": {"reward_json": "reward.json"}}, "unsafe-path", "outputs.reward_json"),
    ],
)
def test_wrong_wiring_of_the_verifier_is_named(make_package, change: dict[str, Any], code: str, path: str) -> None:
    package = load_package(make_package({"task.md": task_md({"verifier": change})}))
    assert [(issue.code, issue.path) for issue in package.issues] == [(code, f"benchflow.verifier.{path}")]


@pytest.mark.parametrize(
    ("teams", "code"),
    [
        ([HANDOFF, {"name": "a b", **HANDOFF}], "invalid-value"),
        ([{"name": "x", **HANDOFF}, {"name": "x", **HANDOFF}], "conflicting-keys"),
        (["core"], "invalid-type"),
    ],
)
def test_a_wrong_list_of_teams_is_named(make_package, teams: Any, code: str) -> None:
    package = load_package(make_package({"task.md": task_md({"teams": teams})}))
    assert [issue.code for issue in package.issues] == [code]
