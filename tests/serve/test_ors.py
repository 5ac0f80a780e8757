"""The Open Reward Standard over a real connection: what clients ask for, and what they are told."""

import json
import threading

import pytest

from episode_server import answered, serving, solve, sse, write_package

pytestmark = pytest.mark.slow


def spec(server, task_id, split="test"):
    tasks = server.http.post("/tasks", json={"split": split}).json()["tasks"]
    return next(task for task in tasks if task["id"] == task_id)


def begun(server, task_id):
    return server.session(task_spec=spec(server, task_id))


def test_environments_splits_and_tasks_are_listed_without_anything_of_this_machine(server, module_tmp):
    assert server.http.get("/list_environments").json() == ["set", "counter-cube"]
    assert server.http.get("/splits").json() == [{"name": "test", "type": "test"}, {"name": "train", "type": "train"}]
    listed = server.http.post("/set/tasks", json={"split": "train"}).json()
    assert listed["env_name"] == "set"
    assert listed["tasks"] == [{"id": "set/train", "digest": listed["tasks"][0]["digest"], "index": 0}]
    assert server.http.post("/num_tasks", json={"split": "test"}).json() == {"num_tasks": 4}
    one = server.http.post("/task", json={"split": "test", "index": 3}).json()
    assert server.http.post("/task_range", json={"split": "test", "start": -1}).json()["tasks"] == [one["task"]]
    assert str(module_tmp) not in json.dumps([listed, one])


def test_the_header_or_the_path_choose_the_environment_and_an_unknown_one_is_refused(server):
    cube = {"X-Deployment": "someone/Counter-Cube"}
    assert server.http.post("/num_tasks", json={"split": "test"}, headers=cube).json()["num_tasks"] > 0
    by_path = server.http.get("/counter-cube/splits").json()
    assert server.http.get("/splits", headers=cube).json() == by_path
    for path, headers in (("/splits", {"X-Deployment": "sett"}), ("/sett/splits", {})):
        answer = server.http.get(path, headers=headers)
        assert answer.status_code == 404
        assert "Unknown environment 'sett'; available: set, counter-cube." in answer.json()["detail"]


def test_a_placed_session_starts_nothing(server):
    before = server.metrics()
    sid = sse(server.http.post("/create_session", json={}))[0][1]
    assert server.metrics()["benchcube_sessions_total"] == before["benchcube_sessions_total"]
    assert server.post("/ping", sid).json() == {"status": "ok"}
    assert server.post("/delete_session", sid).status_code == 200
    assert server.post("/ping", sid).status_code == 404


def test_an_episode_is_played_to_its_reward_and_then_nothing_counts(server):
    sid = begun(server, "set/plain")
    assert server.get("/prompt", sid).json() == [
        {"type": "text", "text": "Write done to /app/answer.txt.", "detail": None}
    ]
    offered = server.get("/task_tools", sid).json()
    assert [tool["name"] for tool in offered["tools"]] == ["bash", "read_file", "write_file", "edit_file", "submit"]
    assert offered["terminal_tool"]["name"] == "submit"
    failed = server.call(sid, "bash", command="false")
    assert failed["ok"]
    assert failed["output"]["metadata"] == {"exit_code": 1}
    assert failed["output"]["reward"] is None
    server.call(sid, "write_file", path="answer.txt", text="halv")
    server.call(sid, "edit_file", path="answer.txt", old="halv", new="half")
    assert server.call(sid, "read_file", path="answer.txt")["output"]["blocks"][0]["text"] == "half"
    end = server.call(sid, "submit")["output"]
    assert (end["reward"], end["finished"]) == (0.5, True)
    assert end["metadata"] == {"status": "scored", "rewards": {"reward": 0.5}}
    for name in ("submit", "bash"):
        again = server.call(sid, name, **({"command": "true"} if name == "bash" else {}))
        assert (again["ok"], again["reason"]) == (False, "episode_finished")
    assert server.post("/delete", sid).status_code == 200


@pytest.mark.parametrize(
    ("name", "arguments", "reason", "words"),
    [
        ("bahs", {}, "not_found", "Unknown tool 'bahs'"),
        ("bash", {}, "input_validation", "the argument 'command' is missing"),
        ("bash", {"command": 1}, "input_validation", "must be of type string"),
        ("bash", {"command": "true", "cwd": "/"}, "input_validation", "unknown argument 'cwd'"),
        ("submit", {"message": ["x"]}, "input_validation", "must be of type string"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_and_the_session_lives(server, name, arguments, reason, words):
    sid = begun(server, "set/plain")
    refused = server.call(sid, name, **arguments)
    assert (refused["ok"], refused["reason"]) == (False, reason)
    assert words in refused["error"]
    solve(server, sid)
    assert server.call(sid, "submit")["output"]["reward"] == 1.0


def test_a_verifier_that_fails_ends_without_a_reward_and_says_why(server):
    sid = begun(server, "set/crash")
    end = server.call(sid, "submit")["output"]
    assert (end["reward"], end["finished"]) == (None, True)
    assert end["metadata"]["status"] == "unscored"
    error = end["metadata"]["error"]
    assert (error["category"], error["phase"]) == ("verifier", "verify")
    assert error["reason"]
    assert server.metrics()['benchcube_rollouts_unscored_total{category="verifier"}'] >= 1
    assert server.call(sid, "submit")["reason"] == "episode_finished"


def test_a_broken_package_is_listed_and_an_episode_of_it_has_no_score(server, module_tmp):
    sid = begun(server, "set/broken")
    answer = server.get("/prompt", sid)
    assert answer.status_code == 500
    assert "tmieout_sec" in answer.json()["detail"]
    assert answer.json()["error"]["category"] == "package"
    end = server.call(sid, "submit")["output"]
    assert (end["reward"], end["finished"]) == (None, True)
    assert str(module_tmp) not in answer.text


def test_rewards_of_calls_come_where_the_package_declares_them(server):
    sid = begun(server, "set/dense")
    assert server.call(sid, "bash", command="true")["output"]["reward"] == 0.0
    output = server.call(sid, "bash", command="echo half > /app/answer.txt")["output"]
    assert (output["reward"], output["finished"]) == (0.5, False)


def test_the_tools_of_a_cube_are_its_actions_and_submit(server):
    task = server.http.post("/counter-cube/tasks", json={"split": "train"}).json()["tasks"][0]
    assert task["id"] == "up-1"
    sid = server.session(env_name="counter-cube", task_spec=task)
    names = {tool["name"] for tool in server.get("/counter-cube/task_tools", sid).json()["tools"]}
    assert names == {"add", "decrement", "increment", "read", "submit"}
    assert "from 0 to 1" in server.get("/prompt", sid).json()[0]["text"]
    assert server.call(sid, "increment")["output"]["reward"] in (None, 1.0)
    end = server.call(sid, "submit")
    assert end.get("reason") == "episode_finished" or end["output"]["reward"] == 1.0


def test_of_many_submits_at_once_one_is_verified(server):
    sid = begun(server, "set/plain")
    solve(server, sid)
    answers = []
    workers = [threading.Thread(target=lambda: answers.append(server.call(sid, "submit"))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [answer["output"]["reward"] for answer in answers if answer["ok"]] == [1.0]
    assert [answer["reason"] for answer in answers if not answer["ok"]] == ["episode_finished"] * 7


def test_a_result_can_be_fetched_again_by_its_id(server):
    sid = begun(server, "set/plain")
    first = server.post("/call", sid, {"name": "bash", "input": {"command": "echo again"}})
    task_id = sse(first)[0][1]
    assert answered(server.post("/call", sid, {"task_id": task_id})) == answered(first)
    assert answered(server.post("/call", sid, {"task_id": "other"})) == "unknown task_id"


def test_long_results_survive_the_way_clients_read_events(server):
    sid = begun(server, "set/plain")
    text = " " * 9000 + "é\u2028end"
    server.call(sid, "write_file", path="long.txt", text=text)
    read = server.call(sid, "read_file", path="long.txt")["output"]["blocks"][0]["text"]
    assert read == text


def test_a_group_is_scored_on_copies_and_the_session_goes_on(server):
    sid = begun(server, "set/plain")
    assert server.get("/task_tools", sid).json()["supports_score_group"]

    def candidate(*commands):
        calls = [{"type": "tool_call", "id": "c", "name": "bash", "input": {"command": each}} for each in commands]
        return {"messages": [{"role": "assistant", "blocks": calls}], "metadata": None}

    body = {"candidates": [candidate("echo done > answer.txt"), candidate(), candidate("echo half > answer.txt")]}
    scores = answered(server.post("/score_group", sid, body))["scores"]
    assert [score["reward"] for score in scores] == [1.0, 0.0, 0.5]
    assert server.call(sid, "bash", command="cat answer.txt")["output"]["metadata"]["exit_code"] == 1
    assert server.call(sid, "submit")["output"]["reward"] == 0.0
    cube = server.session(env_name="counter-cube", split="train", index=0)
    assert server.post("/score_group", cube, body).status_code == 404


def test_a_package_that_changes_while_it_is_served_is_refused_until_it_is_as_it_was(tmp_path):
    package = write_package(tmp_path / "set/plain", "set/plain")
    with serving(tmp_path, tmp_path / "set", "--sandbox", "memory") as server:

        def reward():
            sid = server.session()
            solve(server, sid)
            return server.call(sid, "submit")["output"]

        assert [reward()["reward"] for _ in range(3)] == [1.0, 1.0, 1.0]
        tests = package / "verifier/test.sh"
        was = tests.read_text()
        tests.write_text("#!/bin/sh\necho 0.25 > /logs/verifier/reward.txt\n")
        sid = server.session()
        assert server.get("/prompt", sid).json()["error"]["code"] == "package-changed"
        end = server.call(sid, "submit")["output"]
        assert (end["reward"], end["finished"]) == (None, True)
        tests.write_text(was)
        assert reward()["reward"] == 1.0


def test_steps_and_users_follow_as_the_result_of_submit(tmp_path):
    steps = "schema_version: '1.3'\nsteps: [{name: one}, {name: two}]\n"
    many = write_package(tmp_path / "set/steps", "set/steps", front=steps, prompt="", files={
        "steps/one/instruction.md": "First.\n", "steps/two/instruction.md": "Second.\n",
    })  # fmt: skip
    facts = "user: {model: scripted, stop_rule: satisfied-or-3-rounds, private_facts: {colour: green}}\n"
    write_package(tmp_path / "set/user", "set/user", front=facts, prompt="Ask, then write done.")
    with serving(tmp_path, many.parent, "--sandbox", "memory") as server:
        sid = begun(server, "set/steps")
        assert server.get("/prompt", sid).json()[0]["text"] == "First."
        solve(server, sid)
        middle = server.call(sid, "submit")["output"]
        assert (middle["blocks"][0]["text"], middle["reward"], middle["finished"]) == ("Second.", None, False)
        assert server.call(sid, "submit")["output"]["finished"]
        sid = begun(server, "set/user")
        said = server.call(sid, "submit", message="What is the colour?")["output"]
        assert "green" in said["blocks"][0]["text"]
        assert not said["finished"]
        solve(server, sid)
        assert server.call(sid, "submit", message="Done.")["output"]["reward"] == 1.0


def test_limits_end_an_episode_with_the_verdict_on_what_is_there(tmp_path):
    write_package(tmp_path / "set/plain", "set/plain")
    with serving(tmp_path, tmp_path / "set", "--sandbox", "memory", "--max-calls", "2") as server:
        sid = server.session()
        assert not solve(server, sid)["output"]["finished"]
        end = server.call(sid, "bash", command="true")["output"]
        assert (end["reward"], end["finished"], end["metadata"]["ended_by"]) == (1.0, True, "call_limit")


NOTES = """
import json, sys
print("a banner")
for line in sys.stdin:
    asked = json.loads(line)
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    listed = [{"name": name, "description": "Note it.", "inputSchema": schema} for name in ("note", "bash")]
    answer = {"initialize": {"protocolVersion": "1", "capabilities": {}}, "tools/list": {"tools": listed}}
    if asked["method"] == "tools/call":
        open("/app/answer.txt", "w").write(asked["params"]["arguments"]["text"])
        answer["tools/call"] = {"content": [{"type": "text", "text": "noted"}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer[asked["method"]]}), flush=True)
"""


@pytest.mark.sandbox
def test_the_mcp_servers_of_an_environment_are_tools_too(tmp_path):
    place = write_package(tmp_path / "set/notes", "set/notes", files={
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY notes.py /opt/notes.py\n",
        "environment/notes.py": NOTES,
    })  # fmt: skip
    servers = "workdir: /app, mcp_servers: [{name: notes, transport: stdio, command: python3, args: [/opt/notes.py]}]"
    text = (place / "task.md").read_text()
    (place / "task.md").write_text(text.replace("workdir: /app", servers))
    remote = write_package(tmp_path / "set/remote", "set/remote")
    other = "workdir: /app, mcp_servers: [{name: far, transport: sse, url: 'http://localhost:1/'}]"
    (remote / "task.md").write_text((remote / "task.md").read_text().replace("workdir: /app", other))
    with serving(tmp_path, tmp_path / "set", "--sandbox", "local", "--base-image", "host") as server:
        sid = begun(server, "set/notes")
        names = [tool["name"] for tool in server.get("/task_tools", sid).json()["tools"]]
        assert names == ["bash", "read_file", "write_file", "edit_file", "note", "notes__bash", "submit"]
        assert server.call(sid, "note")["reason"] == "input_validation"
        assert server.call(sid, "note", text="done")["output"]["blocks"][0]["text"] == "noted"
        assert server.call(sid, "submit")["output"]["reward"] == 1.0
        answer = server.get("/prompt", begun(server, "set/remote"))
        assert (answer.status_code, answer.json()["error"]["category"]) == (500, "unsupported")
