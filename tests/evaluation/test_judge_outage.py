"""A judge that is away: the work of an agent is scored again, in the same job and on resume; no agent runs twice."""

import json
import os

import pytest

import loaded_commands
from benchflow.testing import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jobs")]
FILES = {
    "task.md": "---\nschema_version: '1.3'\ntask: {name: t/judged}\n---\nWrite the answer.\n",
    "verifier/verifier.md": """---
verifier:
  strategies:
    prose: {type: llm-judge, rubric: rubric.toml}
---
""",
    "verifier/rubric.toml": """[judge]
model = "openai/test-model"
[[criterion]]
name = "right"
description = "The answer is 42."
""",
    "oracle/solve.sh": "echo 'the answer is 42' > answer.md\n",
}
WORDS, YES = "I like it.", {"score": "yes", "reason": "it is"}


@pytest.fixture
def bench(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "tasks" / "judged" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(server, *arguments):
        environ = {**os.environ, **server.environment}
        done = loaded_commands.bench("eval", *arguments, "--json", cwd=tmp_path, env=environ, load=["litellm"])
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


RUN = ["run", "tasks", "--agent", "oracle", "--sandbox", "local", "--name", "job"]


def lines(folder):
    return [json.loads(line) for line in (folder / "jobs/job/results.jsonl").read_text().splitlines()]


def test_an_answer_that_is_none_is_asked_for_again_over_the_same_work(bench, tmp_path):
    with ModelServer([WORDS, YES]) as server:
        summary = bench(server, *RUN)
    assert (summary["scored"], summary["mean_reward"]["value"]) == (1, 1.0)
    [rollout] = (tmp_path / "jobs/job/rollouts").iterdir()
    first, second = lines(tmp_path)
    assert (first["rollout"], second["rollout"]) == (rollout.name, rollout.name)
    assert (first["error"]["category"], second["reward"]) == ("judge", 1.0)
    assert second["rescore"]["verifier_digest"].startswith("sha256:")
    assert (rollout / second["rescore"]["folder"] / "result.json").is_file()


def test_resume_scores_what_was_kept(bench, tmp_path):
    with ModelServer(WORDS) as server:
        summary = bench(server, *RUN)
    assert summary["unscored_by"] == {"judge": 1}
    assert len(lines(tmp_path)) == 3, "every try is kept"
    with ModelServer(YES) as server:
        summary = bench(server, "resume", "job")
    assert (summary["total"], summary["scored"]) == (1, 1)
    assert len(list((tmp_path / "jobs/job/rollouts").iterdir())) == 1, "the agent was run again"


def test_without_a_kept_workspace_the_agent_is_not_run_again_for_the_judge(bench, tmp_path):
    with ModelServer(WORDS) as server:
        summary = bench(server, *RUN, "--no-workspaces")
    assert summary["unscored_by"] == {"judge": 1}
    assert len(list((tmp_path / "jobs/job/rollouts").iterdir())) == 1
