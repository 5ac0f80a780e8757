"""The thin client plays served packages over a real connection, and has no number where there is no score."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchflow.trainers import client as module
from benchflow.trainers.client import CallRefused, Client, ClientError, Task, Unscored
from episode_server import serving, write_package

DONE = "echo done > /app/answer.txt"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder of packages in memory, with a token; and a cube."""
    tmp = tmp_path_factory.mktemp("client")
    write_package(tmp / "set" / "plain", "set/plain")
    write_package(tmp / "set" / "train", "set/train", front="metadata: {split: train}\n")
    write_package(tmp / "set" / "crash", "set/crash", tests="#!/bin/sh\nexit 3\n")
    write_package(tmp / "set" / "dense", "set/dense", front="metadata: {step_rewards: true}\n")
    (tmp / "set" / "broken").mkdir()
    (tmp / "set" / "broken" / "task.md").write_text(
        "---\ntask: {name: set/broken}\nagent: {tmieout_sec: 3}\n---\nDo.\n"
    )
    with serving(tmp, tmp / "set", "cube:counter-cube", "--sandbox", "memory", no_token=False) as server:
        yield server


@pytest.fixture
def client(served):
    with Client(served.url, token=served.address["token"]) as client:
        yield client


def task(client, name):
    return next(each for each in client.tasks() if each.id == name)


def test_tasks_are_listed_by_environment_and_split_and_survive_as_rows(client):
    assert client.environments() == ["set", "counter-cube"]
    assert sorted(client.splits()) == ["test", "train"]
    assert [each.id for each in client.tasks("train")] == ["set/train"]
    assert {each.environment for each in client.tasks(environment="counter-cube")} == {"counter-cube"}
    plain = task(client, "set/plain")
    assert Task(**plain.row()) == plain
    assert plain.digest.startswith("sha256:")


def test_a_session_is_played_to_its_reward_and_leaves_nothing_on_the_server(client, served):
    with client.open(task(client, "set/plain")) as session:
        assert session.prompt == "Write done to /app/answer.txt."
        assert {"bash", "submit"} <= {tool.name for tool in session.tools}
        assert session.call("bash", command="exit 3").metadata["exit_code"] == 3
        assert session.call("bash", command="true", timeout=None).metadata["exit_code"] == 0
        assert (session.reward, session.finished) == (None, False)
        session.call("bash", command=DONE)
        output = session.submit("I am done.")
        assert (output.reward, output.finished, output.unscored) == (1.0, True, None)
        assert session.score() == session.reward == 1.0
        with pytest.raises(CallRefused, match="over") as caught:
            session.call("bash", command="true")
        assert caught.value.reason == "episode_finished"
    assert served.metrics()["benchcube_sessions"] == 0
    with client.open(task(client, "set/plain")) as session:
        assert session.score() == 0.0


def test_an_end_without_a_score_is_none_and_raised_where_a_number_is_wanted(client):
    with client.open(task(client, "set/crash")) as session:
        output = session.submit()
        assert (output.reward, output.finished, session.reward) == (None, True, None)
        assert output.unscored["category"] == session.unscored["category"] == "verifier"
        with pytest.raises(Unscored, match="verifier/") as caught:
            session.score()
        assert set(caught.value.error) == {"category", "code", "phase", "reason"}
    with pytest.raises(Unscored, match="package/") as caught:
        client.open(task(client, "set/broken"))
    assert "tmieout_sec" in caught.value.error["reason"]


def test_a_reward_on_the_way_does_not_stand_for_an_end_without_one(client):
    with client.open(task(client, "set/dense")) as session:
        assert session.call("bash", command=DONE).reward == 1.0
        assert session.submit().reward == 1.0
    output = module.Output("", None, True, {"status": "unscored", "error": {"category": "sandbox"}})
    session = module.Session(client, "x", task(client, "set/dense"))
    session.reward = 1.0
    session._called = lambda body: output
    session.submit()
    assert session.reward is None
    with pytest.raises(Unscored):
        session.score()


def test_another_process_continues_a_session_by_its_id(client, served):
    plain = task(client, "set/plain")
    with client.open(plain) as session, Client(served.url, token=served.address["token"]) as other:
        other.attach(plain, session.id).call("bash", command=DONE)
        other.close()
        assert session.score() == 1.0


def test_cubes_are_played_in_the_same_way(client):
    up = next(each for each in client.tasks(environment="counter-cube") if each.id == "up-3")
    with client.open(up) as session:
        for _ in range(3):
            session.call("increment")
        assert session.score() == 1.0


def test_what_is_wrong_is_one_sentence(client, served):
    with Client(served.url, token="wrong") as stranger, pytest.raises(ClientError, match="401"):
        stranger.tasks()
    with pytest.raises(ClientError, match="no split 'nope'"):
        client.tasks("nope")
    with pytest.raises(ClientError, match="has no task"):
        client.open(Task("set", "test", 0, "set/nope", "sha256:0"))
    with pytest.raises(ClientError, match="has another digest"):
        client.open(Task("set", "test", 0, "set/plain", "sha256:0"))
    with Client("http://127.0.0.1:9") as nobody, pytest.raises(ClientError, match="/splits"):
        nobody.tasks()
    with client.open(task(client, "set/plain")) as session:
        with pytest.raises(CallRefused, match="Unknown tool 'nope'"):
            session.call("nope")
        with pytest.raises(CallRefused, match="bash"):
            session.call("bash", wrong=1)
        assert session.score() == 0.0


def played(answers):
    """A session on a transport that gives these answers to calls."""
    answers = iter(answers)

    def answer(request):
        given = next(answers)
        if isinstance(given, Exception):
            raise given
        seen.append(request.content)
        return httpx.Response(200, content=given)

    seen = []
    http = httpx.Client(base_url="http://served", transport=httpx.MockTransport(answer))
    return module.Session(Client("", http=http), "s", Task("e", "test", 0, "t", "d")), seen


def test_a_call_whose_connection_was_lost_is_picked_up_and_not_repeated():
    end = b'event: end\ndata: {"ok": true, "output": {"blocks": [], "reward": 0.5, "finished": true}}\n\n'

    def torn():
        yield b"event: task_id\ndata: 17\n\n"
        raise httpx.ReadError("reset")

    session, seen = played([torn(), end])
    assert session.submit().reward == 0.5
    assert [b"task_id" in body for body in seen] == [False, True]
    session, _ = played([httpx.ConnectError("refused")])
    with pytest.raises(ClientError, match="refused"):
        session.submit()
    assert session.reward is None


@pytest.mark.parametrize(
    "answer",
    [b"", b"event: task_id\ndata: 1\n\n", b"event: end\ndata: nonsense\n\n", b'event: end\ndata: {"ok": true}\n\n'],
)
def test_an_answer_that_is_not_ors_is_an_error_and_no_reward(answer):
    session, seen = played([answer] * module.ATTEMPTS)
    with pytest.raises(ClientError):
        session.submit()
    assert len([body for body in seen if b"task_id" not in body]) == 1, "the call was made again"
    assert session.reward is None


def test_an_environment_that_is_lost_ends_the_session_without_a_score():
    session, _ = played([b"event: task_id\ndata: 1\n\nevent: error\ndata: sandbox/sandbox-gone: It is gone.\n\n"])
    with pytest.raises(Unscored, match="It is gone"):
        session.call("bash", command="true")
    assert (session.finished, session.reward) == (True, None)
    with pytest.raises(Unscored):
        session.score()


@pytest.mark.slow
def test_the_file_needs_only_the_standard_library_and_httpx_and_works_when_it_is_copied(served, tmp_path):
    source = Path(module.__file__).read_text()
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {(node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"httpx"}
    (tmp_path / "vendored.py").write_text(source)
    script = f"import vendored; print(len(vendored.Client({served.url!r}, token={served.address['token']!r}).tasks()))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert re.fullmatch(r"\d+\n", shown.stdout), shown.stderr
