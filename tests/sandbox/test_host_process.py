"""The process runner, on real processes."""

import os
import sys

import anyio
import pytest

from benchflow.sandbox.host_process import run_process

pytestmark = pytest.mark.anyio


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_exit_code_and_both_streams_come_back():
    done = await run_process(["sh", "-c", "cat; echo err >&2; exit 4"], stdin=b"in")
    assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (4, b"in", b"err\n", False)


async def test_a_signal_counts_as_a_shell_does():
    assert (await run_process(["sh", "-c", "kill -15 $$"])).exit_code == 143


async def test_input_can_be_a_stream():
    async def parts():
        for part in (b"a", b"b" * 200_000, b"c"):
            yield part

    done = await run_process(["wc", "-c"], stdin=parts())
    assert done.stdout.strip() == b"200002"


async def test_a_reader_that_stops_early_is_no_error():
    assert (await run_process(["true"], stdin=b"x" * 1_000_000)).exit_code == 0


async def test_output_is_bounded_and_seen_as_it_comes():
    seen = []
    done = await run_process(
        [sys.executable, "-c", "print('x' * 100000)"], max_output=1000, on_output=lambda _, data: seen.append(len(data))
    )
    assert len(done.stdout) == 1000
    assert done.dropped_bytes == 99_001
    assert sum(seen) == 100_001


async def test_a_timeout_kills_the_whole_group(tmp_path):
    script = f"sleep 100 & echo $! > {tmp_path}/pid; sleep 100"
    done = await run_process(["sh", "-c", script], timeout=0.5)
    assert done.timed_out
    assert done.exit_code == 137
    pid = int((tmp_path / "pid").read_text())
    with anyio.fail_after(10):
        while running(pid):  # noqa: ASYNC110 - the kernel sets no event here
            await anyio.sleep(0.05)


async def test_a_cancelled_caller_leaves_nothing_running(tmp_path):
    with anyio.move_on_after(0.5):
        await run_process(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 100"])
    assert not running(int((tmp_path / "pid").read_text()))


async def test_a_missing_command_is_an_error():
    with pytest.raises(FileNotFoundError):
        await run_process(["no-such-command-anywhere"])
