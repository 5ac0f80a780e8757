"""Events are on disk as they happen, stamped, redacted, one line each."""

import json
import subprocess
import sys
import textwrap

from benchflow.files.redaction import Redactor
from benchflow.record.codec import read_lines
from benchflow.record.trajectory import MAX_TEXT, Trajectory, tool_name, tool_names


def test_events_are_readable_before_the_trajectory_is_closed(tmp_path):
    path = tmp_path / "t.jsonl"
    trajectory = Trajectory(path, Redactor(["hunter22"]))
    assert not path.exists()
    with trajectory.context(scene="draft", role=None):
        trajectory("user_message", text="my hunter22", nothing=None)
    trajectory("tool_call", tool="bash", arguments={"hunter22": [float("nan"), b"\xff", {1}]})
    first, second = read_lines(path)
    assert (first["seq"], first["type"], first["scene"], first["text"]) == (1, "user_message", "draft", "my [redacted]")
    assert first["time"].endswith("Z")
    assert "role" not in first
    assert "nothing" not in first
    assert "scene" not in second
    assert second["arguments"] == {"[redacted]": ["nan", "�", [1]]}
    assert trajectory.calls == {frozenset({"bash"}): 1}
    trajectory.close()
    trajectory.close()


def test_a_field_cannot_forge_the_stamp(tmp_path):
    with Trajectory(tmp_path / "t.jsonl", Redactor()) as trajectory:
        trajectory("usage", seq=99, time="never")
    assert next(read_lines(tmp_path / "t.jsonl"))["seq"] == 1


def test_long_texts_are_cut_in_the_middle(tmp_path):
    with Trajectory(tmp_path / "t.jsonl", Redactor()) as trajectory, trajectory.collected() as events:
        trajectory("agent_message", text="a" * MAX_TEXT + "z" * MAX_TEXT)
    trajectory("agent_message", text="after the block")
    trajectory.close()
    assert len(events) == 1
    assert len(events[0]["text"]) < MAX_TEXT + 100
    assert events[0]["text"].startswith("a")
    assert events[0]["text"].endswith("z")


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"type":"a"}\n[1]\nbroken\n{"type":"b"}\n{"type":"c"')
    assert [record["type"] for record in read_lines(path)] == ["a", "b"]
    assert list(read_lines(tmp_path / "none.jsonl")) == []


def test_a_kill_loses_nothing_that_was_told(tmp_path):
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from benchflow.files.redaction import Redactor
        from benchflow.record.trajectory import Trajectory
        trajectory = Trajectory(Path(sys.argv[1]), Redactor())
        for number in range(100):
            trajectory("agent_message", text=str(number))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    path = tmp_path / "t.jsonl"
    subprocess.run([sys.executable, "-c", program, str(path)], timeout=60)
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == [str(n) for n in range(100)]


def test_a_tool_call_goes_by_all_its_names():
    event = {"kind": "other", "title": "WebSearch: weather"}
    assert tool_names(event) == {"other", "WebSearch: weather", "WebSearch"}
    assert tool_name(event) == "WebSearch: weather"
    assert tool_name({"tool": "bash", "kind": "execute"}) == "bash"
    assert tool_name({}) == "unknown"
