"""The in-memory sandbox: a shell that runs what small packages use, scripted failures, and nothing left behind."""

import anyio
import pytest

from benchflow import testing
from benchflow.errors import SandboxFailure, UnsupportedError
from benchflow.sandbox.protocol import Limits, NetworkPolicy, SandboxSpec
from benchflow.testing import InMemoryBackend, NullBackend

pytestmark = pytest.mark.anyio

SCRIPTS = {
    "streams and exit code": ("echo out; echo err >&2; exit 3", 3, "out\n"),
    "conditions": ("if [ -e /none ]; then echo a; elif test 2 -gt 1; then echo b; else echo c; fi", 0, "b\n"),
    "and, or, not": ("false && echo a || echo b; ! false && echo c", 0, "b\nc\n"),
    "loops": ("for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done; until true; do :; done", 0, "1\n3\n"),
    "jumps out of two loops": ("for a in 1 2; do for b in 1 2; do continue 2; done; echo a; done; echo b", 0, "b\n"),
    "functions": ('f() { echo "$# $1"; return 4; }; f "a b" c; echo $?', 0, "2 a b\n4\n"),
    "cases": ("case abc in x|y) echo 1;; a*) echo 2;; *) echo 3;; esac", 0, "2\n"),
    "defaults of variables": ("x=; echo ${x:-a} ${x-b} ${y:=c} $y ${y:+d} ${#y}", 0, "a c c d 1\n"),
    "trimmed variables": ("p=/a/b.c.d; echo ${p##*/} ${p#*/} ${p%.*} ${p%%.*}", 0, "b.c.d a/b.c.d /a/b.c /a/b\n"),
    "quotes": ("x='a  b'; echo $x \"$x\" '$x' \\$x", 0, "a b a  b $x $x\n"),
    "all parameters": ('set -- "a b" c; for x in "$@"; do echo "<$x>"; done; echo $*', 0, "<a b>\n<c>\na b c\n"),
    "substitution": ("echo $(echo a; echo b) `echo c` $((2 * 3 + 1))", 0, "a b c 7\n"),
    "pipelines": ("printf 'b\\na\\nb\\n' | sort -u | head -n 1", 0, "a\n"),
    "redirections": ("echo 1 > f; echo 2 >> f; cat < f; ls /none 2>/dev/null; { echo x; echo y >&2; } > g 2>&1; cat g",
                     0, "1\n2\nx\ny\n"),
    "here-documents": ("cat <<E; cat <<'E'\n$((1 + 1))\nE\n$x\nE\n", 0, "2\n$x\n"),
    "patterns": ("mkdir d; touch d/a.txt d/b.txt d/.c; echo d/*.txt d/* d/none*", 0,
                 "d/a.txt d/b.txt d/a.txt d/b.txt d/none*\n"),
    "reading lines": ("printf 'a b\\nc' | while read x y || [ -n \"$x\" ]; do echo \"$y$x\"; done", 0, "ba\nc\n"),
    "errexit": ("set -e; false || echo kept; if false; then :; fi; false; echo never", 1, "kept\n"),
    "unset variables": ("set -u; echo $nothing", 2, ""),
    "scripts of the tree": ("printf '#!/bin/sh\\necho ran $1\\n' > s; chmod +x s; ./s a; sh s b", 0, "ran a\nran b\n"),
    "unknown commands": ("no-such-command", 127, ""),
    "files that are not programs": ("echo x > f; ./f", 126, ""),
    "unfinished text": ("if true; then", 2, ""),
}  # fmt: skip


@pytest.fixture
async def sandbox(memory_backend):
    async with memory_backend.create(SandboxSpec()) as started:
        yield started


@pytest.mark.parametrize(("script", "code", "output"), SCRIPTS.values(), ids=SCRIPTS)
async def test_scripts_run_as_in_a_shell(sandbox, script, code, output):
    result = await sandbox.exec(script, timeout=20)
    assert (result.exit_code, result.stdout.decode()) == (code, output), result.stderr


@pytest.mark.parametrize("script", ["cat --number f", "cp -Z a b", "find / -exec true", "sort -k 2"])
async def test_an_option_that_is_not_known_is_never_ignored(sandbox, script):
    result = await sandbox.exec(f"touch a f; {script}")
    assert not result.ok
    assert b"unknown option" in result.stderr


async def test_a_call_of_a_number_fails_as_scripted(memory_backend):
    memory_backend.fail("exec", number=2)
    async with memory_backend.create(SandboxSpec()) as sandbox:
        assert (await sandbox.exec("true")).ok
        with pytest.raises(SandboxFailure, match="exec") as caught:
            await sandbox.exec("true")
        assert caught.value.code == "scripted"
        assert (await sandbox.exec("true")).ok


async def test_calls_that_match_fail_with_the_given_error(memory_backend):
    memory_backend.fail("read_file", matching="secret", error=OSError("torn"))
    async with memory_backend.create(SandboxSpec()) as sandbox:
        await sandbox.write_file("/app/plain", b"1")
        assert await sandbox.read_file("/app/plain") == b"1"
        for _ in range(2):
            with pytest.raises(OSError, match="torn"):
                await sandbox.read_file("/app/secret")


async def test_everything_that_was_asked_is_recorded(memory_backend):
    async with memory_backend.create(SandboxSpec()) as sandbox:
        await sandbox.exec(["echo", "a b"])
        await sandbox.set_network(NetworkPolicy("public"))
        assert sandbox.network == NetworkPolicy("public")
        assert memory_backend.started == [sandbox]
    assert [(call.verb, call.what) for call in memory_backend.calls] == [
        ("start", ""), ("exec", "echo a b"), ("set_network", "public"), ("stop", ""),
    ]  # fmt: skip


async def test_a_test_may_bring_programs_and_files_of_its_own():
    async def python3(call):
        call.out(f"ran {' '.join(call.args)} with {(await call.stdin.rest()).decode()}")
        return 5

    backend = InMemoryBackend(programs={"python3": python3}, files={"/app/main.py": "print(1)"})
    async with backend.create(SandboxSpec()) as sandbox:
        result = await sandbox.exec("cat main.py | python3 -")
        assert (result.exit_code, result.stdout) == (5, b"ran - with print(1)")
        assert sandbox.files["/app/main.py"] == b"print(1)"
        assert await sandbox.changes() == []


async def test_what_a_backend_is_made_without_is_refused():
    backend = InMemoryBackend(without=["limits.memory", "fork"])
    assert "fork" not in backend.declared
    with pytest.raises(UnsupportedError, match=r"limits\.memory"):
        await backend.create(SandboxSpec(limits=Limits(memory_mb=64))).start()
    async with backend.create(SandboxSpec()) as sandbox:
        with pytest.raises(UnsupportedError, match="fork"):
            await sandbox.fork()


async def test_a_loop_without_end_ends_at_its_time(sandbox):
    result = await sandbox.exec("while :; do :; done", timeout=0.1)
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert not await sandbox.has_processes()


async def test_what_was_left_running_ends_with_the_sandbox(memory_backend):
    sandbox = memory_backend.create(SandboxSpec())
    await sandbox.start()
    await sandbox.exec("sleep 1000 & (sleep 1000 &)")
    assert await sandbox.has_processes()
    await sandbox.stop()
    assert not await sandbox.has_processes()
    assert len([task for task in anyio.get_running_tasks() if "run" in (task.name or "")]) == 0


async def test_in_a_null_sandbox_everything_succeeds_and_nothing_happens(tmp_path):
    backend = NullBackend()
    assert (await backend.status()).usable
    async with backend.create(SandboxSpec()) as sandbox:
        assert (await sandbox.exec("exit 3")).ok
        assert await sandbox.changes() == []
        await sandbox.download("/logs/verifier", tmp_path / "out")
    assert (tmp_path / "out" / "reward.txt").read_text() == "1\n"


def test_every_name_that_is_offered_is_there():
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError):
        testing.nothing_of_the_kind  # noqa: B018
