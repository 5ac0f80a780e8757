"""`decide`: what an oracle's state is verified at next, and what the outcomes prove."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.record import RungOutcome
from benchflow.verifier.ladder import MAX_RUNS, Decision, Try, decide, wider

FOUR = ("separate", "shared", "system", "services")
REWARDS = (None, 0.0, 0.5, 1.0)


def climbed(score, rungs=FOUR, required=1.0):
    """The decision and all outcomes, where `score(run, rung, count)` is the reward of the count-th verification."""
    outcomes = []
    while isinstance(move := decide(outcomes, rungs, required), Try):
        last = outcomes[-1].run if outcomes else 1
        assert move.run in (last, last + 1), "runs follow each other"
        done = [item for item in outcomes if (item.run, item.rung) == (move.run, move.rung)]
        if move.rung in ("services", "open"):
            opened = any(item.run == move.run and item.rung == "open" for item in outcomes)
            assert not opened, "verifying at open spoils the running state"
        outcomes.append(RungOutcome(move.run, move.rung, score(move.run, move.rung, len(done))))
        assert len(outcomes) < 60
    return move, outcomes


def from_rung(least):
    """An oracle that scores full at a rung and all wider ones."""
    order = (*FOUR, "open")
    return lambda run, rung, count: 1.0 if order.index(rung) >= order.index(least) else 0.0


@pytest.mark.parametrize("rung", FOUR)
def test_the_strictest_rung_at_which_the_oracle_scores_full_is_chosen_in_one_run(rung):
    decision, outcomes = climbed(from_rung(rung))
    assert decision == Decision(rung, "proven", 1.0, settled=True)
    assert {item.run for item in outcomes} == {1}


def test_a_state_of_files_needs_two_verifications():
    _, outcomes = climbed(from_rung("shared"), rungs=FOUR[1:])
    assert [item.rung for item in outcomes] == ["shared", "open"]


def test_an_oracle_that_scores_only_in_the_open_is_proof_of_that():
    decision, outcomes = climbed(from_rung("open"))
    assert decision == Decision("open", "open-only", 1.0, settled=True)
    assert {item.run for item in outcomes} == {1}
    assert [item.rung for item in outcomes].count("shared") == 2


def test_a_rung_that_misses_once_is_tried_again():
    decision, _ = climbed(lambda run, rung, count: 0.0 if rung == "shared" and count == 0 else 1.0, rungs=FOUR[1:])
    assert decision == Decision("shared", "proven", 1.0, settled=True)


def test_an_unscored_verification_is_tried_again_and_refuses_nothing():
    decision, _ = climbed(lambda run, rung, count: None if rung == "shared" and count == 0 else 1.0, rungs=FOUR[1:])
    assert decision == Decision("shared", "proven", 1.0, settled=True)
    decision, _ = climbed(lambda run, rung, count: None if rung == "shared" else 1.0, rungs=FOUR[1:])
    assert decision == Decision("system", "proven", 1.0, settled=False), "usable now, but not to be kept"


def test_full_is_what_the_same_state_gets_in_the_open():
    score = {"shared": 1.0, "system": 1.5, "services": 1.5, "open": 1.5}
    decision, _ = climbed(lambda run, rung, count: score[rung], rungs=FOUR[1:])
    assert decision == Decision("system", "proven", 1.5, settled=True)


def test_the_required_reward_of_the_evidence_can_be_lower():
    assert climbed(lambda run, rung, count: 0.8, required=0.7)[0] == Decision("separate", "proven", 0.8, settled=True)


def test_an_oracle_that_fails_is_said_to_fail_after_two_runs():
    decision, outcomes = climbed(lambda run, rung, count: 0.5)
    assert decision == Decision("open", "oracle-fails")
    assert max(item.run for item in outcomes) == 2


def test_a_run_whose_oracle_fails_counts_neither_for_nor_against_a_rung():
    decision, outcomes = climbed(lambda run, rung, count: 0.0 if run == 1 else 1.0)
    assert decision == Decision("separate", "proven", 1.0, settled=True)
    assert max(item.run for item in outcomes) == 2


def test_an_oracle_that_is_never_scored_ends_undecided_after_four_runs():
    decision, outcomes = climbed(lambda run, rung, count: None)
    assert decision == Decision("open", "undecided")
    assert max(item.run for item in outcomes) == MAX_RUNS


def test_without_rungs_only_the_open_box_is_tried():
    decision, outcomes = climbed(from_rung("shared"), rungs=())
    assert (decision.reason, [item.rung for item in outcomes]) == ("open-only", ["open"])


def test_every_steady_oracle_gets_the_strictest_rung_that_scores_full():
    for rewards in product(REWARDS, repeat=5):
        score = dict(zip((*FOUR, "open"), rewards, strict=True))
        decision, _ = climbed(lambda run, rung, count, score=score: score[rung])
        full = score["open"]
        if full != 1.0:
            assert (decision.rung, decision.settled) == ("open", False)
            continue
        good = [rung for rung in FOUR if score[rung] == 1.0]
        assert decision.rung == (good[0] if good else "open")
        stricter = FOUR[: FOUR.index(good[0])] if good else FOUR
        assert decision.settled == all(score[rung] is not None for rung in stricter)


@given(st.data(), st.sampled_from([FOUR, FOUR[1:], ("services",), ()]))
def test_whatever_happens_the_ladder_ends_within_four_runs_and_proves_only_what_was_seen(data, rungs):
    decision, outcomes = climbed(lambda run, rung, count: data.draw(st.sampled_from(REWARDS)), rungs)
    assert max(item.run for item in outcomes) <= MAX_RUNS
    if decision.reason == "proven":
        run = outcomes[-1].run
        full = next(item.reward for item in outcomes if item.run == run and item.rung == "open")
        assert full == decision.full == 1.0
        assert any(item.reward == full for item in outcomes if (item.run, item.rung) == (run, decision.rung))
    if decision.settled:
        for rung in rungs[: rungs.index(decision.rung)] if decision.rung != "open" else rungs:
            assert sum(item.rung == rung and item.reward is not None for item in outcomes) >= 2


def test_each_rung_has_a_next_wider_one():
    assert [wider(rung) for rung in (*FOUR, "open")] == ["shared", "system", "services", "open", None]
