"""Who works when, and what counts of what is handed over: pure rules."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchflow.rollout.config import Role
from benchflow.rollout.plan import PlannedTurn
from benchflow.rollout.team_schedule import Ledger, stages

TURNS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["s", "t", "u"])), max_size=12)


def planned(pairs):
    return [PlannedTurn(Role(role, "x"), f"{number}", scene) for number, (role, scene) in enumerate(pairs)]


@given(TURNS)
def test_a_parallel_scene_is_one_stage_with_a_line_per_role(pairs):
    found = stages(planned(pairs), parallel=True)
    assert sorted(number for stage in found for line in stage.lines for number, _ in line.turns) == list(
        range(len(pairs))
    )
    for before, after in pairwise(found):
        assert before.scene != after.scene
    for stage in found:
        assert len({line.role for line in stage.lines}) == len(stage.lines)
        for line in stage.lines:
            numbers = [number for number, _ in line.turns]
            assert numbers == sorted(numbers)
            assert {turn.role.name for _, turn in line.turns} == {line.role}


@given(TURNS)
def test_in_a_sequential_team_every_turn_is_a_stage(pairs):
    found = stages(planned(pairs), parallel=False)
    assert [[line.role for line in stage.lines] for stage in found] == [[role] for role, _ in pairs]


def test_a_role_hands_over_what_it_changed_and_misses_what_others_did():
    ledger = Ledger()
    ledger.receive("a", {"/x": "1", "/y": "1"})
    ledger.receive("b", {"/x": "1", "/y": "1"})
    assert ledger.changed("a", {"/x": "2", "/y": "1", "/z": "1"}) == ("/x", "/z")
    assert ledger.take("a", "/x", "2") is None
    assert ledger.missing("b") == ("/x",)
    assert ledger.missing("a") == ()
    assert ledger.take("b", "/x", "3") == "a"
    assert ledger.missing("a") == ("/x",)


def test_a_file_takes_the_place_of_a_folder_and_the_other_way_round():
    ledger = Ledger()
    ledger.take("a", "/x/deep/f", "1")
    ledger.take("b", "/x", "1")
    assert set(ledger.handed) == {"/x"}
    ledger.take("a", "/x/g", "1")
    assert set(ledger.handed) == {"/x/g"}
