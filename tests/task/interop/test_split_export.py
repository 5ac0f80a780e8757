"""An export holds what the target knows, and its report says what it does not."""

import json
import tomllib

import pytest

from benchflow.errors import PackageError, UsageError
from benchflow.task.document.task_toml import import_task_config_toml
from benchflow.task.filemap import scan
from benchflow.task.interop.migration import migrate_task_to_task_md
from benchflow.task.interop.split_export import build_compatibility_export_report, export_task_to_split_layout
from benchflow.task.package import load_package


def toml(folder):
    return tomllib.loads((folder / "task.toml").read_text())


def losses(report):
    return {loss.path: loss.severity for loss in report.losses}


def test_a_plain_package_is_exported_without_loss_and_minimally(native, tmp_path):
    out = tmp_path / "out"
    report = export_task_to_split_layout(native, out)
    assert report.status == "lossless"
    assert toml(out) == {
        "schema_version": "1.3",
        "task": {"name": "acme/native"},
        "agent": {"timeout_sec": 60},
        "environment": {"cpus": 1},
        "solution": {"env": {"A": "b"}},
    }
    assert (out / "instruction.md").read_text() == "Do it.\n"
    assert (out / "tests/test.sh").stat().st_mode & 0o111
    assert (out / "solution/solve.sh").read_bytes() == (native / "oracle/solve.sh").read_bytes()


def test_the_report_says_what_went_in_and_came_out(native, tmp_path):
    out = tmp_path / "out"
    report = export_task_to_split_layout(native, out)
    written = json.loads((out / "compatibility/export-report.json").read_text())
    assert written == report.to_dict()
    assert written["target"] == "harbor"
    assert written["source_task_dir"] == str(native)
    assert written["selected_entrypoint"] == "task.md"
    assert written["selected_prompt"] == "instruction.md"
    assert (written["selected_oracle_dir"], written["selected_verifier_dir"]) == ("oracle", "verifier")
    assert written["input_hashes"] == scan(native).hashes()
    hashes = {path: value for path, value in scan(out).hashes().items() if not path.startswith("compatibility/")}
    assert written["output_hashes"] == hashes
    assert written["emitted_files"] == sorted(hashes)
    assert written["restored_extension_paths"] == []
    assert written["alias_collisions"] == []
    assert written["losses"] == []


def test_a_report_alone_writes_nothing(native, look):
    before = look(native.parent)
    report = build_compatibility_export_report(native)
    assert (report.emitted_files, dict(report.output_hashes)) == ((), {})
    assert load_package(native).compatibility_export_report(target="harbor") == report
    assert look(native.parent) == before


@pytest.mark.parametrize(
    ("frontmatter", "path"),
    [
        ("verifier: {judge: {model: m}}", "verifier.judge"),
        ("verifier: {reward_range: [-1, 1]}", "verifier.reward_range"),
        ("verifier: {service: db}", "verifier.service"),
        ("verifier: {memory: {expected_skills: [a]}}", "verifier.memory"),
        ("verifier: {pytest_plugins: [x]}", "verifier.pytest_plugins"),
        ("verifier: {hardening: {cleanup_conftests: false}}", "verifier.hardening"),
        ("verifier: {hardening: {keep_processes: false}}", "verifier.hardening"),
        ("verifier: {isolation: services}", "verifier.isolation"),
        ("verifier: {isolation: shared}", "verifier.isolation"),
        ("reward: {a: 1}", "reward"),
        ("oracle: {timeout_sec: 5}", "oracle.timeout_sec"),
        ("solution: {timeout_sec: 5}", "solution.timeout_sec"),
        ("sandbox: {bugswarm_image_tag: x}", "sandbox.bugswarm_image_tag"),
        (
            "environment: {mcp_servers: [{name: a, transport: stdio, command: c, env: {A: b}}]}",
            "environment.mcp_servers[0].env",
        ),
        (
            "environment: {mcp_servers: [{name: a, url: u, headers: {Authorization: secret}}]}",
            "environment.mcp_servers[0].headers",
        ),
        (
            "environment: {mcp_servers: [{name: a, transport: stdio, command: c, headers: {A: b}}]}",
            "environment.mcp_servers[0]",
        ),
        ("artifacts: [{source: /a, destination: manifest.json}]", "artifacts[0]"),
        ("metadata: {a: [1, null]}", "metadata"),
    ],
)
def test_a_setting_the_target_does_not_know_is_a_loss_at_its_own_path(make_native, tmp_path, frontmatter, path):
    package = make_native(f"schema_version: '1.3'\n{frontmatter}")
    report = export_task_to_split_layout(package, tmp_path / "out")
    assert losses(report) == {path: "loss"}
    assert report.status == "degraded"
    exported = import_task_config_toml((tmp_path / "out/task.toml").read_text())
    assert exported.compatibility.config_extra_paths == ()


@pytest.mark.parametrize(
    ("frontmatter", "paths"),
    [
        ("verifier: {type: llm-judge}", {"verifier"}),
        ("steps: [{name: con}]", {"steps[0].name", "steps[0]"}),
    ],
)
def test_what_harbor_cannot_load_or_run_is_a_refusal(make_native, tmp_path, frontmatter, paths):
    report = export_task_to_split_layout(make_native(f"schema_version: '1.3'\n{frontmatter}"), tmp_path / "out")
    assert {path for path, severity in losses(report).items() if severity == "refusal"} == paths
    assert report.status == "target-refuses"


def test_settings_that_say_what_harbor_does_anyway_are_no_loss(make_native, tmp_path):
    for number, rung in enumerate(("auto", "open")):
        package = make_native(f"verifier: {{type: test-script, service: main, isolation: {rung}}}")
        output = tmp_path / f"out-{number}"
        assert export_task_to_split_layout(package, output).status == "lossless"
        assert toml(output) == {}


def test_separate_isolation_is_exported_in_harbors_words(make_native, tmp_path):
    package = make_native("verifier: {isolation: separate}\nsteps: [{name: a, verifier: {isolation: separate}}]")
    export_task_to_split_layout(package, tmp_path / "out")
    written = toml(tmp_path / "out")
    assert written["verifier"] == {"environment_mode": "separate"}
    assert written["steps"][0]["verifier"] == {"environment_mode": "separate"}


def test_every_concept_of_a_document_is_a_loss(make_native):
    package = make_native(
        """\
agents: {roles: {a: {agent: x}, b: {agent: y}}}
scenes: [{name: s, turns: [a, b]}]
user: {model: scripted, stop_rule: satisfied-or-4-rounds, private_facts: {k: secret-value}}
benchflow:
  document_version: "0.6"
  prompt: {composition: append}
  nudges: {mode: simulated-user}
  teams: {t: {handoff: {mode: sequential}}}
  agent_policy: {search: disabled}
  provenance: {license: mit}""",
        "Base.\n## role:a\nA.\n## scene:s\nS.\n## user-persona\nP.",
    )
    report = build_compatibility_export_report(package)
    found = [loss.path for loss in report.losses]
    assert found == [
        "agents.roles",
        "scenes",
        "## role:*",
        "## scene:*",
        "user",
        "## user-persona",
        "benchflow.agent_policy",
        "benchflow.document_version",
        "benchflow.nudges",
        "benchflow.prompt",
        "benchflow.provenance",
        "benchflow.teams",
    ]
    assert losses(report)["benchflow.provenance"] == "warning"
    assert losses(report)["benchflow.agent_policy"] == "loss"
    assert "secret-value" not in report.to_json()


VERIFIER_MD = """\
---
verifier:
  default_strategy: main
  strategies:
    main: {STRATEGY}
---
"""


@pytest.mark.parametrize(
    ("strategy", "lost"),
    [
        ('{type: script, command: "./test.sh"}', set()),
        ('{type: script, command: "bash test.sh"}', set()),
        ('{type: script, command: "python3 check.py"}', set()),
        ("{type: reward-kit, root: kit}", {"verifier.strategies.main"}),
    ],
)
def test_a_verifier_document_is_a_loss_and_so_is_a_strategy_that_harbor_cannot_run(
    native, tree, tmp_path, strategy, lost
):
    tree(native, {"verifier/verifier.md": VERIFIER_MD.replace("{STRATEGY}", strategy)})
    report = export_task_to_split_layout(native, tmp_path / "out")
    assert losses(report).keys() == {"verifier.verifier_md", *lost}
    assert (tmp_path / "out/tests/verifier.md").exists()


def test_a_script_strategy_without_test_sh_gets_one_that_runs_it(native, tree, tmp_path):
    (native / "verifier/test.sh").unlink()
    strategy = '{type: script, command: "python3 check.py --all"}'
    tree(native, {"verifier/verifier.md": VERIFIER_MD.replace("{STRATEGY}", strategy)})
    report = export_task_to_split_layout(native, tmp_path / "out")
    assert losses(report).keys() == {"verifier.verifier_md"}
    script = tmp_path / "out/tests/test.sh"
    assert script.read_text().endswith("\npython3 check.py --all\n")
    assert script.stat().st_mode & 0o111
    assert "tests/test.sh" in report.emitted_files


def test_a_test_sh_that_is_not_what_the_strategy_runs_makes_room(native, tree, tmp_path):
    before = (native / "verifier/test.sh").read_bytes()
    strategy = '{type: script, command: "bash test.sh --all"}'
    tree(native, {"verifier/verifier.md": VERIFIER_MD.replace("{STRATEGY}", strategy)})
    export_task_to_split_layout(native, tmp_path / "out")
    assert (tmp_path / "out/tests/test.sh").read_text().endswith("\nbash ./test-of-package.sh --all\n")
    assert (tmp_path / "out/tests/test-of-package.sh").read_bytes() == before


def test_files_that_have_no_place_are_named_and_not_exported(native, tree, tmp_path):
    tree(
        native,
        {
            "evidence/run.json": "{}",
            "notes.txt": "x",
            "README.md": "about",
            "prompts/role.a.md": "x",
            "verifier/deep/fixture.bin": b"\x00",
            "oracle/solve.sh": "#!/bin/bash\ncp /oracle/patch /app\n",
        },
    )
    report = export_task_to_split_layout(native, tmp_path / "out")
    assert losses(report) == {
        "## role:*": "loss",
        "evidence/": "warning",
        "notes.txt": "warning",
        "prompts/": "loss",
        "oracle/solve.sh": "warning",
    }
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "compatibility",
        "environment",
        "instruction.md",
        "solution",
        "task.toml",
        "tests",
    ]
    assert (tmp_path / "out/tests/deep/fixture.bin").read_bytes() == b"\x00"


def test_links_inside_a_tree_are_kept_and_others_are_not(native, tmp_path):
    (native / "verifier/same").symlink_to("test.sh")
    (native / "verifier/other").symlink_to("../oracle/solve.sh")
    report = export_task_to_split_layout(native, tmp_path / "out")
    assert (tmp_path / "out/tests/same").readlink().name == "test.sh"
    assert not (tmp_path / "out/tests/other").is_symlink()
    assert losses(report) == {"verifier/other": "loss"}


def test_an_empty_environment_folder_stays_and_none_at_all_is_refused(native, tmp_path):
    (native / "environment/Dockerfile").unlink()
    export_task_to_split_layout(native, tmp_path / "out")
    assert (tmp_path / "out/environment").is_dir()
    (native / "environment").rmdir()
    report = build_compatibility_export_report(native)
    assert (report.status, losses(report)) == ("target-refuses", {"environment": "refusal"})


def test_presets_and_profiles_are_exported_as_what_they_stand_for(make_native, tmp_path):
    package = make_native("preset: code-change\nenvironment-profile: ../shared.yaml\nagent: {timeout_sec: 5}", "Do it.")
    (tmp_path / "shared.yaml").write_text("gpus: 1\n")
    report = export_task_to_split_layout(package, tmp_path / "out")
    written = toml(tmp_path / "out")
    assert written["environment"]["gpus"] == 1
    assert written["environment"]["workdir"] == "/repo"
    assert written["agent"] == {"timeout_sec": 5, "network_mode": "no-network"}
    assert losses(report).keys() == {"benchflow.document_version", "benchflow.prompt"}
    assert "../shared.yaml" in report.input_hashes


def test_steps_are_exported_under_their_split_names(steps, tmp_path, look):
    before = look(steps)
    migrate_task_to_task_md(steps, remove_legacy=True)
    report = export_task_to_split_layout(steps, tmp_path / "out")
    after = look(tmp_path / "out")
    assert report.status == "lossless"
    assert report.selected_prompt is None
    assert report.restored_extension_paths == ("steps[1].runner",)
    for path in before.keys() - {"task.toml"}:
        assert after[path] == before[path]
    assert after.keys() - before.keys() == {"compatibility", "compatibility/export-report.json"}
    assert toml(tmp_path / "out") == tomllib.loads((tmp_path / "out/task.toml").read_text())


def test_step_files_without_a_place_are_losses_unless_they_came_from_a_split_package(
    steps, tree, make_native, tmp_path
):
    files = {"steps/first/notes/x.txt": "", "steps/third/instruction.md": "", "steps/first/hint.txt": "", "a/b": "c"}
    native = tree(make_native("steps: [{name: first}]"), {**files, "steps/first/instruction.md": "Do it."})
    assert losses(build_compatibility_export_report(native)).keys() == {
        "a/",
        "steps/first/notes/",
        "steps/first/hint.txt",
        "steps/third/instruction.md",
    }
    tree(steps, files)
    migrate_task_to_task_md(steps, remove_legacy=True)
    report = export_task_to_split_layout(steps, tmp_path / "out")
    assert report.status == "lossless"
    assert files.keys() <= set(report.emitted_files)


def test_preserved_keys_come_back_and_never_over_native_ones(make_native, tmp_path):
    package = make_native(
        """\
environment: {cpus: 2}
benchflow:
  compat:
    source: task.toml
    extra_paths: [environment.modal, environment.cpus, steps]
    extra: {environment: {modal: {image: x}, cpus: 9}, steps: [null, {runner: y}]}"""
    )
    report = export_task_to_split_layout(package, tmp_path / "out")
    assert toml(tmp_path / "out")["environment"] == {"cpus": 2, "modal": {"image": "x"}}
    assert report.restored_extension_paths == ("environment.modal.image", "steps[1].runner")
    assert losses(report) == {"benchflow.compat.extra.environment.cpus": "warning"}


@pytest.mark.parametrize("where", [".", "inside/out", ".."])
def test_an_output_in_over_or_around_its_source_is_refused(native, look, where):
    before = look(native.parent)
    with pytest.raises(UsageError) as caught:
        export_task_to_split_layout(native, native / where, overwrite=True)
    assert caught.value.code == "output-overlaps"
    assert look(native.parent) == before


def test_an_overlap_through_a_link_is_refused(native, tmp_path):
    (tmp_path / "link").symlink_to(native)
    with pytest.raises(UsageError):
        export_task_to_split_layout(native, tmp_path / "link" / "out")
    assert not (native / "out").exists()


def test_an_output_that_exists_is_refused_unless_told_or_empty(native, tmp_path, look):
    out = tmp_path / "out"
    out.mkdir()
    export_task_to_split_layout(native, out)
    before = look(out)
    with pytest.raises(UsageError) as caught:
        export_task_to_split_layout(native, out)
    assert caught.value.code == "output-exists"
    assert look(out) == before
    (out / "stale").write_text("x")
    export_task_to_split_layout(native, out, overwrite=True)
    assert look(out) == before


def test_an_unknown_target_is_wrong_usage(native, tmp_path):
    with pytest.raises(UsageError, match="pier"):
        export_task_to_split_layout(native, tmp_path / "out", target="pier")


def test_an_alias_collision_is_refused_and_named_in_a_report(native, tree, tmp_path):
    tree(native, {"tests/test.sh": "other"})
    with pytest.raises(PackageError) as caught:
        export_task_to_split_layout(native, tmp_path / "out")
    assert caught.value.path == "verifier|tests"
    assert not (tmp_path / "out").exists()
    report = build_compatibility_export_report(native)
    assert (report.status, report.alias_collisions) == ("degraded", ("verifier|tests",))
    assert [loss.path for loss in report.losses] == ["verifier|tests"]


def test_an_invalid_package_is_refused_with_all_its_issues(make_native, tmp_path):
    package = make_native("agent: {timeout_sec: -1}\nzzz: 1")
    with pytest.raises(PackageError) as caught:
        export_task_to_split_layout(package, tmp_path / "sub" / "out")
    assert {issue.path for issue in caught.value.issues} == {"agent.timeout_sec", "zzz"}
    assert not (tmp_path / "sub").exists()


def test_a_link_that_leaves_the_package_is_refused(native, tmp_path):
    (native / "environment/passwd").symlink_to("/etc/passwd")
    with pytest.raises(PackageError):
        export_task_to_split_layout(native, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_split_package_exports_to_itself(split, tmp_path, look):
    report = export_task_to_split_layout(split, tmp_path / "out")
    assert report.selected_entrypoint == "legacy"
    assert report.restored_extension_paths == ("environment.modal.image",)
    before, after = look(split), look(tmp_path / "out")
    assert {k: v for k, v in after.items() if k.startswith(("tests", "solution", "environment", "README"))} == {
        k: v for k, v in before.items() if k.startswith(("tests", "solution", "environment", "README"))
    }
