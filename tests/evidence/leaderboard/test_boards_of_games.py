"""Leaderboard files of jobs of games: who plays whom follows from the request; no line-up can be dropped or put in."""

import json
from dataclasses import replace

import pytest
from tests.evidence.leaderboard.conftest import VERIFIED, write_rollout

from benchflow.evaluation.games.lineups import planned_items
from benchflow.evaluation.work import TaskRef
from benchflow.evidence.leaderboard.board_check import check_board
from benchflow.evidence.leaderboard.board_export import export_board
from benchflow.evidence.leaderboard.board_file import open_board
from benchflow.evidence.leaderboard.board_table import board_lines
from benchflow.files.redaction import NO_SECRETS
from benchflow.record import AgentPart, Job, JobRequest, Player, TaskId, WorkKey
from benchflow.record.trajectory import write_rewards
from benchflow.rewards import Scored
from made_jobs import made_game

RESULTS = "jobs/games/results.jsonl"
STRENGTH = {"oracle": 0.9, "model:m-1": 0.6, "nop": 0.1}
TIMES = {"started_at": "2026-01-01T00:00:00.000Z", "finished_at": "2026-01-01T00:00:01.000Z"}


@pytest.fixture
def games(tmp_path, make_job):
    """Makes the job of a request; `change` is applied to its results."""

    def make(change=lambda results: results, **asked):
        rotation = tuple(Player(agent) for agent in STRENGTH)
        wanted = {"agent": rotation[0].agent, "model": None, "attempts": 2, "rotation": rotation, **asked}
        request = JobRequest(("tasks",), **wanted)
        task = TaskRef(TaskId("haggle", "sha256:2"), "haggle", "sha256:1", roles=("buyer", "seller"))
        items = list(planned_items([task], request))
        results = change([_result(item) for item in items])
        job = make_job(tmp_path / "jobs", "games", results, planned=len(items), **wanted)
        for number, result in enumerate(results):
            places = job.places.rollout(f"r{number}")
            write_rollout(places, result, f"game {number}")
            places.workspace.unlink()
            places.rewards.unlink()
            metrics = {role: reward for role, reward in result.rewards.items() if role != "reward"}
            write_rewards(places.rewards, Scored(result.reward, metrics=metrics), NO_SECRETS)
        return Job(job.folder)

    return make


def _result(item):
    players = {"buyer": item.line_up.agent, **item.line_up.others}
    got = {role: (player.agent, STRENGTH.get(player.agent, 0.5)) for role, player in players.items()}
    made = made_game(got, attempt=item.attempt, verifier=VERIFIED, **TIMES)
    return replace(
        made,
        arena=replace(made.arena, seed=item.line_up.seed),
        agent=AgentPart(players["buyer"].agent, None, 0, timed_out=False),
        key=item.key,
    )


def refused(job, tmp_path):
    return {problem.message for problem in export_board([job], tmp_path / "refused.zip").problems}


def test_a_job_of_games_is_published_with_its_ratings(games, exported):
    path = exported(games())
    assert [str(problem) for problem in check_board(path).problems] == []
    [job] = open_board(path).board.jobs
    assert (job.agent, job.statistics.arena.games, job.planned) == ("oracle, model:m-1, nop", 12, 12)
    shown = "\n".join(board_lines(open_board(path).board))
    assert "ratings: Elo points from oracle" in shown
    assert "reference agent: oracle" in shown


def test_a_job_without_rotation_is_published_with_its_participants(games, exported):
    path = exported(games(rotation=(), participants={"seller": Player("nop")}))
    [job] = open_board(path).board.jobs
    assert (job.agent, job.settings.participants) == ("oracle", {"seller": "nop"})


def other_seed(results):
    return [replace(results[0], arena=replace(results[0].arena, seed=1)), *results[1:]]


def other_player(results):
    arena = results[0].arena
    return [replace(results[0], arena=replace(arena, rotation={**arena.rotation, "seller": "nop"})), *results[1:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda results: results[:-1], "haggle has no result of attempt 2 (nop – model:m-1) of 2"),
        (lambda results: [replace(results[0], key=WorkKey("0" * 32)), *results[1:]], "was not made with the settings"),
        (lambda results: [replace(results[0], attempt=2), *results[1:]], "as that task and attempt"),
        (other_seed, "r0 was played by others, or with another seed, than the job plans"),
        (other_player, "r0 was played by others, or with another seed, than the job plans"),
    ],
)
def test_line_ups_that_were_dropped_or_changed_are_named(games, tmp_path, change, words):
    found = refused(games(change), tmp_path)
    assert any(words in message for message in found), found


def test_agents_whose_paths_are_not_published_cannot_be_checked(games, tmp_path):
    trick = tuple(map(Player, (f"script:{tmp_path}/a.sh", "nop")))
    found = refused(games(agent=trick[0].agent, rotation=trick, directory=str(tmp_path)), tmp_path)
    assert any("name the agents of games by relative paths" in message for message in found), found


def test_a_file_that_asks_for_more_line_ups_than_there_can_be_is_refused_quickly(games, exported, forged):
    path = exported(games())
    job = json.loads(open_board(path).text("jobs/games/job.json"))
    job["rotation"] = [{"agent": str(number), "model": None} for number in range(3_000)]
    forgery = forged(path, {"jobs/games/job.json": (json.dumps(job) + "\n").encode()})
    assert "mixed-settings" in {problem.code for problem in check_board(forgery).problems}
