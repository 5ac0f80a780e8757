"""Terminal-Bench 1 folders become packages that check, prompt and score the same."""

import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.task.interop.migration import migrate_task_to_task_md
from benchflow.task.interop.terminal_bench import is_terminal_bench, read_terminal_bench
from benchflow.task.interop.terminal_bench_compose import reduce_compose
from benchflow.task.package import load_package


def frontmatter(folder):
    return yaml.safe_load((folder / "task.md").read_text().split("---\n")[1])


def test_a_folder_becomes_a_package_beside_what_is_there(terminal_bench, look):
    before = look(terminal_bench)
    result = migrate_task_to_task_md(terminal_bench)
    after = look(terminal_bench)
    package = load_package(terminal_bench)
    assert package.valid, package.issues
    assert package.instruction == "Create hello.txt.\n\n## role:agent"
    assert {path: after[path] for path in before} == before
    assert result.source == "terminal-bench"
    assert set(result.created) == {
        "task.md",
        "environment/Dockerfile",
        "environment/data/in.txt",
        "solution/solve.sh",
        "tests/run-tests.sh",
        "tests/test.sh",
    }
    assert result.issues == ()


def test_the_frontmatter_holds_what_task_yaml_said(terminal_bench):
    migrate_task_to_task_md(terminal_bench)
    assert frontmatter(terminal_bench) == {
        "schema_version": "1.3",
        "task": {"name": "terminal-bench/hello", "authors": [{"name": "Ann", "email": "ann@example.org"}]},
        "metadata": {"difficulty": "easy", "category": "files", "tags": ["files"]},
        "agent": {"timeout_sec": 360.0},
        "verifier": {
            "timeout_sec": 60.0,
            "isolation": "auto",
        },
        "environment": {"env": {"MODE": "fast"}},
    }


def test_the_old_files_vanish_when_asked(terminal_bench, look):
    migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert {path for path, (kind, _) in look(terminal_bench).items() if kind != "folder"} == {
        "task.md",
        "environment/Dockerfile",
        "environment/data/in.txt",
        "oracle/solve.sh",
        "verifier/run-tests.sh",
        "verifier/test.sh",
        "verifier/test_outputs.py",
    }
    assert load_package(terminal_bench).valid
    assert not (terminal_bench / "data").exists()


SUMMARY = "echo '=== short test summary info ==='"


@pytest.mark.parametrize(
    ("script", "reward", "code"),
    [
        (f"{SUMMARY}; echo PASSED a.py::one; echo SKIPPED [1] a.py:3: later; exit 0", "1", 0),
        (f"{SUMMARY}; echo 'PASSED a::x[1 - 2]'; echo 'XFAIL a::y - why'; exit 1", "1", 0),
        (f"{SUMMARY}; echo PASSED a::one; echo 'FAILED a::two - assert 1 - 2 == 3'; exit 1", "0", 0),
        (f"{SUMMARY}; echo PASSED a::one; echo 'ERROR a.py - no such module'; exit 0", "0", 0),
        (f"{SUMMARY}; echo FAILED a::one; echo PASSED a::one; exit 0", "1", 0),
        (f"{SUMMARY}; echo SKIPPED [1] a.py:3: later; exit 0", "0", 0),
        (f"{SUMMARY}; printf '\\e[32mPASSED\\e[0m a::one\\r\\n'; exit 0", "1", 0),
        ("echo PASSED a::one; exit 1", "0", 0),
        ("exit 2", "0", 0),
        ("echo PASSED a::one; exit 0", None, 1),
        ("exit 127", None, 127),
        ("exit 5", None, 5),
    ],
)
def test_the_reward_says_what_the_tests_said_and_nothing_when_they_did_not_run(
    terminal_bench, tmp_path, script, reward, code
):
    (terminal_bench / "run-tests.sh").write_text(
        f'#!/bin/bash\ntest -f "$TEST_DIR/test_outputs.py" || exit 9\n{script}\n'
    )
    migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert scored(terminal_bench / "verifier/test.sh", tmp_path) == (code, reward)


def scored(test_sh, folder):
    """Run a script outside of a sandbox: its exit code and the reward."""
    test_sh.write_text(test_sh.read_text().replace("/logs/verifier", str(folder / "logs")))
    done = subprocess.run([test_sh], check=False, cwd=folder, capture_output=True)
    written = folder / "logs/reward.txt"
    return done.returncode, written.read_text().strip() if written.exists() else None


@pytest.mark.parametrize(
    ("lines", "reward"),
    [
        (("starts", "PASSED", "ends"), "1"),
        (("starts", "FAILED", "ends"), "0"),
        (("starts", "PASSED", "ends", "starts", "FAILED", "ends"), "0"),
        (("ends", "starts", "PASSED"), None),
        (("PASSED",), None),
    ],
)
def test_a_forged_block_of_results_does_not_replace_the_real_one(terminal_bench, tree, tmp_path, lines, reward):
    marker = {"starts": "SWEBench results starts here", "ends": "SWEBench results ends here"}
    script = "\n".join(f"echo '{marker.get(line, line)}'" for line in lines)
    tree(terminal_bench, {"task.yaml": "instruction: x\nparser_name: swebench\n", "run-tests.sh": script})
    migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert scored(terminal_bench / "verifier/test.sh", tmp_path)[1] == reward


def test_a_second_test_script_among_the_tests_is_kept_and_the_first_one_runs(terminal_bench, tree, tmp_path):
    first = f"{SUMMARY}\necho PASSED a::first\nbash $TEST_DIR/run-tests.sh\n"
    tree(terminal_bench, {"run-tests.sh": first, "tests/run-tests.sh": "echo FAILED a::second\n"})
    result = migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert "two-test-scripts" in {issue.code for issue in result.issues}
    assert (terminal_bench / "verifier/run-tests-of-task.sh").read_text() == first
    assert scored(terminal_bench / "verifier/test.sh", tmp_path) == (0, "0")
    assert load_package(terminal_bench).valid


def test_hidden_files_are_in_the_build_context_only_where_the_dockerfile_names_them(terminal_bench, tree):
    dockerfile = 'FROM x\nCOPY . /app\nCOPY --chown=a \\\n  tests/ /t/\nADD ["./solution.sh", "/s"]\n'
    tree(terminal_bench, {"Dockerfile": dockerfile})
    result = migrate_task_to_task_md(terminal_bench)
    shown = {path for path in result.created if path.startswith("environment/")}
    assert shown == {
        "environment/Dockerfile",
        "environment/data/in.txt",
        "environment/solution.sh",
        "environment/tests/test_outputs.py",
    }
    (issue,) = result.issues
    assert (issue.code, issue.file) == ("hidden-files-in-image", "Dockerfile")
    assert "solution.sh, tests" in issue.message


def test_a_shell_shared_with_the_agent_is_reported(terminal_bench, tree):
    tree(terminal_bench, {"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"})
    task = read_terminal_bench(terminal_bench)
    assert [issue.code for issue in task.issues] == ["own-shell"]
    assert task.extra == {}


def test_a_task_yaml_of_another_format_is_refused_as_such(terminal_bench, tree):
    tree(terminal_bench, {"task.yaml": "repo: a/b\nimage: x\n"})
    with pytest.raises(PackageError, match="not a Terminal-Bench definition"):
        read_terminal_bench(terminal_bench)


@pytest.mark.parametrize(
    ("service", "environment"),
    [
        ({"deploy": {"resources": {"limits": {"cpus": "1", "memory": "2G"}}}}, {"cpus": 1, "memory_mb": 2048}),
        ({"working_dir": "/app", "tty": True, "container_name": "${NAME}"}, {"workdir": "/app"}),
        ({"deploy": {"resources": {"limits": {"cpus": "0.5", "pids": 4}}}}, None),
        ({"deploy": {"resources": {"limits": {"cpus": "1"}, "reservations": {}}}}, None),
        ({"working_dir": "app"}, None),
        ({"volumes": ["./:/app"]}, None),
    ],
)
def test_what_the_environment_can_say_needs_no_compose_file(service, environment):
    reading = reduce_compose({"services": {"client": service}})
    assert (reading.compose is None) == (environment is not None)
    if environment is not None:
        assert reading.environment == environment


def test_unknown_keys_are_preserved_with_a_warning(terminal_bench):
    with (terminal_bench / "task.yaml").open("a") as stream:
        stream.write("run_on: moon\n")
    result = migrate_task_to_task_md(terminal_bench)
    assert frontmatter(terminal_bench)["benchflow"]["compat"] == {
        "source": "terminal-bench",
        "extra_paths": ["run_on"],
        "extra": {"run_on": "moon"},
    }
    assert [(issue.code, issue.path, issue.file, issue.line) for issue in result.issues] == [
        ("unknown-key", "run_on", "task.yaml", 15)
    ]
    assert load_package(terminal_bench).valid


def test_a_compose_file_with_more_than_the_usual_is_kept(terminal_bench, tree):
    compose = yaml.safe_load((terminal_bench / "docker-compose.yaml").read_text())
    compose["services"]["client"]["depends_on"] = ["db"]
    compose["services"]["db"] = {
        "image": "postgres:16",
        "depends_on": {"client": {"condition": "service_started"}},
        "volumes": ["${T_BENCH_TASK_LOGS_PATH}:/l", "data:/d"],
        "environment": {"D": "${T_BENCH_TEST_DIR}", "E": "${T_BENCH_OTHER}"},
    }
    compose["volumes"] = {"data": None}
    tree(terminal_bench, {"docker-compose.yaml": yaml.safe_dump(compose)})
    result = migrate_task_to_task_md(terminal_bench)
    kept = yaml.safe_load((terminal_bench / "environment/docker-compose.yaml").read_text())
    assert kept == {
        "volumes": {"data": None},
        "services": {
            "main": {"build": {"dockerfile": "Dockerfile"}, "depends_on": ["db"]},
            "db": {
                "image": "postgres:16",
                "depends_on": {"main": {"condition": "service_started"}},
                "volumes": ["data:/d"],
                "environment": {"D": "/tests", "E": "${T_BENCH_OTHER}"},
            },
        },
    }
    assert "unresolved-variable" in {issue.code for issue in result.issues}


def test_commands_of_a_solution_yaml_become_a_script(terminal_bench, tree):
    (terminal_bench / "solution.sh").unlink()
    tree(terminal_bench, {"solution.yaml": "- command: echo one\n  min_timeout_sec: 1\n- echo two\n"})
    migrate_task_to_task_md(terminal_bench)
    script = terminal_bench / "solution/solve.sh"
    assert subprocess.run([script], check=True, capture_output=True, text=True).stdout == "one\ntwo\n"


def test_key_presses_of_a_solution_yaml_are_kept_and_reported(terminal_bench, tree):
    (terminal_bench / "solution.sh").unlink()
    tree(terminal_bench, {"solution.yaml": "- {command: ':wq', append_enter: false}\n"})
    result = migrate_task_to_task_md(terminal_bench)
    assert not (terminal_bench / "solution/solve.sh").exists()
    assert (terminal_bench / "solution/solution.yaml").exists()
    assert "oracle-not-converted" in {issue.code for issue in result.issues}


def test_the_base_description_of_early_tasks_is_the_prompt(terminal_bench, tree):
    text = "descriptions:\n- {key: base, description: Base.}\n- {key: hard, description: Hard.}\n"
    tree(terminal_bench, {"task.yaml": text})
    task = read_terminal_bench(terminal_bench)
    assert task.instruction == "Base."
    assert task.extra == {"descriptions": [{"key": "hard", "description": "Hard."}]}


def test_scripts_of_the_harness_that_are_missing_are_reported(terminal_bench, tree):
    tree(
        terminal_bench,
        {
            "run-tests.sh": "source $TEST_DIR/setup-uv-pytest.sh\nbash ${TEST_DIR}/run.sh\n",
            "tests/run.sh": "",
        },
    )
    issues = read_terminal_bench(terminal_bench).issues
    assert [issue.message.split()[2].rstrip(",") for issue in issues] == ["setup-uv-pytest.sh"]


@pytest.mark.parametrize(
    ("files", "file", "line"),
    [
        ({"task.yaml": "instruction: x\nparser_name: unittest\n"}, "task.yaml", 2),
        ({"task.yaml": "instruction: x\nparser_name: long_cli\n"}, "task.yaml", 2),
        ({"task.yaml": "instruction: x\nparser_name: long_cli\nparser_results_p2p: xml\n"}, "task.yaml", 3),
        ({"task.yaml": "a: 1\ninstruction: ' '\n"}, "task.yaml", 2),
        ({"task.yaml": "instruction: x\n\nmax_agent_timeout_sec: -1\n"}, "task.yaml", 3),
        ({"task.yaml": "- x\n"}, "task.yaml", 1),
        ({"task.yaml": "a: [\n"}, "task.yaml", 2),
        ({"task.yaml": b"\xff"}, "task.yaml", 1),
        ({"docker-compose.yaml": "services: {}\n"}, "docker-compose.yaml", None),
        ({"docker-compose.yaml": "services: {a: {}, b: {}}\n"}, "docker-compose.yaml", None),
        ({"environment/x": ""}, "environment", None),
        ({"tests/test.sh": ""}, "tests/test.sh", None),
        ({"run-tests.sh": None}, "run-tests.sh", None),
    ],
)
def test_a_refused_folder_is_left_as_it_was(terminal_bench, tree, look, files, file, line):
    for name, content in files.items():
        if content is None:
            (terminal_bench / name).unlink()
        else:
            tree(terminal_bench, {name: content})
    before = look(terminal_bench)
    with pytest.raises(PackageError) as caught:
        migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert (caught.value.file, caught.value.line) == (file, line)
    assert look(terminal_bench) == before


def test_linked_tests_are_refused(terminal_bench, look):
    (terminal_bench / "tests").rename(terminal_bench / "checks")
    (terminal_bench / "tests").symlink_to("checks")
    before = look(terminal_bench)
    with pytest.raises(PackageError) as caught:
        migrate_task_to_task_md(terminal_bench)
    assert caught.value.code == "linked-part"
    assert look(terminal_bench) == before


def test_links_of_the_build_context_come_along(terminal_bench):
    (terminal_bench / "data/again.txt").symlink_to("in.txt")
    migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert (terminal_bench / "environment/data/again.txt").read_text() == "in\n"
    assert not (terminal_bench / "data").exists()
    assert load_package(terminal_bench).valid


def test_a_failure_while_writing_undoes_what_was_written(terminal_bench, look, monkeypatch):
    from benchflow.task.interop import migration as terminal_bench_migrate

    def fail(*_args, **_options):
        raise OSError("disk full")

    before = look(terminal_bench)
    monkeypatch.setattr(terminal_bench_migrate, "write_atomic", fail)
    with pytest.raises(OSError, match="disk full"):
        migrate_task_to_task_md(terminal_bench, remove_legacy=True)
    assert look(terminal_bench) == before


def test_only_a_folder_without_a_newer_definition_counts(terminal_bench, split, tmp_path):
    assert is_terminal_bench(terminal_bench)
    assert not is_terminal_bench(split)
    assert not is_terminal_bench(tmp_path)
    (terminal_bench / "task.toml").write_text("")
    assert not is_terminal_bench(terminal_bench)


KEYS = ["instruction", "descriptions", "key", "base", "description", "author_name", "author_email", "tags"]
COMPOSE = [
    "services",
    "client",
    "environment",
    "volumes",
    "build",
    "command",
    "image",
    "depends_on",
    "db",
    "A=b",
]


@pytest.mark.parametrize("key", ["volumes", "environment", "build", "command", "image", "depends_on"])
@pytest.mark.parametrize("value", [5, True, "x", None, [], {}, [5], {"a": 5}, [{"a": 1}]])
def test_no_setting_of_a_service_is_too_strange_to_be_read_or_refused(key, value):
    for compose in (
        {"services": {"client": {key: value}}},
        {"services": {"client": {}, "db": {key: value}}},
    ):
        try:
            reading = reduce_compose(compose)
        except ValueError as problem:
            reading = None
            refusal = str(problem)
        assert reading is not None or refusal.startswith("has ")
        if reading is not None:
            assert reading.compose is None or "main" in reading.compose["services"]


words = st.sampled_from([*KEYS, *COMPOSE, "max_agent_timeout_sec", "other"])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.floats(), st.dates(), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.dictionaries(words, values, max_size=4), values, st.dictionaries(words, values, max_size=3), values)
def test_any_content_is_migrated_to_a_readable_package_or_refused(tree, task, service, services, solution):
    compose = {"services": {**services, "client": service}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = tree(
            Path(scratch, "task"),
            {
                "task.yaml": yaml.safe_dump({"instruction": "x", **task}),
                "docker-compose.yaml": yaml.safe_dump(compose),
                "solution.yaml": yaml.safe_dump(solution),
                "run-tests.sh": "",
            },
        )
        try:
            migrate_task_to_task_md(folder)
        except PackageError:
            assert not (folder / "task.md").exists()
        else:
            assert load_package(folder).valid
