"""Folders as packages: selection, twins, drift, names, digests; nothing a folder holds breaks loading."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.task import TaskPackage, load_package
from benchflow.task.checks import check_folder, check_package

SPLIT = {
    "task.toml": 'schema_version = "1.3"\n'
    '[task]\nname = "acme/rotate-logs"\ndescription = "Rotate a log directory"\n'
    '[environment]\ncpus = 1\nmemory_mb = 512\nnetwork_mode = "no-network"\nworkdir = "/app"\n',
    "instruction.md": "Write /app/rotate.sh so that old logs are moved away.\n",
}


def errors(folder: Path) -> list[tuple[str, str]]:
    return [(issue.code, issue.path) for issue in load_package(folder).issues if issue.severity == "error"]


def test_a_native_package_answers_what_runs(make_package) -> None:
    folder: Path = make_package()
    package = load_package(folder)
    assert package.issues == ()
    assert package.valid
    view = package.view
    assert (view.entrypoint, view.name, view.mode, view.strategy) == (
        "task.md",
        "acme/rotate-logs",
        "single-shot",
        "script",
    )
    assert view.prompt == "Write /app/rotate.sh so that old logs are moved away."
    assert (view.verifier_dir, view.verifier_mount) == (folder / "verifier", "/verifier")
    assert (view.oracle_dir, view.oracle_mount) == (folder / "oracle", "/oracle")
    assert view.environment_dir == folder / "environment"
    assert view.digest == package.digest
    assert set(view.source_hashes) == set(package.files.files)


def test_the_dump_is_plain_and_complete(make_package) -> None:
    package = TaskPackage.from_task_dir(make_package(), sandbox="local")
    data = json.loads(json.dumps(package.to_dict()))
    assert data["entrypoint"] == "task.md"
    assert data["prompt_path"] == "task.md"
    assert (data["selected_verifier_dir"], data["selected_oracle_dir"]) == ("verifier", "oracle")
    assert data["verifier_document"]["selected_strategy"] == {"name": "exact", "type": "script"}
    assert (data["runtime_supported"], data["runtime_issues"]) == (True, [])
    assert data["prompt_plan"]["turns"][0]["parts"][0]["kind"] == "base"
    assert data["prompt_plan"]["user_runtime"]["status"] == "none"
    assert data["compatibility"] == {
        "has_task_md": True,
        "has_legacy_definition": False,
        "selected_entrypoint": "task.md",
        "uses_native_oracle_dir": True,
        "uses_native_verifier_dir": True,
        "has_legacy_solution_alias": False,
        "has_legacy_tests_alias": False,
    }
    assert data["config"]["environment"]["memory_mb"] == 512
    assert set(data["source_hashes"]) == set(package.files.files)


def test_a_split_package_gives_the_same_object(make_files) -> None:
    folder: Path = make_files(
        {**SPLIT, "tests/test.sh": "true", "solution/solve.sh": "true", "environment/Dockerfile": "FROM x"}
    )
    package = load_package(folder)
    assert package.valid
    assert package.entrypoint == "legacy"
    assert package.document is None
    assert package.name == "acme/rotate-logs"
    view = package.view
    assert (view.verifier_mount, view.oracle_mount) == ("/tests", "/solution")
    assert view.prompt.startswith("Write")
    assert view.prompt_plan.turns[0].prompt == view.prompt
    assert package.to_dict()["prompt_path"] == "instruction.md"


def test_unknown_keys_of_a_split_package_are_warnings_and_wrong_values_errors(make_files) -> None:
    folder = make_files({**SPLIT, "task.toml": SPLIT["task.toml"] + "cpuz = 2\n"})
    package = load_package(folder)
    assert package.valid
    assert ("unknown-key", "environment.cpuz", "task.toml") in [(i.code, i.path, i.file) for i in package.issues]
    wrong = make_files({**SPLIT, "task.toml": SPLIT["task.toml"].replace("512", '"many"')}, name="wrong")
    assert [(i.code, i.path, i.file) for i in load_package(wrong).issues if i.severity == "error"] == [
        ("invalid-type", "environment.memory_mb", "task.toml")
    ]


def test_steps_keep_their_own_prompt_and_folders(make_files) -> None:
    toml = SPLIT["task.toml"] + '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    folder: Path = make_files(
        {
            "task.toml": toml,
            "steps/one/instruction.md": "First.\n",
            "steps/one/tests/test.sh": "true",
            "steps/one/workdir/data": "x",
            "steps/two/instruction.md": "Second.\n",
            "steps/two/solution/solve.sh": "true",
        }
    )
    package = load_package(folder)
    assert package.valid
    first, second = package.view.steps
    assert (first.instruction, second.instruction) == ("First.", "Second.")
    assert first.verifier_dir == folder / "steps/one/tests"
    assert first.workdir_dir == folder / "steps/one/workdir"
    assert (first.oracle_dir, second.oracle_dir) == (None, folder / "steps/two/solution")


def test_an_empty_native_folder_is_selected_and_never_falls_back(make_package) -> None:
    folder: Path = make_package(
        {"tests/test.sh": "true", "solution/solve.sh": "true"},
        drop=("verifier/verifier.md", "verifier/test.sh", "oracle/solve.sh"),
    )
    (folder / "verifier").mkdir()
    (folder / "oracle").mkdir()
    package = load_package(folder)
    assert (package.verifier_dir, package.oracle_dir) == ("verifier", "oracle")
    assert errors(folder) == [("alias-drift", "verifier|tests"), ("alias-drift", "oracle|solution")]


def test_equal_alias_trees_are_accepted_and_drift_is_not(make_package) -> None:
    folder: Path = make_package({"solution/solve.sh": "true\n"})
    assert errors(folder) == []
    (folder / "solution" / "solve.sh").write_text("false\n")
    assert errors(folder) == [("alias-drift", "oracle|solution")]


def test_drift_is_an_error_without_a_task_md_too(make_files) -> None:
    folder = make_files({**SPLIT, "tests/test.sh": "1", "verifier/test.sh": "2"})
    assert errors(folder) == [("alias-drift", "verifier|tests")]


def test_a_split_twin_must_agree(make_package) -> None:
    assert errors(make_package(SPLIT, name="same")) == []
    other = make_package({**SPLIT, "task.toml": SPLIT["task.toml"].replace("512", "513")}, name="config")
    assert errors(other) == [("alias-drift", "task.md|task.toml")]
    prompt = make_package({**SPLIT, "instruction.md": "Something else."}, name="prompt")
    assert errors(prompt) == [("alias-drift", "task.md|instruction.md")]


@pytest.mark.parametrize("present", ["task.toml", "instruction.md"])
def test_half_a_split_twin_is_an_error(make_package, present: str) -> None:
    assert errors(make_package({present: SPLIT[present]})) == [("incomplete-split", f"task.md|{present}")]


def test_an_unreadable_twin_is_reported(make_package) -> None:
    assert ("invalid-toml", "") in errors(make_package({**SPLIT, "task.toml": "= ="}))


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"task.md": "---\ntask: {name: a/b}\nx: 1\n---\n"}, "a/b"),
        ({"task.md": "---\ntask: {name: not valid}\n---\n"}, "not valid"),
        ({"task.md": "---\nname: short\n---\n"}, "benchflow/short"),
        ({"task.md": "---\ntask: 3\n---\n"}, "pkg"),
        ({"task.md": "broken"}, "pkg"),
        ({"task.toml": "broken"}, "pkg"),
        ({"task.toml": ""}, "pkg"),
        ({"task.toml": '[task]\nname = "not valid"\n'}, "not valid"),
        ({}, "pkg"),
    ],
)
def test_the_name_is_read_whenever_it_can_be(make_files, files: dict[str, str], name: str) -> None:
    package = load_package(make_files(files))
    assert package.name == name
    assert package.digest.startswith("sha256:")


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_what_is_no_package_is_one_clear_issue(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "x"
    if kind == "file":
        folder.write_text("x")
    elif kind == "empty":
        folder.mkdir()
    package = load_package(folder)
    assert package.entrypoint is None
    assert package.document_issues[0].code == "not-a-package"
    with pytest.raises(PackageError):
        _ = package.view
    assert json.dumps(package.to_dict())


def test_files_where_folders_belong_are_errors(make_files) -> None:
    folder: Path = make_files({"task.md": "---\n---\nx", "verifier": "a file", "oracle": "a file"})
    (folder / "task.toml").mkdir()
    assert errors(folder) == [
        ("wrong-part", "oracle"),
        ("wrong-part", "task.toml"),
        ("wrong-part", "verifier"),
    ]


def test_sidecars_that_nothing_reads_are_warnings(make_package) -> None:
    folder = make_package({"prompts/notes.md": "x", "prompts/role.ghost.md": "y", "prompts/a/role.b.md": "z"})
    found = [(issue.code, issue.severity) for issue in load_package(folder).issues]
    assert found == [("unused-prompt", "warning")] * 3


def test_sidecars_that_are_no_text_are_errors(make_package) -> None:
    folder = make_package({"prompts/user-persona.md": b"\xff"})
    assert [(i.code, i.file) for i in load_package(folder).issues] == [("not-utf8", "prompts/user-persona.md")]


def test_unreadable_files_are_reported_by_name(make_package, monkeypatch) -> None:
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if str(path).endswith(("task.md", "solve.sh")):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, **kwargs)

    folder = make_package()
    monkeypatch.setattr(os, "open", refuse)
    package = load_package(folder)
    assert {("unreadable", "task.md"), ("unreadable", "oracle/solve.sh")} <= {(i.code, i.file) for i in package.issues}


def test_lines_of_the_document_can_be_asked_for(make_package) -> None:
    package = load_package(make_package())
    assert package.line("environment.cpus") == 4
    assert package.line("environment.nothing") == 4


def test_the_same_content_has_the_same_digest_wherever_it_lies(make_package) -> None:
    assert load_package(make_package(name="one")).digest == load_package(make_package(name="two")).digest


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "task.md",
                "task.toml",
                "instruction.md",
                "verifier/verifier.md",
                "verifier/task.toml",
                "tests/test.sh",
                "prompts/role.a.md",
                "prompts/user-persona.md",
                "environment.toml",
                "environment/Dockerfile",
                "oracle/x",
            ]
        ),
        st.binary(max_size=60)
        | st.sampled_from(
            [
                b"---\ntask: {name: a/b}\nbenchflow: {environment: {manifest: environment.toml}}\n---\nx",
                b"---\nverifier: {strategies: {s: {type: script, command: ./x}}}\n---\n",
                b'[environment]\nname = "x"\n',
                b'[task]\nname = "a/b"\n',
                b"---\nenvironment-profile: ../p.yaml\n---\n",
            ]
        ),
        max_size=6,
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_whatever_a_folder_holds_it_loads(tmp_path_factory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    package = TaskPackage.from_task_dir(folder, sandbox="local")
    assert json.dumps(package.to_dict())
    if not files.keys() & {"task.md", "task.toml"}:
        assert not package.valid


def test_dates_and_infinities_in_metadata_can_be_dumped(make_files) -> None:
    text = "---\nmetadata: {day: 2024-02-29, at: 2024-02-29T10:00:00Z, much: .inf, none: ~}\n---\nx\n"
    metadata = json.loads(json.dumps(load_package(make_files({"task.md": text})).to_dict()))["config"]["metadata"]
    assert metadata == {"day": "2024-02-29", "at": "2024-02-29T10:00:00+00:00", "much": "inf", "none": None}


def test_instructions_of_steps_must_be_text(make_files) -> None:
    files = {"task.md": "---\nsteps: [{name: one}]\n---\n", "steps/one/instruction.md": b"\xff"}
    issues = load_package(make_files(files)).layout_issues
    assert [(issue.code, issue.file) for issue in issues] == [("not-utf8", "steps/one/instruction.md")]


def test_reports_stay_bounded_whatever_is_written(make_files) -> None:
    keys = "".join(f"key{number}: 1\n" for number in range(3000))
    package = load_package(make_files({"task.md": f"---\n{keys}---\nx\n"}))
    assert len(package.issues) == 200
    assert package.issues[-1].code == "too-many-issues"
    package = load_package(make_files({"task.md": f"---\n? {'long' * 5000}\n: 1\n---\nx\n"}))
    assert len(package.issues[0].path) <= 500


def test_a_folder_named_by_a_dot_has_its_own_name(make_files, monkeypatch) -> None:
    folder: Path = make_files({"task.md": "---\n---\nx\n", "sub/file": ""})
    monkeypatch.chdir(folder / "sub")
    assert load_package("..").name == "pkg"
    monkeypatch.chdir(folder)
    assert load_package(".").name == "pkg"


def test_loading_twice_reports_the_same_in_the_same_order(make_files) -> None:
    text = "---\nenvironment: {gpus: 1, os: windows, workdir: x}\nzeta: 1\nuser: {tools: [a]}\n---\nx\n"
    folder = make_files({"task.md": text})
    first, second = (load_package(folder, sandbox="local").to_dict() for _ in range(2))
    assert first == second
    assert [issue["path"] for issue in first["runtime_issues"]] == [
        "environment.gpus",
        "environment.os",
        "environment.workdir",
        "user",
        "user.tools",
    ]


def test_oversized_texts_are_refused_unread(make_package) -> None:
    folder: Path = make_package()
    for name in ("task.md", "verifier/verifier.md"):
        with (folder / name).open("ab") as stream:
            stream.truncate(17 << 20)
    issues = load_package(folder).issues
    assert [(issue.code, issue.file) for issue in issues] == [
        ("too-large", "task.md"),
        ("too-large", "verifier/verifier.md"),
    ]


def test_unknown_keys_of_a_twin_are_shown(make_package) -> None:
    package = load_package(make_package({**SPLIT, "task.toml": 'runner = "x"\n' + SPLIT["task.toml"]}))
    found = [(issue.code, issue.severity, issue.path, issue.file, issue.line) for issue in package.issues]
    assert found == [("unknown-key", "warning", "runner", "task.toml", 1)]


def test_problems_of_a_projection_and_of_a_manifest_have_lines(make_package) -> None:
    text = "---\nbenchflow: {environment: {manifest: environment.toml}}\n---\nx\n"
    files = {
        "task.md": text,
        "environment.toml": '[environment]\nname = "desk"\nimage = "desk"\nimages = 1\n',
        "verifier/task.toml": '[verifier]\nname = "rotate"\nwho = 1\n'
        '[verifier.strategies.exact]\ntype = "script"\ncommand = "./test.sh"\n',
    }
    issues = load_package(make_package(files)).issues
    assert {(issue.code, issue.path, issue.file, issue.line) for issue in issues} == {
        ("unknown-key", "verifier.who", "verifier/task.toml", 3),
        ("unknown-key", "environment.images", "environment.toml", 4),
    }


STEPS = {
    "task.md": "---\ntask: {name: acme/steps}\nsteps: [{name: one}, {name: two}]\n---\n",
    "steps/one/instruction.md": b"\xef\xbb\xbfFirst.\r\nThen.\r\n",
    "steps/one/verifier/verifier.md": "---\nverifier:\n  strategies:\n    all: {type: script, command: all.sh}\n---\n",
    "steps/one/verifier/all.sh": "true\n",
    "steps/two/instruction.md": "Second.\n",
    "steps/two/verifier/test.sh": "true\n",
}


def test_a_step_may_have_a_verifier_document_of_its_own(make_files) -> None:
    package = load_package(make_files(STEPS))
    assert check_package(package) == ()
    one, two = package.view.steps
    assert one.instruction == "First.\nThen."
    assert one.verifier_document is not None
    assert (one.verifier_document.default_strategy, two.verifier_document) == ("all", None)


def test_the_verifier_document_of_a_step_is_judged(make_files) -> None:
    missing = {name: content for name, content in STEPS.items() if not name.endswith("all.sh")}
    issues = check_folder(make_files(missing)).issues
    file = "steps/one/verifier/verifier.md"
    assert [(issue.code, issue.path, issue.file, issue.line) for issue in issues] == [
        ("verifier-file-missing", "verifier.strategies.all.command", file, 4)
    ]
    broken = {**STEPS, file: "---\nverifier: {strategies: {all: {type: magic}}}\n---\n"}
    issues = check_folder(make_files(broken, name="broken")).issues
    assert ("unknown-strategy", file) in [(issue.code, issue.file) for issue in issues]


def test_a_verifier_profile_may_stand_in_for_the_document(make_package, tmp_path) -> None:
    (tmp_path / "tasks").mkdir(exist_ok=True)
    (tmp_path / "tasks/score.yaml").write_text("strategies: {all: {type: script, command: ./all.sh}}\n")
    text = "---\ntask: {name: acme/x}\nverifier-profile: ../score.yaml\n---\nx\n"
    drop = ("verifier/verifier.md", "verifier/test.sh")
    folder = make_package({"task.md": text, "verifier/all.sh": "true\n"}, drop=drop)
    assert check_folder(folder).issues == ()
    (folder / "verifier/all.sh").rename(folder / "verifier/other.sh")
    assert [(issue.code, issue.file) for issue in check_folder(folder).issues] == [
        ("verifier-file-missing", "../score.yaml")
    ]
