"""What running rollouts do, read from the folder of their job."""

import json
import os
import time

import pytest
from jsonschema import validate

from benchflow.files.redaction import NO_SECRETS
from benchflow.record import JobNode, JobNodes, LiveRollout, RolloutFolder, Trajectory, schema
from benchflow.record.reading.live_rollouts import LiveResults, LiveRollouts, action_of


@pytest.fixture
def job(tmp_path, make_job):
    return make_job(tmp_path, "job", planned=5)


def begin(job, name, **config):
    place = RolloutFolder(job.places.rollouts / name)
    place.path.mkdir(parents=True)
    known = {"task": {"name": "acme/a"}, "agent": "model:x", "model": None, "attempt": 1, "started_at": "2026-01-01"}
    place.config.write_text(json.dumps({**known, **config}))
    return place


def test_a_rollout_is_seen_from_its_start_to_its_result(job):
    live = LiveRollouts(job.folder)
    assert live.look() == ()
    place = begin(job, "r")
    [seen] = live.look()
    assert (seen.task, seen.phase, seen.last, seen.events) == ("acme/a", "environment", "", 0)
    with Trajectory(place.trajectory, NO_SECRETS) as events:
        events("user_message", text="Go.")
        events("tool_call", tool="bash", arguments={"command": "make  -j\n2"})
        events("usage", input_tokens=10, cost_usd=0.5)
        [seen] = live.look()
        assert (seen.phase, seen.last) == ("agent", "bash make -j 2")
        events("usage", input_tokens=5, cost_usd=0.25)
        [seen] = live.look()
        assert (seen.usage, seen.events) == ({"input_tokens": 15, "cost_usd": 0.75}, 4)
        with events.context(step="two"):
            events("verification")
    [seen] = live.look()
    assert (seen.phase, seen.step) == ("verify", "two")
    place.result.write_text("{}")
    assert live.look() == ()


def test_what_an_interrupted_run_left_is_not_running(job):
    place = begin(job, "old")
    os.utime(place.config, ns=(0, 0))
    begin(job, "new")
    assert [rollout.rollout for rollout in LiveRollouts(job.folder).look()] == ["new"]


@pytest.mark.parametrize("config", [b"", b"[]", b"[" * 100_000, b'{"task": 3, "attempt": "x"}'])
def test_damaged_folders_stop_nobody(job, config):
    begin(job, "good")
    begin(job, "odd").config.write_bytes(config)
    begin(job, "torn").trajectory.write_bytes(b'{"seq":1,"time":"","type":"usa')
    assert {"good", "torn"} <= {rollout.rollout for rollout in LiveRollouts(job.folder).look()}


def test_results_are_read_as_they_are_added(job, make_result):
    lines = [json.dumps({**make_result(name).to_dict(), "rollout": name}) + "\n" for name in ("a", "b")]
    live = LiveResults(job.folder)
    assert live.look() == []
    with job.places.results.open("a") as stream:
        stream.write(lines[0] + "damaged\n" + lines[1][:50])
        stream.flush()
        assert [counted.rollout for counted in live.look()] == ["a"]
        stream.write(lines[1][50:])
    assert [counted.rollout for counted in live.look()] == ["b"]
    assert ([line.number for line in live.results.damaged], len(live.results.latest)) == ([2], 2)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "tool_call", "title": "Read a.py", "kind": "read"}, "read Read a.py"),
        ({"type": "agent_message", "text": "a\nb"}, "says: a b"),
        ({"type": "tool_call", "tool": "edit", "arguments": {"path": "a", "line": 3}}, 'edit {"path": "a", "line": 3}'),
        ({"type": "oracle", "stdout": "x" * 10_000}, "oracle " + "x" * 393),
    ],
)
def test_an_action_is_one_short_line(event, text):
    assert action_of(event) == text


def test_the_lock_tells_when_the_current_run_began(job):
    from benchflow.evaluation.store import JobStore

    os.utime(job.places.lock, ns=(0, 0))
    before = time.time_ns()
    JobStore.open(job.folder.parent, "job").close()
    assert job.places.lock.stat().st_mtime_ns >= before - 10**9


def nodes_file(job, **changes):
    live = LiveRollout("r", "acme/a", 1, "nop", None, "2026-01-01", "agent", None, "bash ls", 3, {"cost_usd": 0.5})
    node = JobNode("id", "one", "ready", rollouts=(live,), processors=2.0)
    document = JobNodes("running", "2026-01-01", 0, (node,)).to_dict()
    job.places.nodes.write_text(json.dumps({**document, **changes}))
    return live


def test_rollouts_on_nodes_are_seen_beside_those_of_this_machine(job):
    live = LiveRollouts(job.folder)
    assert live.nodes() is None
    on_node = nodes_file(job)
    begin(job, "here")
    assert {(seen.rollout, seen.node) for seen in live.look()} == {("here", None), ("r", "one")}
    assert live.nodes().nodes[0].rollouts == (on_node,)
    validate(json.loads(job.places.nodes.read_bytes()), schema("nodes"))


@pytest.mark.parametrize("changes", [{"schema": "v9"}, {"nodes": [{}]}, {"waiting": "many"}, {"state": "x"}])
def test_a_file_of_nodes_that_cannot_be_read_shows_nothing(job, changes):
    nodes_file(job, **changes)
    assert LiveRollouts(job.folder).nodes() is None


def test_nodes_of_an_earlier_run_are_not_shown(job):
    nodes_file(job)
    os.utime(job.places.nodes, ns=(0, 0))
    assert LiveRollouts(job.folder).look() == ()
