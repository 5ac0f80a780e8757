"""Commands in a running sandbox: who they run as, what they see, how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.inside.messages import Identity
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Limits, SandboxSpec

pytestmark = pytest.mark.anyio


async def output(box: LocalSandbox, command: str, **options: object) -> str:
    result = await box.exec(command, timeout=60, **options)  # type: ignore[arg-type] # passed through
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


async def test_a_command_runs_as_the_unprivileged_user_in_its_own_folder(box: LocalSandbox) -> None:
    assert await output(box, "id -un; id -u; pwd; echo $HOME") == "agent\n1000\n/app\n/home/agent"
    assert await output(box, "touch made && ls -A") == "made"


async def test_root_is_root_of_the_sandbox_only(box: LocalSandbox) -> None:
    text = await output(box, "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status", user="root")
    assert text.split() == ["0", "CapEff:", "00000000a00405fb", "NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_an_unprivileged_user_has_no_capability_at_all(box: LocalSandbox) -> None:
    text = await output(box, "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status")
    assert set(text.split()[1::2]) == {"0000000000000000"}


async def test_users_of_the_environment_keep_their_numbers(box: LocalSandbox, identity: Identity) -> None:
    assert await output(box, "id -u; id -g", user="www-data") == "33\n33"
    assert await output(box, "id -u; id -g", user="1234:5678") == "1234\n5678"
    if identity != "single":
        assert await output(box, "touch /tmp/mine && stat -c %u:%g /tmp/mine", user="daemon") == "1:1"


async def test_an_unknown_user_is_an_error_that_names_it(box: LocalSandbox) -> None:
    with pytest.raises(SandboxFailure, match="no user 'nobody-knows'"):
        await box.exec("true", user="nobody-knows")


async def test_environment_variables_are_those_given_and_nothing_of_the_driver(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER_SECRET", "hunter2")
    async with backend.create(SandboxSpec(env={"ONE": "1", "TWO": "2"})) as box:
        text = await output(box, "env", env={"TWO": "zwei"})
    names = dict(line.split("=", 1) for line in text.splitlines())
    assert (names["ONE"], names["TWO"], names["USER"]) == ("1", "zwei", "agent")
    assert set(names) == {"ONE", "TWO", "PATH", "LANG", "HOME", "USER", "LOGNAME", "PWD"}


async def test_standard_input_reaches_the_command_whatever_its_size(box: LocalSandbox) -> None:
    data = os.urandom(3 << 20)
    result = await box.exec(["cat"], stdin=data)
    assert result.stdout == data
    assert (await box.exec("cat; echo $?")).stdout == b"0\n"


async def test_a_long_command_line_and_environment_pass(box: LocalSandbox) -> None:
    text = "x" * 100_000
    result = await box.exec(["sh", "-c", 'printf %s "$1$LONG" | wc -c', "sh", text], env={"LONG": text})
    assert result.stdout.strip() == b"200000"


async def test_the_working_directory_can_be_chosen_and_must_exist(box: LocalSandbox) -> None:
    assert await output(box, "pwd", cwd="/usr/bin") == "/usr/bin"
    result = await box.exec("pwd", cwd="/missing")
    assert (result.exit_code, b"/missing" in result.stderr) == (126, True)
    assert (await box.exec("pwd", cwd="usr/bin")).exit_code == 126


async def test_exit_codes_are_those_of_a_shell(box: LocalSandbox) -> None:
    assert (await box.exec("exit 7")).exit_code == 7
    assert (await box.exec("kill -TERM $$")).exit_code == 143
    assert (await box.exec(["no-such-program"])).exit_code == 127
    assert (await box.exec(["/etc/passwd"])).exit_code == 126


async def test_output_past_the_cap_is_dropped_from_the_middle_and_counted(box: LocalSandbox) -> None:
    result = await box.exec("echo first; head -c 5000000 /dev/zero; echo last", max_output=10_000)
    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"last\n")
    assert len(result.stdout) + result.dropped_bytes == 5_000_011


async def test_a_sink_sees_both_streams_as_they_come(box: LocalSandbox) -> None:
    seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def sink(stream: str, chunk: bytes) -> None:
        seen[stream] += chunk

    await box.exec("echo out; echo err >&2", on_output=sink)
    assert seen == {"stdout": b"out\n", "stderr": b"err\n"}


async def test_a_command_is_over_when_its_process_is_even_if_a_daemon_holds_its_output(box: LocalSandbox) -> None:
    with anyio.fail_after(30):
        result = await box.exec("sleep 600 & echo started")
    assert result.stdout == b"started\n"
    assert "sleep 600" in await output(box, "ps ax")


async def test_a_timeout_ends_everything_the_command_started_and_nothing_else(box: LocalSandbox) -> None:
    await box.exec("setsid sleep 1111 >/dev/null 2>&1 &")
    script = "(setsid nohup sh -c 'sleep 2222 & sleep 3333' >/dev/null 2>&1 &); trap '' TERM; echo up; sleep 4444"
    result = await box.exec(script, timeout=0.5)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"up\n")
    processes = await output(box, "ps axo args")
    assert "sleep 1111" in processes
    assert not any(f"sleep {number}" in processes for number in (2222, 3333, 4444))


async def test_a_cancelled_caller_leaves_no_process(box: LocalSandbox) -> None:
    with anyio.move_on_after(0.5):
        await box.exec("(setsid sleep 5555 &); sleep 6666")
    processes = await output(box, "ps axo args")
    assert "sleep 5555" not in processes
    assert "sleep 6666" not in processes


async def test_killing_processes_leaves_the_files(box: LocalSandbox) -> None:
    await box.exec("echo kept > file; for i in 1 2 3; do setsid sh -c 'trap \"\" TERM; sleep 7777' & done")
    await box.kill_processes()
    assert await output(box, "cat file; ps axo args | grep -c '[s]leep 7777' || true") == "kept\n0"


async def test_a_process_can_be_talked_to_and_killed(box: LocalSandbox) -> None:
    process = await box.process("while read line; do echo got $line; done; echo bye >&2")
    await process.send(b"one\n")
    chunks = process.stdout()
    assert await anext(chunks) == b"got one\n"
    await process.send(b"two\n")
    assert await anext(chunks) == b"got two\n"
    await process.close_stdin()
    assert await process.wait() == 0
    assert b"".join([chunk async for chunk in process.stderr()]) == b"bye\n"
    endless = await box.process("setsid sleep 8888 & sleep 9999")
    await endless.kill()
    await endless.kill()
    assert await endless.wait() == 137
    assert "sleep 8888" not in await output(box, "ps axo args")


async def test_what_a_finished_process_left_running_ends_when_it_is_killed(box: LocalSandbox) -> None:
    process = await box.process("setsid sleep 1212 >/dev/null 2>&1 & exit 3")
    assert await process.wait() == 3
    assert "sleep 1212" in await output(box, "ps axo args")
    await process.kill()
    assert "sleep 1212" not in await output(box, "ps axo args")


@pytest.mark.skipif(os.geteuid() != 0, reason="without control groups nothing of ours runs inside")
async def test_what_starts_commands_goes_on_after_someone_inside_stopped_it(backend: LocalBackend) -> None:
    oldest = "ls /proc | grep -x '[0-9]*' | sort -n | sed -n 2p"
    async with backend.create(SandboxSpec(limits=Limits(pids=30))) as box:
        before = await output(box, oldest)
        await box.exec(["kill", "-STOP", "-1"], user="root", timeout=60)
        assert await output(box, oldest) == before


async def test_a_copy_made_after_everything_was_ended_leaves_a_new_command_alone(box: LocalSandbox) -> None:
    await box.kill_processes()
    process = await box.process("echo up; sleep 60; echo never")
    assert await anext(process.stdout()) == b"up\n"
    copy = await box.fork()
    assert await output(box, "pgrep -c sleep") == "1"
    assert await copy.has_processes() is False
    await copy.stop()
    await process.kill()


async def test_many_commands_run_at_once(box: LocalSandbox) -> None:
    results: dict[int, bytes] = {}

    async def run(number: int) -> None:
        results[number] = (await box.exec(f"sleep 0.2; echo {number}")).stdout

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(run, number)
    assert results == {number: f"{number}\n".encode() for number in range(20)}


async def test_a_stopped_sandbox_says_so_and_stops_again(backend: LocalBackend) -> None:
    box = backend.create(SandboxSpec())
    with pytest.raises(SandboxFailure, match="not running"):
        await box.exec("true")
    await box.start()
    await box.stop()
    await box.stop()
    with pytest.raises(SandboxFailure, match="not running"):
        await box.exec("true")


async def test_a_sandbox_that_ends_during_a_command_is_an_error_not_a_hang(backend: LocalBackend) -> None:
    box = backend.create(SandboxSpec())
    await box.start()
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with pytest.raises(SandboxFailure):
                await box.exec("sleep 1000")

        group.start_soon(run)
        await anyio.sleep(0.2)
        await box.stop()


IGNORANT = """
import anyio, pathlib, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGRTMAX):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import Limits, SandboxSpec
async def main():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    backend = LocalBackend(pathlib.Path(sys.argv[1]))
    for limits in (Limits(), Limits(pids=50)):
        async with backend.create(SandboxSpec(limits=limits)) as box:
            print((await box.exec("grep -E 'Sig(Ign|Blk)' /proc/self/status")).stdout.decode(), end="")
    await backend.close()
anyio.run(main)
"""


async def test_signals_that_the_caller_ignores_or_blocks_are_not_ignored_inside(tmp_path: Path) -> None:
    done = await anyio.run_process([sys.executable, "-c", IGNORANT, str(tmp_path / "store")])
    assert done.stdout.decode().split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16] * 2
