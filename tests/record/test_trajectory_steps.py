"""Trajectories as steps: folded, by pages, and whatever the file is like."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.files.redaction import NO_SECRETS
from benchflow.record import Trajectory
from benchflow.record.reading import long_lines
from benchflow.record.reading.trajectory_steps import (
    index_steps,
    is_current,
    prompt_of,
    read_steps,
    scan_events,
    steps_page,
)


@pytest.fixture
def trajectory(tmp_path):
    """A trajectory as an agent writes it."""
    path = tmp_path / "trajectory.jsonl"
    with Trajectory(path, NO_SECRETS) as events:
        events("user_message", text="Fix it.")
        events("agent_thought", text="Hm.")
        events("tool_call", tool="bash", tool_call_id="1", arguments={"command": "ls"})
        events("tool_call", tool="bash", tool_call_id="2", arguments={"command": "pwd"})
        events("tool_result", tool_call_id="2", output="/app", status="completed")
        events("tool_result", tool_call_id="1", output="no such file", status="failed")
        events("usage", input_tokens=10, output_tokens=2)
        events("agent_message", text="Done.")
        events("verification")
    return path


def test_what_happens_between_two_prompts_is_folded_with_its_results(trajectory):
    prompt, working, done, verification = read_steps(trajectory)
    assert (prompt.kind, prompt.parts[0].text, prompt_of(trajectory)) == ("prompt", "Fix it.", "Fix it.")
    assert [(part.kind, part.output, part.failed) for part in working.parts] == [
        ("thought", None, False),
        ("call", "no such file", True),
        ("call", "/app", False),
    ]
    assert working.usage == {"input_tokens": 10, "output_tokens": 2}
    assert (done.kind, done.parts[0].text, verification.kind) == ("agent", "Done.", "note")
    assert [step.offset for step in (working, done, verification)] == [prompt.end, working.end, done.end]


def test_steps_of_different_roles_and_branches_do_not_mix(tmp_path):
    with Trajectory(tmp_path / "t", NO_SECRETS) as events:
        for where in ({"role": "writer"}, {"role": "editor"}, {"role": "editor", "branch": "b1"}):
            with events.context(**where):
                events("agent_message", text="Hello.")
    assert [dict(step.context) for step in read_steps(tmp_path / "t")] == [
        {"role": "writer"},
        {"role": "editor"},
        {"role": "editor", "branch": "b1"},
    ]


def test_a_total_that_an_agent_reports_again_is_not_added_up(tmp_path):
    with Trajectory(tmp_path / "t", NO_SECRETS) as events:
        events("agent_message", text="a")
        events("usage", context_tokens=100, cost_usd=0.5)
        events("usage", context_tokens=150, cost_usd=0.75)
    [step] = read_steps(tmp_path / "t")
    assert step.usage == {"context_tokens": 150, "cost_usd": 0.75}


def test_damaged_lines_are_steps_that_say_so_and_a_torn_last_one_is_left_out(trajectory, monkeypatch):
    monkeypatch.setattr(long_lines, "MAX_LINE", 1000)
    lines = trajectory.read_bytes().splitlines(keepends=True)
    odd = b'{"no": 1}\n\xff\xfe\n[1]\n' + b"x" * 5000 + b"\n"
    trajectory.write_bytes(lines[0] + odd + lines[1] + lines[2][:-5])
    steps = list(read_steps(trajectory))
    assert [step.kind for step in steps] == ["prompt", *["damaged"] * 4, "agent"]
    assert "not read" in steps[4].parts[0].text
    assert steps[-1].parts[0].text == "Hm."
    assert index_steps(trajectory).steps == 6


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["user_message", "agent_message", "tool_call", "tool_result", "usage", "note", "plan"]),
        st.sampled_from([None, "a", 'b"\\', "ü\u2028"]),
        st.sampled_from([b"", b"{\n", b'{"type": 3}\n']),
    ),
    max_size=30,
)


@given(_EVENTS)
def test_pages_and_the_index_agree_with_reading_from_the_beginning(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("t") / "trajectory.jsonl"
    with path.open("ab", buffering=0) as raw, Trajectory(path, NO_SECRETS) as trajectory:
        for kind, role, damage in events:
            raw.write(damage)
            with trajectory.context(role=role):
                trajectory(kind, text="x")
    everything = list(read_steps(path))
    index = index_steps(path, page=4)
    assert (index.steps, is_current(index, path)) == (len(everything), True)
    assert list(index.offsets) == [step.offset for step in everything[::4]]
    paged, offset, number = [], 0, 1
    while True:
        page = steps_page(path, offset, number, limit=4)
        paged += page.steps
        if page.next_offset is None:
            break
        offset, number = page.next_offset, page.next_number
    assert paged == everything
    for step in everything:
        at, first = index.start(step.number)
        assert first <= step.number < first + 4
        assert next(read_steps(path, at, first)).number == first


def test_a_page_of_a_large_trajectory_reads_no_more_than_the_page(tmp_path):
    path = tmp_path / "large.jsonl"
    line = json.dumps({"seq": 1, "time": "", "type": "user_message", "text": "x" * 1000}) + "\n"
    with path.open("w") as stream:
        stream.write(line * 3000)
        stream.flush()
        stream.truncate(1 << 40)  # a hole of a terabyte: whoever reads on does not come back
    page = steps_page(path, limit=10)
    assert (len(page.steps), page.next_number) == (10, 11)
    assert page.next_offset == 10 * len(line)


def test_no_file_has_no_steps(tmp_path):
    missing = tmp_path / "missing"
    assert (list(read_steps(missing)), list(scan_events(missing)), index_steps(missing).steps) == ([], [], 0)
    assert (prompt_of(missing), steps_page(missing).next_offset) == (None, None)
