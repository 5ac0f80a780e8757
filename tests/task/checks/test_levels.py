"""What each level asks of a package, on real folders."""

import os
import shutil

import pytest

from benchflow.errors import UsageError
from benchflow.task import checks
from benchflow.task.checks import LEVELS, check_folder, check_package
from benchflow.task.package import load_package

VERIFIER_MD = """---
document_version: "0.3"
verifier:
  default_strategy: tests
  strategies:
    tests: {type: script, command: ./test.sh}
  rubric: {dimensions: {correctness: {weight: 1.0, source: tests}}, files: {human: rubrics/verifier.md}}
  outputs: {reward_json: /logs/verifier/reward.json}
---
"""
NATIVE = {
    "task.md": "---\ntask: {name: acme/a}\n---\nWrite /app/out.txt.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\n",
    "oracle/solve.sh": "true\n",
    "verifier/verifier.md": VERIFIER_MD,
    "verifier/test.sh": "true\n",
    "verifier/rubrics/verifier.md": "# Correctness\n",
}
SPLIT = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Write /app/out.txt.\n",
    "tests/test.sh": "true\n",
}
STEPS = {
    "task.toml": 'schema_version = "1.3"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
    "steps/one/instruction.md": "First.\n",
    "steps/one/tests/test.sh": "true\n",
    "steps/two/instruction.md": "Then.\n",
    "steps/two/tests/test.sh": "true\n",
}


@pytest.fixture
def found(tmp_path):
    """Write files, leaving out those that are None, and give back code and path of each error at a level."""

    def check(base, changes=None, *, level="structural", sandbox=None):
        folder = tmp_path / "package"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in {**base, **(changes or {})}.items():
            if text is None:
                continue
            path = folder / name
            if name.endswith("/"):
                path.mkdir(parents=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        report = check_folder(folder, level=level, sandbox=sandbox)
        return [(issue.code, issue.path) for issue in report.issues if issue.severity == "error"]

    return check


@pytest.mark.parametrize("base", [NATIVE, SPLIT, STEPS])
def test_complete_packages_pass(found, base):
    assert found(base) == []


def test_native_packages_can_be_published(found):
    assert found(NATIVE, level="publication-grade") == []


def test_schema_judges_the_definition_alone(found):
    assert found({"task.md": NATIVE["task.md"]}, level="schema") == []
    assert found({"task.toml": 'version = "1.0"\n', "instruction.md": "Do it.\n"}, level="schema") == []
    assert found({"task.toml": STEPS["task.toml"]}, level="schema") == []


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (NATIVE, {"task.md": "---\ntask: {name: acme/a}\n---\n\n"}, ("empty-prompt", "prompt")),
        (NATIVE, {"task.md": "---\ntask: {name: acme/a}\n---\n[REPLACE: it]\n"}, ("marker-left", "")),
        (NATIVE, {"task.md": "no frontmatter"}, ("missing-frontmatter", "")),
        (NATIVE, {"task.md": "---\ncpus: 1\n---\nx"}, ("unknown-key", "cpus")),
        (NATIVE, {"prompts/user-persona.md": "[REPLACE: who]"}, ("marker-left", "")),
        (SPLIT, {"instruction.md": None}, ("missing-file", "")),
        (SPLIT, {"instruction.md": " \n"}, ("empty-prompt", "")),
        (SPLIT, {"instruction.md": "[REPLACE: it]"}, ("marker-left", "")),
        (SPLIT, {"task.toml": "["}, ("invalid-toml", "")),
        (SPLIT, {"task.toml": "[agent]\ntimeout_sec = -1\n"}, ("invalid-value", "agent.timeout_sec")),
    ],
)
def test_a_broken_definition_fails_at_every_level(found, base, changes, expected):
    for level in LEVELS:
        sandbox = "docker" if level == "runtime-capability" else None
        assert expected in found(base, changes, level=level, sandbox=sandbox)


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (
            NATIVE,
            {"verifier/test.sh": None},
            [("verifier-file-missing", "verifier.strategies.tests.command")],
        ),
        (NATIVE, {"verifier/test.sh": "# [REPLACE: it]"}, [("marker-left", "")]),
        (NATIVE, {"oracle/solve.sh": "# [REPLACE: it]"}, [("marker-left", "")]),
        (NATIVE, {"environment/Dockerfile": "# [REPLACE: it]"}, [("marker-left", "")]),
        (NATIVE, {"tests/test.sh": "true\n"}, [("alias-drift", "verifier|tests")]),
        (NATIVE, {"solution/solve.sh": "false\n"}, [("alias-drift", "oracle|solution")]),
        (SPLIT, {"tests/test.sh": None}, [("verifier-missing", "verifier")]),
        (SPLIT, {"tests/test.sh": None, "tests/": ""}, [("verifier-empty", "tests")]),
        (SPLIT, {"tests/test.sh": None, "tests/readme": "x"}, [("verifier-entrypoint-missing", "tests")]),
        (SPLIT, {"verifier/": ""}, [("alias-drift", "verifier|tests"), ("verifier-empty", "verifier")]),
        (STEPS, {"steps/two/instruction.md": None}, [("step-incomplete", "steps[1]")]),
        (STEPS, {"steps/two/tests/test.sh": None}, [("verifier-missing", "steps/two/verifier")]),
        (
            STEPS,
            {"steps/two/instruction.md": None, "steps/two/tests/test.sh": None},
            [("step-incomplete", "steps[1].name")],
        ),
    ],
)
def test_an_incomplete_package_fails_structurally_and_passes_the_schema(found, base, changes, expected):
    assert found(base, changes) == expected
    assert found(base, changes, level="schema") == []


def test_steps_may_share_the_verifier_of_the_package(found):
    shared = {"steps/one/tests/test.sh": None, "steps/two/tests/test.sh": None, "tests/test.sh": "true\n"}
    assert found(STEPS, shared) == []


def test_a_judge_needs_its_rubric_and_no_script(found):
    toml = '[verifier]\ntype = "llm-judge"\n[verifier.judge]\nrubric_path = "tests/rubric.toml"\n'
    changes = {"task.toml": toml, "tests/test.sh": None, "tests/rubric.toml": ""}
    assert found(SPLIT, changes) == []
    assert found(SPLIT, {**changes, "tests/rubric.toml": None, "tests/readme": ""}) == [
        ("verifier-entrypoint-missing", "tests")
    ]


def test_steps_with_their_own_verifiers_may_share_files_that_score_nothing(found):
    assert found(STEPS, {"tests/helpers.sh": "true\n"}) == []
    lacking = {"tests/helpers.sh": "true\n", "steps/two/tests/test.sh": None}
    assert found(STEPS, lacking) == [("verifier-entrypoint-missing", "tests")]


def test_a_separate_verifier_image_may_bring_its_own_entry_point(found):
    changes = {
        "task.toml": '[verifier]\nenvironment_mode = "separate"\n',
        "tests/test.sh": None,
        "tests/Dockerfile": "FROM debian:bookworm-slim\n",
    }
    assert found(SPLIT, changes) == []


def test_any_environment_is_structurally_valid(found):
    image = "---\ntask: {name: acme/a}\nenvironment: {docker_image: 'debian:12'}\n---\nDo it.\n"
    assert found(NATIVE, {"environment/Dockerfile": None}) == []
    assert found(NATIVE, {"environment/Dockerfile": None, "task.md": image}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"oracle/solve.sh": None}, ("oracle-missing", "oracle")),
        ({"solution/solve.sh": "true\n"}, ("legacy-file", "solution")),
        ({"instruction.md": "Write /app/out.txt.\n"}, ("legacy-file", "instruction.md")),
        ({"verifier/verifier.md": None}, ("verifier-document-missing", "verifier")),
        ({"verifier/rubrics/verifier.md": None}, ("rubric-missing", "verifier/rubrics")),
        (
            {
                "verifier/verifier.md": VERIFIER_MD.replace(
                    "dimensions: {correctness: {weight: 1.0, source: tests}}, ", ""
                )
            },
            ("rubric-missing", "verifier.rubric.dimensions"),
        ),
        (
            {"verifier/verifier.md": VERIFIER_MD.replace("outputs: {reward_json", "outputs: {reward_text")},
            ("reward-json-undeclared", "verifier.outputs.reward_json"),
        ),
    ],
)
def test_publication_asks_for_native_parts_oracle_and_rubric(found, changes, expected):
    assert expected in found(NATIVE, changes, level="publication-grade")


def test_split_packages_cannot_be_published(found):
    errors = found(SPLIT, level="publication-grade")
    assert {code for code, _ in errors} == {"not-native", "legacy-file", "oracle-missing", "verifier-missing"}


def test_a_report_written_elsewhere_is_a_warning(tmp_path, found):
    found(NATIVE, {"verifier/test.sh": "# --ctrf /x\npytest --ctrf /tmp/ctrf.json\npytest --ctrf $OUT\n"})
    report = check_folder(tmp_path / "package")
    assert [(issue.code, issue.severity, issue.line) for issue in report.issues] == [("report-path", "warning", 2)]
    assert report.valid


@pytest.mark.parametrize(
    ("base", "changes", "warned"),
    [
        (SPLIT, {}, True),
        (SPLIT, {"solution/solve.sh": "true\n"}, False),
        (SPLIT, {"task.toml": '[verifier]\nenvironment_mode = "separate"\n'}, False),
        (STEPS, {"steps/one/solution/solve.sh": "true\n"}, True),
        (STEPS, {"steps/one/solution/solve.sh": "true\n", "steps/two/solution/solve.sh": "true\n"}, False),
        (STEPS, {"solution/solve.sh": "true\n"}, False),
        (NATIVE, {"oracle/solve.sh": None}, False),
    ],
)
def test_an_isolation_that_nothing_can_prove_is_a_warning(tmp_path, found, base, changes, warned):
    assert found(base, changes) == []
    issues = check_folder(tmp_path / "package").issues
    assert [(issue.code, issue.severity) for issue in issues] == [("proof-no-oracle", "warning")] * warned


def test_issues_found_after_loading_have_lines_and_appear_once(found, tmp_path):
    found(NATIVE, {"verifier/test.sh": None})
    report = check_folder(tmp_path / "package", level="publication-grade")
    assert [(issue.code, issue.file, issue.line) for issue in report.issues] == [
        ("verifier-file-missing", "verifier/verifier.md", 6)
    ]


def test_wrong_usage_is_an_error_not_an_issue(found, tmp_path):
    found(NATIVE)
    package = load_package(tmp_path / "package")
    for options in ({"level": "nope"}, {"level": "runtime-capability"}, {"sandbox": "nope"}):
        with pytest.raises(UsageError):
            check_package(package, **options)


def test_a_defect_in_a_check_costs_one_package_its_verdict(found, tmp_path, monkeypatch):
    found(NATIVE)

    def broken(_package):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(checks, "LEVELS", {"structural": (broken,)})
    report = check_folder(tmp_path / "package")
    assert not report.valid
    assert [issue.code for issue in report.issues] == ["check-failed"]


def test_whatever_a_folder_holds_there_is_a_report(tmp_path):
    assert [issue.code for issue in check_folder(tmp_path / "missing").issues][:1] == ["not-a-package"]
    os.mkfifo(tmp_path / "pipe")
    assert not check_folder(tmp_path / "pipe").valid


@pytest.mark.parametrize("place", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/hostname")])
def test_what_stands_in_the_place_of_the_definition_is_not_called_missing(tmp_path, place):
    place(tmp_path / "task.md")
    first = check_folder(tmp_path).issues[0]
    assert first.code == "not-a-package"
    assert first.message == "task.md is not a readable file, so the task has no definition"


def test_a_long_marker_is_shown_short(make_files):
    folder = make_files({**NATIVE, "oracle/solve.sh": f"# [REPLACE: {'word ' * 40}]\n"})
    (issue,) = check_folder(folder).issues
    assert issue.message.endswith("word word…")
