"""Tasks are told apart by name and content, equal ones by their order; keys say what was run and nothing else."""

from dataclasses import fields, replace

import pytest

from benchflow.record import Pair, Settings, TaskId, always_wins, identify, labels, pair, work_key

X, Y = TaskId("p", "sha256:xxxxxxxxxx"), TaskId("p", "sha256:yyyyyyyyyy")


def test_only_equal_tasks_are_numbered():
    found = list(identify([("p", "x"), ("p", "y"), ("p", "x"), ("q", "x"), ("p", None), ("p", None)]))
    assert [task.ordinal for task in found] == [1, 1, 2, 1, 1, 2]
    assert len(set(found)) == 6


def test_a_label_says_no_more_than_it_must():
    second = replace(X, ordinal=2)
    assert list(labels([TaskId("q", "d"), X, second]).values()) == ["q", "p", "p #2"]
    assert list(labels([X, second, Y]).values()) == ["p@xxxxxxxx", "p@xxxxxxxx #2", "p@yyyyyyyy"]


def test_a_task_alone_is_labelled_by_its_name():
    assert (X.label(), X.label(alone=False)) == ("p", "p@xxxxxxxx")
    assert TaskId("p", None, 3).label(alone=False) == "p #3"


@pytest.mark.parametrize("agent", ["oracle", "nop", "script", "script:./solve.sh", "oracle:a:b"])
def test_agents_that_play_every_role(agent):
    assert always_wins(agent)


@pytest.mark.parametrize("agent", ["acp:oracle", "model", "oracles", ""])
def test_agents_that_leave_roles_to_the_document(agent):
    assert not always_wins(agent)


def test_the_order_of_keys_in_a_setting_does_not_count():
    one, other = {"name": "a", "turns": 1}, {"turns": 1, "name": "a"}
    assert Settings("x", scenes=(one,)).digest() == Settings("x", scenes=(other,)).digest()


def test_tasks_of_two_jobs_pair_by_name_equal_content_first():
    z, q, r = TaskId("p", "z"), TaskId("q", "1"), TaskId("r", "1")
    pairs, left, right = pair([X, z, Y, q], [Y, r, TaskId("p", "w")])
    assert pairs == [Pair(Y, Y), Pair(X, TaskId("p", "w"))]
    assert ([both.changed for both in pairs], left, right) == ([False, True], [z, q], [r])


def test_a_key_is_the_work_and_not_the_place():
    settings = Settings("oracle")
    key = work_key(X, settings.digest(), 1)
    assert key == work_key(TaskId(X.name, X.content_digest), Settings("oracle", model=None).digest(), 1)
    others = {
        work_key(Y, settings.digest(), 1),
        work_key(replace(X, ordinal=2), settings.digest(), 1),
        work_key(replace(X, name="other"), settings.digest(), 1),
        work_key(replace(X, content_digest=None), settings.digest(), 1),
        work_key(X, settings.digest(), 2),
    }
    assert len({key, *others}) == 6
    assert {len(one) for one in (key, *others)} == {32}


@pytest.mark.parametrize("setting", [field.name for field in fields(Settings)])
def test_every_setting_counts(setting):
    assert replace(Settings("oracle"), **{setting: ("other",)}).digest() != Settings("oracle").digest()
