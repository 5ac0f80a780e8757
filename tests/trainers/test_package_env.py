"""A package as a Gymnasium environment: the contract, seeds, limits, vectors, and no reward where there is no score."""

import math
import multiprocessing
import subprocess
import sys
import warnings
from copy import deepcopy
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given
from hypothesis import strategies as st

import benchflow.trainers
from benchflow.errors import SandboxFailure, UsageError
from benchflow.gym import PackageBenchmarkConfig, UnscoredError
from benchflow.trainers.outcomes import LONGEST_ACTION
from benchflow.trainers.package_env import PackageEnv
from benchflow.trainers.text_space import AnyText

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
FIVE = ["count-words", "fix-parser", "pack-boxes", "rotate-logs", "two-step-release"]
in_sandboxes = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("gym")]


@pytest.fixture
def make(sandbox_name):
    """Makes environments, in memory unless a test is marked `sandbox`; each is closed after the test."""
    made = []

    def make(package, **settings):
        settings = {"sandbox": sandbox_name, "base_image": "host", "pull": "never", **settings}
        made.append(gymnasium.make("benchcube/Package-v0", package=package, **settings))
        return made[-1]

    yield make
    for env in made:
        env.close()


def oracle(name):
    return (EXAMPLES / name / "oracle" / "solve.sh").read_text()


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("mark", [pytest.param(None, marks=in_sandboxes)])
def test_an_example_passes_the_checker_without_a_warning(make, name, mark):
    env = make(EXAMPLES / name, render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_submitting_terminates_with_the_reward_of_the_work(make):
    env = make(EXAMPLES / "rotate-logs", render_mode="ansi")
    obs, info = env.reset()
    assert obs["text"].startswith("`/app/logs` holds log files")
    assert (info, env.render()) == ({"seed": None}, obs["text"])
    obs, reward, terminated, truncated, info = env.step("echo é; exit 3")
    assert (obs["text"], int(obs["exit_code"])) == ("é\n[exit code 3]", 3)
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    assert env.render() == "$ echo é; exit 3\né\n[exit code 3]"
    env.step(oracle("rotate-logs"))
    _, reward, terminated, truncated, info = env.step("submit")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {
        "ended_by": "submit",
        "scored": True,
        "rewards": {"reward": 1.0, "archived": 1.0, "listed": 1.0},
    }
    with pytest.raises(ResetNeeded):
        env.step("true")


def test_a_limit_truncates_with_the_verdict_on_what_is_there(make, make_package):
    env = make(make_package(), max_steps=2)
    env.reset()
    env.step("touch answer")
    _, reward, terminated, truncated, info = env.step("true")
    assert (reward, terminated, truncated, info["ended_by"]) == (1.0, False, True, "call_limit")
    timed = make(make_package(name="q"), time_limit_sec=1e-6)
    timed.reset()
    assert timed.step("true")[2:4] == (False, True)


def test_a_state_without_a_score_is_never_zero(make, make_package):
    folder = make_package(verifier="exit 1\n")
    env = make(folder)
    env.reset()
    with pytest.warns(UserWarning, match="The reward is a NaN value"):
        _, reward, terminated, truncated, info = env.step("submit")
    assert math.isnan(reward)
    assert (terminated, truncated, info["scored"]) == (True, False, False)
    assert (info["unscored"]["category"], info["unscored"]["code"]) == ("verifier", "reward-missing")
    strict = make(folder, strict=True)
    strict.reset()
    with pytest.raises(UnscoredError, match="reward-missing"):
        strict.step("submit")


def test_a_sandbox_that_dies_truncates_without_a_score(make, make_package, monkeypatch):
    def gone(*_, **__):
        raise SandboxFailure("The sandbox is gone.", code="sandbox-gone")

    for strict in (False, True):
        env = make(make_package(name=f"p{strict}"), strict=strict)
        env.reset()
        driver = env.unwrapped._episode._running
        monkeypatch.setattr(driver.environment.sandbox, "exec", gone)
        if strict:
            with pytest.raises(UnscoredError, match="sandbox-gone"):
                env.step("true")
            continue
        with pytest.warns(UserWarning, match="The reward is a NaN value"):
            _, reward, terminated, truncated, info = env.step("true")
        assert math.isnan(reward)
        assert (terminated, truncated, info["ended_by"]) == (False, True, "environment")
        assert (info["scored"], info["unscored"]["code"]) == (False, "sandbox-gone")
        env.reset()
        assert env.step("true")[2:4] == (False, False)


def test_a_package_that_cannot_start_is_raised(make, make_package):
    broken = make(make_package(name="broken", environment="{docker_image: 'nobody/has:this'}"), base_image=None)
    with pytest.raises(UnscoredError):
        broken.reset()


def test_the_same_seed_gives_the_same_episodes_and_no_seed_gives_the_package_none(make, make_package):
    env = make(make_package())
    assert [env.reset()[1]["seed"] for _ in range(2)] == [None, None]
    drawn = [[env.reset(seed=seed)[1]["seed"], env.reset()[1]["seed"], env.reset()[1]["seed"]] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [each[0] for each in drawn] == [5, 5, 6]
    (config,) = PackageBenchmarkConfig(paths=[str(make_package(name="q"))], sandbox="memory").get_task_configs()
    seeded = make(config.model_copy(update={"seed": 9}))
    assert seeded.reset()[1]["seed"] == 9


def test_wrong_usage_is_one_sentence(make, make_package, tmp_path):
    make_package(name="a")
    make_package(name="b")
    wrong = [
        (tmp_path, {}, "has 2 packages; an environment plays one"),
        (tmp_path / "a", {"render_mode": "human"}, "render_mode is 'ansi' or None"),
        (tmp_path / "nothing", {}, "no such folder or file"),
    ]
    for name, settings, message in wrong:
        with pytest.raises(UsageError, match=message):
            PackageEnv(name, **settings)
    env = make(tmp_path / "a").unwrapped
    with pytest.raises(UsageError, match="no options of reset"):
        env.reset(options={"task": 1})
    with pytest.raises(ResetNeeded):
        env.step("true")
    env.reset()
    for action in (3, None, "x" * (LONGEST_ACTION + 1), "\ud800"):
        with pytest.raises(UsageError, match="An action is a text"):
            env.step(action)
    assert "NUL" in env.step("a\0b")[0]["text"]


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_vectors_step_like_single_environments_and_leave_nothing(make, make_package):
    folder = make_package(verifier="exit 1\n")
    single = make(EXAMPLES / "rotate-logs")
    single.reset()  # this process has a loop and a backend of its own when the workers are forked
    seen = []
    for mode in ("sync", "async"):
        settings = {"sandbox": "local", "base_image": "host", "pull": "never", "max_steps": 3}
        vector = gymnasium.make_vec(
            "benchcube/Package-v0", 2, mode, package=EXAMPLES / "rotate-logs", disable_env_checker=True, **settings
        )
        assert vector.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        out = [deepcopy(vector.reset(seed=5))]
        out += [vector.step(actions) for actions in ([oracle("rotate-logs"), "echo $BENCHCUBE_SEED"], ["submit", "x"])]
        out += [vector.step(["true", "true"])]
        seen.append(
            [(list(each[0]["text"]), [list(part) for part in each[1:4] if not isinstance(part, dict)]) for each in out]
        )
        assert list(out[2][1]) == [1.0, 0.0]
        assert list(out[2][4]["scored"]) == [True, False]
        assert list(out[3][3]) == [False, True]
        vector.close()
    assert seen[0] == seen[1]
    assert seen[0][1][0][1] == "6\n[exit code 0]"
    unscored = gymnasium.make_vec(
        "benchcube/Package-v0", 2, "async", package=folder, disable_env_checker=True, **settings
    )
    unscored.reset()
    _, rewards, _, _, infos = unscored.step(["submit", "true"])
    assert np.isnan(rewards).tolist() == [True, False]
    assert infos["_unscored"].tolist() == [True, False]
    assert infos["unscored"]["code"][0] == "reward-missing"
    unscored.close()
    assert multiprocessing.active_children() == []
    assert single.step("echo still here")[0]["text"] == "still here\n[exit code 0]"


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_texts_of_any_characters_cross_shared_memory(texts):
    space = AnyText(40)
    memory = create_shared_memory(space, n=len(texts))
    shared = read_from_shared_memory(space, memory, n=len(texts))
    for index, text in enumerate(texts):
        assert text in space
        write_to_shared_memory(space, index, text, memory)
    assert deepcopy(shared) == tuple(texts) == shared
    assert (shared[-1], shared[:2], len(shared)) == (texts[-1], tuple(texts[:2]), len(texts))


def test_the_space_of_texts_takes_what_can_be_written_and_samples_harmless_commands():
    space = AnyText(50, seed=1)
    assert "é\n\0" in space
    assert not any(space.contains(value) for value in ("x" * 51, "\ud800", 3, b"x"))
    assert all(set(space.sample()) <= set(map(chr, range(48, 123))) | {" "} for _ in range(50))
    assert space == AnyText(50) != AnyText(51)
    assert space.from_jsonable(space.to_jsonable(["a"])) == ["a"]


@pytest.mark.slow
def test_importing_registers_once_and_gymnasium_can_import_it_itself(make_package):
    folder = make_package()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        benchflow.trainers.register()
    assert benchflow.trainers.ENVIRONMENT_ID in gymnasium.registry
    name = "benchflow.trainers:benchcube/Package-v0"
    script = f"import gymnasium as gym; print(gym.make({name!r}, package={str(folder)!r}))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "PackageEnv<benchcube/Package-v0>" in shown.stdout, shown.stderr
