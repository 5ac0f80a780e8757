"""Multi-step packages: settings and files of each step, what must be reached, and a total that hides nothing."""

import json

import pytest

pytestmark = pytest.mark.anyio

OFFLINE = "environment: {network_mode: no-network}\n"
CHECK = "if grep -q {word} /app/{file} 2>/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def files(**more):
    made = {"verifier/test.sh": None, "oracle/solve.sh": None}
    for name in ("one", "two"):
        made[f"steps/{name}/instruction.md"] = f"Write {name}."
        made[f"steps/{name}/verifier/test.sh"] = CHECK.format(word=name, file=f"{name}.txt")
        made[f"steps/{name}/oracle/solve.sh"] = f"echo {name} > {name}.txt\n"
    return {**made, **more}


def frontmatter(one="", two="", rest=""):
    return OFFLINE + f"steps:\n  - {{name: one{one}}}\n  - {{name: two{two}}}\n{rest}"


@pytest.mark.sandbox
async def test_the_oracle_of_each_step_solves_it(run, make_package, tmp_path):
    result = await run(make_package(frontmatter(), files()), "oracle")
    assert (result.reward, result.rewards) == (1.0, {"reward": 1.0, "steps.one": 1.0, "steps.two": 1.0})
    assert [(step.name, step.status) for step in result.steps] == [
        ("one", "scored"),
        ("two", "scored"),
    ]
    assert (tmp_path / "out" / "steps" / "two" / "verifier" / "reward.txt").is_file()
    lines = [json.loads(line) for line in (tmp_path / "out" / "rewards.jsonl").read_text().splitlines()]
    assert [(line["type"], line["tag"]) for line in lines] == [
        ("process", "one"), ("process", "two"), ("terminal", "reward"),
    ]  # fmt: skip


async def test_each_step_has_its_prompt_in_the_workspace_of_the_last(run, make_package, new_script):
    script = new_script("echo one > one.txt; cat /instruction.md", "cat one.txt /instruction.md; ls /verifier /logs")
    result = await run(make_package(frontmatter(), files()), script=script)
    assert [text for _, text in script.prompts] == ["Write one.", "Write two."]
    assert (result.reward, result.rewards["steps.two"]) == (0.5, 0.0)
    assert len(script.contexts) == 2


@pytest.mark.parametrize(("strategy", "reward"), [("mean", 0.0), ("final", 0.0)])
async def test_what_was_not_reached_counts_as_nothing(run, make_package, new_script, strategy, reward):
    package = make_package(frontmatter(", min_reward: 1.0", rest=f"multi_step_reward_strategy: {strategy}\n"), files())
    script = new_script("echo two > two.txt")
    result = await run(package, script=script)
    assert (result.status, result.reward, len(script.prompts)) == ("scored", reward, 1)
    one, two = result.to_dict()["steps"]
    assert (one["passed"], two["status"], two["reward"]) == (False, "not-reached", None)


async def test_the_final_step_counts_alone_when_the_package_says_so(run, make_package):
    package = make_package(frontmatter(rest="multi_step_reward_strategy: final\n"), files())
    result = await run(package, commands=["echo two > two.txt"])
    assert (result.reward, result.rewards["steps.one"]) == (1.0, 0.0)


async def test_a_step_that_cannot_be_scored_is_never_hidden(run, make_package):
    broken = files(**{"steps/one/verifier/test.sh": "exit 1\n"})
    package = make_package(frontmatter(rest="multi_step_reward_strategy: final\n"), broken)
    result = await run(package, commands=["echo two > two.txt"])
    assert (result.status, result.error.category, result.error.code) == ("unscored", "verifier", "reward-missing")
    assert result.error.message.startswith("step one:")
    assert [step["status"] for step in result.to_dict()["steps"]] == ["unscored", "not-reached"]


async def test_settings_of_a_step_are_its_own(run, make_package):
    package = make_package(
        frontmatter(", agent: {timeout_sec: 0.4}, verifier: {env: {EXTRA: x}}", rest="agent: {timeout_sec: 50}\n"),
        files(**{"steps/one/verifier/test.sh": 'test "$EXTRA" = x && echo 1 > /logs/verifier/reward.txt\n'}),
    )
    result = await run(package, commands=["sleep 30", "echo two > two.txt"])
    one, two = result.to_dict()["steps"]
    assert (one["agent"]["timed_out"], two["agent"]["timed_out"]) == (True, False)
    assert (one["reward"], two["reward"]) == (1.0, 1.0)


async def test_files_of_a_step_are_set_up_before_it(run, make_package):
    package = make_package(
        frontmatter(two=", healthcheck: {command: 'test -f /app/ready', interval_sec: 0.1}"),
        files(
            **{
                "steps/two/workdir/seed.txt": "two",
                "steps/two/workdir/setup.sh": "#!/bin/bash\nset -o pipefail\nid -un > ready; cp seed.txt copy.txt\n",
            }
        ),
    )
    result = await run(package, commands=["ls seed.txt", "cp copy.txt two.txt; cat ready; echo x >> seed.txt"])
    assert result.rewards["steps.two"] == 1.0


@pytest.mark.sandbox
async def test_a_step_has_its_network_after_a_verification_beside_running_processes(run, make_package, events):
    closed = ", agent: {network_mode: no-network}"
    live = "verifier: {network_mode: allowlist, allowed_hosts: [example.org], hardening: {keep_processes: true}}\n"
    package = make_package(frontmatter(closed, closed, live).removeprefix(OFFLINE), files())
    links = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
    await run(package, commands=[f"setsid sleep 1000 >/dev/null 2>&1 & {links}", links])
    assert [event["text"] for event in events() if event["type"] == "agent_message"] == ["lo\n", "lo\n"]


async def test_a_set_up_that_fails_is_the_environments_fault(run, make_package):
    package = make_package(frontmatter(), files(**{"steps/two/workdir/setup.sh": "echo broken >&2; exit 4\n"}))
    result = await run(package, "oracle")
    assert (result.error.category, result.error.code) == ("environment", "setup-failed")
    assert "broken" in result.error.message
    assert [step["status"] for step in result.to_dict()["steps"]] == ["scored", "unscored"]


async def test_artifacts_of_each_step_are_kept(run, make_package, tmp_path):
    package = make_package(frontmatter(", artifacts: [one.txt]", rest="artifacts: [two.txt]\n"), files())
    result = await run(package, "oracle")
    kept = [(item["step"], item["source"], item["status"]) for item in result.to_dict()["artifacts"]]
    assert kept == [
        ("one", "/app/two.txt", "missing"),
        ("one", "/app/one.txt", "collected"),
        ("two", "/app/two.txt", "collected"),
    ]
    assert (tmp_path / "out" / "steps" / "one" / "artifacts" / "app" / "one.txt").read_text() == "one\n"


async def test_scenes_are_played_in_every_step_unless_they_belong_to_one(run, make_package, new_script):
    scenes = (
        "agents: {roles: {a: {agent: shell}}}\n"
        "scenes: [{name: one, turns: [a]}, {name: review, turns: [{role: a, prompt: Review.}]}]\n"
    )
    script = new_script("true")
    await run(make_package(frontmatter(rest=scenes), files()), script=script)
    assert [text for _, text in script.prompts] == ["Write one.", "Review.", "Review."]
