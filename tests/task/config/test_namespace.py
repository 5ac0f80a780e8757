"""The typed `benchflow:` namespace: every key, its vocabularies, and assets held against files."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from benchflow.task.config.namespace import Namespace
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.document.environment_manifest import Readiness
from benchflow.task.filemap import digest_of
from benchflow.task.interop.split_export import export_task_to_split_layout
from benchflow.task.package import changed_parts, load_package, package_parts

FULL: dict[str, Any] = {
    "document_version": "0.6",
    "prompt": {"composition": "append", "order": ["base", "role", "scene", "turn"]},
    "interaction": {"mode": "arena-concurrent", "assessor": "judge", "participants": ["a"]},
    "teams": {
        "core": {
            "handoff": {
                "mode": "sequential",
                "workspace_visibility": "shared",
                "trajectory_visibility": "metadata",
            }
        }
    },
    "nudges": {
        "mode": "simulated-user",
        "nudge_budget": 4,
        "branchable": True,
        "branch_execution": "option-kinds-preserved",
        "confirmation_policy": {"destructive_actions": "human"},
    },
    "agent_policy": {
        "skill_access": "none",
        "allowed_skill_roots": [],
        "search": "disabled",
        "forbidden_tools": ["web_search"],
        "trajectory_audit": {"require_no_forbidden_tool_calls": True},
    },
    "runtime_policy": {
        "backend": "docker",
        "required_capabilities": [],
        "network": {
            "task_default": "no-network",
            "agent_egress": "model-and-dependencies",
            "allowed_hosts": [],
            "phase_overrides": {"verifier": "no-network"},
        },
        "private_mounts": [
            {
                "source": "vol://models",
                "target": "/mnt/m",
                "mode": "ro",
                "visibility": "agent",
                "secret_ref": "k",
            }
        ],
        "persistent_state": {"required": False, "scope": "task-run", "cleanup": "after-verifier"},
    },
    "verifier": {
        "path": "verifier/",
        "spec": "verifier/verifier.md",
        "inputs": ["/app/out"],
        "outputs": ["/logs/verifier"],
        "transfer": ["/app/out", {"source": "/app/more", "exclude": ["*.o"], "max_mb": 10}],
        "implementation": {"type": "hybrid", "strategies": {"llm_judge": {"weight": 0.5}}},
    },
    "oracle": {"path": "oracle"},
    "environment": {"manifest": "environment/environment.toml"},
    "assets": [
        {
            "path": "verifier/cases.jsonl",
            "visibility": "hidden_verifier",
            "sha256": "0" * 64,
            "mount_phase": "verifier",
            "generated": False,
            "license": "mit",
            "source": {"url": "https://example.org/x", "revision": "abc"},
        }
    ],
    "secrets": [{"name": "pull", "scope": "image-pull", "visibility": "runtime_secret", "never_persist": True}],
    "provenance": {
        "images": [
            {
                "field": "environment.docker_image",
                "reference": "reg/x:1",
                "digest": "sha256:00",
                "registry": "reg",
                "provider": "docker",
                "build_source": {"path": "environment/Dockerfile", "sha256": "0" * 64},
                "credential_secret_ref": "pull",
                "never_persist_credentials": True,
            }
        ]
    },
    "evidence": {
        "oracle_runs": {"required_reward": 1.0, "artifact": "evidence/oracle.json"},
        "verifier": {"reruns": 3, "flake_rate": 0.0, "report": "evidence/stability.json"},
        "review": {
            "anti_cheat": "passed",
            "instruction_alignment": "passed",
            "artifact": "evidence/review.json",
        },
        "calibration": {
            "no_op_reward_max": 0.0,
            "known_bad_reward_max": 0.2,
            "partial_solution_range": [0.3, 0.7],
            "report": "evidence/calibration.json",
            "human_or_reference_examples": [{"name": "g", "expected_reward": 1.0, "artifact": "evidence/gold.json"}],
        },
        "trajectories": [{"path": "evidence/t.jsonl", "sha256": "0" * 64, "kind": "trajectory"}],
        "artifacts": [{"path": "evidence/oracle.json", "sha256": "0" * 64, "visibility": "evidence_only"}],
        "acceptance_live": {
            "workspace": {"source": "current-worktree", "target": "/app"},
            "cases": [{"name": "o", "type": "oracle", "reruns": 2, "expect": {"reward_min": 0.99}}],
            "calibration": {"from": "calibration.report", "reruns": 1, "flake_rate_max": 0.0},
            "leaderboard": {"required": True, "max_flake_rate": 0.0},
            "report": "evidence/live.json",
        },
    },
    "compatibility": {"harbor": {"export": "full", "emits": {"config": "task.toml"}}},
    "compat": {"source": "legacy", "extra_paths": ["a.b"], "extra": {"a": {"b": [1, None]}}},
    "authoring": {"profiles": ["code-change"], "normalized": True},
}


def problems(data: Any) -> list[tuple[str, str]]:
    log = IssueLog()
    Namespace.parse(data, "benchflow", log)
    return [(issue.code, issue.path.removeprefix("benchflow.")) for issue in log.issues]


def test_every_key_of_the_namespace_is_typed_and_kept() -> None:
    log = IssueLog()
    namespace = Namespace.parse(FULL, "benchflow", log)
    assert log.issues == []
    assert namespace is not None
    assert namespace.declared == FULL.keys()
    again = Namespace.parse(namespace.to_declared_dict(), "benchflow", log)
    assert again == namespace
    assert log.issues == []


@pytest.mark.parametrize("key", sorted(FULL))
def test_unknown_keys_are_errors_at_every_place(key: str) -> None:
    value = FULL[key]
    if key in ("document_version", "compat"):
        return
    if key in ("teams", "compatibility"):
        name, inner = next(iter(value.items()))
        changed: Any = {name: {**inner, "zzz": 1}}
        where = f"{key}.{name}.zzz"
    elif isinstance(value, list):
        changed, where = [{**value[0], "zzz": 1}], f"{key}[0].zzz"
    else:
        changed, where = {**value, "zzz": 1}, f"{key}.zzz"
    assert problems({key: changed}) == [("unknown-key", where)]


def test_foreign_keys_stay_free_under_compat_extra() -> None:
    assert problems({"compat": {"extra": {"anything": {"at": ["all"]}}}}) == []
    assert problems({"compat": {"zzz": 1}}) == [("unknown-key", "compat.zzz")]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"document_version": 0.6}, "document_version"),
        ({"prompt": {"composition": "merge"}}, "prompt.composition"),
        ({"prompt": {"order": ["base", "base"]}}, "prompt.order[1]"),
        ({"prompt": {"order": []}}, "prompt.order"),
        ({"interaction": {"mode": "chat"}}, "interaction.mode"),
        ({"teams": {"t": {"handoff": {"mode": "both"}}}}, "teams.t.handoff.mode"),
        ({"teams": {"t": {}}}, "teams.t.handoff"),
        *(
            ({"teams": {"t": {"handoff": {"mode": "parallel", "artifacts": [path]}}}}, "teams.t.handoff.artifacts[0]")
            for path in ("../x", "/", ".", "a//b", "a/../b", "/verifier/x", "/logs/verifier", "/proc/1/mem")
        ),
        ({"nudges": {"nudge_budget": 0}}, "nudges.nudge_budget"),
        ({"nudges": {"confirmation_policy": "robot"}}, "nudges.confirmation_policy"),
        ({"nudges": {"branch_execution": "forked-snapshot"}}, "nudges.branch_execution"),
        ({"agent_policy": {"search": "maybe"}}, "agent_policy.search"),
        ({"runtime_policy": {"backend": "moon"}}, "runtime_policy.backend"),
        (
            {"runtime_policy": {"network": {"phase_overrides": {"lunch": "public"}}}},
            "runtime_policy.network.phase_overrides.lunch",
        ),
        ({"assets": [{"path": "../x", "visibility": "agent"}]}, "assets[0].path"),
        ({"assets": [{"path": "x", "visibility": "secretly"}]}, "assets[0].visibility"),
        ({"assets": [{"path": "x", "visibility": "agent", "sha256": "abc"}]}, "assets[0].sha256"),
        ({"secrets": [{"name": "x", "scope": "everywhere"}]}, "secrets[0].scope"),
        ({"verifier": {"transfer": ["../relative"]}}, "verifier.transfer[0].source"),
        ({"evidence": {"review": {"artifact": "/abs"}}}, "evidence.review.artifact"),
        (
            {"evidence": {"calibration": {"partial_solution_range": [0.9, 0.1]}}},
            "evidence.calibration.partial_solution_range",
        ),
        ({"evidence": {"acceptance_live": {"cases": []}}}, "evidence.acceptance_live.cases"),
        (
            {
                "evidence": {
                    "acceptance_live": {
                        "cases": [{"name": "a", "type": "oracle", "command": "x", "expect": {"reward_min": 1}}]
                    }
                }
            },
            "evidence.acceptance_live.cases[0].command",
        ),
        (
            {
                "evidence": {
                    "acceptance_live": {"cases": [{"name": "a", "type": "partial", "expect": {"flake_rate_max": 0}}]}
                }
            },
            "evidence.acceptance_live.cases[0].expect",
        ),
        (
            {"evidence": {"acceptance_live": {"workspace": {"target": "/"}}}},
            "evidence.acceptance_live.workspace.target",
        ),
        ({"compatibility": {"harbor": {"export": "perhaps"}}}, "compatibility.harbor.export"),
    ],
)
def test_values_outside_a_vocabulary_are_errors(data: Any, path: str) -> None:
    assert path in [where for _, where in problems(data)]


def task_md(namespace: str) -> str:
    return f"---\ntask: {{name: a/b}}\nbenchflow:\n{namespace}---\nDo it.\n"


def issue_pairs(folder) -> list[tuple[str, str, int | None]]:
    return [(issue.code, issue.path, issue.line) for issue in load_package(folder).layout_issues]


@pytest.mark.parametrize(
    ("path", "visibility"),
    [
        ("environment/answers.json", "hidden_verifier"),
        ("prompts/answers.json", "hidden_oracle"),
        ("environment", "evidence_only"),
    ],
)
def test_a_hidden_asset_where_the_agent_looks_is_an_error(make_package, path: str, visibility: str) -> None:
    asset = task_md(f"  assets:\n    - {{path: {path}, visibility: {visibility}}}\n")
    folder = make_package({"task.md": asset, "environment/answers.json": "{}", "prompts/answers.json": "{}"})
    assert ("exposed-asset", "benchflow.assets[0].visibility", 5) in issue_pairs(folder)


def test_a_hidden_asset_below_a_visible_one_is_an_error(make_package) -> None:
    assets = "  assets: [{path: data, visibility: agent}, {path: data/key.json, visibility: hidden_oracle}]\n"
    folder = make_package({"task.md": task_md(assets), "data/key.json": "{}"})
    assert [pair[:2] for pair in issue_pairs(folder)] == [("exposed-asset", "benchflow.assets[1].visibility")]


@pytest.mark.parametrize(
    ("hidden", "visible"),
    [("data", "data/public.json"), ("steps/one/workdir/key.json", "data/public.json")],
)
def test_a_hidden_asset_around_a_visible_one_or_in_a_step_is_an_error(make_package, hidden, visible) -> None:
    assets = f"  assets: [{{path: {hidden}, visibility: hidden_oracle}}, {{path: {visible}, visibility: agent}}]\n"
    files = {"task.md": task_md(assets), "data/public.json": "{}", "steps/one/workdir/key.json": "{}"}
    found = [pair[:2] for pair in issue_pairs(make_package(files))]
    assert found == [("exposed-asset", "benchflow.assets[0].visibility")]


def test_an_asset_for_the_agent_may_not_lie_in_a_hidden_folder(make_package) -> None:
    folder = make_package({"task.md": task_md("  assets: [{path: oracle/solve.sh, visibility: agent}]\n")})
    assert [pair[0] for pair in issue_pairs(folder)] == ["exposed-asset"]


def test_a_hidden_asset_mounted_for_the_agent_is_an_error(make_package) -> None:
    assets = "  assets: [{path: verifier/test.sh, visibility: hidden_verifier, mount_phase: agent}]\n"
    folder = make_package({"task.md": task_md(assets)})
    assert [pair[:2] for pair in issue_pairs(folder)] == [("exposed-asset", "benchflow.assets[0].mount_phase")]


def test_pins_of_files_and_folders_are_verified(make_package) -> None:
    content = b"[1, 2]\n"
    file_pin = hashlib.sha256(content).hexdigest()
    tree_pin = digest_of({"a.json": file_pin}).removeprefix("sha256:")
    assets = (
        "  assets:\n    - {{path: data/a.json, visibility: agent, sha256: {}}}\n"
        "    - {{path: data, visibility: agent, sha256: {}}}\n"
    )
    good = make_package({"task.md": task_md(assets.format(file_pin, tree_pin)), "data/a.json": content}, name="good")
    bad = make_package({"task.md": task_md(assets.format("a" * 64, "b" * 64)), "data/a.json": content}, name="bad")
    assert issue_pairs(good) == []
    assert issue_pairs(bad) == [
        ("pin-mismatch", "benchflow.assets[0].sha256", 5),
        ("pin-mismatch", "benchflow.assets[1].sha256", 6),
    ]


def test_a_missing_asset_is_an_error_unless_it_comes_from_elsewhere(make_package) -> None:
    assets = (
        "  assets: [{path: gone, visibility: agent}, {path: made, visibility: agent, generated: true},"
        " {path: web, visibility: external_dataset}]\n"
    )
    folder = make_package({"task.md": task_md(assets)})
    assert [pair[:2] for pair in issue_pairs(folder)] == [("missing-asset", "benchflow.assets[0].path")]


MANIFEST = """[environment]
name = "desk"
base_image = "debian:12"
owns_lifecycle = false
services = [{ name = "mail", command = "maild", port = 8025 }]
readiness = { http = ["http://localhost:8025/health"], timeout_sec = 5 }
"""


def test_the_manifest_of_services_is_read(make_package) -> None:
    text = task_md("  environment: {manifest: environment.toml}\n")
    package = load_package(make_package({"task.md": text, "environment.toml": MANIFEST}))
    assert package.issues == ()
    assert package.manifest is not None
    assert package.view.manifest == package.manifest
    assert [service.name for service in package.manifest.services] == ["mail"]


@pytest.mark.parametrize("absolute", [False, True])
def test_a_manifest_beside_the_packages_counts_in_every_digest(make_package, absolute: bool) -> None:
    shared = make_package().parent / "_manifests/desk.toml"
    shared.parent.mkdir()
    shared.write_text(MANIFEST)
    named = shared if absolute else "../_manifests/desk.toml"
    folder = make_package({"task.md": task_md(f"  environment: {{manifest: {named}}}\n")})
    before = load_package(folder)
    assert before.issues == ()
    assert before.manifest is not None
    assert list(before.shared) == ["../_manifests/desk.toml"]
    assert "../_manifests/desk.toml" in before.source_hashes
    parts = package_parts(before)
    shared.write_text(MANIFEST.replace("maild", "maild -v"))
    after = load_package(folder)
    assert before.digest != after.digest
    assert before.content_digest != after.content_digest
    assert changed_parts(parts, package_parts(after)) == ["environment"]


def test_a_manifest_travels_in_an_export(make_package, tmp_path) -> None:
    shared = make_package().parent / "desk.toml"
    shared.write_text(MANIFEST)
    folder = make_package({"task.md": task_md("  environment: {manifest: ../desk.toml}\n")})
    report = export_task_to_split_layout(folder, tmp_path / "out")
    assert (tmp_path / "out/compatibility/environment.toml").read_text() == MANIFEST
    assert "compatibility/environment.toml" in report.output_hashes
    assert "../desk.toml" in report.input_hashes


@pytest.mark.parametrize("named", ["../../desk.toml", "/etc/passwd", "../..", '"a\\0b"'])
def test_a_manifest_outside_the_benchmark_is_refused(make_package, named: str) -> None:
    package = load_package(make_package({"task.md": task_md(f"  environment: {{manifest: {named}}}\n")}))
    assert [(issue.code, issue.path) for issue in package.issues] == [("unsafe-path", "benchflow.environment.manifest")]


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (None, "missing-file"),
        ("[environment", "invalid-toml"),
        (MANIFEST + "colour = 1\n", "unknown-key"),
        (MANIFEST.replace("false", "true"), "conflicting-keys"),
        ('[environment]\nname = "x"\n', "missing-key"),
        (b"\xff", "not-utf8"),
    ],
)
def test_a_wrong_manifest_is_reported(make_package, manifest: str | bytes | None, code: str) -> None:
    files: dict[str, Any] = {"task.md": task_md("  environment: {manifest: environment.toml}\n")}
    if manifest is not None:
        files["environment.toml"] = manifest
    assert code in [pair[0] for pair in issue_pairs(make_package(files))]


@pytest.mark.parametrize("endpoint", [8080, "8080", "db:5432"])
def test_a_manifest_waits_for_ports(endpoint: Any) -> None:
    problems = IssueLog()
    assert Readiness.parse({"tcp": [endpoint]}, "readiness", problems) is not None
    assert problems.issues == []


@pytest.mark.parametrize("endpoint", [0, 70000, "db", "db:", ":5432", "db:0", True, None, 1.5])
def test_what_is_no_port_is_refused(endpoint: Any) -> None:
    problems = IssueLog()
    Readiness.parse({"tcp": [endpoint]}, "readiness", problems)
    assert [issue.path for issue in problems.issues] == ["readiness.tcp[0]"]
