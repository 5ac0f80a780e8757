"""Who killed a process of a sandbox: the machine, which is nobody's result, or somebody inside, whose result it is."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.inside import kill_watch
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Limits, SandboxSpec

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

LIMITS = Limits(memory_mb=64, pids=50)


@pytest.fixture(params=[Limits(), LIMITS], ids=["plain", "limited"])
async def box(request: pytest.FixtureRequest, backend: LocalBackend) -> AsyncIterator[LocalSandbox]:
    """With limits, commands are started in another way."""
    async with backend.create(SandboxSpec(limits=request.param)) as sandbox:
        yield sandbox


def holders_of(word: str) -> list[int]:
    """The processes of this machine that were started with a word, oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0])


async def kill_from_outside(word: str, generations: int = 0) -> None:
    """End the process that was started with a word, or an ancestor of it, as anybody on the machine could."""
    while not (found := holders_of(word)):  # noqa: ASYNC110 - nobody says that a process has appeared
        await anyio.sleep(0.02)
    pid = found[0]
    for _ in range(generations):
        pid = parent_of(pid)
    os.kill(pid, signal.SIGKILL)


async def run_and_kill(box: LocalSandbox, script: str, generations: int = 0, user: str | None = None) -> SandboxFailure:
    """What a command says whose first process, or an ancestor of it, is killed from outside."""
    word = f"outside-{box.id}"
    async with anyio.create_task_group() as group:
        group.start_soon(kill_from_outside, word, generations)
        try:
            result = await box.exec(["sh", "-c", script, word], user=user)
        except SandboxFailure as error:
            return error
    raise AssertionError(f"ended with {result.exit_code}")


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_a_command_that_the_machine_kills_is_trouble_of_the_sandbox(user: str, box: LocalSandbox) -> None:
    error = await run_and_kill(box, "sleep 100; exit 3", user=user)
    assert (error.category, error.code) == ("sandbox", "killed-from-outside")
    assert "killed from outside the sandbox" in str(error)
    assert (await box.exec("echo on")).stdout == b"on\n"


async def test_a_process_to_talk_to_that_the_machine_kills_is_trouble_of_the_sandbox(box: LocalSandbox) -> None:
    process = await box.process(["sh", "-c", "sleep 100; exit 3", f"talk-{box.id}"])
    await kill_from_outside(f"talk-{box.id}")
    with pytest.raises(SandboxFailure, match="killed from outside"):
        await process.wait()


@pytest.mark.parametrize("generations", [1, 2], ids=["supervisor", "zygote"])
async def test_a_helper_that_the_machine_kills_is_trouble_of_the_sandbox(generations: int, tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "store")
    try:
        async with backend.create(SandboxSpec()) as box:
            error = await run_and_kill(box, "sleep 100; exit 3", generations)
        assert (error.category, error.code) == ("sandbox", "sandbox-gone")
    finally:
        await backend.close()


@pytest.mark.parametrize(
    "earlier", ["timeout -s KILL 0.1 sleep 9", "sleep 9 & kill -9 $!", "timeout 5 true", "ulimit -a"]
)
async def test_what_was_killed_inside_before_does_not_hide_who_killed_the_command(
    earlier: str, box: LocalSandbox
) -> None:
    if earlier.startswith("timeout -s"):  # kills its whole group
        earlier = f"setsid {earlier}"
        await box.exec(earlier)
        await box.kill_processes()
        earlier = "true"
    error = await run_and_kill(box, f"{earlier}; sleep 100; exit 3")
    assert error.code == "killed-from-outside"


LIBC = """
import ctypes, fcntl, os, resource, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
own, machine = os.getpid(), os.uname().machine
call = lambda name, *values: libc.syscall(ctypes.c_long(NUMBERS[machine][name]), *(
    value if isinstance(value, bytes) or value is None else ctypes.c_long(value) for value in values))
def beside(work):
    if os.fork() == 0:
        work()
        os._exit(0)
"""
WAYS = {
    "kill": "os.kill(own, 9)",
    "kill by a child": "beside(lambda: os.kill(own, 9))",
    "kill by an orphan": "beside(lambda: os.fork() or (time.sleep(0.3), os.kill(own, 9)))",
    "kill of the group": "os.kill(0, 9)",
    "kill of a group by name": "beside(lambda: (os.setpgid(0, 0), os.kill(-own, 9)))",
    "kill of everybody": "beside(lambda: os.kill(-1, 9))",
    "kill with more bits": "call('kill', own | 7 << 32, 9 | 5 << 32)",
    "kill of a thread": """
thread = threading.Thread(target=time.sleep, args=(9,))
thread.start()
os.kill(thread.native_id, 9)
""",
    "tkill": "call('tkill', own, 9)",
    "tgkill": "call('tgkill', own, own, 9)",
    "rt_sigqueueinfo": "call('rt_sigqueueinfo', own, 9, struct.pack('<iii116x', 9, 0, -1))",
    "rt_tgsigqueueinfo": "call('rt_tgsigqueueinfo', own, own, 9, struct.pack('<iii116x', 9, 0, -1))",
    "pidfd": "signal.pidfd_send_signal(os.pidfd_open(own), 9)",
    "timer": """
event = struct.pack('<qii48x', 0, 9, 0)
timer = ctypes.create_string_buffer(8)
libc.syscall(ctypes.c_long(NUMBERS[machine]['timer_create']), ctypes.c_long(1), event, timer)
NUMBERS[machine]['timer_settime'] = {'x86_64': 223, 'aarch64': 110}[machine]
call('timer_settime', struct.unpack('<i4x', timer.raw)[0], 0, struct.pack('<4q', 0, 0, 0, 1000000), None)
""",
    "file": """
ours, theirs = socket.socketpair()
fcntl.fcntl(ours, fcntl.F_SETSIG, 9)
fcntl.fcntl(ours, fcntl.F_SETOWN, own)
fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_ASYNC)
theirs.send(b'x')
""",
    "end of a child": "call('clone', 9, 0, 0, 0, 0) or os._exit(0)",
    "processor time": """
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
while True:
    pass
""",
    "processor time by prlimit": """
resource.prlimit(0, resource.RLIMIT_CPU, (1, 1))
while True:
    pass
""",
    "tracing": """
libc.prctl(0x59616D61, ctypes.c_ulong(-1 & (1 << 64) - 1))
def trace():
    libc.ptrace(0x4206, own, None, ctypes.c_long(1 << 20))
    time.sleep(0.3)
beside(trace)
""",
    "queue": """
queue = libc.mq_open(b'/queue', os.O_RDWR | os.O_CREAT, 0o600, None)
call('mq_notify', queue, struct.pack('<qii48x', 0, 9, 0))
beside(lambda: libc.mq_send(queue, b'x', 1, 0))
""",
}


@pytest.mark.parametrize("user", ["agent", "root"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_command_that_is_killed_from_inside_has_ended_so(way: str, user: str, box: LocalSandbox) -> None:
    program = f"NUMBERS = {kill_watch.NUMBERS!r}\n{LIBC}\n{WAYS[way]}\ntime.sleep(20)\n"
    result = await box.exec(["/usr/bin/python3", "-c", program], user=user)
    assert result.exit_code == 137, result.stderr.decode()


async def test_a_command_that_is_killed_from_another_one_has_ended_so(box: LocalSandbox) -> None:
    victim = await box.process(["sh", "-c", "echo $$; sleep 100"])
    pid = int(await anext(victim.stdout()))
    assert (await box.exec(f"kill -9 {pid}")).ok
    assert await victim.wait() == 137


async def test_what_waits_to_kill_the_next_command_is_remembered(box: LocalSandbox) -> None:
    program = "import fcntl, os, socket, sys, time\nours, theirs = socket.socketpair()\n"
    program += (
        "fcntl.fcntl(ours, fcntl.F_SETSIG, 9)\nprint('armed', flush=True)\nnext_one = int(sys.stdin.readline())\n"
    )
    program += "fcntl.fcntl(ours, fcntl.F_SETOWN, next_one)\nfcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)\n"
    program += "theirs.send(b'x')\ntime.sleep(9)"
    waiting = await box.process(["/usr/bin/python3", "-c", program])
    assert await anext(waiting.stdout()) == b"armed\n"
    victim = await box.process(["sh", "-c", "echo $$; sleep 100"])
    await waiting.send(await anext(victim.stdout()))
    assert await victim.wait() == 137


async def test_the_memory_limit_of_the_sandbox_is_the_commands_result(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=LIMITS)) as box:
        hog = await box.exec(["/usr/bin/python3", "-c", "block = [bytes(1 << 20) for _ in range(1 << 20)]"])
        assert not hog.ok
        shell = await box.exec("/usr/bin/python3 -c 'block = [bytes(1 << 20) for _ in range(1 << 20)]'; echo after")
        assert shell.exit_code == 137 or shell.stdout == b"after\n"


HOG = "/usr/bin/python3 -c 'block = [bytes(1 << 20) for _ in range(1 << 20)]'; echo after"
DRIVER = f"""
import sys, anyio, pathlib
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import Limits, SandboxSpec
async def main():
    backend = LocalBackend(pathlib.Path(sys.argv[2]))
    async with backend.create(SandboxSpec(limits=Limits(memory_mb=int(sys.argv[3]) or None))) as box:
        try:
            print((await box.exec({HOG!r})).stdout)
        except SandboxFailure as error:
            print(error.code)
    await backend.close()
anyio.run(main)
"""


@pytest.mark.parametrize("limit", [8000, 0], ids=["limited", "unlimited"])
async def test_a_machine_without_memory_is_trouble_of_the_sandbox(
    limit: int, backend: LocalBackend, tmp_path: Path
) -> None:
    hierarchy = next((item for item in backend.machine.hierarchies if "memory" in item.controllers), None)
    if hierarchy is None or hierarchy.version == 2:
        pytest.skip("needs a control group around the driver that limits memory")
    group = hierarchy.folder / f"benchcube-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
        command = [sys.executable, "-c", DRIVER, str(group), str(tmp_path / "store"), str(limit)]
        done = await anyio.run_process(command, check=False)
        assert done.stdout.decode().strip() == "killed-from-outside", done.stderr.decode()
    finally:
        with anyio.fail_after(30):
            while group.exists():
                try:
                    group.rmdir()
                except OSError:
                    await anyio.sleep(0.1)


async def test_whoever_kills_the_starter_of_commands_gets_their_results_all_the_same(backend: LocalBackend) -> None:
    """A command that is just being started looks like its starter, and may be hit itself."""
    killer = """
import os
own = os.getpid()
while True:
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) not in (1, own) and b"serve" in open(f"/proc/{name}/cmdline", "rb").read():
                os.kill(int(name), 9)
        except OSError:
            pass
"""
    async with backend.create(SandboxSpec(limits=LIMITS)) as box:
        process = await box.process(["/usr/bin/python3", "-c", killer], user="root")
        codes = [(await box.exec("true", timeout=30)).exit_code for _ in range(60)]
        assert set(codes) <= {0, 137}
        await process.kill()


async def test_timeouts_and_ends_by_the_driver_are_no_kills_from_outside(box: LocalSandbox) -> None:
    assert (await box.exec("sleep 100", timeout=0.2)).timed_out
    process = await box.process("sleep 100")
    await process.kill()
    assert await process.wait() == 137
    process = await box.process("sleep 100")
    await box.kill_processes()
    assert await process.wait() == 137


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 16), reason="this kernel kills without a call"
)
async def test_kills_are_watched_on_this_kernel(box: LocalSandbox) -> None:
    found = (await box.exec("grep Seccomp_filters /proc/self/status")).stdout.split()
    assert int(found[1]) == 2
