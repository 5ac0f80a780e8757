"""One script of actions gives the same reward wherever a task is played, and where there is no score, there is none."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from peers import NEMO_GYM, OPENENV, PeerUnavailable, peer_environment

import benchflow.trainers  # noqa: F401 - registers the environment
from benchflow.gym import PackageBenchmarkConfig, UnscoredError
from counter_cube.benchmark import CounterBenchmarkConfig
from cube.client import TaskClient
from cube.core import Action
from episode_server import serving
from mcp_players import mcp_player

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("serve")]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "packages"
LOCAL = ("--sandbox", "local", "--base-image", "host")
CANARY = "canary-7b1f0c55"
SCRIPT = f"""{(EXAMPLES / "count-words/oracle/solve.sh").read_text()}
printf '7 3\\n6 4\\n5\\n2\\n8\\n5\\n' > /app/packing.txt
printf '## 1.0\\n\\n- First release\\n' > /app/CHANGELOG.md
"""
"""Solves one package, one for the most part, and the first of two steps of a third."""
TURNS = {"examples/count-words": 1, "examples/pack-boxes": 1, "examples/two-step-release": 2, "t/broken": 1}
REWARDS = {"examples/count-words": 1.0, "examples/pack-boxes": 0.5, "examples/two-step-release": 0.5, "t/broken": None}
CUBE = {
    "up-3": [["increment", {}], ["submit", {}]],
    "far-100": [["add", {"amount": 40}], ["add", {"amount": 60}]],
}
CUBE_REWARDS = {"up-3": 0.0, "far-100": 1.0}
REASON = {"category": "verifier", "code": "reward-missing"}


def calls_of(task):
    return [["bash", {"command": SCRIPT}], ["submit", {}]] * TURNS[task]


def same_reason(told):
    return {key: told[key] for key in REASON} == REASON


@pytest.fixture(scope="module")
def suite(module_tmp):
    """Three example packages, and one whose verifier writes no reward."""
    folder = module_tmp / "suite"
    for name in TURNS:
        if name.startswith("examples/"):
            shutil.copytree(EXAMPLES / name.removeprefix("examples/"), folder / name.rpartition("/")[2])
    broken = {
        "task.md": "---\nschema_version: '1.3'\ntask: {name: t/broken}\n---\nDo it.\n",
        "verifier/test.sh": f"#!/bin/sh\n# {CANARY}\nexit 1\n",
        "oracle/solve.sh": f"#!/bin/sh\necho {CANARY} > /app/answer.txt\n",
    }
    for name, text in broken.items():
        (folder / "broken" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "broken" / name).write_text(text)
    return folder


def player(script, requirement, asked, **settings):
    """What a script prints that runs in the environment of another project."""
    try:
        python = peer_environment(*requirement, **settings) / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [python, "-W", "ignore", HERE / script], check=True, input=json.dumps(asked), stdout=subprocess.PIPE, text=True
    )
    assert CANARY not in done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def test_an_agent_in_a_rollout_gets_the_rewards_of_the_table(suite, tmp_path):
    (tmp_path / "script.sh").write_text(SCRIPT)
    bench = [sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())"]
    for name, reward in REWARDS.items():
        folder = suite / name.rpartition("/")[2]
        chosen = ["--agent", f"script:{tmp_path / 'script.sh'}", *LOCAL, "--out", str(tmp_path / "jobs"), "--json"]
        done = subprocess.run([*bench, "run", str(folder), *chosen], check=False, stdout=subprocess.PIPE, text=True)
        result = json.loads(done.stdout)
        assert (name, result["reward"]) == (name, reward)
        assert done.returncode == (1 if reward is None else 0)
        assert reward is not None or same_reason(result["error"])


def test_actions_of_a_gym_task_get_them(suite):
    benchmark = PackageBenchmarkConfig(paths=[str(suite)], sandbox="local", base_image="host")
    for config in benchmark.get_task_configs():
        task = config.make()
        try:
            task.reset()
            for turn in range(1, TURNS[config.task_id] + 1):
                task.step(Action(name="bash", arguments={"command": SCRIPT}))
                if turn < TURNS[config.task_id]:
                    task.step(Action(name="next_step"))
            if REWARDS[config.task_id] is None:
                with pytest.raises(UnscoredError) as caught:
                    task.step(Action(name="final_step"))
                assert same_reason(caught.value.unscored)
            else:
                assert task.step(Action(name="final_step")).reward == REWARDS[config.task_id]
        finally:
            task.close()


def test_a_gymnasium_environment_gives_them(suite):
    import gymnasium

    for name, reward in REWARDS.items():
        folder = suite / name.rpartition("/")[2]
        env = gymnasium.make("benchcube/Package-v0", package=str(folder), sandbox="local", base_image="host")
        try:
            env.reset(seed=7)
            for _ in range(TURNS[name]):
                env.step(SCRIPT)
                _, given, terminated, _, info = env.step("submit")
        finally:
            env.close()
        assert terminated
        assert (math.isnan(given) and same_reason(info["unscored"])) if reward is None else given == reward


def test_ors_gives_them(suite, module_tmp):
    with serving(module_tmp, suite, "cube:counter-cube", *LOCAL) as server:
        for name, reward in {**REWARDS, **CUBE_REWARDS}.items():
            environment, calls = ("counter-cube", CUBE[name]) if name in CUBE else ("suite", calls_of(name))
            sid = server.session(env_name=environment, task_spec={"id": name})
            answers = [server.call(sid, tool, **arguments) for tool, arguments in calls]
            last = answers[-1]["output"]
            assert (name, last["finished"], last["reward"]) == (name, True, reward)
            assert reward is not None or same_reason(last["metadata"]["error"])
            assert CANARY not in json.dumps(answers)


def test_the_stock_clients_of_openenv_get_them(suite, module_tmp):
    plays = [{"task": name, "calls": calls_of(name)} for name in REWARDS]
    plays += [{"task": name, "calls": CUBE[name]} for name in CUBE_REWARDS]
    with serving(module_tmp, suite, "cube:counter-cube", *LOCAL, wire="openenv", no_token=False) as server:
        said = player("openenv_player.py", OPENENV, {**server.address, "plays": plays})
        openenv = peer_environment(*OPENENV) / "openenv"
        url = server.url.replace("//", f"//any:{server.address['token']}@")
        command = [openenv, "validate", "--url", url, "--level", "runtime", "--timeout", "60", "--json"]
        judged = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert (judged["passed"], judged["summary"]["failed_criteria"]) == (True, [])
    assert said["tools"] == {
        "tools": ["bash", "read_file", "write_file", "edit_file", "submit"],
        "pwd": "/app\n[exit code 0]",
    }
    for play, outcome in zip(plays, said["played"], strict=True):
        reward = {**REWARDS, **CUBE_REWARDS}[play["task"]]
        assert (play["task"], outcome["done"], outcome["rewards"][-1]) == (play["task"], True, reward)
        assert (outcome["first_reward"], *outcome["rewards"][:-1]) == (None,) * len(outcome["rewards"])
        assert "VALIDATION_ERROR" in outcome["refused"]
        state = outcome["state"]
        assert (state["step_count"], state["done"], state["reward"]) == (len(play["calls"]), True, reward)
        assert reward is not None or same_reason(outcome["metadata"]["error"])


def test_the_stock_agent_of_nemo_gym_gets_them(suite, module_tmp):
    """Its agent stops by saying so: what is submitted last is submitted by `/verify`."""
    tasks = {**{f"suite/{name}": calls_of(name)[:-1] for name in REWARDS}}
    tasks |= {f"counter-cube/{name}": CUBE[name] for name in CUBE_REWARDS}
    both = (suite, "cube:counter-cube", *LOCAL)
    mask = (suite / "broken", "--unscored", "mask", *LOCAL)
    with (
        serving(module_tmp, *both, wire="nemo-gym", no_token=False) as server,
        serving(module_tmp, *mask, wire="nemo-gym", no_token=False) as other,
    ):
        rows = {row["task_id"]: row for row in map(json.loads, server.http.get("/rows").text.splitlines())}
        plays = [{**address(server), "row": rows[name], "calls": calls} for name, calls in tasks.items()]
        masked = {**rows["suite/t/broken"], "task_id": "t/broken"}
        plays.append({**address(other), "row": masked, "calls": []})
        said = player("nemo_gym_player.py", NEMO_GYM, {"plays": plays}, dependencies=False)
        metrics = server.http.post("/aggregate_metrics", json={"verify_responses": said["rows"]}).json()
    for name, outcome in zip(tasks, said["played"], strict=False):
        reward = {**REWARDS, **CUBE_REWARDS}[name.partition("/")[2]]
        if reward is None:
            assert (outcome["status"], "has no score" in outcome["body"]) == (500, True)
        else:
            assert (name, outcome["status"], outcome["body"]["reward"]) == (name, 200, reward)
    marked = said["played"][-1]["body"]
    assert (marked["_ng_failure_class"], marked["instance_config"]["mask_sample"]) == ("unscored", True)
    assert same_reason(marked["unscored"])
    scored = [reward for reward in {**REWARDS, **CUBE_REWARDS}.values() if reward is not None]
    assert metrics["key_metrics"]["mean/reward"] == pytest.approx(sum(scored) / len(scored))
    assert (metrics["agent_metrics"]["scored"], metrics["agent_metrics"]["unscored"]) == (len(scored), 1)
    theirs = said["metrics"]["group_level_metrics"][0]
    assert {key: metrics["group_level_metrics"][0][key] for key in ("mean/reward", "std/reward", "_ng_task_index")} == {
        key: theirs[key] for key in ("mean/reward", "std/reward", "_ng_task_index")
    }


def address(server):
    """Where NeMo Gym finds a server: the token is the password of its host."""
    return {"host": f"any:{server.address['token']}@127.0.0.1", "port": int(server.url.rpartition(":")[2])}


def test_an_agent_over_mcp_gets_them_and_learns_of_no_reward(suite, module_tmp):
    with serving(module_tmp, suite, "cube:counter-cube", *LOCAL, wire="mcp", no_token=False) as server:
        said = server.address
        with TaskClient(said["url"], token=said["token"], timeout=300) as harness:
            for name, reward in {**REWARDS, **CUBE_REWARDS}.items():
                harness.reset(name)
                results = anyio.run(mcp_calls, said, CUBE.get(name) or calls_of(name))
                episode = harness.episode()
                assert (name, episode["state"], episode["reward"]) == (name, "over", reward)
                assert reward is not None or same_reason(episode["unscored"])
                shown = "".join(result.model_dump_json() for result in results)
                assert CANARY not in shown
                assert '"reward' not in shown


async def mcp_calls(said, calls):
    async with mcp_player(said["agent_url"], said["agent_token"], timeout=300) as client:
        return [await client.call_tool(name, arguments) for name, arguments in calls]


def test_actions_of_a_cube_task_get_its_rewards():
    for config in CounterBenchmarkConfig().subset_from_list(list(CUBE)).get_task_configs():
        task = config.make()
        task.reset()
        for name, arguments in CUBE[config.task_id]:
            output = task.step(Action(name="final_step" if name == "submit" else name, arguments=arguments))
        assert (output.done, output.reward) == (True, CUBE_REWARDS[config.task_id])
        task.close()
