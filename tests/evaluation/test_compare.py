"""Two jobs side by side, and what people are shown."""

import pytest

from benchflow.evaluation.compare import compare
from benchflow.evaluation.report import comparison_lines, summary_lines
from benchflow.evaluation.statistics import Outcome, summarise


def job(rewards):
    return [Outcome(task, "scored" if r is not None else "unscored", r, category=None if r is not None else "judge")
            for task, values in rewards.items() for r in values]  # fmt: skip


def test_jobs_are_paired_by_task():
    first = job({"a": [0.0, 0.0], "b": [0.5], "c": [1.0], "x": [1.0]})
    second = job({"a": [1.0], "b": [1.0], "c": [1.0], "y": [0.0], "x": [None]})
    result = compare("one", first, "two", second)
    assert result.difference.value == pytest.approx(0.5)
    assert (result.only_first, result.only_second) == (("x",), ("y",))
    assert result.tasks["a"] == (0.0, 1.0)


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ([0.9, 1.0, 0.9, 1.0], "better"),
        ([0.2, 0.0, 0.1, 0.2], "no clear difference"),
        ([-2.0, -2.1, -2.0, -2.1], "worse"),
    ],
)
def test_a_difference_is_called_clear_when_its_interval_leaves_out_zero(second, verdict):
    names = "abcd"
    first = job({name: [0.1] for name in names})
    assert compare("1", first, "2", job({n: [v] for n, v in zip(names, second, strict=True)})).verdict == verdict


def test_jobs_without_a_common_task_are_said_to_have_none():
    result = compare("1", job({"a": [1.0]}), "2", job({"b": [1.0]})).to_dict()
    assert "No task was scored in both jobs." in list(comparison_lines(result))
    assert result["difference"]["value"] is None


def test_the_lines_of_a_summary_state_denominators_and_what_is_missing():
    def record(task, attempt, reward):
        error = None if reward is not None else {"category": "judge", "code": "timeout"}
        return {"task": {"name": task}, "attempt": attempt, "reward": reward, "error": error}

    results = [record("a", 1, 1.0), record("a", 2, 0.0), record("b", 1, None), record("b", 2, 1.0)]
    outcomes = [
        Outcome(r["task"]["name"], "scored" if r["error"] is None else "unscored", r["reward"], category="judge")
        for r in results
    ]
    text = "\n".join(summary_lines({"results": results, **summarise(outcomes)}))
    assert "3 of 4 rollouts scored, 2 tasks" in text
    assert "mean reward 0.750" in text
    assert "unscored 1: 1 judge; whatever they had scored, the mean lies between 0.500 and 0.750" in text
    assert "pass@2 1.000   pass^2 0.000  (1 task)" in text
    assert "judge/timeout" in text
