"""Every package is a gym task: real sandboxes, real verifiers."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from benchflow.errors import PackageError, UnsupportedError
from benchflow.gym import PackageBenchmarkConfig, PackageTaskConfig, UnscoredError
from cube.benchmark import BenchmarkConfig
from cube.composite import CompositeBenchmarkConfig
from cube.core import Action
from cube.task import TaskConfig
from cube.testing import check_task

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gym")]


def config(name="rotate-logs", **values) -> PackageTaskConfig:
    benchmark = PackageBenchmarkConfig(paths=[str(EXAMPLES / name)], sandbox="local", base_image="host", **values)
    return next(iter(benchmark.get_task_configs()))


@pytest.fixture
def task():
    made = config().make()
    made.reset()
    yield made
    made.close()


def bash(command):
    return Action(name="bash", arguments={"command": command})


def solve(task):
    files = task.get_privileged_info().data["oracle"]
    return task.step(bash(files["solve.sh"]))


def test_a_package_keeps_the_gym_contract():
    assert check_task(config()) == []


def test_the_first_observation_is_the_prompt_and_the_oracle_reaches_reward_one(task):
    obs, info = task.reset()
    assert obs.to_markdown().startswith("`/app/logs` holds log files")
    used = {name: info["sandbox"][name] for name in ("name", "base", "fidelity")}
    assert used == {"name": "local", "base": "host", "fidelity": "substituted"}
    solve(task)
    output = task.step(Action(name="final_step"))
    assert (output.reward, output.done) == (1.0, True)
    assert output.info["rewards"] == {"archived": 1.0, "listed": 1.0}


def test_nothing_done_scores_zero_and_evaluating_changes_nothing(task):
    before = task.step(
        bash("find / -xdev -newer /proc/1/cmdline -type f 2>/dev/null | sort; ls -la /app /logs 2>&1")
    ).obs
    assert [task.evaluate()[0] for _ in range(3)] == [0.0, 0.0, 0.0]
    after = task.step(
        bash("find / -xdev -newer /proc/1/cmdline -type f 2>/dev/null | sort; ls -la /app /logs 2>&1")
    ).obs
    assert before == after


def test_the_agent_never_sees_verifier_or_oracle(task):
    seen = task.step(bash("ls -d /verifier /tests /oracle /solution /evidence 2>/dev/null; true")).obs.contents[0].data
    assert seen["stdout"] == ""


def test_rewards_after_every_step():
    task = config(validate_per_step=True).make()
    task.reset()
    try:
        assert task.step(bash("true")).reward == 0.0
        half = "printf 'service.log.1.gz\\nservice.log.10.gz\\nservice.log.2.gz\\n' > /app/archived.txt"
        assert task.step(bash(half)).reward == 0.5
    finally:
        task.close()


def test_files_are_written_read_and_edited_and_what_is_missing_ends_nothing(task):
    def call(name, **arguments):
        output = task.step(Action(name=name, arguments=arguments))
        assert output.error is None
        return output.obs.contents[0].data

    call("write_file", path="notes/a.txt", text="one two\n")
    assert call("read_file", path="/app/notes/a.txt") == "one two\n"
    call("edit_file", path="notes/a.txt", old="two", new="three")
    assert call("bash", command="cat notes/a.txt; exit 3") == {"stdout": "one three\n", "stderr": "", "exit_code": 3}
    assert "does not exist" in call("read_file", path="nothing")["error"]
    assert "does not contain" in call("edit_file", path="notes/a.txt", old="four", new="x")["error"]
    assert "root:" not in str(call("read_file", path="/etc/shadow"))


def test_a_fork_is_independent(task):
    task.step(bash("echo 1 > /app/shared"))
    copy = task.fork()
    try:
        copy.step(bash("echo 2 > /app/shared"))
        solve(copy)
        assert copy.evaluate()[0] == 1.0
        assert task.evaluate()[0] == 0.0
        assert task.step(bash("cat /app/shared")).obs.contents[0].data["stdout"] == "1\n"
    finally:
        copy.close()


def test_a_verification_without_a_score_is_no_number(tmp_path):
    package = tmp_path / "broken"
    (package / "verifier").mkdir(parents=True)
    (package / "task.md").write_text("---\nschema_version: '1.3'\ntask: {name: t/broken}\n---\nDo it.\n")
    (package / "verifier" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
    benchmark = PackageBenchmarkConfig(paths=[str(package)], sandbox="local")
    task = next(iter(benchmark.get_task_configs())).make()
    task.reset()
    try:
        with pytest.raises(UnscoredError, match="reward-missing") as caught:
            task.evaluate()
        assert caught.value.verdict.category == "verifier"
    finally:
        task.close()


def test_a_team_that_works_apart_is_refused():
    task = config("sort-tickets").make()
    with pytest.raises(UnsupportedError, match="one actor takes every turn"):
        task.reset()
    task.close()


def test_a_task_that_was_not_reset_says_so():
    task = config().make()
    for act in (lambda: task.step(bash("true")), task.evaluate, task.fork):
        with pytest.raises(RuntimeError, match="not been reset"):
            act()


def test_folders_of_packages_are_benchmarks_with_subsets_composites_and_json():
    benchmark = PackageBenchmarkConfig(paths=[str(EXAMPLES)], benchmark_name="examples")
    assert benchmark.num_tasks == len(list(EXAMPLES.glob("*/task.md")))
    assert list(benchmark.subset_from_glob("id", "examples/*-team").tasks()) == ["examples/release-notes-team"]
    assert BenchmarkConfig.model_validate_json(benchmark.model_dump_json()).tasks() == benchmark.tasks()
    suite = CompositeBenchmarkConfig(sub_bench_configs=[benchmark])
    assert next(iter(suite.get_task_configs())).task_id.startswith("examples/examples/")
    with benchmark.make() as live:
        assert live.spawn(next(iter(benchmark.get_task_configs()))).get_status() == "not started"


def test_a_fresh_worker_plays_a_package_from_json():
    script = (
        "import sys; from cube.core import Action; from cube.task import TaskConfig\n"
        "task = TaskConfig.model_validate_json(sys.stdin.read()).make(); task.reset()\n"
        "task.step(Action(name='bash', arguments={'command': task.get_privileged_info().data['oracle']['solve.sh']}))\n"
        "print(task.evaluate()[0]); task.close()"
    )
    worker = subprocess.run(
        [sys.executable, "-c", script], input=config().model_dump_json(), capture_output=True, text=True, timeout=60
    )
    assert worker.stdout == "1.0\n", worker.stderr


def test_a_package_that_changed_since_it_was_listed_is_refused(tmp_path):
    import shutil

    copy = tmp_path / "rotate-logs"
    shutil.copytree(EXAMPLES / "rotate-logs", copy)
    (copy / "notes.txt").write_text(str(uuid.uuid4()))  # nowhere else
    stale = next(iter(PackageBenchmarkConfig(paths=[str(copy)]).get_task_configs()))
    (copy / "verifier" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(PackageError, match="has changed"):
        TaskConfig.model_validate_json(stale.model_dump_json()).make()


def test_an_invalid_package_is_an_error_unless_it_is_skipped(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "task.md").write_text("---\nnonsense: 1\n---\nx\n")
    with pytest.raises(PackageError):
        PackageBenchmarkConfig(paths=[str(tmp_path)]).tasks()
    assert PackageBenchmarkConfig(paths=[str(tmp_path)], skip_invalid=True).tasks() == {}


def test_a_verifier_that_is_replaced_after_the_reset_does_not_score(tmp_path, gym):
    write = lambda name, text: ((tmp_path / name).parent.mkdir(exist_ok=True), (tmp_path / name).write_text(text))  # noqa: E731
    write("task.md", "---\ntask: {name: acme/replaced}\n---\nDo it.\n")
    write("verifier/test.sh", "echo 0.25 > /logs/verifier/reward.txt\n")
    it = gym(tmp_path)
    it.reset()
    write("verifier/test.sh", "echo 1 > /logs/verifier/reward.txt\n")
    assert it.task.evaluate()[0] == 0.25
    fork = it.task.fork()
    assert fork.evaluate()[0] == 0.25
    fork.close()


def test_an_imported_package_is_verified_at_its_proven_rung(gym, make_package, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    folder = make_package(
        {
            "task.toml": "version = '1.0'\n",
            "instruction.md": "Do it.",
            "tests/test.sh": "if [ -f answer ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
            "solution/solve.sh": "echo > answer\n",
        }
    )
    task = gym(folder)
    task.reset()
    task.bash("echo > answer")
    assert task.task.evaluate()[0] == 1.0
    assert len(list((tmp_path / "store" / "proofs").glob("*/*.json"))) == 1
