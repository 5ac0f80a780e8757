"""Ratings say what the games determine, and nothing else."""

import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.evaluation.games.arena_statistics import Game, arena_statistics
from benchflow.evaluation.games.ratings import ELO, Seat, ratings
from benchflow.record import ArenaStatistics, TaskId
from benchflow.record.codec import plain, read

Z = NormalDist().inv_cdf(0.975)
TASK = TaskId("haggle", "sha256:1")


def duel(first, second, mine, theirs):
    return (Seat("buyer", first, mine), Seat("seller", second, theirs))


def times(won, tied, lost, first="a", second="b"):
    results = [(1.0, 0.0)] * won + [(0.5, 0.5)] * tied + [(0.0, 1.0)] * lost
    return [duel(first, second, *result) for result in results]


def by_player(groups):
    return {rating.player: rating for group in groups for rating in group.ratings}


@given(won=st.integers(0, 60), tied=st.integers(0, 60), lost=st.integers(0, 60))
def test_two_players_have_the_strengths_of_the_closed_form(won, tied, lost):
    mine, theirs = won + tied / 2, lost + tied / 2
    if not mine or not theirs:
        return
    [group] = ratings(times(won, tied, lost))
    found = by_player([group])
    half = ELO * math.log(mine / theirs) / 2
    error = ELO * math.sqrt(1 / mine + 1 / theirs) / 2
    assert group.reference == ("a", "b")
    assert found["a"].value == pytest.approx(half, abs=1e-5)
    assert found["b"].value == pytest.approx(-half, abs=1e-5)
    assert (found["a"].low, found["a"].high) == pytest.approx((half - Z * error, half + Z * error), abs=1e-5)
    assert found["a"].score == pytest.approx(mine / (mine + theirs))


@given(games=st.integers(1, 500))
def test_a_player_that_won_every_game_has_a_bound_on_one_side_only(games):
    [group] = ratings(times(games, 0, 0))
    found = by_player([group])
    chance = 0.025 ** (1 / games)  # at the bound, so many wins in a row have a chance of 2.5 %
    assert (found["a"].value, found["a"].low, found["a"].high) == (0.0, 0.0, 0.0)
    assert (found["b"].value, found["b"].low) == (None, None)
    assert found["b"].high == pytest.approx(-ELO * math.log(chance / (1 - chance)), abs=1e-3)


def test_players_at_finite_distances_are_the_reference_and_the_others_are_above_or_below_it():
    games = [*times(6, 0, 4), *times(9, 0, 0, "top", "a"), *times(5, 0, 0, "b", "bottom"), *times(1, 0, 0, "a", "x")]
    [group] = ratings([*games, *times(1, 0, 0, "x", "far")])
    assert group.reference == ("a", "b")
    assert [rating.player for rating in group.ratings] == ["top", "a", "b", "x", "bottom", "far"]
    found = by_player([group])
    assert found["a"].value == pytest.approx(-found["b"].value)
    assert found["top"].low is not None
    assert (found["top"].value, found["top"].high) == (None, None)
    assert found["bottom"].high is not None
    assert (found["far"].value, found["far"].low, found["far"].high) == (None, None, None)


def test_players_that_no_chain_of_games_connects_are_in_different_groups():
    groups = ratings([*times(3, 0, 2), *times(2, 0, 1, "b", "c"), *times(1, 1, 0, "x", "y")])
    assert [group.reference for group in groups] == [("a", "b", "c"), ("x", "y")]


def test_games_against_oneself_and_seats_without_a_reward_are_not_compared():
    assert ratings([duel("a", "a", 1.0, 0.0), duel("a", "b", 1.0, None)]) == ()
    assert arena_statistics([]) is None


def test_games_and_groups_that_nobody_plays_are_not_rated_instead_of_taking_minutes():
    assert ratings([tuple(Seat(str(n), str(n), float(n)) for n in range(5_000))]) == ()
    ring = [duel(str(n), str((n + 1) % 300), 1.0, 0.0) for n in range(300)]
    assert [group.reference for group in ratings([*ring, *times(1, 1, 0)])] == [("a", "b")]


def test_the_comparisons_of_a_game_share_the_weight_of_one():
    """Each of three that beats the next in turn, in three games: nobody is better, and the error is that of 3 games."""
    order = [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]
    games = [tuple(map(Seat, ("x", "y", "z"), players, (1.0, 0.5, 0.0))) for players in order]
    found = by_player(ratings(games))
    for rating in found.values():
        assert rating.value == pytest.approx(0.0, abs=1e-6)
        assert (rating.games, rating.score) == (3, 0.5)
        # Every pair has 3 comparisons of weight 1/2: an information of 3/8 per pair, whose inverse is (2/9) / (3/8).
        assert rating.high == pytest.approx(ELO * Z * math.sqrt((2 / 9) / (3 / 8)), abs=1e-4)


seats = st.tuples(
    st.lists(st.sampled_from("abcde"), min_size=2, max_size=4),
    st.lists(st.sampled_from([None, 0.0, 0.5, 1.0, -3.0, 1e300]), min_size=4, max_size=4),
)


@given(drawn=st.lists(seats, max_size=40), salt=st.integers())
def test_the_order_of_games_and_the_names_of_players_do_not_matter(drawn, salt):
    games = [tuple(map(Seat, "wxyz", players, rewards)) for players, rewards in drawn]
    shuffled = random.Random(salt).sample(games, len(games))
    assert ratings(shuffled) == ratings(games)
    turned = str.maketrans("abcde", "edcba")
    renamed = [tuple(Seat(seat.role, seat.player.translate(turned), seat.reward) for seat in game) for game in games]
    again = {name.translate(turned): rating for name, rating in by_player(ratings(renamed)).items()}
    for name, rating in by_player(ratings(games)).items():
        assert rating.score == pytest.approx(again[name].score)
        assert rating.games == again[name].games


@given(drawn=st.lists(seats, max_size=40))
def test_every_rating_is_within_its_interval_and_every_reference_has_a_mean_of_zero(drawn):
    groups = ratings([tuple(map(Seat, "wxyz", players, rewards)) for players, rewards in drawn])
    seen = [rating.player for group in groups for rating in group.ratings]
    assert len(seen) == len(set(seen))
    for group in groups:
        known = {rating.player: rating.value for rating in group.ratings if rating.value is not None}
        assert sorted(known) == list(group.reference)
        assert math.fsum(known.values()) == pytest.approx(0.0, abs=1e-3)
        for rating in group.ratings:
            assert 0.0 <= rating.score <= 1.0
            if rating.value is not None:
                assert rating.low <= rating.value <= rating.high
            else:
                assert rating.low is None or rating.high is None


def test_estimates_approach_the_strengths_that_made_the_games():
    truth = {"a": 150.0, "b": 0.0, "c": -50.0, "d": -100.0}
    draw = random.Random(5)
    games = []
    for one in truth:
        for other in truth:
            for _ in range(400 if one != other else 0):
                chance = 1 / (1 + 10 ** ((truth[other] - truth[one]) / 400))
                won = draw.random() < chance
                games.append(duel(one, other, float(won), float(not won)))
    [group] = ratings(games)
    for rating in group.ratings:
        assert rating.low < truth[rating.player] < rating.high
        assert rating.high - rating.low < 40


def game(first, second, mine, theirs, task=TASK):
    return Game(task, duel(first, second, mine, theirs))


def test_rewards_are_averaged_by_role_and_opponent_over_games_of_one_task():
    games = [game("a", "b", 0.2, 0.8), game("a", "b", 0.4, 0.6), game("b", "a", 1.0, 0.0), game("a", "a", 0.5, 0.5)]
    found = arena_statistics([*games, Game(TASK, duel("a", "b", None, None), scored=False)])
    assert (found.games, found.unscored) == (4, 1)
    cells = {(cell.role, cell.player, cell.opponent): cell.reward for cell in found.cross_play}
    assert set(cells) == {
        ("buyer", "a", "a"),
        ("buyer", "a", "b"),
        ("buyer", "b", "a"),
        ("seller", "a", "a"),
        ("seller", "a", "b"),
        ("seller", "b", "a"),
    }
    cell = cells["buyer", "a", "b"]
    assert (cell.value, cell.tasks, cell.results) == (pytest.approx(0.3), 1, 2)
    assert cell.low < 0.3 < cell.high
    assert cells["buyer", "b", "a"].low is None  # one game has no interval
    roles = {(mean.role, mean.player): mean.reward.value for mean in found.roles}
    assert roles["buyer", "a"] == pytest.approx((0.2 + 0.4 + 0.5) / 3)
    assert [plain(pairing) for pairing in found.pairings] == [
        {"first": "a", "second": "b", "won": 0, "tied": 0, "lost": 3}
    ]
    assert found.uneven == ("a", "b")


def test_over_several_tasks_the_unit_is_the_task():
    other = TaskId("other", "sha256:2")
    games = [game("a", "b", 0.2, 0.8)] * 9 + [game("a", "b", 0.6, 0.4, other)]
    cell = arena_statistics(games).roles[0].reward
    assert (cell.value, cell.tasks, cell.results) == (pytest.approx(0.4), 2, 10)


def test_in_a_game_of_three_an_opponent_counts_once_whatever_its_roles():
    found = arena_statistics([Game(TASK, (Seat("x", "a", 1.0), Seat("y", "b", 0.0), Seat("z", "b", 0.5)))])
    cells = {(cell.role, cell.player, cell.opponent): cell.reward.results for cell in found.cross_play}
    assert cells == {
        ("x", "a", "b"): 1,
        ("y", "b", "a"): 1,
        ("y", "b", "b"): 1,
        ("z", "b", "a"): 1,
        ("z", "b", "b"): 1,
    }
    assert (found.pairings[0].won, found.pairings[0].lost) == (2, 0)


def test_players_that_have_all_roles_equally_often_are_even():
    both = [game("a", "b", 1.0, 0.0), game("b", "a", 1.0, 0.0)]
    assert arena_statistics(both).uneven == ()
    assert arena_statistics([*both, game("a", "c", 1.0, 0.0)]).uneven == ("a", "c")


@given(drawn=st.lists(seats, min_size=1, max_size=20))
def test_what_is_written_is_read_again(drawn):
    games = [Game(TASK, tuple(map(Seat, "wxyz", players, rewards))) for players, rewards in drawn]
    found = arena_statistics(games)
    assert read(ArenaStatistics, plain(found)) == found
