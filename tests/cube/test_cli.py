"""The `cube` command as users call it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from peers import PeerUnavailable, peer_environment

import cube as cube_package
from cube.cli import main


class Result(NamedTuple):
    exit_code: int
    output: str
    errors: str


def cube(*arguments):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(arguments)
    return Result(code, output.getvalue(), errors.getvalue())


def test_list_shows_what_is_installed(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    result = cube("list")
    assert result.exit_code == 0
    assert "Count to a target: the smallest useful cube." in result.output, "a pipe gets whole lines"
    rows = json.loads(cube("list", "--json").output)["benchmarks"]
    assert [(row["name"], row["tasks"]) for row in rows] == [
        ("archive-cube", 3),
        ("browser-cube", 2),
        ("counter-cube", 4),
        ("patch-cube", 2),
        ("terminal-cube", 3),
    ]


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


def test_resources_are_launched_if_an_infrastructure_is_named(monkeypatch):
    import counter_cube.debug
    from cube.resource import VMResourceConfig

    config = counter_cube.debug.get_debug_benchmark()
    config.resources = [VMResourceConfig(name="desktop", bootstrap_script_extra="x")]
    monkeypatch.setattr(counter_cube.debug, "get_debug_benchmark", lambda: config)
    assert cube("test", "counter-cube", "--live", "1").exit_code == 0
    refused = cube("test", "counter-cube", "--infra", "local")
    assert (refused.exit_code, "does not support VMResourceConfig 'desktop'" in refused.output) == (1, True)


def test_every_broken_rule_changes_the_exit_code(monkeypatch):
    from counter_cube.task import CounterTask

    monkeypatch.setattr(CounterTask, "get_status", lambda self: None)
    result = cube("test", "counter-cube", "--json")
    report = json.loads(result.output)
    assert (result.exit_code, report["passed"]) == (1, False)
    assert {check["id"]: check["status"] for check in report["checks"]}["info"] == "failed"
    [finding] = report["findings"]
    assert (finding["task_id"], finding["also"]) == ("up-1", ["up-3", "down-2", "far-100"])
    printed = cube("test", "counter-cube").output
    assert "info [up-1, up-3, down-2 and 1 more]: get_status() returned NoneType, not a str" in printed
    assert printed.endswith("counter-cube: 1 finding; 4 of 4 tasks were played\n")


def test_a_test_names_the_tasks_that_were_played_and_their_rewards():
    result = cube("test", "counter-cube", "--task", "up-3", "--task", "down-2")
    assert result.exit_code == 0
    assert result.output.endswith(
        "played up-3: reward 1 in 3 steps\nplayed down-2: reward 1 in 2 steps\n\n"
        "counter-cube: all checks passed; 2 of 4 tasks were played\n"
    )
    report = json.loads(cube("test", "counter-cube", "--live", "1", "--json").output)
    assert (report["tasks"], report["played"]) == (4, [{"task_id": "up-1", "reward": 1.0, "steps": 1}])
    unknown = cube("test", "counter-cube", "--task", "up-9")
    assert unknown.exit_code == 2
    assert "has no task 'up-9'; available: up-1, up-3, down-2, far-100." in unknown.errors


def test_rules_that_were_not_looked_at_are_said_to_be_so():
    report = json.loads(cube("test", "counter_cube.tool", "--json").output)
    assert {check["status"] for check in report["checks"]} == {"failed", "not run"}


@pytest.mark.parametrize("command", ["info", "install", "uninstall", "test", "serve"])
def test_an_unknown_benchmark_is_wrong_usage_and_names_the_known(command):
    result = cube(command, "nothing")
    assert result.exit_code == 2
    assert "installed: archive-cube, browser-cube, counter-cube" in result.errors
    assert result.output == ""


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
    assert result.errors == "cube: Installing 'counter-cube' failed: ZeroDivisionError: division by zero\n"


ODD = """
print("imported")
from typing import Any
from counter_cube.benchmark import CounterBenchmark, CounterBenchmarkConfig
from counter_cube.task import CounterTaskConfig, CounterTaskMetadata
from cube.benchmark import BenchmarkConfig, BenchmarkMetadata
from cube.composite import CompositeBenchmarkConfig
from pydantic import Field

class OddTaskConfig(CounterTaskConfig): pass

class Bracketed(BenchmarkConfig[CounterTaskMetadata]):
    benchmark_metadata = BenchmarkMetadata(name="bracketed", version="1", description="a [/red] b [bold]c", num_tasks=1)
    task_metadata = {"t[1]": CounterTaskMetadata(id="t[1]", target=1, abstract_description="[/x]")}
    task_config_class = OddTaskConfig
    benchmark_class = CounterBenchmark
    @classmethod
    def install(cls):
        import subprocess
        print("installing")
        subprocess.run(["echo", "fetched"], check=True)

class Suite(CompositeBenchmarkConfig):
    sub_bench_configs: Any = Field(default_factory=lambda: [Bracketed()])
    composite_name: str = "suite"

class Sized(BenchmarkConfig[CounterTaskMetadata]):
    size: int
    task_config_class = OddTaskConfig
    benchmark_class = CounterBenchmark
    benchmark_metadata = property(lambda self: BenchmarkMetadata(name="sized", version="1", description="d"))
    task_metadata = property(lambda self: {})

def get_debug_benchmark(): return Bracketed()
def make_debug_agent(task_id):
    from cube.core import Action
    return lambda obs, actions: Action(name="increment")
"""
ENTRY_POINTS = """[cube.benchmarks]
gone = no_such_package.benchmark:X
exits = odd_exits:X
misspelt = not an entry point
number = odd_cube.benchmark:get_debug_benchmark
bracketed = odd_cube.benchmark:Bracketed
suite = odd_cube.benchmark:Suite
sized = odd_cube.benchmark:Sized
"""


@pytest.fixture(scope="module")
def odd_site(tmp_path_factory):
    """A folder on the path with cubes that are odd or broken in every way."""
    site = tmp_path_factory.mktemp("site")
    info = site / "odd_cube-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-cube\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "odd_exits.py").write_text("import sys; sys.exit(3)")
    package = site / "odd_cube"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "benchmark.py").write_text(ODD)
    (package / "debug.py").write_text("from odd_cube.benchmark import *")
    return site


def odd(site, *arguments, stdout=subprocess.PIPE):
    command = [sys.executable, "-m", "cube.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(site), "CUBE_CACHE_DIR": str(site / "cache"), "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_benchmarks_that_cannot_be_loaded_are_listed_with_their_reason(odd_site):
    result = odd(odd_site, "list", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["benchmarks"]}
    assert "no_such_package" in rows["gone"]["error"]
    assert "SystemExit: 3" in rows["exits"]["error"]
    assert "must have the form 'module:Class'" in rows["misspelt"]["error"]
    assert "is not a BenchmarkConfig subclass" in rows["number"]["error"]
    assert rows["sized"]["error"].endswith("without settings: size: Field required.")
    assert rows["counter-cube"]["error"] is None
    assert (rows["suite"]["tasks"], rows["suite"]["error"]) == (1, None)
    text = odd(odd_site, "list")
    assert text.returncode == 0
    assert "a [/red] b [bold]c" in text.stdout
    assert "No module named 'no_such_package'" in " ".join(text.stdout.split())


COMMANDS = ("info", "install", "uninstall", "test", "serve")
UNLOADABLE = ("gone", "misspelt")
EVERY = """
import contextlib, io, json, sys
from cube.cli import main
told = {}
for line in sys.argv[1:]:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(line.split())
    told[line] = code, output.getvalue(), errors.getvalue()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(odd_site):
    """What each command says of each benchmark that cannot be loaded, all in one process of its own."""
    lines = [f"{command} {name}" for command in COMMANDS for name in UNLOADABLE]
    environment = os.environ | {"PYTHONPATH": str(odd_site), "CUBE_CACHE_DIR": str(odd_site / "cache")}
    done = subprocess.run([sys.executable, "-c", EVERY, *lines], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_benchmark_that_cannot_be_loaded_is_one_sentence(told, command, name):
    code, output, errors = told[f"{command} {name}"]
    assert (code, output) == (1, "")
    assert errors.startswith("cube: ")
    assert errors.count("\n") == 1


def test_brackets_in_metadata_are_shown_as_they_are(odd_site):
    shown = odd(odd_site, "info", "bracketed").stdout
    assert "a [/red] b [bold]c" in shown
    assert "t[1]" in shown
    assert "[/x]" in shown


def test_a_composite_is_shown_and_installed_through_an_instance(odd_site):
    assert "bracketed/t[1]" in odd(odd_site, "info", "suite").stdout
    installed = odd(odd_site, "install", "suite")
    assert (installed.returncode, installed.stdout) == (0, f"Installed suite into {odd_site / 'cache' / 'suite'}\n")


def test_what_a_cube_prints_does_not_mix_with_the_answer(odd_site):
    result = odd(odd_site, "test", "bracketed", "--json")
    assert json.loads(result.stdout)["passed"], result.stderr
    assert {"imported", "installing", "fetched"} <= set(result.stderr.split())


def test_an_output_that_cannot_be_written_is_a_failure(tmp_path):
    with Path("/dev/full").open("w") as full:
        result = odd(tmp_path, "list", "--json", stdout=full)
    assert (result.returncode, result.stderr) == (1, "cube: cannot write the output: No space left on device\n")


def test_an_interrupt_ends_with_130(tmp_path):
    (tmp_path / "waiting.py").write_text("import time; print('here', flush=True); time.sleep(30)")
    command = [sys.executable, "-m", "cube.cli", "test", "waiting.debug"]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[1].strip() == "cube: interrupted"
    assert process.returncode == 130


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


@pytest.mark.slow
def test_a_new_cube_works_with_the_other_distribution_of_the_gym_layer_too(tmp_path):
    try:
        python = peer_environment("cube-standard==0.1.0rc8") / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))
    assert cube("init", "word-game", "--dir", str(tmp_path)).exit_code == 0
    play = "import cube.testing, word_game.debug; cube.testing.assert_debug_tasks_reward_one(word_game.debug)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "word-game/src"), "CUBE_CACHE_DIR": str(tmp_path)}
    played = subprocess.run([python, "-c", play], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert played.returncode == 0, played.stderr


def test_two_gym_layers_in_one_environment_are_told_with_the_way_out(tmp_path):
    def run(statement):
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run([sys.executable, "-c", statement], env=environment, capture_output=True, text=True)

    (tmp_path / "cube").symlink_to(Path(cube_package.__file__).parent)
    assert run("import cube.task").stderr == ""
    (tmp_path / "cube_standard-0.1.0rc8.dist-info").mkdir()
    mixed = run("import cube")
    assert mixed.returncode == 0
    assert f"cube-standard and benchcube are both installed in {tmp_path}" in mixed.stderr
    assert "install benchcube alone" in mixed.stderr
    (tmp_path / "cube").unlink()
    (tmp_path / "cube").mkdir()
    (tmp_path / "cube/__init__.py").touch()
    hidden = run("import benchflow")
    assert hidden.returncode == 1
    assert f"The package 'cube' in {tmp_path}/cube/__init__.py" in hidden.stderr.splitlines()[-1]
    assert "cannot be installed together. Uninstall both" in hidden.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["Bad Name", "../x", "9x", "a--b", "a_b", "", "class", "json", "cube"])
def test_init_refuses_names_that_are_none(tmp_path, name):
    result = cube("init", name, "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_init_never_writes_over_anything(tmp_path):
    (tmp_path / "mine").mkdir()
    assert cube("init", "mine", "--dir", str(tmp_path)).exit_code == 2
    assert cube("init", "mine", "--dir", str(tmp_path / "gone")).exit_code == 2
    assert list((tmp_path / "mine").iterdir()) == []


def test_init_says_where_it_cannot_write():
    result = cube("init", "mine", "--dir", "/proc")
    assert (result.exit_code, result.errors.startswith("cube: Cannot write to /proc")) == (1, True)


def test_the_version_is_told():
    import cube as package

    assert cube("--version").output == f"cube, version {package.__version__}\n"
    with pytest.raises(AttributeError):
        _ = package.nothing
