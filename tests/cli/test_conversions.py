"""`bench tasks migrate`, `export`, `roundtrip` and `normalize`."""

import json
import tomllib

import pytest

from benchflow.task.document.task_document import TaskDocument

PRESET_TASK = """---
preset: code-change
task: {name: acme/a}
---
Refactor the parser.
"""


def test_migrate_writes_task_md_and_keeps_the_split_files(invoke, make_split):
    folder = make_split()
    code, out, err = invoke("tasks", "migrate", "split/a")
    assert (code, err) == (0, "")
    assert "migrated split/a" in out
    assert TaskDocument.from_path(folder).instruction == "Write /app/out.txt."
    assert (folder / "task.toml").exists()
    assert invoke("tasks", "check", "split")[0] == 0


def test_migrate_can_remove_the_split_files(invoke, make_split):
    folder = make_split()
    assert invoke("tasks", "migrate", "split/a", "--remove-legacy")[0] == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"task.md", "environment", "verifier", "oracle"}


def test_a_folder_is_migrated_and_native_packages_are_skipped(invoke, make_split, make_package):
    make_split("all/a")
    make_package("all/b")
    make_split("all/c", **{"task.toml": "not toml ["})
    code, out, _ = invoke("tasks", "migrate", "all", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["summary"] == {"total": 3, "migrated": 1, "skipped": 1, "failed": 1}
    assert [(task["path"], task["status"]) for task in document["tasks"]] == [
        ("all/a", "migrated"),
        ("all/b", "skipped"),
        ("all/c", "failed"),
    ]
    assert [issue["code"] for issue in document["tasks"][2]["issues"]] == ["invalid-toml"]


def test_a_native_package_named_as_path_ends_with_1(invoke, make_package, snapshot, tmp_path):
    make_package()
    before = snapshot(tmp_path)
    for command in ("migrate", "roundtrip"):
        code, out, _ = invoke("tasks", command, "tasks/a", "--json")
        assert code == 1
        assert json.loads(out)["summary"]["failed"] == 1
        code, out, _ = invoke("tasks", command, "tasks", "--json")
        assert code == 0
        assert json.loads(out)["summary"]["skipped"] == 1
    assert snapshot(tmp_path) == before


def test_terminal_bench_folders_are_migrated_too(invoke, tmp_path):
    folder = tmp_path / "tb"
    folder.mkdir()
    (folder / "task.yaml").write_text("instruction: Say hello.\nauthor_email: a@example.org\n")
    (folder / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    (folder / "solution.sh").write_text("echo hello\n")
    (folder / "run-tests.sh").write_text("true\n")
    (folder / "tests").mkdir()
    (folder / "tests/test_outputs.py").write_text("def test_it():\n    pass\n")
    assert invoke("tasks", "check", "tb")[0] == 2
    code, out, _ = invoke("tasks", "migrate", "tb")
    assert code == 0, out
    assert (folder / "task.md").exists()


def test_export_writes_the_split_layout_and_says_what_is_lost(invoke, make_package, tmp_path):
    make_package()
    code, out, err = invoke("tasks", "export", "tasks/a", "out")
    assert (code, err) == (0, "")
    assert "Exported tasks/a to out" in out
    assert tomllib.loads((tmp_path / "out/task.toml").read_text())["task"]["name"] == "acme/a"
    assert (tmp_path / "out/tests/test.sh").exists()
    assert (tmp_path / "out/solution/solve.sh").exists()


def test_export_as_data(invoke, make_package):
    make_package()
    code, out, _ = invoke("tasks", "export", "tasks/a", "out", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["summary"]["total"] == 1
    report = document["reports"][0]
    assert (report["path"], report["output"], report["target"]) == ("tasks/a", "out", "harbor")
    assert report["status"] in ("lossless", "degraded")
    assert "task.toml" in report["emitted_files"]


def test_report_only_writes_nothing(invoke, make_package, snapshot, tmp_path):
    make_package()
    before = snapshot(tmp_path)
    for arguments in (("tasks/a",), ("tasks/a", "out"), ("tasks",)):
        code, out, _ = invoke("tasks", "export", *arguments, "--report-only", "--json")
        assert code == 0
        assert json.loads(out)["reports"][0]["emitted_files"] == []
    assert snapshot(tmp_path) == before


def test_a_folder_of_packages_is_exported_below_the_output(invoke, make_package, tmp_path):
    make_package("tasks/a")
    make_package("tasks/deep/b")
    make_package("tasks/c", **{"task.md": "broken"})
    code, out, _ = invoke("tasks", "export", "tasks", "out", "--json")
    assert code == 1
    assert json.loads(out)["summary"]["failed"] == 1
    assert (tmp_path / "out/a/task.toml").exists()
    assert (tmp_path / "out/deep/b/task.toml").exists()
    assert not (tmp_path / "out/c").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("tasks/a",),
        ("tasks/a", "full"),
        ("tasks/a", "tasks/a"),
        ("tasks/a", "tasks/a/inside"),
        ("tasks/a", "tasks"),
        ("tasks", "tasks/new"),
        ("tasks", "full"),
        ("tasks/a", "out", "--target", "nope"),
        ("missing", "out"),
    ],
)
def test_a_refused_export_changes_nothing(invoke, make_package, snapshot, tmp_path, arguments):
    make_package()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/keep").write_text("mine")
    before = snapshot(tmp_path)
    code, out, err = invoke("tasks", "export", *arguments, "--json")
    assert (code, out) == (2, "")
    assert err
    assert snapshot(tmp_path) == before


def test_overwrite_replaces_the_output_as_a_whole(invoke, make_package, tmp_path):
    make_package()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_text("old")
    assert invoke("tasks", "export", "tasks/a", "out", "--overwrite")[0] == 0
    assert not (tmp_path / "out/old").exists()


def test_an_alias_collision_is_refused(invoke, make_package, tmp_path):
    make_package(**{"tests/test.sh": "other"})
    code, out, _ = invoke("tasks", "export", "tasks/a", "out", "--json")
    assert code == 1
    assert [issue["path"] for issue in json.loads(out)["reports"][0]["issues"]] == ["verifier|tests"]
    assert not (tmp_path / "out").exists()
    code, out, _ = invoke("tasks", "export", "tasks/a", "--report-only", "--json")
    assert code == 1
    assert json.loads(out)["reports"][0]["alias_collisions"] == ["verifier|tests"]


def test_roundtrip_reports_each_package_and_changes_nothing(invoke, make_split, make_package, snapshot, tmp_path):
    make_split("all/a")
    make_package("all/b")
    make_split("all/c", **{"task.toml": "["})
    before = snapshot(tmp_path)
    code, out, _ = invoke("tasks", "roundtrip", "all", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["summary"] == {"total": 3, "lossless": 1, "drift": 0, "skipped": 1, "failed": 1}
    assert [report["path"] for report in document["reports"]] == ["all/a", "all/b", "all/c"]
    assert document["reports"][0]["config_equal"] is True
    assert snapshot(tmp_path) == before
    assert "lossless all/a" in invoke("tasks", "roundtrip", "all/a")[1]


def test_normalize_prints_what_a_preset_stands_for(invoke, make_package, snapshot, tmp_path):
    make_package(**{"task.md": PRESET_TASK})
    before = snapshot(tmp_path)
    code, out, err = invoke("tasks", "normalize", "tasks/a")
    assert (code, err) == (0, "")
    assert "preset" not in out
    assert TaskDocument.from_text(out).config.environment.workdir == "/repo"
    assert snapshot(tmp_path) == before


def test_normalize_writes_in_place_or_to_a_new_file(invoke, make_package, tmp_path):
    folder = make_package(**{"task.md": PRESET_TASK})
    printed = invoke("tasks", "normalize", "tasks/a")[1]
    assert invoke("tasks", "normalize", "tasks/a", "-o", "new.md")[0] == 0
    assert (tmp_path / "new.md").read_text().strip() == printed.strip()
    code, out, _ = invoke("tasks", "normalize", "tasks/a", "--write", "--json")
    assert code == 0
    assert json.loads(out)["written"] == ["tasks/a/task.md"]
    assert TaskDocument.from_path(folder).presets == ()
    again = (folder / "task.md").read_text()
    assert invoke("tasks", "normalize", "tasks/a", "--write")[0] == 0
    assert (folder / "task.md").read_text() == again


@pytest.mark.parametrize(
    "arguments", [("tasks",), ("missing",), ("tasks/a", "-o", "exists"), ("tasks/a", "--write", "-o", "new")]
)
def test_a_refused_normalize_changes_nothing(invoke, make_package, snapshot, tmp_path, arguments):
    make_package()
    (tmp_path / "exists").write_text("mine")
    before = snapshot(tmp_path)
    code, out, err = invoke("tasks", "normalize", *arguments)
    assert (code, out) == (2, "")
    assert err
    assert snapshot(tmp_path) == before


def test_an_invalid_document_is_not_normalized(invoke, make_package, make_split):
    make_package(**{"task.md": "---\nnope: 1\n---\nx\n"})
    make_split()
    code, out, err = invoke("tasks", "normalize", "tasks/a")
    assert (code, out) == (1, "")
    assert "[unknown-key]" in err
    code, out, _ = invoke("tasks", "normalize", "split/a", "--json")
    assert code == 1
    assert [issue["code"] for issue in json.loads(out)["issues"]] == ["not-native"]


def test_normalize_names_the_file_and_line_it_cannot_read(invoke, make_package):
    folder = make_package()
    (folder / "task.md").write_bytes(b"---\n\xff\xfe\n---\n")
    code, _, err = invoke("tasks", "normalize", "tasks/a")
    assert code == 1
    assert err == "tasks/a/task.md:2: error: task.md is not UTF-8 text [not-utf8]\n"


def test_findings_in_many_packages_are_grouped(invoke, make_split):
    for number in range(40):
        make_split(f"many/{number:02}", **({"task.toml": "not toml ["} if number == 7 else {}))
    code, out, _ = invoke("tasks", "roundtrip", "many")
    assert code == 1
    assert out.startswith("error invalid-toml: 1 package\n     many/07/task.toml:1: task.toml is not valid TOML")
    assert out.splitlines()[-1] == "40 packages: 39 lossless, 0 drift, 0 skipped, 1 failed"
    assert "many/08" not in out
    document = json.loads(invoke("tasks", "roundtrip", "many", "--json")[1])
    assert (len(document["reports"]), document["summary"]["lossless"]) == (40, 39)


def test_a_defect_of_a_conversion_does_not_stop_the_others(invoke, make_split, monkeypatch):
    from benchflow.task.interop import migration

    def broken(folder, **_options):
        raise RecursionError(f"too deep: {folder.name}")

    make_split("all/a")
    make_split("all/b")
    monkeypatch.setattr(migration, "migrate_task_to_task_md", broken)
    code, out, _ = invoke("tasks", "migrate", "all", "--json")
    assert code == 1
    issues = [issue for task in json.loads(out)["tasks"] for issue in task["issues"]]
    assert [(issue["code"], issue["message"]) for issue in issues] == [
        ("internal-error", "unexpected RecursionError: too deep: a"),
        ("internal-error", "unexpected RecursionError: too deep: b"),
    ]


def test_an_export_that_harbor_cannot_run_is_reported_as_refused(invoke, make_package):
    make_package(**{"task.md": "---\ntask: {name: a/b}\nverifier: {type: llm-judge}\n---\nDo it.\n"})
    code, out, _ = invoke("tasks", "export", "tasks/a", "out")
    assert code == 1
    assert "Exported tasks/a to out: the target refuses it" in out
    assert "refusal: verifier: Harbor cannot run the llm-judge verifier" in out
