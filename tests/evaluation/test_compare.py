"""Two jobs side by side, and what people are shown."""

import itertools
import json
from dataclasses import replace

import pytest

from benchflow.evaluation.compare import compare
from benchflow.evaluation.reports.job_report import comparison_lines, summary_lines
from benchflow.evaluation.summary import job_summary, superseded_keys
from benchflow.record import ErrorRecord, Isolation, Job, NotCarriedOver, Notes, RescoreNote, VerifierPart

AWAY = ErrorRecord("judge", "timeout", "verify", "away")


@pytest.fixture
def job(make_result, make_job, tmp_path):
    """Makes a job from rewards by task; a task is a name, or a name, a digest and an ordinal."""
    names = (f"job-{number}" for number in itertools.count())

    def make(rewards):
        results = []
        for task, values in rewards.items():
            name, digest, ordinal = task if isinstance(task, tuple) else (task, "sha256:0", 1)
            for attempt, reward in enumerate(values, 1):
                error = AWAY if reward is None else None
                path = f"tasks/{name}/{digest}/{ordinal}"
                results.append(
                    make_result(name, reward, error, digest=digest, ordinal=ordinal, attempt=attempt, path=path)
                )
        return make_job(tmp_path, next(names), results)

    return make


def test_jobs_are_paired_by_task(job):
    first = job({"a": [0.0, 0.0], "b": [0.5], "c": [1.0], "x": [1.0]})
    second = job({"a": [1.0], "b": [1.0], "c": [1.0], "y": [0.0], "x": [None]})
    result = compare("one", first, "two", second)
    assert result.difference.value == pytest.approx(0.5)
    assert (result.only_first, result.only_second) == (("x",), ("y",))
    assert (result.tasks[0].task, result.tasks[0].first, result.tasks[0].second) == ("a", 0.0, 1.0)
    assert not any(item.changed for item in result.tasks)


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ([0.9, 1.0, 0.9, 1.0], "better"),
        ([0.2, 0.0, 0.1, 0.2], "no clear difference"),
        ([-2.0, -2.1, -2.0, -2.1], "worse"),
    ],
)
def test_a_difference_is_called_clear_when_its_interval_leaves_out_zero(job, second, verdict):
    names = "abcd"
    first = job({name: [0.1] for name in names})
    assert compare("1", first, "2", job({n: [v] for n, v in zip(names, second, strict=True)})).verdict == verdict


def test_jobs_without_a_common_task_are_said_to_have_none(job):
    result = compare("1", job({"a": [1.0]}), "2", job({"b": [1.0]}))
    assert "No task was scored in both jobs." in list(comparison_lines(result))
    assert result.difference.value is None


def test_packages_of_one_name_are_paired_by_content_and_then_by_path(job):
    first = job({("p", "sha256:x", 1): [0.0], ("p", "sha256:y", 1): [1.0], ("p", "sha256:z", 1): [0.25]})
    second = job({("p", "sha256:y", 1): [1.0], ("p", "sha256:w", 1): [0.5]})
    result = compare("1", first, "2", second)
    assert [(item.first, item.second, item.changed) for item in result.tasks] == [(1.0, 1.0, False), (0.0, 0.5, True)]
    assert result.only_first == ("p@z",)
    assert "changed" in "\n".join(comparison_lines(result))


def test_equal_packages_are_paired_one_by_one(job):
    first = job({("p", "sha256:x", 1): [0.0], ("p", "sha256:x", 2): [1.0]})
    result = compare("1", first, "2", job({("p", "sha256:x", 1): [0.5], ("p", "sha256:x", 2): [0.75]}))
    assert [(item.task, item.first, item.second) for item in result.tasks] == [("p", 0.0, 0.5), ("p #2", 1.0, 0.75)]


def test_a_task_that_changed_is_left_out_on_demand(job):
    first, second = job({("p", "sha256:x", 1): [0.0], "q": [0.5]}), job({("p", "sha256:w", 1): [1.0], "q": [0.5]})
    result = compare("1", first, "2", second, same_digest=True)
    assert ([item.task for item in result.tasks], result.dropped) == (["q"], ("p",))
    assert (result.only_first, result.only_second) == ((), ())
    assert "left out, because their content differs: p" in list(comparison_lines(result))


def test_the_lines_of_a_summary_state_denominators_and_what_is_missing(job):
    text = "\n".join(summary_lines(job_summary(job({"a": [1.0, 0.0], "b": [None, 1.0]}))))
    assert "3 of 4 rollouts scored, 2 tasks" in text
    assert "mean reward 0.750" in text
    assert "unscored 1: 1 judge; with them the mean would be between 0.500 and 0.750" in text
    assert "pass@2 1.000   pass^2 0.000  (1 task)" in text
    assert "judge/timeout" in text


def test_two_packages_of_one_name_are_two_tasks_in_a_summary(job):
    summary = job_summary(job({("p", "sha256:xxxxxxxxx", 1): [1.0], ("p", "sha256:yyyyyyyyy", 1): [0.0]}))
    assert (summary.statistics.tasks, summary.statistics.pass_rate.tasks) == (2, 2)
    assert list(summary.statistics.pass_at_k) == ["1"], "nobody tried a task twice"
    lines = list(summary_lines(summary))
    assert [line.split()[0] for line in lines[1:3]] == ["p@xxxxxxxx", "p@yyyyyyyy"]


def test_the_interval_of_a_difference_has_no_impossible_values(job):
    result = compare("1", job({"a": [0.0], "b": [1.0]}), "2", job({"a": [1.0], "b": [1.0]})).difference
    assert (result.value, result.low, result.high) == (0.5, -1.0, 1.0)
    wide = compare("1", job({"a": [0.0], "b": [3.0]}), "2", job({"a": [1.0], "b": [1.0]})).difference
    assert (wide.low, wide.high) == (-3.0, 3.0)


def test_a_comparison_names_tasks_as_a_summary_does(job):
    first = job({("p", "sha256:xxxxxxxxx", 1): [1.0], ("p", "sha256:yyyyyyyyy", 1): [None]})
    result = compare("1", first, "2", job({("p", "sha256:xxxxxxxxx", 1): [1.0]}))
    assert ([item.task for item in result.tasks], result.only_first) == (["p@xxxxxxxx"], ())


def test_results_without_a_place_in_the_plan_are_left_out_and_counted(make_result, make_job, tmp_path):
    note = RescoreNote("sha256:v", "sha256:p", key="new-b")
    results = [
        make_result("a", 0.0, key="old-a"),
        make_result("a", 1.0, digest="sha256:1", key="new-a"),
        make_result("b", 0.5, key="old-b", notes=Notes(rescore=note)),
        make_result("b", 0.0, key="older-b", digest="sha256:2", notes=Notes(rescore=note)),
        make_result("gone", 0.0, key="gone"),
    ]
    made = make_job(tmp_path, "job", results)
    assert len(job_summary(made).counted) == 5
    superseded = superseded_keys(made.results, {"new-a", "new-b", "not-run-yet"})
    assert superseded == ("old-a", "older-b", "gone")
    made.write_plan(replace(made.record, superseded=superseded))
    summary = job_summary(Job.find(tmp_path, "job"))
    assert [counted.result.key for counted in summary.counted] == ["new-a", "old-b"]
    assert (summary.statistics.mean_reward.value, summary.superseded) == (0.75, 3)
    assert "3 results are left out, because their packages have changed or are gone" in list(summary_lines(summary))
    other = make_job(tmp_path, "other", [make_result(name, 1.0) for name in ("a", "b", "gone")])
    assert compare("1", made, "2", other).only_second == ("gone",)


def test_a_change_on_every_task_is_clear_and_on_two_tasks_is_not(job):
    none, every = ({str(task): [reward] for task in range(10)} for reward in (0.0, 1.0))
    assert compare("1", job(none), "2", job(every)).verdict == "better"
    assert compare("1", job(every), "2", job(none)).verdict == "worse"
    assert compare("1", job(every), "2", job(every)).verdict == "no clear difference"
    assert (
        compare("1", job({"a": [0.0], "b": [0.0]}), "2", job({"a": [1.0], "b": [1.0]})).verdict == "no clear difference"
    )


def test_huge_rewards_are_shown_and_compared_without_infinity(job):
    low, high = job({"a": [-1.7e308, -1.7e308], "b": [-1.7e308]}), job({"a": [1.7e308, 1.7e308], "b": [1.7e308]})
    comparison = compare("1", low, "2", high)
    json.dumps(comparison.to_dict(), allow_nan=False)
    shown = "\n".join([*summary_lines(job_summary(high)), *comparison_lines(comparison)])
    assert "inf" not in shown
    assert "mean reward 1.700e+308" in shown


def test_tasks_that_were_verified_with_different_isolation_are_named(make_result, make_job, tmp_path):
    def verified(name, rung):
        nothing = NotCarriedOver(0, ())
        part = VerifierPart("script", "default", Isolation(rung, "user", None), 0, (), (), nothing)
        return make_job(tmp_path, name, [make_result("a", verifier=part)])

    first, second = verified("one", "shared"), verified("two", "open")
    result = compare("one", first, "two", second)
    assert "verified with different isolation: a (shared and open)" in list(comparison_lines(result))
    assert result.to_dict()["tasks"][0]["isolation"] == {"first": ["shared"], "second": ["open"]}
    assert not [line for line in comparison_lines(compare("one", first, "one", first)) if "isolation" in line]
