"""A package with steps is played step by step, and its reward is composed as in a rollout."""

from pathlib import Path

import pytest

from benchflow.gym import PackageBenchmarkConfig, UnscoredError
from cube.testing import check_task

EXAMPLE = Path(__file__).parents[2] / "examples" / "packages" / "two-step-release"
CHECK = "[ -e /app/{name}.txt ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


@pytest.fixture
def package(make_package):
    def make(one="", two="", rest="", **files):
        steps = f"steps:\n  - {{name: one{one}}}\n  - {{name: two{two}}}\n"
        made = {"task.md": f"---\ntask: {{name: acme/steps}}\n{steps}{rest}---\nAll.\n"}
        for name in ("one", "two"):
            made[f"steps/{name}/instruction.md"] = f"Make {name}."
            made[f"steps/{name}/verifier/test.sh"] = CHECK.format(name=name)
        return make_package({**made, **files})

    return make


def statuses(info):
    return [(step["name"], step["status"], step["reward"]) for step in info["steps"]]


def oracle(one):
    return one.bash(one.task.get_privileged_info().data["oracle"]["solve.sh"])


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_the_oracle_goes_through_the_steps_of_the_example(gym):
    one = gym(EXAMPLE)
    assert one.reset().startswith("Write `/app/CHANGELOG.md`")
    assert one.bash("cat /instruction.md").startswith("Write `/app/CHANGELOG.md`")
    oracle(one)
    assert "next_step" in one.actions()
    output = one.act("next_step")
    assert output.obs.to_markdown().startswith("Set `/app/VERSION` to `1.0`")
    assert (output.done, one.bash("cat /instruction.md").startswith("Set `/app/VERSION`")) == (False, True)
    assert "next_step" not in one.actions()
    oracle(one)
    output = one.act("final_step")
    assert (output.reward, output.done) == (1.0, True)
    assert output.info["rewards"] == {"steps.changelog": 1.0, "steps.release": 1.0}


def test_a_package_with_steps_keeps_the_gym_contract(package):
    (config,) = PackageBenchmarkConfig(paths=[str(package())], sandbox="local").get_task_configs()
    assert config.metadata.steps == ("one", "two")
    assert check_task(config) == []


def test_steps_that_were_not_reached_count_as_nothing(gym, package):
    one = gym(package())
    one.reset()
    one.bash("touch one.txt two.txt")
    output = one.act("final_step")
    assert output.reward == 0.5
    assert statuses(output.info) == [("one", "scored", 1.0), ("two", "not-reached", None)]


@pytest.mark.parametrize(("strategy", "rewards"), [("mean", [0.0, 0.5, 0.5, 1.0]), ("final", [0.0, 0.0, 0.0, 1.0])])
def test_rewards_along_the_way_are_those_of_the_whole(gym, package, strategy, rewards):
    one = gym(package(rest=f"multi_step_reward_strategy: {strategy}\n"), validate_per_step=True)
    one.reset()
    commands = [("bash", "true"), ("bash", "touch one.txt"), ("next_step", None), ("bash", "touch two.txt")]
    seen = [one.act(name, **({"command": command} if command else {})).reward for name, command in commands]
    assert seen == rewards


def test_what_a_step_was_worth_does_not_change_afterwards(gym, package):
    one = gym(package())
    one.reset()
    one.act("next_step")
    one.bash("touch one.txt two.txt")
    reward, info = one.task.evaluate()
    assert (reward, statuses(info)) == (0.5, [("one", "scored", 0.0), ("two", "scored", 1.0)])


def test_a_step_that_reached_too_little_ends_the_task(gym, package):
    one = gym(package(", min_reward: 1.0"))
    one.reset()
    output = one.act("next_step")
    assert (output.done, output.reward, output.obs.to_markdown()) == (True, 0.0, "The task ends with this step.")
    assert statuses(output.info) == [("one", "scored", 0.0), ("two", "not-reached", None)]


def test_a_step_without_a_score_is_never_hidden(gym, package):
    one = gym(package(**{"steps/one/verifier/test.sh": "exit 1\n"}))
    one.reset()
    with pytest.raises(UnscoredError, match="step one: .*reward"):
        one.act("next_step")
    with pytest.raises(UnscoredError, match="step one"):
        one.task.evaluate()


def test_a_step_that_cannot_begin_leaves_no_score(gym, package):
    one = gym(package(**{"steps/two/workdir/setup.sh": "echo broken; exit 3\n"}))
    one.reset()
    one.bash("touch one.txt")
    with pytest.raises(UnscoredError, match="environment/setup-failed.*step two: .*exited with code 3. broken"):
        one.act("next_step")


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_each_step_has_its_own_settings_files_and_no_processes_of_the_last(gym, package):
    folder = package(", agent: {network_mode: no-network}", **{"steps/two/workdir/given.txt": "here\n"})
    one = gym(folder)
    one.reset()
    links = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
    assert one.bash(f"(setsid sleep 1000 >/dev/null 2>&1 &); {links}") == "lo\n"
    one.act("next_step")
    assert one.bash("cat given.txt; grep -ls '^sleep' /proc/[0-9]*/cmdline; true") == "here\n"
    assert one.bash(links) != "lo\n"


def test_a_fork_goes_on_from_the_same_step(gym, package):
    one = gym(package())
    one.reset()
    one.bash("touch one.txt")
    one.act("next_step")
    copy = one.task.fork()
    try:
        assert copy.get_status() == "running in memory, step two"
        one.bash("touch two.txt")
        assert (one.task.evaluate()[0], copy.evaluate()[0]) == (1.0, 0.5)
    finally:
        copy.close()


def test_there_is_no_way_on_where_there_is_no_further_step(gym, package):
    one = gym(package())
    one.reset()
    one.act("next_step")
    output = one.act("next_step")
    assert (output.done, output.obs.contents[0].data) == (
        False,
        {"error": "This is the last step; use final_step to end the task."},
    )
