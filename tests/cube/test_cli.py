"""The `cube` command as users call it."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from cube.cli import main


def cube(*arguments, **environment):
    result = CliRunner().invoke(main, arguments, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_list_shows_what_is_installed():
    result = cube("list")
    assert result.exit_code == 0
    assert "counter-cube" in result.output
    rows = json.loads(cube("list", "--json").output)["benchmarks"]
    assert [(row["name"], row["tasks"]) for row in rows] == [("archive-cube", 3), ("counter-cube", 4)]


def test_info_shows_metadata_and_tasks():
    assert "three steps up" in cube("info", "counter-cube").output
    info = json.loads(cube("info", "counter-cube", "--json").output)
    assert info["named_subsets"]["easy"] == ["id", "up-*"]
    assert info["tasks"][3]["target"] == 100


def test_install_and_uninstall_write_and_remove_data():
    assert cube("install", "archive-cube").exit_code == 0
    assert cube("test", "archive-cube").exit_code == 0
    assert cube("uninstall", "archive-cube").exit_code == 0


def test_test_passes_for_a_good_cube():
    result = cube("test", "counter-cube")
    assert (result.exit_code, "all checks passed" in result.output) == (0, True)


def test_every_broken_rule_changes_the_exit_code(monkeypatch):
    from counter_cube.task import CounterTask

    monkeypatch.setattr(CounterTask, "get_status", lambda self: None)
    result = cube("test", "counter-cube", "--json")
    report = json.loads(result.output)
    assert (result.exit_code, report["passed"]) == (1, False)
    assert {check["id"]: check["status"] for check in report["checks"]}["info"] == "failed"
    assert len(report["findings"]) == 4
    assert "4 findings" in cube("test", "counter-cube").output


def test_rules_that_were_not_looked_at_are_said_to_be_so():
    report = json.loads(cube("test", "counter_cube.tool", "--json").output)
    assert {check["status"] for check in report["checks"]} == {"failed", "not run"}


@pytest.mark.parametrize("command", ["info", "install", "uninstall", "test", "serve"])
def test_an_unknown_benchmark_is_wrong_usage_and_names_the_known(command):
    result = cube(command, "nothing")
    assert result.exit_code == 2
    assert "installed are: archive-cube, counter-cube" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["list", "--bogus"],
        ["test", "counter-cube", "--max-steps", "0"],
        ["fly"],
        ["serve", "counter-cube", "--task", "x"],
    ],
)
def test_wrong_usage_ends_with_two(arguments):
    assert cube(*arguments).exit_code == 2


def test_an_install_that_fails_says_why_in_one_sentence(monkeypatch):
    from counter_cube.benchmark import CounterBenchmarkConfig

    monkeypatch.setattr(CounterBenchmarkConfig, "install", classmethod(lambda cls: 1 / 0))
    result = cube("install", "counter-cube")
    assert result.exit_code == 1
    assert result.output == "Error: Installing 'counter-cube' failed: ZeroDivisionError: division by zero\n"


def broken_distribution(folder):
    info = folder / "broken_cube-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-cube\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cube.benchmarks]\nbroken-cube = no_such_package.benchmark:X\n")


def test_a_benchmark_that_cannot_be_loaded_is_listed_with_its_reason(tmp_path):
    broken_distribution(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "cube.cli", "list", "--json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row["name"]: row for row in json.loads(result.stdout)["benchmarks"]}
    assert "no_such_package" in rows["broken-cube"]["error"]
    assert rows["counter-cube"]["error"] is None


@pytest.mark.slow
def test_init_creates_a_cube_that_installs_and_passes(tmp_path):
    result = cube("init", "word-game", "--dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    folder = tmp_path / "word-game"
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}

    def run(*command):
        arguments = [sys.executable, "-m", *command]
        return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)

    tested = run("cube.cli", "test", "word_game.debug")
    assert tested.returncode == 0, tested.stdout
    own = run("pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert own.returncode == 0, own.stdout
    linted = run("ruff", "check", "--isolated", ".")
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("name", ["Bad Name", "../x", "9x", "a--b", "a_b", ""])
def test_init_refuses_names_that_are_none(tmp_path, name):
    result = cube("init", name, "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_init_never_writes_over_anything(tmp_path):
    (tmp_path / "mine").mkdir()
    assert cube("init", "mine", "--dir", str(tmp_path)).exit_code == 2
    assert cube("init", "mine", "--dir", str(tmp_path / "gone")).exit_code == 2
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_version_is_told():
    import cube as package

    assert cube("--version").output == f"cube, version {package.__version__}\n"
    with pytest.raises(AttributeError):
        _ = package.nothing
