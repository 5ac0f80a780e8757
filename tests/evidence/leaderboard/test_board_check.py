"""Leaderboard files: what was changed, dropped, added or selected is named, by whoever it was done and however well."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow.errors import UsageError
from benchflow.evidence.leaderboard import board_trajectory
from benchflow.evidence.leaderboard.board_check import check_board
from benchflow.evidence.leaderboard.board_export import export_board
from benchflow.evidence.leaderboard.board_file import open_board
from benchflow.evidence.leaderboard.board_table import board_lines
from benchflow.record import ErrorRecord, JobRequest, work_key
from benchflow.record.leaderboard_index import Leaderboard
from written_documents import check_fits

AWAY = ErrorRecord("infrastructure", "network", "agent", "no network")
CRASHED = ErrorRecord("agent", "crashed", "agent", "it crashed")
RESULTS = "jobs/job/results.jsonl"


def problems(path):
    return [(problem.code, problem.file, problem.message) for problem in check_board(path).problems]


def codes(path):
    return {problem.code for problem in check_board(path).problems}


def refused(jobs, tmp_path):
    """The problems with which jobs are refused; nothing is written."""
    checked = export_board(jobs, tmp_path / "refused.zip")
    assert checked.problems
    assert not list(tmp_path.glob("*refused*"))
    return checked.problems


def test_a_file_of_a_job_is_valid_and_its_claims_fit_the_schema(make_finished, exported):
    path = exported(make_finished())
    assert problems(path) == []
    board = open_board(path).board
    document = json.loads(board.render())
    check_fits(document, "leaderboard")
    assert Leaderboard.from_dict(document) == board
    [job] = board.jobs
    assert (job.agent, job.model, job.attempts, job.statistics.mean_reward.value) == ("model", "m-1", 2, 0.5)
    assert [(task.name, task.attempts) for task in job.tasks] == [("t/a", 2), ("t/b", 2)]
    assert all(one.trajectory and one.verdict and one.result and one.workspaces for one in job.rollouts)


def test_the_same_job_gives_the_same_bytes(make_finished, exported):
    job = make_finished()
    assert exported(job, name="one.zip").read_bytes() == exported(job, name="two.zip").read_bytes()


def test_no_path_of_the_machine_and_no_secret_is_in_a_file(make_finished, exported, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "tok-0123456789")
    job = make_finished(agent=f"acp:{tmp_path}/agent")
    places = job.places.rollout("r0")
    text = f"{tmp_path}/x tok-0123456789 {tmp_path}"
    places.trajectory.write_text(
        json.dumps({"seq": 1, "time": "2026-01-01T00:00:00Z", "type": "agent_message", "text": text}) + "\n"
    )
    data = exported(job).read_bytes()
    assert str(tmp_path).encode() not in data
    assert b"tok-0123456789" not in data


def test_every_changed_byte_is_named_by_its_file(make_finished, exported):
    path = exported(make_finished())
    whole, file = path.read_bytes(), open_board(path)
    for name, (place, listed) in file.places.items():
        for offset in {0, listed.bytes // 2, listed.bytes - 1}:
            data = bytearray(whole)
            data[place.start + offset] ^= 1
            path.write_bytes(data)
            assert problems(path) == [("changed", name, "its content was changed")]


def test_every_byte_of_the_file_counts(make_finished, exported):
    path = exported(make_finished(rewards={"t": [1.0]}))
    whole = path.read_bytes()
    for position in range(0, len(whole), 61):
        data = bytearray(whole)
        data[position] ^= 0x20
        path.write_bytes(data)
        assert problems(path), f"byte {position}"


@pytest.mark.parametrize("size", [0, 3, 40, 2000, -1])
def test_a_file_that_is_cut_short_is_refused(make_finished, exported, size):
    path = exported(make_finished())
    path.write_bytes(path.read_bytes()[:size])
    assert codes(path) == {"leaderboard-invalid"}


def test_bytes_after_the_end_are_refused(make_finished, exported):
    path = exported(make_finished())
    path.write_bytes(path.read_bytes() + b"x")
    assert "1 bytes after its end" in problems(path)[0][2]


def _leaves(document, path=()):
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from _leaves(value, (*path, key))
    else:
        yield path


def _changed(document, path):
    """The document with another value of the same type, where there is one."""
    document = json.loads(json.dumps(document))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    value = holder[path[-1]]
    words = {"scored": "unscored", "shared": "open", "default": "user", "exact": "built"}
    if isinstance(value, str):
        value = words.get(value, f"{value}x")
    else:
        value = value + 1 if value is not None else 1.0 if path[-1] in ("low", "high") else "x"
    holder[path[-1]] = value
    return document


def test_every_claim_that_is_edited_is_found(make_finished, exported, forged):
    path = exported(make_finished(rewards={"t": [1.0]}))
    board = json.loads(open_board(path).board.render())
    for leaf in [leaf for leaf in _leaves(board["jobs"], ("jobs",)) if leaf[-1] != "settings_digest"]:
        edited = _changed(board, leaf)
        found = check_board(forged(path, claim=lambda _, edited=edited: Leaderboard.from_dict(edited))).problems
        assert any(str(leaf[-1]) in problem.message or leaf[-1] == "name" for problem in found), leaf


def _claim(job, **changes):
    """Changes claims about the first job, after they were computed."""

    def change(board):
        return replace(board, jobs=(replace(board.jobs[0], **changes), *board.jobs[1:]))

    return change


CLAIMS = {
    "agent": "oracle",
    "model": "m-2",
    "attempts": 1,
    "planned": 3,
    "marks": ("nothing to see",),
    "tasks": (),
    "rollouts": (),
    "settings_digest": "0" * 64,
}


@pytest.mark.parametrize("key", CLAIMS)
def test_an_edited_claim_is_named_by_its_key(make_finished, exported, forged, key):
    path = forged(exported(make_finished()), claim=_claim("job", **{key: CLAIMS[key]}))
    found = problems(path)
    expected = "mixed-settings" if key == "settings_digest" else "claim-wrong"
    assert expected in {code for code, _, _ in found}
    assert any(key in message or "settings" in message for _, _, message in found)


def test_edited_statistics_are_named(make_finished, exported, forged):
    def better(board):
        job = board.jobs[0]
        mean = replace(job.statistics.mean_reward, value=0.9)
        return replace(board, jobs=(replace(job, statistics=replace(job.statistics, mean_reward=mean)),))

    assert problems(forged(exported(make_finished()), claim=better)) == [
        ("claim-wrong", "leaderboard.json", "jobs[0].statistics.mean_reward.value is 0.9, and the results give 0.5")
    ]


def edited(text, change):
    lines = [json.loads(line) for line in text.splitlines()]
    return "".join(json.dumps(line) + "\n" for line in change(lines)).encode()


def better(lines):
    return [{**line, "reward": 1.0, "rewards": {"reward": 1.0}} for line in lines]


def without(number):
    return lambda lines: [line for index, line in enumerate(lines) if index != number]


def extra_attempt(lines):
    return [*lines, {**lines[0], "attempt": 3, "rollout": "r9"}]


def second_try(lines):
    return [*lines, {**lines[1], "reward": 1.0, "rewards": {"reward": 1.0}, "rollout": "r9"}]


def renamed(lines):
    return [{**lines[0], "task": {**lines[0]["task"], "name": "t/c"}}, *lines[1:]]


def other_package(lines):
    return [{**lines[0], "task": {**lines[0]["task"], "content_digest": "sha256:1"}}, *lines[1:]]


def other_agent(lines):
    return [{**lines[0], "agent": {**lines[0]["agent"], "model": "m-2"}}, *lines[1:]]


def other_sandbox(lines):
    return [{**lines[0], "sandbox": {"name": "local", "base": "image", "fidelity": "substituted"}}, *lines[1:]]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (better, "record-edited"),
        (without(0), "attempt-missing"),
        (extra_attempt, "attempt-added"),
        (second_try, "best-of-n"),
        (renamed, "mixed-settings"),
        (other_package, "mixed-settings"),
        (other_agent, "mixed-settings"),
        (other_sandbox, "mixed-settings"),
    ],
)
def test_edited_results_are_found_though_all_hashes_and_claims_fit(
    make_finished, exported, forged, text_of, change, code
):
    path = exported(make_finished())
    path = forged(path, {RESULTS: edited(text_of(path, RESULTS), change)})
    assert code in codes(path)
    assert "claim-wrong" not in codes(path)


def test_a_result_that_is_edited_everywhere_contradicts_its_rewards(make_finished, exported, forged, text_of):
    path, name = exported(make_finished()), "jobs/job/rollouts/r1/result.json"
    lines = edited(text_of(path, RESULTS), better)
    path = forged(path, {RESULTS: lines, name: edited(text_of(path, name), better)})
    message = "its final reward is 0.0, and the result has 1.0"
    assert ("record-edited", "jobs/job/rollouts/r1/rewards.jsonl", message) in problems(path)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("r0/trajectory.jsonl", "part-missing"),
        ("r0/workspace.tar.gz", "part-missing"),
        ("r0/result.json", "part-missing"),
        ("r0/rewards.jsonl", "part-missing"),
    ],
)
def test_a_part_that_was_taken_out_is_named(make_finished, exported, forged, part, code):
    path = forged(exported(make_finished()), gone=[part])
    assert [(code, file) for code, file, _ in problems(path)] == [(code, f"jobs/job/rollouts/{part}")]


@pytest.mark.parametrize(
    "name",
    [
        "README",
        "jobs/job/rollouts/r77/trajectory.jsonl",
        "jobs/other/job.json",
        "jobs/job/rollouts/r0/run.sh",
        "jobs/job/rollouts/r0/environment/entrypoint.log",
    ],
)
def test_a_part_that_was_put_in_is_named(make_finished, exported, forged, name):
    found = problems(forged(exported(make_finished()), {name: b"x"}))
    assert [(code, file) for code, file, _ in found] == [("part-added", name)]


def test_an_event_that_was_taken_out_of_a_trajectory_is_named(make_finished, exported, forged, text_of):
    path, name = exported(make_finished()), "jobs/job/rollouts/r0/trajectory.jsonl"
    path = forged(path, {name: edited(text_of(path, name), without(0))})
    assert problems(path) == [("record-edited", name, "event 1 is missing or was added")]


FIRST = "jobs/job/rollouts/r0"


def in_both(text_of, path, change):
    """The parts in which the result of the first rollout stands, both changed."""
    [line, *others] = [json.loads(line) for line in text_of(path, RESULTS).splitlines()]
    changed = change(line)
    lines = "".join(json.dumps(each) + "\n" for each in (changed, *others))
    result = {key: value for key, value in changed.items() if key != "rollout"}
    return {RESULTS: lines.encode(), f"{FIRST}/result.json": json.dumps(result).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": {"reward": 0.5}}, "its reward is 1.0, and among its rewards it is 0.5"),
        (
            {"finished_at": "2025-12-31T00:00:00Z"},
            "it cannot have run from 2026-01-01T00:00:00Z to 2025-12-31T00:00:00Z",
        ),
        ({"started_at": "yesterday"}, "it cannot have run from yesterday to 2026-01-01T00:00:01Z"),
        ({"timing": {"agent": -1.0}}, "it has a phase that took less than no time"),
        ({"usage": {"cost_usd": -5.0}}, "it used less than nothing"),
    ],
)
def test_a_result_that_contradicts_itself_is_named(make_finished, exported, forged, text_of, change, message):
    path = exported(make_finished())
    path = forged(path, in_both(text_of, path, lambda line: {**line, **change}))
    assert ("record-edited", f"{FIRST}/result.json", message) in problems(path)


def test_a_metric_that_is_edited_contradicts_the_list_of_rewards(make_finished, exported, forged, text_of):
    path = exported(make_finished())
    path = forged(path, in_both(text_of, path, lambda line: {**line, "rewards": {"reward": 1.0, "style": 1.0}}))
    assert problems(path) == [
        ("record-edited", f"{FIRST}/rewards.jsonl", "its metrics are not those of the result"),
    ]


def test_the_reward_of_a_step_that_is_edited_contradicts_the_list_of_rewards(make_finished, exported, forged, text_of):
    path, name = exported(make_finished()), f"{FIRST}/rewards.jsonl"
    terminal = json.loads(text_of(path, name))
    step = {**terminal, "type": "process", "value": 0.25, "tag": "build", "granularity": "step"}
    listed = "".join(json.dumps(line) + "\n" for line in (step, terminal)).encode()
    record = {"name": "build", "status": "scored", "reward": 1.0, "rewards": {"reward": 1.0}, "error": None}
    parts = in_both(text_of, path, lambda line: {**line, "steps": [record]})
    message = "its reward of step build is 0.25, and the result has 1.0"
    assert problems(forged(path, {**parts, name: listed})) == [("record-edited", name, message)]


def event(number, kind, **fields):
    return {"seq": number, "time": "2026-01-01T00:00:00Z", "type": kind, **fields}


STARTED = event(1, "agent_started", agent="model", model="m-1")


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{**STARTED, "time": "2026-01-02T00:00:00Z"}], "event 1 is of 2026-01-02T00:00:00Z, and the rollout ran from"),
        ([{**STARTED, "time": "2025-01-02T00:00:00Z"}], "event 1 is of 2025-01-02T00:00:00Z, and the rollout ran from"),
        ([{"seq": 1, "type": "usage"}], "event 1 is of None"),
        ([event(1, "oracle", return_code=0)], "the oracle worked in it, and the result is of the agent model"),
        ([{**STARTED, "model": "m-9"}], "it is of the model m-9, and the result of m-1"),
        ([event(1, "agent_timeout")], "the agent reached its time limit in it, and in the result it did not"),
        ([STARTED, event(2, "usage", cost_usd=2.0), event(3, "usage", cost_usd=3)], "it adds up to 5 cost_usd"),
        (
            [STARTED, event(2, "tool_call"), event(3, "tool_call")],
            "it adds up to 2 tool_calls, and the result states 1",
        ),
        ([{**STARTED, "seq": True}], "event 1 is missing or was added"),
        ([{**STARTED, "seq": 2}], "event 1 is missing or was added"),
        ([STARTED, STARTED], "event 2 is missing or was added"),
        ([{"seq": 1, "time": "2026-01-01T00:00:00Z"}], "event 1 has no type"),
        ([], "it has no events"),
    ],
)
def test_a_trajectory_that_contradicts_its_result_is_named(make_finished, exported, forged, text_of, events, message):
    path, name = exported(make_finished()), f"{FIRST}/trajectory.jsonl"
    parts = in_both(text_of, path, lambda line: {**line, "usage": {"cost_usd": 1.0, "tool_calls": 1}})
    parts[name] = "".join(json.dumps(each) + "\n" for each in events).encode()
    [(_, file, found)] = problems(forged(path, parts))
    assert (file, message in found) == (name, True)


def test_an_endless_event_is_refused_before_it_is_held_in_memory(make_finished, exported, forged, monkeypatch):
    monkeypatch.setattr(board_trajectory, "MAX_LINE", 1000)
    path = forged(exported(make_finished()), {f"{FIRST}/trajectory.jsonl": b"x" * 2000})
    assert problems(path) == [
        ("record-damaged", f"{FIRST}/trajectory.jsonl", "it has a line of more than 1,000 bytes"),
    ]


def test_a_trajectory_of_another_job_is_a_copy(make_finished, exported, forged, text_of):
    path = exported(make_finished("one"), make_finished("two", model="m-2"))
    copy = text_of(path, "jobs/one/rollouts/r0/trajectory.jsonl").encode()
    assert "copied" in codes(forged(path, {"jobs/two/rollouts/r0/trajectory.jsonl": copy}))


def test_a_verdict_of_another_version_cannot_be_the_first_one(make_finished, exported, forged, text_of):
    note = {"verifier_digest": "sha256:v", "package_digest": "sha256:2"}
    path = exported(make_finished())
    assert codes(forged(path, in_both(text_of, path, lambda line: {**line, "rescore": note}))) == {"other-package"}


def test_an_earlier_verdict_that_was_taken_out_is_missed(make_finished, exported, forged, text_of):
    note = {"verifier_digest": "v", "package_digest": "sha256:0", "before": {"status": "scored", "reward": 0.0}}
    path = exported(make_finished())
    found = problems(forged(path, in_both(text_of, path, lambda line: {**line, "rescore": note})))
    assert [(code, message) for code, _, message in found] == [
        ("attempt-missing", "r0 was scored before, and that result is missing")
    ]


def test_tasks_of_one_name_are_counted(make_finished, tmp_path):
    def third(results):
        task = replace(results[0].task, ordinal=3)
        return replace(results[0], task=task, key=work_key(task.id, make_settings(results[0]), 1))

    job = make_finished(rewards={"t/a": [1.0]}, planned=2, more=[third])
    assert "tasks called t/a are not numbered from 1: 1, 3" in {problem.message for problem in refused([job], tmp_path)}


def test_results_of_an_older_version_are_refused(make_finished, exported, forged, text_of):
    path = exported(make_finished())
    old = {RESULTS: edited(text_of(path, RESULTS), lambda lines: [{**lines[0], "schema": "x"}, *lines[1:]])}
    with pytest.raises(ValueError, match="line 1 cannot be read: it is not a document of the schema"):
        forged(path, old)


def test_an_attempt_that_is_a_copy_of_another_is_named(make_finished, exported, forged, text_of):
    path = exported(make_finished())
    copy = text_of(path, "jobs/job/rollouts/r0/trajectory.jsonl").encode()
    assert codes(forged(path, {"jobs/job/rollouts/r1/trajectory.jsonl": copy})) == {"copied"}


def test_a_job_that_is_not_finished_is_refused(make_finished, tmp_path):
    [problem] = refused([make_finished(planned=6)], tmp_path)
    assert (problem.code, "plans 6 rollouts" in problem.message) == ("not-finished", True)


def test_a_dropped_attempt_is_refused_at_export(make_finished, tmp_path):
    job = make_finished()
    lines = job.places.results.read_bytes().splitlines(keepends=True)
    job.places.results.write_bytes(b"".join(lines[:-1]))
    found = refused([type(job)(job.folder)], tmp_path)
    assert "t/b has no result of attempt 2 of 2" in {problem.message for problem in found}


def test_the_best_of_several_tries_is_refused(make_finished, tmp_path):
    job = make_finished(more=[lambda results: replace(results[1], outcome=results[0].outcome)])
    assert "best-of-n" in {problem.code for problem in refused([job], tmp_path)}


def test_a_try_after_a_failure_of_the_agent_is_refused(make_finished, tmp_path):
    job = make_finished(more=[lambda results: replace(results[1], outcome=CRASHED)])
    [problem] = refused([job], tmp_path)
    assert "was rerun after a failure of the agent (crashed)" in problem.message


def test_a_try_after_a_failure_of_the_machine_is_accounted_for(make_finished, exported):
    job = make_finished(more=[lambda results: replace(results[1], outcome=AWAY)])
    [listed] = open_board(exported(job)).board.jobs
    assert [(one.rollout, one.reason) for one in listed.left_out] == [
        ("r4", "repeated after a failure (infrastructure/network)")
    ]
    assert listed.marks == ("rollouts repeated or superseded: 1",)


def test_results_of_another_version_of_a_package_give_way_with_a_reason(make_finished, exported):
    def old(results):
        task = replace(results[0].task, content_digest="sha256:9")
        settings = make_settings(results[0])
        return replace(results[0], task=task, key=work_key(task.id, settings, 1))

    job = make_finished(more=[old])
    job = superseding(job, "r4")
    [listed] = open_board(exported(job)).board.jobs
    assert "its package had changed or was gone" in listed.left_out[0].reason


def make_settings(result):
    return JobRequest(("tasks",), result.agent.name, result.agent.model).settings().digest()


def superseding(job, rollout):
    keys = tuple(result.key for name, result in job.results if name == rollout)
    document = json.loads(job.places.job.read_text())
    job.places.job.write_text(json.dumps({**document, "superseded": keys}))
    return type(job)(job.folder)


def test_a_task_that_was_dropped_after_it_had_been_run_is_refused(make_finished, tmp_path):
    job = make_finished(rewards={"t/a": [1.0], "t/b": [0.0]}, planned=1)
    [problem] = refused([superseding(job, "r1")], tmp_path)
    assert problem.message == "t/b was dropped from the job after it had been run"


def test_a_verdict_that_changed_when_it_was_scored_again_is_refused(make_finished, tmp_path):
    job = make_finished()
    line = json.loads(job.places.results.read_bytes().splitlines()[1])
    note = {"verifier_digest": "sha256:v", "package_digest": "sha256:0", "number": 1, "folder": "rescores/0001"}
    again = {**line, "reward": 1.0, "rewards": {"reward": 1.0}, "rescore": note}
    with job.places.results.open("ab") as stream:
        stream.write(json.dumps(again).encode() + b"\n")
    messages = {problem.message for problem in refused([type(job)(job.folder)], tmp_path)}
    assert "r1 was scored 0.0 and, rescored, 1.0" in messages


def test_a_result_of_another_version_of_the_verifier_is_refused(make_finished, tmp_path):
    job = make_finished()
    line = json.loads(job.places.results.read_bytes().splitlines()[1])
    again = {**line, "rescore": {"verifier_digest": "sha256:v", "package_digest": "sha256:2"}}
    with job.places.results.open("ab") as stream:
        stream.write(json.dumps(again).encode() + b"\n")
    assert "other-package" in {problem.code for problem in refused([type(job)(job.folder)], tmp_path)}


def test_a_result_that_was_edited_by_hand_is_refused(make_finished, tmp_path):
    job = make_finished()
    path = job.places.rollout("r1").result
    path.write_text(path.read_text().replace('"reward": 0.0', '"reward": 1.0'))
    assert {problem.code for problem in refused([job], tmp_path)} == {"record-edited"}


def test_a_damaged_line_is_named_by_its_number(make_finished, tmp_path):
    job = make_finished()
    with job.places.results.open("ab") as stream:
        stream.write(b"{}\n")
    [problem] = refused([type(job)(job.folder)], tmp_path)
    assert "results.jsonl, line 5 cannot be read" in problem.message


@pytest.mark.parametrize(
    ("request_", "mark"),
    [
        ({"isolation": "open"}, "isolation set by the user: open"),
        ({"agent_timeout_sec": 9.0}, "agent_timeout_sec set by the user: 9.0"),
        ({"base_image": "other"}, "base_image set by the user: other"),
        ({"agent": "oracle", "model": None}, "reference agent: oracle"),
        ({"agent": "nop", "model": None}, "reference agent: nop"),
    ],
)
def test_overrides_and_reference_agents_are_marked(make_finished, exported, request_, mark):
    path = exported(make_finished(**request_))
    board = open_board(path).board
    assert mark in board.jobs[0].marks
    assert f"  {mark}" in list(board_lines(board))


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({}, {}, "best-of-n"),
        ({}, {"agent": "x", "timeout_sec": 9.0}, "mixed-settings"),
        ({}, {"agent": "x", "digest": "sha256:1"}, "other-package"),
        ({}, {"agent": "x", "rewards": {"t/a": [1.0, 1.0]}}, "other-package"),
        ({}, {"agent": "x", "rewards": {"t/a": [1.0], "t/b": [1.0]}}, "mixed-settings"),
    ],
)
def test_jobs_that_cannot_stand_in_one_table_are_refused(make_finished, tmp_path, first, second, code):
    jobs = [make_finished("one", **first), make_finished("two", **second)]
    assert {problem.code for problem in refused(jobs, tmp_path)} == {code}


def test_several_jobs_make_a_table_with_paired_differences(make_finished, exported):
    low = {f"t/{number}": [0.0, number / 40] for number in range(4)}
    high = {f"t/{number}": [0.9, 1.0] for number in range(4)}
    board = open_board(exported(make_finished("one", low), make_finished("two", high, model="m-2"))).board
    [comparison] = board.comparisons
    assert (comparison.first, comparison.second, comparison.verdict) == ("one", "two", "better")
    lines = list(board_lines(board))
    assert lines[1].split()[:2] == ["m-2", "model"]
    assert any(line.startswith("  model m-2 − model m-1: +0.9") for line in lines)


def test_a_path_that_is_not_a_file_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError):
        check_board(Path(tmp_path))
