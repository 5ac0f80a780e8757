"""`oracle`, `nop` and `script` in a real sandbox: what they may see, how they end, what they leave behind."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from benchflow.agents import create_agent
from benchflow.agents.running import OutputLog
from benchflow.errors import EnvironmentFailure, InfrastructureFailure, PackageError, UsageError
from benchflow.files.redaction import MARK, NO_SECRETS, Redactor

pytestmark = pytest.mark.anyio


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "agent.sh"
        path.write_text(text)
        return create_agent(f"script:{path}")

    return write


@pytest.fixture
def package(tmp_path):
    def make(folder="oracle", script="echo solved > answer.txt\n", **files):
        root = tmp_path / "package"
        (root / folder).mkdir(parents=True)
        (root / folder / "solve.sh").write_text(script)
        for name, text in files.items():
            (root / folder / name).write_text(text)
        return root

    return make


async def test_nop_changes_nothing(opened, sandbox):
    before = await sandbox.changes()
    [result] = await opened(create_agent("nop"), "Do it.")
    assert (result.stop_reason, result.exit_code, result.timed_out) == ("end_turn", None, False)
    assert await sandbox.changes() == before


async def test_a_script_runs_as_the_agent_in_the_working_folder_with_closed_input(opened, script, tmp_path, recorder):
    agent = script('id -un; pwd; cat; echo "$(cat "$BENCHFLOW_PROMPT_FILE")"; echo "$GREETING" >&2; exit 3\n')
    [result] = await opened(agent, "Do it.", env={"GREETING": "hello"})
    assert (result.stop_reason, result.exit_code, result.timed_out) == ("exited", 3, False)
    kept = (tmp_path / "agent" / "script.txt").read_text()
    assert sorted(kept.splitlines()) == ["/app", "Do it.", "agent", "hello"]
    assert [event["type"] for event in recorder.events] == ["agent_started", "agent_ended"]


async def test_the_script_is_gone_after_its_phase_and_what_it_started_has_ended(opened, script, changed, inside):
    agent = script("(setsid sleep 1000 &) ; sleep 1000 & echo $0 > where\n")
    await opened(agent, "Do it.")
    where = (await inside("cat /app/where")).strip()
    assert where.endswith("script.sh")
    assert "No such file" in await inside(f"ls {where}")
    assert "sleep 1000" not in await inside("ps ax -o args")
    assert await changed() == ["/app/where"]


async def test_a_script_that_breaks_its_own_removal_has_ended_all_the_same(opened, script, sandbox):
    agent = script("echo done > /app/out\n")
    breaks = "for f in /bin/rm /usr/bin/rm; do cp /bin/false $f.new && mv -f $f.new $f; done"
    moved = await sandbox.exec(breaks, user="root")
    assert moved.ok
    [result] = await opened(agent, "Do it.")
    assert (result.stop_reason, result.exit_code) == ("exited", 0)


async def test_what_a_script_started_lives_on_where_the_package_wants_it(opened, script, inside):
    agent = script("echo begun; sleep 1000 & echo done\n")
    await opened(agent, "Do it.", keep_processes=True)
    assert "sleep 1000" in await inside("ps ax -o args")


async def test_a_script_whose_time_is_over_ends_with_its_children_and_says_so(opened, script, recorder, inside):
    [result] = await opened(script("sleep 1000 & sleep 1000\n"), "Do it.", timeout=0.5)
    assert (result.stop_reason, result.exit_code, result.timed_out) == ("timeout", None, True)
    assert recorder.of("agent_timeout")
    assert "sleep 1000" not in await inside("ps ax -o args")


async def test_a_cancelled_script_leaves_no_process(script, context, inside):
    agent = script("sleep 1000 & sleep 1000\n")
    await agent.start(context)
    with anyio.move_on_after(0.3) as scope:
        await agent.prompt("Do it.")
    assert scope.cancelled_caught
    await agent.close()
    assert "sleep 1000" not in await inside("ps ax -o args")
    assert ".agent-" not in await inside("ls -A /tmp")


async def test_output_is_capped_and_says_how_much_is_missing(opened, script, tmp_path):
    [result] = await opened(script("head -c 20000000 /dev/zero | tr '\\0' x\n"), "Do it.")
    assert result.exit_code == 0
    kept = (tmp_path / "agent" / "script.txt").read_bytes()
    assert len(kept) < 9_000_000
    assert kept.endswith(b"more bytes were dropped]\n")


async def test_secrets_do_not_reach_the_kept_output(opened, script, tmp_path):
    redactor = Redactor(["hunter2-hunter2"])
    await opened(script('printf hunter2-; sleep 0.1; echo hunter2; echo "$K"\n'), "", env={"K": "x"}, redactor=redactor)
    assert (tmp_path / "agent" / "script.txt").read_text() == f"{MARK}\nx\n"


async def test_output_that_cannot_be_written_is_a_failure_of_the_machine(script, context):
    agent = script("echo hello\n")
    blocked = context.log_folder.parent / "blocked"
    blocked.write_text("a file")
    await agent.start(replace(context, log_folder=blocked))
    with pytest.raises(InfrastructureFailure, match="cannot be written"):
        await agent.prompt("Do it.")
    await agent.close()


def test_a_full_disk_is_told_when_the_log_is_closed():
    log = OutputLog(Path("/dev/full"), NO_SECRETS)
    log.write(b"hello\nworld\n")
    assert log.last_line == "world"
    with pytest.raises(InfrastructureFailure, match="No space left on device"):
        log.close()
    log.close()


async def test_the_oracle_solves_and_leaves_only_its_solution(opened, package, changed, inside, recorder, tmp_path):
    root = package(script='cat "$(dirname "$0")/data" /solution/data; echo "$KEY"; id -un; pwd > answer\n', data="42\n")
    [result] = await opened(create_agent("oracle"), "Do it.", package_dir=root, oracle_env={"KEY": "value"})
    assert (result.stop_reason, result.exit_code) == ("exited", 0)
    assert (tmp_path / "agent" / "oracle.txt").read_text() == "42\n42\nvalue\nroot\n"
    assert await inside("cat /app/answer") == "/app\n"
    assert "oracle" not in await inside("ls /")
    assert "solution" not in await inside("ls /")
    assert await changed() == ["/app/answer"]
    [event] = recorder.of("oracle")
    assert (event["command"], event["return_code"], event["stdout"]) == ("/oracle/solve.sh", 0, "42\n42\nvalue\nroot\n")


@pytest.mark.parametrize("first_line", ["#!/bin/bash\n[[ 1 == 1 ]] && ", ""])
async def test_the_oracle_may_be_of_the_split_layout_with_or_without_an_interpreter(
    opened, package, inside, first_line
):
    root = package("solution", f"{first_line}echo yes > answer\n")
    [result] = await opened(create_agent("oracle"), "", package_dir=root)
    assert result.exit_code == 0
    assert await inside("cat /app/answer") == "yes\n"


async def test_a_step_names_its_own_oracle(opened, package, tmp_path, inside):
    step = tmp_path / "steps" / "one" / "solution"
    step.mkdir(parents=True)
    (step / "solve.sh").write_text("echo step > answer\n")
    await opened(create_agent("oracle"), "", package_dir=package(), oracle_dir=step)
    assert await inside("cat /app/answer") == "step\n"


async def test_a_package_without_an_oracle_is_told_so(opened, tmp_path):
    with pytest.raises(PackageError, match=r"has no oracle/solve\.sh") as caught:
        await opened(create_agent("oracle"), "", package_dir=tmp_path)
    assert caught.value.code == "oracle-missing"


async def test_an_environment_that_occupies_the_oracle_s_place_is_refused_untouched(opened, package, sandbox, inside):
    await sandbox.write_file("/solution/notes", b"mine")
    with pytest.raises(EnvironmentFailure, match="already has files at /solution"):
        await opened(create_agent("oracle"), "", package_dir=package())
    assert await inside("cat /solution/notes") == "mine"


async def test_empty_folders_give_way_to_the_oracle(opened, package, inside):
    await inside("mkdir /oracle /solution")
    [result] = await opened(create_agent("oracle"), "", package_dir=package())
    assert result.exit_code == 0


async def test_the_oracle_s_time_can_be_over(opened, package, inside):
    [result] = await opened(create_agent("oracle"), "", package_dir=package(script="sleep 1000\n"), timeout=0.5)
    assert result.timed_out
    assert "oracle" not in await inside("ls /")


@pytest.mark.parametrize("name", ["script", "script:", "script:no/such/file", "script:/dev/zero", "script:/tmp"])
def test_a_script_that_cannot_be_read_is_wrong_usage(name):
    with pytest.raises(UsageError, match="script"):
        create_agent(name)
