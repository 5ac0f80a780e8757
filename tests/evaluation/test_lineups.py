"""Who plays whom in a job, by its request alone."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.arena import needed_libraries
from benchflow.errors import UsageError
from benchflow.evaluation.games.lineups import check_line_ups, game_seed, line_up_count, line_ups, planned_items
from benchflow.evaluation.work import TaskRef
from benchflow.record import JobRecord, JobRequest, Player, TaskChoice, TaskId

A, B, C, D = (Player(name) for name in "abcd")
HAGGLE = TaskRef(TaskId("haggle", "sha256:1"), "haggle", "sha256:1", roles=("buyer", "seller"))
AUCTION = TaskRef(TaskId("auction", "sha256:2"), "auction", "sha256:2", roles=("bidder", "rival", "appraiser"))
PLAIN = TaskRef(TaskId("plain", "sha256:3"), "plain", "sha256:3")


def request(*rotation, **changes):
    return JobRequest(("packages",), "a", rotation=rotation, **changes)


def seated(task, asked):
    return [(up.agent, *up.others.values()) for up in line_ups(asked, task.id, task.roles, 1)]


def test_each_agent_plays_each_role_against_each_other():
    assert seated(HAGGLE, request(A, B, C)) == [(A, B), (A, C), (B, A), (B, C), (C, A), (C, B)]
    assert seated(HAGGLE, request(A)) == [(A, A)]
    assert seated(AUCTION, request(A, B)) == [(A, A, B), (A, B, A), (A, B, B), (B, A, A), (B, A, B), (B, B, A)]
    assert seated(PLAIN, request(A, B)) == [(A,), (B,)]


@given(players=st.integers(1, 5), places=st.integers(1, 4))
def test_every_player_has_every_role_equally_often_and_the_count_is_right(players, places):
    task = TaskRef(TaskId("t", "sha256:0"), "t", "sha256:0", roles=tuple(map(str, range(places))))
    found = seated(task, request(*(Player(str(number)) for number in range(players))))
    assert len(found) == len(set(found)) == line_up_count(players, places)
    had = Counter((place, player) for line_up in found for place, player in enumerate(line_up))
    assert len(had) == players * places
    assert len(set(had.values())) == 1
    assert all(len(set(line_up)) == min(players, places) for line_up in found)


def test_without_rotation_the_agent_has_the_first_role_and_named_participants_theirs():
    asked = request(participants={"seller": B, "appraiser": C})
    [haggle], [auction] = (list(line_ups(asked, task.id, task.roles, 1)) for task in (HAGGLE, AUCTION))
    assert (haggle.agent, haggle.others) == (A, {"seller": B})
    assert (auction.agent, auction.others) == (A, {"appraiser": C})  # the rival is what the document says
    assert list(line_ups(asked, PLAIN.id, PLAIN.roles, 1)) == []


def test_a_named_participant_keeps_its_role_while_the_others_take_turns():
    assert seated(AUCTION, request(A, B, participants={"appraiser": C})) == [(A, B, C), (B, A, C)]
    assert seated(HAGGLE, request(A, B, participants={"buyer": C})) == [(C, A), (C, B)]


def test_a_job_of_arenas_and_other_packages_has_an_item_for_each_attempt_and_line_up():
    asked = request(A, B, attempts=3)
    items = list(planned_items([HAGGLE, PLAIN], asked))
    assert len({item.key for item in items}) == len(items) == 3 * (2 + 2)
    assert [str(item.line_up) for item in items[:4]] == ["a – b", "b – a", "a", "b"]
    alone = list(planned_items([HAGGLE, PLAIN], request(attempts=3)))
    assert [item.line_up is None for item in alone] == [False, True] * 3


@pytest.mark.parametrize(
    "other",
    [
        request(A, C),
        request(B, A, participants={"seller": C}),
        request(A, Player("b", "model")),
        request(A, B, choice=TaskChoice(seed=1)),
        request(A, B, max_steps=3),
    ],
)
def test_the_key_says_who_plays_whom_with_which_seed(other):
    ours = {item.key for item in planned_items([HAGGLE], request(A, B))}
    assert not ours & {item.key for item in planned_items([HAGGLE], other)}


def test_the_key_of_a_task_without_roles_is_what_it_was():
    alone = request(choice=TaskChoice(seed=3))
    [item] = planned_items([PLAIN], alone)
    [plain] = planned_items([PLAIN], request())
    assert item.key == plain.key


def test_games_of_one_attempt_share_their_seed_and_those_of_others_differ():
    items = list(planned_items([HAGGLE, AUCTION], request(A, B, attempts=50)))
    by_game = {(item.task.name, item.attempt): item.line_up.seed for item in items}
    assert all(item.line_up.seed == by_game[item.task.name, item.attempt] for item in items)
    assert len(set(by_game.values())) == 100
    assert all(0 <= seed < 2**31 for seed in by_game.values())
    assert game_seed(0, HAGGLE.id, 1) != game_seed(1, HAGGLE.id, 1)
    assert game_seed(0, HAGGLE.id, 1) == 611_375_616, "a seed that was published must not change"


@pytest.mark.parametrize(
    ("tasks", "asked", "words"),
    [
        ([PLAIN], request(A, B), "--rotate-roles applies to arena packages"),
        ([HAGGLE], request(participants={"seler": B}), "no role 'seler'; the roles of its arenas are buyer, seller"),
        ([PLAIN], request(participants={"seller": B}), "it has no arena packages"),
        ([HAGGLE], request(participants={"buyer": B}), "--agent plays the role 'buyer' of haggle"),
        ([HAGGLE], request(A, B, participants={"buyer": C, "seller": D}), "none is left for the agents"),
        ([HAGGLE], request(A, B, participants={"buyer": Player("http://127.0.0.1:1")}), "not a URL"),
        ([AUCTION], request(*(Player(str(n)) for n in range(30))), "30 agents have 24,360 line-ups for the 3 roles"),
    ],
)
def test_what_no_task_has_a_use_for_is_refused(tasks, asked, words):
    with pytest.raises(UsageError, match=words):
        check_line_ups(tasks, asked)


def test_a_role_of_one_arena_may_be_named_beside_other_tasks():
    check_line_ups([HAGGLE, AUCTION, PLAIN], request(participants={"seller": B}))


def test_job_json_keeps_who_plays():
    for asked in (
        request(),
        request(A, Player("b", "m")),
        request(participants={"seller": Player("http://127.0.0.1:1")}),
    ):
        record = JobRecord("job", asked, 1, "now")
        document = record.to_dict()
        assert JobRecord.from_dict(document) == record
        assert ("rotation" in document, "participants" in document) == (bool(asked.rotation), bool(asked.participants))


def test_all_ways_to_seat_players_are_counted():
    for players, places in product(range(1, 5), range(1, 5)):
        ways = [way for way in product(range(players), repeat=places) if len(set(way)) == min(players, places)]
        assert line_up_count(players, places) == len(ways)


def test_a_job_with_games_is_refused_where_the_libraries_of_arenas_are_missing(monkeypatch):
    monkeypatch.setattr(needed_libraries, "find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(UsageError, match="Arenas need the extra 'arena'"):
        check_line_ups([PLAIN, HAGGLE], request())
    check_line_ups([PLAIN], request())
