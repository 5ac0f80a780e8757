"""What asks or answers in a terminal: confirmations of a human, and an author's shell."""

import os
import shlex
import shutil
import subprocess

import pytest
from engines import BASE_IMAGE, EngineUnavailable

from benchflow.agents.protocol import PermissionOption, PermissionRequest
from benchflow.cli.rollouts.confirmations import request_lines
from loaded_commands import bench

TASK = "---\ntask: {name: acme/a}\nenvironment: {workdir: /app, network_mode: no-network}\n"
NUDGED = (
    "user: {model: scripted, private_facts: {some_word: x}}\n"
    "benchflow:\n"
    "  assets: [{path: agent, visibility: agent, mount_phase: agent, target: /agent}]\n"
    "  nudges: {branchable: true, branch_execution: option-kinds-preserved, confirmation_policy: human}\n"
)
AGENT = """
import json, sys
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
options = [{"optionId": "go", "name": "Go", "kind": "allow_once"}]
options += [{"optionId": "no", "name": "No", "kind": "reject_once"}]
call = {"toolCallId": "1", "title": "write the answer", "kind": "edit", "status": "pending", "rawInput": {"path": "a"}}
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        send(id=number, result={"protocolVersion": 1, "agentCapabilities": {}})
    elif method == "session/new":
        send(id=number, result={"sessionId": "s"})
    elif method == "session/prompt":
        prompt = number
        asked = {"sessionId": "s", "toolCall": call, "options": options}
        send(id="ask", method="session/request_permission", params=asked)
    elif number == "ask":
        open("answer.txt", "w").write(str(message["result"]["outcome"].get("optionId")))
        send(id=prompt, result={"stopReason": "end_turn"})
"""
ENGINES = [
    pytest.param(name, marks=[pytest.mark.engine, pytest.mark.xdist_group(name)]) for name in ("docker", "podman")
]
COMMAND = ["run", "task", "--sandbox", "local", "--agent", "acp:python3 /agent/agent.py"]


@pytest.fixture
def task(tmp_path):
    for folder in ("agent", "verifier"):
        (tmp_path / "task" / folder).mkdir(parents=True)
    (tmp_path / "task" / "task.md").write_text(f"{TASK}{NUDGED}---\nAsk first.\n")
    (tmp_path / "task" / "agent" / "agent.py").write_text(AGENT)
    reward = "grep -q go answer.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    (tmp_path / "task" / "verifier" / "test.sh").write_text(reward)
    return tmp_path


@pytest.mark.sandbox
@pytest.mark.parametrize(("keys", "reward"), [(b"1\n", "reward 1"), (b"\n", "reward 0")])
def test_a_human_answers_the_requests_of_an_agent(task, in_terminal, keys, reward):
    code, shown = in_terminal(COMMAND, keys=keys, until=b"or Enter to refuse")
    assert (code, reward in shown) == (0, True), shown
    assert "acp:python3 /agent/agent.py asks for permission: " in shown
    assert "1  Go (allow_once)" in shown


def test_without_a_terminal_a_run_that_needs_a_human_is_refused_before_launch(task):
    refused = bench(*COMMAND, "--json", cwd=task)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has the confirmation policy 'human'" in refused.stderr
    assert not (task / "jobs").exists()


def test_a_request_shows_who_asks_for_what_and_controls_nothing():
    request = PermissionRequest(
        "rm\x1b[2J", (PermissionOption("a", "allow_once", "Ye\x07s"),), {"rawInput": "x\x1b\ny"}
    )
    shown = "\n".join(request_lines("agent\x9b", request))
    assert "\x1b[2J" not in shown
    assert not {"\x07", "\x9b"} & set(shown)
    assert "within 300 s" in shown


@pytest.mark.sandbox
def test_an_author_has_a_terminal_in_the_environment(task, in_terminal):
    keys = b"tty; cat /agent/agent.py | head -2 | wc -l; ls /verifier; stty size; exit 7\n"
    code, shown = in_terminal(["tasks", "shell", "task", "--sandbox", "local"], keys=keys, until=b"$ ", columns=91)
    assert code == 7, shown
    assert "/dev/pts/" in shown
    assert "24 91" in shown


def reaching(name, engines, folder):
    """The variables with which `bench` finds a running engine under its own name."""
    try:
        if name == "docker":
            return engines.docker()
        command, env = engines.podman()
    except EngineUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    command[command.index(name)] = shutil.which(name)  # the program of that name on the path will be this script
    (folder / "bin").mkdir()
    (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    (folder / "bin" / name).chmod(0o755)
    return {**env, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def add_programs(environment, *names):
    """Build the environment from a base of this machine, with these programs of it and their libraries."""
    for path in map(shutil.which, names):
        linked = subprocess.run(["ldd", path], capture_output=True, check=True, text=True).stdout.split()
        for file in (path, *(word for word in linked if word.startswith("/"))):
            target = environment / "root" / file[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    (environment / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nCOPY root /\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_an_author_has_a_terminal_in_a_container(task, in_terminal, engines, name):
    add_programs(task / "task" / "environment", "bash", "script")
    keys = b"tty; ls /verifier; stty size; exit 7\n"
    command = ["tasks", "shell", "task", "--sandbox", name]
    code, shown = in_terminal(
        command, environ=reaching(name, engines, task), keys=keys, until=b"$ ", columns=91, limit=600
    )
    assert code == 7, shown
    assert f"Shell in a {name} sandbox on " in shown
    assert "/dev/pts/" in shown
    assert "24 91" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_a_container_without_a_program_that_makes_terminals_still_has_a_shell(task, in_terminal, engines, name):
    (task / "task" / "environment").mkdir()
    (task / "task" / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\n")
    command = ["tasks", "shell", "task", "--sandbox", name]
    environ, until = reaching(name, engines, task), b"so the shell has no terminal"
    code, shown = in_terminal(command, environ=environ, keys=b"pwd; exit 7\n", until=until, limit=600)
    assert (code, "/app" in shown) == (7, True), shown


@pytest.mark.sandbox
def test_a_shell_without_a_terminal_runs_what_it_is_given(task):
    done = bench("tasks", "shell", "task", "--sandbox", "local", "--user", "root", cwd=task)
    assert (done.returncode, done.stdout) == (0, "")
    broken = bench("tasks", "shell", "task", "--sandbox", "nowhere", cwd=task)
    assert (broken.returncode, "nknown sandbox 'nowhere'" in broken.stderr) == (2, True)
