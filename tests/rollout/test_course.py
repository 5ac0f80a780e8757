"""A task under way: which step, what comes next, when it is over, and a total that hides nothing."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.record import AgentEnd, Artifact, Score, StepRecord, StepVerifier, VerifierPart
from benchflow.record.result import Isolation, NotCarriedOver
from benchflow.rewards import Scored, Unscored
from benchflow.rollout.course import Checkpoint, Course, Past
from benchflow.task.package import load_package

BROKEN = Unscored("verifier", "verify", "reward-missing", "It wrote no reward.")
RATES = st.floats(0, 1)
NAMES = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=5, unique=True)
VERDICTS = st.one_of(
    st.builds(Scored, RATES, metrics=st.dictionaries(st.sampled_from(["speed", "size"]), RATES)), st.just(BROKEN)
)


def course(*least, strategy=None):
    return Course(tuple(Checkpoint(f"s{number}", value) for number, value in enumerate(least)), strategy)


@st.composite
def courses(draw):
    """A course with as many verdicts as it takes, or fewer."""
    steps = tuple(Checkpoint(name, draw(st.none() | RATES)) for name in draw(NAMES))
    made = Course(steps, draw(st.sampled_from([None, "mean", "final"])))
    for verdict in draw(st.lists(VERDICTS, max_size=5)):
        if made.over:
            break
        made = made.after(verdict)
    return made


def test_a_task_without_steps_is_one_nameless_step_whose_verdict_is_the_total():
    whole = Scored(0.5, metrics={"speed": 1.0})
    begun = Course()
    assert (begun.under_way, begun.following, begun.over) == (Checkpoint(), None, False)
    done = begun.after(whole)
    assert (done.total(), done.over, done.under_way, done.records()) == (whole, True, None, ())
    assert begun.after(BROKEN).total() is BROKEN


def test_the_course_of_a_package_has_its_steps_or_is_one_step(make_package):
    declared = "steps:\n  - {name: one, min_reward: 0.5}\n  - {name: two}\nmulti_step_reward_strategy: final\n"
    texts = {f"steps/{name}/instruction.md": "Do it." for name in ("one", "two")}
    stepped = load_package(make_package(declared, texts)).view
    assert Course.of(stepped) == Course((Checkpoint("one", 0.5), Checkpoint("two")), "final")
    assert Course.of(load_package(make_package("")).view) == Course()


def test_steps_come_in_order_and_the_last_ends_the_course():
    one = course(None, None)
    assert (one.under_way.name, one.following.name, one.number) == ("s0", "s1", 0)
    two = one.after(Scored(0.0))
    assert (two.under_way.name, two.following, two.over, two.number) == ("s1", None, False, 1)
    assert (two.after(Scored(1.0)).over, two.after(Scored(1.0)).number) == (True, 1)


def test_a_step_below_its_minimum_ends_the_course_and_the_rest_counts_as_nothing():
    ended = course(0.5, None, None).after(Scored(0.4))
    assert (ended.over, ended.under_way, ended.following, ended.number) == (True, None, None, 0)
    assert [(step.status, step.passed) for step in ended.records()] == [
        ("scored", False), ("not-reached", None), ("not-reached", None),
    ]  # fmt: skip
    assert ended.total().reward == pytest.approx(0.4 / 3)
    assert not course(0.5, None).after(Scored(0.5)).over


def test_an_unscored_step_ends_the_course_and_decides_the_total():
    ended = course(None, None, None, strategy="final").after(Scored(1.0)).after(BROKEN)
    assert (ended.over, ended.total().code, ended.total().reason) == (
        True, "reward-missing", "step s1: It wrote no reward.",
    )  # fmt: skip
    assert [step.status for step in ended.records()] == ["scored", "unscored", "not-reached"]
    assert ended.records()[1].error.code == "reward-missing"


def test_what_ends_the_step_under_way_ends_the_whole_in_its_name():
    assert Course().ended_by(BROKEN) is BROKEN
    assert course(None, None).after(Scored(1.0)).ended_by(BROKEN).reason == "step s1: It wrote no reward."


def test_the_final_step_counts_alone_and_as_nothing_when_it_was_not_reached():
    both = course(0.1, None, strategy="final").after(Scored(0.2))
    assert both.after(Scored(0.9, metrics={"speed": 0.3})).total().record()["rewards"] == {
        "reward": 0.9, "speed": 0.3, "steps.s0": 0.2, "steps.s1": 0.9,
    }  # fmt: skip
    assert both.total().record()["rewards"] == {"reward": 0.0, "steps.s0": 0.2}
    three = course(None, None, None, strategy="final").after(Scored(0.1)).after(Scored(0.2)).after(Scored(0.3))
    assert three.total().reward == 0.3


def test_a_metric_that_a_step_does_not_have_counts_as_nothing_in_the_mean():
    done = course(None, None).after(Scored(1.0, metrics={"speed": 0.5})).after(Scored(0.0))
    assert done.total().record()["rewards"] == {"reward": 0.5, "speed": 0.25, "steps.s0": 1.0, "steps.s1": 0.0}


@pytest.mark.parametrize(
    ("least", "expected"),
    [(None, None), (0.5, True), (0.6, False), ({"speed": 0.2}, True), ({"speed": 0.4}, False), ({"other": 0.0}, False)],
)
def test_what_a_step_must_reach(least, expected):
    assert Checkpoint("s", least).passed(Scored(0.5, metrics={"speed": 0.3})) is expected
    assert Checkpoint("s", least).passed(BROKEN) is None


def test_what_is_known_of_a_step_is_in_its_record():
    isolation, nothing = Isolation("shared", "declared", None), NotCarriedOver(0, ())
    verifier = VerifierPart("script", "default", isolation, 0, (), (), nothing)
    agent, artifact = AgentEnd(0, timed_out=False), Artifact("/x", "x", "missing")
    (record,) = course(1.0).after(Past(Scored(1.0), verifier, agent, (artifact,))).records()
    assert record == StepRecord(
        name="s0",
        outcome=Score(1.0, {"reward": 1.0}),
        passed=True,
        agent=agent,
        verifier=StepVerifier("script", 0, isolation),
        artifacts=(artifact,),
    )


def test_a_course_without_a_verdict_has_no_total_and_one_that_is_over_takes_no_more():
    with pytest.raises(ValueError, match="No step"):
        course(None).total()
    with pytest.raises(ValueError, match="has ended"):
        Course().after(BROKEN).after(BROKEN)
    with pytest.raises(ValueError, match="names"):
        Course((Checkpoint("one"), Checkpoint()))
    with pytest.raises(ValueError, match="names"):
        Course(())


@given(courses())
def test_every_declared_step_has_exactly_one_record_in_order(made):
    assert [record.name for record in made.records()] == [step.name for step in made.steps]
    reached = [record.status != "not-reached" for record in made.records()]
    assert reached == [True] * len(made.past) + [False] * (len(made.steps) - len(made.past))


@given(courses())
def test_a_course_is_over_exactly_when_no_step_is_under_way(made):
    assert made.over == (made.under_way is None)
    if made.over:
        assert made.following is None
    else:
        assert made.steps[made.number] == made.under_way
    assert 0 <= made.number < len(made.steps)


@given(courses(), VERDICTS)
def test_moving_a_course_leaves_the_one_before_as_it_was(made, verdict):
    before = copy.deepcopy(made)
    if not made.over:
        assert made.after(verdict).past[: len(made.past)] == made.past
    assert (made.past, made.over) == (before.past, before.over)


@given(courses().filter(lambda made: made.past))
def test_the_total_is_unscored_exactly_when_a_step_is(made):
    total = made.total()
    assert (total.status == "unscored") == any(past.verdict.status == "unscored" for past in made.past)
    if total.status == "scored":
        assert 0 <= total.reward <= 1
        assert {name for name in total.metrics if name.startswith("steps.")} == {
            f"steps.{step.name}" for step, _ in zip(made.steps, made.past, strict=False)
        }


@given(st.lists(RATES, min_size=1, max_size=6))
def test_the_mean_is_over_all_declared_steps(rewards):
    made = course(*[None] * len(rewards))
    for reward in rewards:
        made = made.after(Scored(reward))
    assert math.isclose(made.total().reward, sum(rewards) / len(rewards), abs_tol=1e-9)
