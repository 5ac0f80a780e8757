"""What `bench` says before and while agents work: unfinished packages, judges without a key, the time it took."""

import json

import pytest

pytestmark = pytest.mark.slow

TASK_MD = """---
task:
  name: acme/{name}
environment: {{network_mode: no-network}}
{more}---
{prompt}
"""
SCRIPT = {"verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n"}
PROSE = """---
verifier:
  default_strategy: {default}
  strategies:
    prose: {{type: llm-judge, rubric: rubric.toml}}
    role: {{type: agent-judge, role: critic, isolation: verifier-only, inputs: [answer.txt], model: openai/judge-two}}
    both: {{type: hybrid, combine: product, factors: {{words: {{strategy: prose}}}}}}
    tests: {{type: script, command: ./test.sh}}
---
## role:critic
Judge it.
"""
RUBRIC = """
[judge]
model = "openai/judge-one"
[[criterion]]
name = "right"
description = "It is right."
"""


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "JUDGE_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def package(tmp_path):
    """A package without image, with the files given."""

    def make(name, files, *, prompt="Write the answer.", more=""):
        folder = tmp_path / name
        files = {"task.md": TASK_MD.format(name=name, prompt=prompt, more=more), "oracle/solve.sh": "true\n", **files}
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


def judged(default="prose"):
    return {**SCRIPT, "verifier/verifier.md": PROSE.format(default=default), "verifier/rubric.toml": RUBRIC}


@pytest.mark.parametrize(("default", "judge"), [("prose", "judge-one"), ("both", "judge-one"), ("role", "judge-two")])
def test_a_judge_without_its_key_is_told_before_anything_begins(bench, package, tmp_path, default, judge):
    folder = package("prose", judged(default))
    said = f"bench: The judge 'openai/{judge}' needs the variable OPENAI_API_KEY, which is not set.\n"
    for command in (["run", folder, "--agent", "nop"], ["verify", folder], ["eval", "run", folder, "--agent", "nop"]):
        refused = bench(*command)
        assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", said)
    assert not (tmp_path / "jobs").exists()


def test_the_key_may_come_from_the_verifiers_own_variables(bench, package):
    taken = package("taken", judged("role"), more='verifier: {env: {OPENAI_API_KEY: "${JUDGE_KEY}"}}\n')
    missing = bench("run", taken, "--agent", "nop", "--json")
    assert missing.returncode == 1
    error = json.loads(missing.stdout)["error"]
    assert (error["category"], error["code"], error["phase"]) == ("environment", "variable-missing", "plan")
    away = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "JUDGE_KEY": "sk-of-the-judge"}
    found = bench("run", taken, "--agent", "nop", "--json", env=away)
    assert json.loads(found.stdout)["timing"]["verify"] > 0


def test_a_strategy_that_asks_nobody_needs_no_key(bench, package):
    folder = package("prose", judged("tests"))
    assert bench("verify", folder).returncode == 0
    refused = bench("verify", folder, "--strategy", "role")
    assert (refused.returncode, "judge-two" in refused.stderr) == (2, True)


def test_packages_without_a_judge_go_on_beside_one_whose_judge_has_no_key(bench, package):
    folders = [package("prose", judged()), package("plain", SCRIPT)]
    done = bench("eval", "run", *folders, "--agent", "nop", "--json")
    assert done.returncode == 1
    assert "warning: 1 package cannot be scored. The judge 'openai/judge-one' needs" in done.stderr
    summary = json.loads(done.stdout)
    assert (summary["scored"], summary["unscored_by"]) == (1, {"judge": 1})
    [unscored] = [line for line in summary["results"] if line["status"] == "unscored"][-1:]
    assert (unscored["reward"], unscored["error"]["code"], unscored["error"]["phase"]) == (
        None,
        "judge-key-missing",
        "plan",
    )


def test_an_agent_is_not_sent_to_an_unfinished_package(bench, package):
    folder = package("draft", SCRIPT, prompt="Write [REPLACE: what the agent has to do]")
    refused = bench("run", folder, "--agent", "model:gpt-4o", "--json")
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert (error["category"], error["code"], error["phase"]) == ("package", "marker-left", "plan")
    assert error["message"].startswith("task.md:6: placeholder not filled in: [REPLACE: what the agent")
    assert not refused.stderr


@pytest.mark.parametrize("command", [["run"], ["eval", "run"]])
def test_an_author_tries_an_unfinished_package_and_is_told_what_is_left(bench, package, command):
    verifier = {"verifier/test.sh": SCRIPT["verifier/test.sh"] + "# [REPLACE: more tests]\n"}
    folder = package("draft", verifier, prompt="Write [REPLACE: what]")
    done = bench(*command, folder, "--agent", "oracle", "--json")
    assert done.returncode == 0
    assert f"warning: {folder}/task.md:6: placeholder not filled in: [REPLACE: what]" in done.stderr
    assert f"(and 1 more: bench tasks check {folder})" in done.stderr


def test_a_finished_rollout_is_told_with_the_time_that_it_took(bench, package):
    done = bench("eval", "run", package("plain", SCRIPT), "--agent", "nop", "--json")
    [line] = json.loads(done.stdout)["results"]
    assert done.stderr.splitlines() == [f"[1/1] acme/plain, attempt 1: 1 ({line['timing']['total']:.1f} s)"]


def test_a_marker_in_the_held_out_solution_keeps_no_agent_away(bench, package, tmp_path):
    folder = package("held", {**SCRIPT, "oracle/solve.sh": "# [REPLACE: the solution]\n"})
    server = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    done = bench("run", folder, "--agent", "acp:false", "--json", env=server)
    assert json.loads(done.stdout)["error"]["phase"] == "agent"
