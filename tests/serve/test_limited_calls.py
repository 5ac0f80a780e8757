"""Limits on what judges and simulated users of served packages call: of an episode, and of the whole server."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from benchflow.record import read_model_calls
from benchflow.testing import Answer, ModelServer
from cube.client import RpcError, TaskClient
from episode_server import serving, write_package
from judged_packages import MODELS, USER, YES, calls, judged
from wire_clients import agent, talking

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

SLOW = Answer(json.dumps(YES), delay_sec=0.5)
UNSCORED = {"category": "judge", "code": "judge-unavailable", "phase": "verify"}
judging = partial(serving, load=MODELS)


def worked(server):
    """A session in which there is something to judge."""
    sid = server.session()
    server.call(sid, "bash", command="echo 42 > answer.txt")
    return sid


def test_a_judge_at_the_limit_of_its_episode_gives_no_score_and_the_next_episode_has_its_own(tmp_path):
    judged(tmp_path / "set/judged", front="metadata: {step_rewards: true}\n")
    records = tmp_path / "records"
    options = ("--sandbox", "local", "--records", records, "--max-model-calls", "1")
    with (
        ModelServer(YES) as models,
        judging(tmp_path, tmp_path / "set", *options, **models.environment) as server,
    ):
        for _ in range(2):
            sid = server.session()
            assert server.call(sid, "bash", command="echo 42 > answer.txt")["output"]["reward"] == 1.0
            output = server.call(sid, "submit")["output"]
            assert (output["reward"], output["finished"]) == (None, True)
            assert output["metadata"]["status"] == "unscored"
            assert UNSCORED.items() <= output["metadata"]["error"].items()
            assert output["metadata"]["limits_reached"] == ["max_calls"]
        assert len(models.requests) == 2
        ended = [event for event in server.events() if event["event"] == "episode_ended"]
        assert [event["limits_reached"] for event in ended] == [["max_calls"]] * 2
        assert "The episode reached its limit of 1 model calls." in str(ended[0])
    made = [("judge", "openai/test-model", outcome) for outcome in ("answered", "limited")]
    assert calls(records) == [made, made]


def test_a_user_at_its_limit_says_nothing_more_and_the_work_is_judged(tmp_path):
    rounds = USER.replace("2-rounds", "9-rounds").replace("nudge_budget: 2", "nudge_budget: 9")
    judged(tmp_path / "set/judged", front=rounds)
    records = tmp_path / "records"
    options = ("--sandbox", "local", "--records", records, "--max-model-calls", "3")
    answers = ModelServer(lambda asked: YES if asked.model == "test-model" else "Why?")
    with answers as models, judging(tmp_path, tmp_path / "set", *options, **models.environment) as server:
        sid = worked(server)
        outputs = [server.call(sid, "submit", message="Shall I?")["output"] for _ in range(2)]
    assert "Why?" in str(outputs[0])
    end = outputs[-1]
    assert end["reward"] == 1.0
    assert (end["metadata"]["ended_by"], end["metadata"]["limits_reached"]) == ("model_limit", ["max_calls"])
    (episode,) = calls(records)
    between, said = ("judge", "openai/test-model", "answered"), ("user", "openai/test-user", "answered")
    assert episode == [between, said, between, ("user", "openai/test-user", "limited"), between]


def test_sessions_that_race_for_the_last_call_of_the_server_get_it_once_and_new_ones_are_refused(tmp_path):
    judged(tmp_path / "set/judged")
    options = ("--sandbox", "local", "--server-max-model-calls", "1")
    with (
        ModelServer(SLOW) as models,
        judging(tmp_path, tmp_path / "set", *options, **models.environment) as server,
    ):
        sids = [worked(server) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            outputs = [each["output"] for each in pool.map(lambda sid: server.call(sid, "submit"), sids)]
        assert sorted(str(output["reward"]) for output in outputs) == ["1.0", "None", "None", "None"]
        limited = [output["metadata"] for output in outputs if output["reward"] is None]
        assert all(found["limits_reached"] == ["server max_calls"] for found in limited)
        server.post("/delete", sids[0])
        sid = server.session()  # a new session does not get a new budget
        assert "server-limit" in str(server.call(sid, "submit"))
        assert server.metrics()['benchcube_rollouts_unscored_total{category="cancelled"}'] == 1
        assert len(models.requests) == 1


def test_no_more_calls_run_at_once_than_the_server_may_make(tmp_path):
    judged(tmp_path / "set/judged")
    records = tmp_path / "records"
    options = ("--sandbox", "local", "--records", records, "--concurrent-calls", "1")
    with (
        ModelServer(SLOW) as models,
        judging(tmp_path, tmp_path / "set", *options, **models.environment) as server,
    ):
        sids = [worked(server) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            ends = list(pool.map(lambda sid: server.call(sid, "submit"), sids))
    assert [end["output"]["reward"] for end in ends] == [1.0] * 3
    files = records.rglob("model_calls.jsonl")
    waited = [call.timing["queued"] for file in files for call in read_model_calls(file)]
    assert sorted(queued > 0.4 for queued in waited) == [False, True, True]


def test_a_judge_at_a_limit_gives_no_score_on_any_wire_and_each_says_which_limit(tmp_path):
    judged(tmp_path / "set/judged", front="metadata: {step_rewards: true}\n")
    options = (tmp_path / "set", "--sandbox", "local", "--max-model-calls", "1", "--server-max-model-calls", "2")
    work, refused = (
        {"command": "echo 42 > answer.txt"},
        "The server reached its limit of 2 model calls. It was not begun.",
    )

    def over_openenv(server):
        with talking(server) as talk:
            talk.reset(task="set/judged")
            assert talk.step("bash", **work)["reward"] == 1.0
            end = talk.step("submit")
            told = (end["reward"], end["metadata"]["error"], end["metadata"]["limits_reached"])
            assert talk.state()["metadata"] == end["metadata"]
            talk.reset(task="set/judged")
            talk.step("bash", **work)
            return told, talk.reset(task="set/judged")["error"]["reason"]

    def over_nemo_gym(server):
        for _ in range(2):
            server.http.post("/seed_session", json={})
            server.http.post("/bash", json=work)
            end = server.http.post("/verify", json={}).json()
        told = (end["reward"], end["unscored"], end["limits_reached"])
        return told, server.http.post("/seed_session", json={}).json()["error"]

    def over_mcp(server):
        with TaskClient(server.url, token=server.address["token"], timeout=120) as harness:
            for _ in range(2):
                harness.reset("set/judged")
                agent(server, lambda client: client.call_tool("bash", work))
                harness.end("it is late")
                episode, scored = harness.episode(), harness.rpc("cube/evaluate")
                assert (scored["reward"], scored["info"]["limits_reached"]) == (None, episode["limits_reached"])
            with pytest.raises(RpcError) as caught:
                harness.reset("set/judged")
            assert harness.episode()["reward"] is None
        return (episode["reward"], episode["unscored"], episode["limits_reached"]), str(caught.value)

    for wire, play in {"openenv": over_openenv, "nemo-gym": over_nemo_gym, "mcp": over_mcp}.items():
        with (
            ModelServer(YES) as models,
            judging(tmp_path, *options, wire=wire, no_token=wire != "mcp", **models.environment) as server,
        ):
            (reward, unscored, limits), late = play(server)
            assert len(models.requests) == 2, wire
        assert (reward, unscored["code"]) == (None, "judge-unavailable"), wire
        assert limits[0].endswith("max_calls"), wire
        assert refused in late, wire


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-model-calls", "0"), "0 is not in the range x>=1"),
        (("--server-max-cost", "0"), "0.0 is not in the range x>0"),
        (("cube:counter-cube", "--max-tokens", "5"), "what a cube calls in its own code passes by them"),
        (("cube:counter-cube", "--records", "records"), "Serve it without those options."),
    ],
)
def test_limits_that_cannot_hold_are_refused_before_anything_listens(tmp_path, options, said):
    write_package(tmp_path / "set/plain", "set/plain")
    command = [Path(sys.executable).with_name("bench"), "serve", "ors", "set", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "records").exists()
