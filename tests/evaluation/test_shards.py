"""Shards: the parts of a plan are disjoint, cover it, are of equal size, and are the same wherever they are dealt."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import UsageError
from benchflow.evaluation.games.lineups import planned_items
from benchflow.evaluation.job import job_plan
from benchflow.evaluation.shards.dealing import dealt, whole_plan
from benchflow.evaluation.work import TaskRef, WorkItem, numbered, plan_items
from benchflow.record import JobRequest, Player, Settings, Shard, TaskId


def task(name: str, digest: str = "0", path: str = "p") -> TaskRef:
    return TaskRef(TaskId(name, f"sha256:{digest}"), path, None)


def plan(names: list[str], attempts: int = 1) -> list[WorkItem]:
    return list(plan_items(numbered([task(name) for name in names]), attempts, Settings("oracle")))


@given(st.lists(st.sampled_from("abcdefgh"), max_size=12), st.integers(1, 4), st.integers(1, 9), st.randoms())
def test_shards_are_disjoint_cover_the_plan_are_balanced_and_do_not_depend_on_order(names, attempts, count, shuffler):
    items = plan(names, attempts)
    shuffled = items.copy()
    shuffler.shuffle(shuffled)
    parts = [dealt(items, Shard(index, count)) for index in range(1, count + 1)]
    assert Counter(item.key for part in parts for item in part) == Counter(item.key for item in items)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for index, part in enumerate(parts, 1):
        assert {item.key for item in dealt(shuffled, Shard(index, count))} == {item.key for item in part}
        assert part == [item for item in items if item in part], "the order of a plan is kept"
    assert whole_plan(shuffled) == whole_plan(items)


def test_attempts_at_a_task_stay_together_where_the_size_allows_it():
    items = plan([f"t{number}" for number in range(12)], attempts=4)
    for index in (1, 2, 3):
        tasks = Counter(item.task.name for item in dealt(items, Shard(index, 3)))
        assert set(tasks.values()) == {4}
    assert [len(dealt(plan(["one"], attempts=10), Shard(index, 2))) for index in (1, 2)] == [5, 5]


def test_games_of_one_arena_are_cut_too():
    players = tuple(Player(name) for name in "abcd")
    request = JobRequest(("p",), "a", rotation=players, attempts=2)
    items = list(planned_items([replace(task("haggle"), roles=("buyer", "seller"))], request))
    parts = [dealt(items, Shard(index, 5)) for index in range(1, 6)]
    assert sorted(map(len, parts)) == [4, 5, 5, 5, 5]
    assert len({item.key for part in parts for item in part}) == len(items) == 24


def test_where_packages_are_and_how_they_were_found_does_not_matter():
    names = [f"t{number}" for number in range(30)]
    here = [task(name, path=f"/here/{name}") for name in names]
    there = [task(name, path=f"/there/{name}") for name in random.Random(1).sample(names, 30)]
    request = JobRequest(("x",), "oracle", attempts=2, shard=Shard(2, 3))
    one, other = job_plan(here, request), job_plan(there, replace(request, sources=("y",)))
    assert one.keys == other.keys
    assert one.whole == other.whole


def test_a_changed_package_stays_in_its_shard_and_an_added_one_is_noticed():
    before = [task(f"t{number}") for number in range(9)]
    changed = [*before[:4], task("t4", "changed"), *before[5:]]
    request = JobRequest(("x",), "oracle", shard=Shard(1, 2))
    one, other = job_plan(before, request), job_plan(changed, request)
    assert [item.task.name for item in one.items] == [item.task.name for item in other.items]
    assert (one.whole.digest == other.whole.digest, one.whole.order == other.whole.order) == (False, True)
    more = job_plan([*before, task("t9")], request)
    assert more.whole.order != one.whole.order
    twins = [*before, task("t0", "other")]
    assert job_plan(twins, request).whole.order != job_plan([*before, task("t0", "third")], request).whole.order


def test_a_shard_without_work_is_refused():
    with pytest.raises(UsageError, match=r"--shard 1/3 has no work: the plan has 2 rollouts\."):
        job_plan([task("a"), task("b")], JobRequest(("x",), "oracle", shard=Shard(1, 3)))


@pytest.mark.parametrize("text", ["0/2", "3/2", "x", "1", "1/0", "-1/2", "1/2/3", "1/1000000", "１/2", " 1/2", ""])
def test_what_is_not_a_shard_is_one_sentence(text):
    with pytest.raises(ValueError, match=r"shard"):
        Shard.parse(text)
    assert str(Shard.parse("02/3")) == "2/3"
