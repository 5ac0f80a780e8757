"""How commands enter a sandbox: the calls listed for them, the program that follows these, and who starts it."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local.inside import calls, entry
from benchflow.sandbox.local.inside.entrance import command
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Limits, SandboxSpec

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
SHIPPED = Path(entry.__file__).parent


@dataclass(frozen=True)
class Done:
    code: int
    stdout: bytes
    stderr: bytes


def follow(part: calls.Calls, argv: list[str], folder: str = "/") -> Done:
    """Let the program follow a list that ends with a command, outside of any sandbox."""
    first = part.finish()
    second, name = command(calls.reasons()[3] + len(first.data), argv, {"PATH": "/nowhere:/usr/bin:/bin"}, folder)
    program = entry.open_program()
    listing, stdout, stderr = (os.memfd_create(name) for name in ("list", "stdout", "stderr"))
    try:
        os.write(listing, calls.join(first, second, name))
        moves = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in ((3, listing), (1, stdout), (2, stderr))]
        pid = os.posix_spawn(f"/proc/{os.getpid()}/fd/{program}", ["entry", "once"], {}, file_actions=moves)
        status = os.waitpid(pid, 0)[1]
        return Done(os.waitstatus_to_exitcode(status), os.pread(stdout, 4096, 0), os.pread(stderr, 4096, 0))
    finally:
        for fd in (program, listing, stdout, stderr):
            os.close(fd)


def begin() -> calls.Calls:
    return calls.Calls(calls.reasons()[3])


def test_calls_are_followed_in_order_until_one_replaces_the_program() -> None:
    part = begin()
    part.add("umask", 0o027)
    done = follow(part, ["sh", "-c", "umask; pwd; echo $0 $PATH", "zero"], "/usr")
    assert (done.code, done.stdout) == (0, b"0027\n/usr\nzero /nowhere:/usr/bin:/bin\n")


@pytest.mark.parametrize(
    ("argv", "folder", "code", "words"),
    [
        (["no-such-command"], "/", 127, b"no-such-command: not found\n"),
        (["/etc/passwd"], "/", 126, b"/etc/passwd: Permission denied\n"),
        (["true"], "/no/such/folder", 126, b"/no/such/folder: No such file or directory\n"),
        (["true"], "relative", 126, b"relative: not an absolute path\n"),
    ],
)
def test_what_cannot_be_executed_is_said(argv: list[str], folder: str, code: int, words: bytes) -> None:
    done = follow(begin(), argv, folder)
    assert (done.code, done.stderr, done.stdout) == (code, words, b"")


def test_nothing_is_executed_after_a_call_that_failed() -> None:
    part = begin()
    part.add("capset", 0, 0)
    done = follow(part, ["echo", "not confined"])
    assert done.code == 125
    assert done.stdout == b""
    assert done.stderr.startswith(b"the sandbox could not be sealed for this command: ")


def test_the_program_cannot_be_changed_once_it_is_open() -> None:
    program = entry.open_program()
    try:
        with pytest.raises(PermissionError):
            os.write(program, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(program, 0)
    finally:
        os.close(program)


def test_a_list_is_no_longer_than_it_says() -> None:
    part = begin()
    part.add("umask", 0)
    finished = part.finish()
    assert finished.length == 1
    assert struct.unpack_from("<q", finished.data, len(finished.data) - 80)[0] == 95 or os.uname().machine != "x86_64"


@pytest.mark.parametrize("words", [(["a\0b"], {}, "/"), (["a"], {"A": "\0"}, "/"), (["a"], {"A=B": ""}, "/")])
def test_what_cannot_be_handed_over_is_refused(words: tuple[list[str], dict[str, str], str]) -> None:
    with pytest.raises(ValueError, match=r"null character|name of a variable"):
        command(calls.BASE, *words)


@pytest.fixture
async def limited(backend: LocalBackend) -> AsyncIterator[LocalSandbox]:
    async with backend.create(SandboxSpec(limits=Limits(pids=20, memory_mb=200))) as box:
        yield box


async def test_long_words_arrive_whole(limited: LocalSandbox) -> None:
    word = "x" * 100_000
    result = await limited.exec(["sh", "-c", "echo ${#0} ${#LONG}", word], env={"LONG": word})
    assert result.stdout == b"100000 100000\n"


async def test_a_null_character_is_an_error_and_the_sandbox_goes_on(limited: LocalSandbox) -> None:
    with pytest.raises(SandboxFailure, match="null character"):
        await limited.exec(["echo", "a\0b"])
    assert (await limited.exec(["echo", "fine"])).stdout == b"fine\n"


async def test_who_starts_commands_can_be_ended_but_not_looked_into(limited: LocalSandbox) -> None:
    """Root inside may send it signals. Commands go on, and stay in their limits."""
    look = (
        "for p in /proc/[0-9]*; do test $(cat $p/comm) = sandbox && readlink $p/exe $p/root $p/fd/3 && echo seen; done"
    )
    assert b"seen" not in (await limited.exec(look, user="root")).stdout
    for number in ("KILL", "KILL", "KILL"):
        await limited.exec(f"kill -s {number} -1", user="root")
        result = await limited.exec("cat /proc/self/cgroup; echo out")
        assert result.stdout.endswith(b"out\n")
        assert b"pids:/\n" in result.stdout or b"0::/\n" in result.stdout or not limited._groups.members


async def test_commands_start_also_when_no_process_is_left_to_the_sandbox(limited: LocalSandbox) -> None:
    bomb = await limited.process("i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; wait")
    await limited.exec(["sleep", "0.3"])
    result = await limited.exec(["echo", "still there"])
    assert result.stdout == b"still there\n"
    await bomb.kill()
