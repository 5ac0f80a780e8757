"""What every sandbox backend promises, one function each; `check_backend` runs them.

A promise is checked with nothing but `/bin/sh` and the usual file tools of the environment. One that needs a capability
the backend does not have is left out, for the backend refuses what asks for it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio

from benchflow.errors import BenchflowError, EnvironmentFailure, RuntimeFailure, UnsupportedError
from benchflow.sandbox.protocol import (
    CAPABILITIES,
    NO_SUCH_FILE,
    Change,
    Limits,
    Mount,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
)

_PATIENCE: Final = 30.0
_PAUSE: Final = 0.4
_MODES: Final[tuple[NetworkMode, ...]] = ("none", "public", "allowlist")
_LIMITS: Final[dict[str, dict[str, Any]]] = {
    "limits.cpu": {"cpus": 0.5},
    "limits.memory": {"memory_mb": 256},
    "limits.pids": {"pids": 64},
    "limits.disk": {"storage_mb": 64},
    "gpu": {"gpus": 1},
}


_REMOVE_ONE: Final = (
    "for f in /etc/*s; do [ -f $f ] && [ ! -L $f ] && rm -f $f && echo $f && break; done 2>/dev/null; true"
)
"""Removes some file that the environment was built with and says which; some are mounts, which cannot be removed."""


class BackendFault(AssertionError):
    """A promise that a backend does not keep."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The backend that is checked, the environment its sandboxes have, and an empty folder of the host."""

    backend: SandboxBackend
    spec: SandboxSpec
    capabilities: frozenset[str]
    folder: Path

    def sandbox(self, **changes: Any) -> Sandbox:
        return self.backend.create(replace(self.spec, **changes))


Check = Callable[[Subject], Awaitable[None]]
PROMISES: Final[dict[str, tuple[Check, frozenset[str]]]] = {}
"""By name: the check, and the capabilities without which it does not apply."""


def _promise(*capabilities: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        PROMISES[check.__name__] = (check, frozenset(capabilities))
        return check

    return register


def _require(kept: object, otherwise: str) -> None:
    if not kept:
        raise BackendFault(otherwise)


def _equal(found: object, expected: object, what: str) -> None:
    _require(found == expected, f"{what}: expected {expected!r}, got {found!r}")


@asynccontextmanager
async def _refused(what: str, error: type[BenchflowError] = BenchflowError) -> AsyncIterator[None]:
    try:
        yield
    except error:
        return
    raise BackendFault(f"{what} was not refused")


@asynccontextmanager
async def _fork(sandbox: Sandbox, **options: Any) -> AsyncIterator[Sandbox]:
    fork = await sandbox.fork(**options)
    try:
        yield fork
    finally:
        await fork.stop()


async def _changed(sandbox: Sandbox) -> dict[str, Change]:
    return {change.path: change for change in await sandbox.changes()}


def _beating(name: str) -> str:
    """A command that writes to `/app/NAME` as long as it runs."""
    return f"while :; do echo x >> {name}; sleep 0.05; done"


async def _beats(sandbox: Sandbox, path: str) -> bool:
    """Whether something still writes to a file."""
    before = await _size(sandbox, path)
    await anyio.sleep(_PAUSE)
    return await _size(sandbox, path) > before


async def _size(sandbox: Sandbox, path: str) -> int:
    try:
        return len(await sandbox.read_file(path, max_bytes=1 << 24))
    except RuntimeFailure as error:
        if error.code == NO_SUCH_FILE:
            return 0
        raise


async def _until_beating(sandbox: Sandbox, path: str) -> None:
    with anyio.fail_after(_PATIENCE):
        while not await _size(sandbox, path):  # noqa: ASYNC110 - a file is watched
            await anyio.sleep(0.05)


# --- what it says about itself ---


@_promise()
async def capabilities_are_declared_and_what_is_missing_says_how_to_get_it(it: Subject) -> None:
    declared = it.backend.declared
    _require(isinstance(declared, frozenset), "`declared` is not a frozenset")
    _require(declared <= CAPABILITIES.keys(), f"unknown capabilities: {sorted(declared - CAPABILITIES.keys())}")
    status = await it.backend.status()
    _equal(status.name, it.backend.name, "the name in its status")
    _require(status.usable, f"it is not usable here: {status.reason}")
    _require(status.capabilities <= declared, f"not declared: {sorted(status.capabilities - declared)}")
    for missing in status.missing:
        _require(missing.capability not in status.capabilities, f"{missing.capability} is both there and missing")
        _require(missing.how, f"it does not say how to get {missing.capability}")


@_promise()
async def what_it_lacks_is_refused_before_anything_starts(it: Subject) -> None:
    for capability in sorted(_LIMITS.keys() - it.capabilities):
        async with _refused(f"a limit that needs {capability}", UnsupportedError):
            await it.sandbox(limits=Limits(**_LIMITS[capability])).start()
    for mode in _MODES:
        if f"network.{mode}" not in it.capabilities:
            async with _refused(f"the network {mode}", UnsupportedError):
                await it.sandbox(network=NetworkPolicy(mode, ("example.com",))).start()


@_promise()
async def limits_that_it_has_are_honoured_together(it: Subject) -> None:
    wanted = {key: value for name in _LIMITS.keys() & it.capabilities for key, value in _LIMITS[name].items()}
    async with it.sandbox(limits=Limits(**wanted)) as sandbox:
        _require((await sandbox.exec("true")).ok, "a sandbox with limits runs nothing")


# --- commands ---


@_promise()
async def a_string_is_run_by_the_shell_and_both_streams_come_back(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        _equal((result.exit_code, result.stdout, result.stderr), (3, b"out\n", b"err\n"), "exit code and output")
        _require(not result.ok and not result.timed_out and result.duration_sec > 0, "the result is not as it ended")


@_promise()
async def a_list_is_run_without_a_shell(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        _equal((await sandbox.exec(["echo", "$HOME", "a  b"])).stdout, b"$HOME a  b\n", "output")
        _equal((await sandbox.exec(["no-such-command"])).exit_code, 127, "exit code of a missing command")


@_promise()
async def a_signal_is_reported_as_a_shell_does(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        _equal((await sandbox.exec("sh -c 'kill -9 $$'")).exit_code, 137, "exit code after SIGKILL")


@_promise()
async def an_unknown_user_is_an_error_and_not_a_result(it: Subject) -> None:
    async with it.sandbox() as sandbox, _refused("an unknown user", RuntimeFailure):
        await sandbox.exec("true", user="nobody-knows-me")


@_promise()
async def variables_are_the_specs_and_the_commands_and_never_the_drivers(it: Subject) -> None:
    os.environ["BENCHFLOW_CHECK_SECRET"] = "hunter2"  # noqa: S105 - what must not be seen
    try:
        async with it.sandbox(env={**it.spec.env, "FROM_SPEC": "a b"}) as sandbox:
            shown = await sandbox.exec('echo "$FROM_SPEC|$FROM_EXEC|$PATH"; env', env={"FROM_EXEC": "x=y 'z'"})
    finally:
        del os.environ["BENCHFLOW_CHECK_SECRET"]
    _require(shown.stdout.startswith(b"a b|x=y 'z'|"), f"variables are not as given: {shown.stdout[:80]!r}")
    _require(b"hunter2" not in shown.stdout, "variables of the driver are visible inside")
    _require(shown.stdout.splitlines()[0] != b"a b|x=y 'z'|", "PATH is empty")


@_promise()
async def commands_start_in_the_working_folder_and_may_write_there(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        result = await sandbox.exec("pwd; touch here && echo ok")
        _equal(result.stdout.split(), [it.spec.workdir.encode(), b"ok"], "working folder")
        _equal((await sandbox.exec("pwd", cwd="/tmp")).stdout, b"/tmp\n", "a folder of its own")  # noqa: S108


@_promise()
async def a_command_whose_folder_is_not_there_does_not_run(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        try:
            result = await sandbox.exec("echo ran", cwd="/no/such/folder")
        except BenchflowError:
            return
        _require(not result.ok and b"ran" not in result.stdout, "it ran somewhere else")


@_promise()
async def input_is_passed_whole_and_closed(it: Subject) -> None:
    data = os.urandom(300_000)
    async with it.sandbox() as sandbox:
        _require((await sandbox.exec(["cat"], stdin=data)).stdout == data, "input did not arrive as it was")
        result = await sandbox.exec(["cat"], timeout=_PATIENCE)
        _equal((result.exit_code, result.stdout), (0, b""), "a reader without input")


@_promise()
async def output_past_the_cap_loses_its_middle_and_is_counted(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        result = await sandbox.exec("echo first; head -c 300000 /dev/zero; echo; echo last", max_output=10_000)
        out = result.stdout
        _require(len(out) <= 10_000 and out.startswith(b"first\n") and out.endswith(b"last\n"), "kept output")
        _equal(result.dropped_bytes + len(out), 300_012, "kept and dropped bytes")


@_promise()
async def output_is_streamed_while_a_command_runs(it: Subject) -> None:
    first, last, seen = anyio.Event(), anyio.Event(), list[tuple[str, bytes]]()

    def sink(stream: str, data: bytes) -> None:
        seen.append((stream, data))
        (last if first.is_set() else first).set()

    waiting = "echo early; while ! test -e /tmp/go; do sleep 0.05; done; echo late >&2"
    async with it.sandbox() as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.exec(waiting, on_output=sink))
        with anyio.fail_after(_PATIENCE):
            await first.wait()
            await sandbox.write_file("/tmp/go", b"")  # noqa: S108
            await last.wait()
    _equal(seen, [("stdout", b"early\n"), ("stderr", b"late\n")], "streamed output")


@_promise("limits.time")
async def a_timeout_ends_the_whole_tree_and_keeps_the_output(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        tree = f"echo before; ({_beating('beat')}) & sh -c '{_beating('beat')}'"
        result = await sandbox.exec(tree, timeout=1.0)
        _require(result.timed_out and not result.ok, "the timeout is not reported")
        _equal((result.exit_code, result.stdout), (137, b"before\n"), "exit code and output at the timeout")
        _require(not await _beats(sandbox, f"{it.spec.workdir}/beat"), "something of the command still runs")
        _require((await sandbox.exec("true")).ok, "the sandbox did not survive a timeout")


@_promise()
async def a_cancelled_caller_leaves_nothing_running(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        with anyio.move_on_after(1.0):
            await sandbox.exec(_beating("beat"))
        _require(not await _beats(sandbox, f"{it.spec.workdir}/beat"), "the command of a cancelled caller still runs")


@_promise()
async def commands_run_side_by_side(it: Subject) -> None:
    results: dict[int, bytes] = {}
    async with it.sandbox() as sandbox:

        async def run(number: int) -> None:
            script = f"touch {number}; while ! test -e {1 - number}; do sleep 0.02; done; echo {number}"
            results[number] = (await sandbox.exec(script, timeout=_PATIENCE)).stdout

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, 0)
            tasks.start_soon(run, 1)
    _equal(results, {0: b"0\n", 1: b"1\n"}, "what two commands that wait for each other print")


@_promise()
async def a_process_answers_while_it_runs(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        process = await sandbox.process("while read line; do echo got $line; done; echo done >&2; exit 5")
        output = process.stdout()
        for word in (b"one", b"two"):
            await process.send(word + b"\n")
            with anyio.fail_after(_PATIENCE):
                _equal(await anext(output), b"got " + word + b"\n", "the answer")
        await process.close_stdin()
        _equal(b"".join([data async for data in output]), b"", "output after the last answer")
        _equal(b"".join([data async for data in process.stderr()]), b"done\n", "standard error")
        _equal(await process.wait(), 5, "exit code")


@_promise()
async def a_killed_process_takes_its_children_along(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        process = await sandbox.process(f"({_beating('beat')}) & {_beating('beat')}")
        beat = f"{it.spec.workdir}/beat"
        await _until_beating(sandbox, beat)
        await process.kill()
        await process.kill()
        _equal(await process.wait(), 137, "exit code of a killed process")
        _require(not await _beats(sandbox, beat), "children of a killed process still run")


@_promise()
async def processes_end_when_they_are_all_to_end_and_files_stay(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        beat = f"{it.spec.workdir}/beat"
        await sandbox.process(_beating("beat"))
        await _until_beating(sandbox, beat)
        await sandbox.kill_processes()
        _require(not await _beats(sandbox, beat), "something still runs")
        _require(not await sandbox.has_processes(), "has_processes says that something still runs")
        _require(await _size(sandbox, beat), "the files are gone")


# --- files ---


@_promise()
async def a_written_file_is_read_back(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        await sandbox.write_file("/srv/deep/er/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        _equal(await sandbox.read_file("/srv/deep/er/run.sh"), b"#!/bin/sh\necho ran\n", "contents")
        _equal((await sandbox.exec("/srv/deep/er/run.sh")).stdout, b"ran\n", "the file as a program")


@_promise()
async def planted_links_are_replaced_and_never_followed(it: Subject) -> None:
    (it.folder / "sub").mkdir()
    (it.folder / "sub" / "test.sh").write_text("real")
    async with it.sandbox() as sandbox:
        plant = "mkdir -p /srv/evil /srv/v; echo own > /srv/evil/own; ln -s /srv/evil/own /srv/file"
        done = await sandbox.exec(f"{plant}; ln -s /srv/evil /srv/tests; ln -s /srv/evil /srv/v/sub", user="root")
        _require(done.ok, f"links cannot be planted: {done.stderr!r}")
        await sandbox.write_file("/srv/file", b"new")
        await sandbox.upload(it.folder, "/srv/tests")
        await sandbox.upload(it.folder, "/srv/v")
        _equal(await sandbox.read_file("/srv/evil/own"), b"own\n", "the file behind a link that was written")
        _equal((await sandbox.exec("ls /srv/evil")).stdout, b"own\n", "the folder behind a link that was uploaded to")
        for place in ("/srv/tests/sub/test.sh", "/srv/v/sub/test.sh"):
            _equal(await sandbox.read_file(place), b"real", place)


@_promise()
async def unsafe_paths_are_refused(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        for path in ("relative", "/tmp/../etc/passwd", ""):  # noqa: S108
            async with _refused(f"reading {path!r}"):
                await sandbox.read_file(path)
            async with _refused(f"writing {path!r}"):
                await sandbox.write_file(path, b"")


@_promise()
async def only_regular_files_of_the_allowed_size_are_read(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        await sandbox.exec("mkdir odd; ln -s /etc/passwd odd/link; ln -s /etc odd/up; head -c 2000 /dev/zero > odd/big")
        odd = f"{it.spec.workdir}/odd"
        for name in ("", "/link", "/up/passwd", "/missing"):
            with anyio.fail_after(_PATIENCE):
                async with _refused(f"reading odd{name}", RuntimeFailure):
                    await sandbox.read_file(odd + name)
        async with _refused("a file that is too large", RuntimeFailure):
            await sandbox.read_file(f"{odd}/big", max_bytes=1999)
        _equal(len(await sandbox.read_file(f"{odd}/big", max_bytes=2000)), 2000, "size")


@_promise()
async def a_tree_goes_in_and_comes_out_unchanged(it: Subject) -> None:
    source, data = it.folder / "in", os.urandom(100_000)
    (source / "a b" / "ü").mkdir(parents=True)
    (source / "a b" / "ü" / "data.bin").write_bytes(data)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("a b/ü")
    async with it.sandbox() as sandbox:
        await sandbox.upload(source, "/srv/tree")
        _equal((await sandbox.exec("/srv/tree/run.sh")).stdout, b"ran\n", "an uploaded program")
        await sandbox.download("/srv/tree", it.folder / "out")
        await sandbox.download("/srv/tree/run.sh", it.folder / "one")
    out = it.folder / "out"
    _require((out / "a b" / "ü" / "data.bin").read_bytes() == data, "contents changed on the way")
    _require((out / "run.sh").stat().st_mode & 0o111, "modes were lost")
    _equal(str((out / "link").readlink()), "a b/ü", "the target of a link")
    _equal((it.folder / "one").read_text(), "#!/bin/sh\necho ran\n", "a single file")


@_promise()
async def links_that_leave_and_oversized_trees_do_not_come_out(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        await sandbox.exec(
            "mkdir -p out/links out/inner out/many; ln -s /etc/passwd out/links/absolute; ln -s ../../.. out/inner/up"
            "; for i in 1 2 3; do head -c 999 /dev/zero > out/many/$i; done"
        )
        out = f"{it.spec.workdir}/out"
        for name in ("links", "inner", "missing"):
            with anyio.fail_after(_PATIENCE):
                async with _refused(f"downloading {name}", RuntimeFailure):
                    await sandbox.download(f"{out}/{name}", it.folder / name)
            _require(not (it.folder / name).exists(), f"{name} was refused and left something")
        async with _refused("more bytes than allowed", RuntimeFailure):
            await sandbox.download(f"{out}/many", it.folder / "many", max_bytes=2000)
        await sandbox.download(f"{out}/many", it.folder / "many", max_bytes=3000, max_files=4)
        _equal(len(list((it.folder / "many").iterdir())), 3, "files that came out")


# --- states ---


@_promise()
async def changes_name_what_was_added_changed_and_deleted(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        _equal(await sandbox.changes(), [], "changes of a fresh sandbox")
        commands = "mkdir /srv/new && echo 12345 > /srv/new/file && ln -s file /srv/new/link; echo x > /tmp/mine"
        done = await sandbox.exec(f"{commands}\n{_REMOVE_ONE}", user="root")
        _require(done.ok, f"nothing can be changed: {done.stderr!r}")
        gone = done.stdout.decode().split()
        found = await _changed(sandbox)
        expected = {
            "/srv/new": ("added", "directory"),
            "/srv/new/file": ("added", "file"),
            "/srv/new/link": ("added", "symlink"),
            "/tmp/mine": ("added", "file"),  # noqa: S108
        }
        kinds = {path: (change.kind, change.type) for path, change in found.items() if change.kind != "deleted"}
        _equal(kinds, expected, "what was added")
        _equal([path for path, change in found.items() if change.kind == "deleted"], gone, "deleted")
        _equal((found["/srv/new/file"].size, found["/srv/new/link"].target), (6, "file"), "size and target")
        _equal(list(found), sorted(found), "the order of changes")


@_promise("fork")
async def a_fork_has_the_files_and_goes_its_own_way(it: Subject) -> None:
    shared = f"{it.spec.workdir}/shared"
    async with it.sandbox() as origin:
        await origin.exec("echo shared > shared")
        await origin.process(_beating("/tmp/beat"))  # noqa: S108
        await _until_beating(origin, "/tmp/beat")  # noqa: S108
        async with _fork(origin) as fork:
            _equal(await fork.read_file(shared), b"shared\n", "a file of the origin in its fork")
            _require(not await _beats(fork, "/tmp/beat"), "processes were copied")  # noqa: S108
            await fork.exec("echo fork > shared; echo x > only-here")
            await origin.exec("echo origin > shared")
            _equal(await fork.read_file(shared), b"fork\n", "the fork's own file")
            _equal(await origin.read_file(shared), b"origin\n", "the origin's own file")
            async with _refused("a file of the fork in its origin", RuntimeFailure):
                await origin.read_file(f"{it.spec.workdir}/only-here")
            async with _fork(fork) as grandchild:
                _equal(await grandchild.read_file(shared), b"fork\n", "a file of a fork in its own fork")
        _require((await origin.exec("true")).ok, "the origin did not outlive its fork")


@_promise("fork")
async def a_fork_can_have_chosen_paths_as_they_were_built(it: Subject) -> None:
    told: list[Change] = []

    def revert(changes: Any) -> list[str]:
        told.extend(changes)
        return ["/srv"]

    async with it.sandbox() as origin:
        await origin.exec("mkdir -p /srv/new; echo x > /srv/new/x; ln -s /etc /srv/link", user="root")
        await origin.exec("echo mine > mine")
        async with _fork(origin, revert=revert) as fork:
            _equal(set(await _changed(fork)), {f"{it.spec.workdir}/mine"}, "changes of the fork")
        _equal(await origin.read_file("/srv/new/x"), b"x\n", "the origin's file")
    paths = {f"{it.spec.workdir}/mine", "/srv/new", "/srv/new/x", "/srv/link"}
    _equal({change.path for change in told}, paths, "changes that `revert` was given")


@_promise("fork", "forward")
async def a_fork_beside_uses_what_runs_and_is_not_reached_by_it(it: Subject) -> None:
    async with it.sandbox() as origin:
        await origin.exec("echo mine > mine")
        beating = await origin.process(_beating("beat"))
        found = [tool for tool in _SERVERS if (await origin.exec(f"command -v {tool}")).ok]
        tool = found[0] if found else None
        if tool is not None:
            await _serve(origin, tool, 18181)
        beside = await origin.fork_beside()
        try:
            _equal(await beside.read_file(f"{it.spec.workdir}/mine"), b"mine\n", "a file of the copy")
            _require(not await _beats(beside, f"{it.spec.workdir}/beat"), "a process runs in the copy")
            _require(await _beats(origin, f"{it.spec.workdir}/beat"), "a process of the origin has ended")
            if tool is not None:
                _equal(await _greeting(beside, tool, 18181), b"hello", "the answer of a service beside the copy")
                await _serve(beside, tool, 18182)
                _equal(await _greeting(origin, tool, 18182), b"", "the answer of a service in the copy")
        finally:
            await beside.stop()
            await beating.kill()


_PYTHON_SERVER: Final = """python3 -c "import socket
s = socket.create_server(('127.0.0.1', {port}))
open('{ready}', 'w').close()
while True:
    c, _ = s.accept()
    c.sendall(b'hello')
    c.close()" """
_PYTHON_CLIENT: Final = """python3 -c "import socket
print(socket.create_connection(('127.0.0.1', {port}), 5).recv(9).decode(), end='')" """
_NC_SERVER: Final = "touch {ready}; exec nc -ll -p {port} -e printf hello"
_SERVERS: Final = {
    "python3": (_PYTHON_SERVER, _PYTHON_CLIENT),
    "nc": (_NC_SERVER, "nc -w 5 127.0.0.1 {port} </dev/null"),
}
"""By the program that an environment may have: how it serves a greeting on a port, and how it asks for one."""


async def _serve(sandbox: Sandbox, tool: str, port: int) -> None:
    ready = f"/tmp/ready-{port}"  # noqa: S108 - in a sandbox
    command = f"({_SERVERS[tool][0].format(port=port, ready=ready)}) >/dev/null 2>&1 </dev/null &"
    await sandbox.exec(command)
    with anyio.fail_after(_PATIENCE):
        while not (await sandbox.exec(f"test -f {ready}")).ok:  # noqa: ASYNC110 - the sandbox sets no event
            await anyio.sleep(_PAUSE)
        await anyio.sleep(_PAUSE)


async def _greeting(sandbox: Sandbox, tool: str, port: int) -> bytes:
    return (await sandbox.exec(_SERVERS[tool][1].format(port=port), timeout=_PATIENCE)).stdout


@_promise("mounts")
async def mounts_are_read_only_and_not_changes(it: Subject) -> None:
    (it.folder / "asset").write_text("asset\n")
    async with it.sandbox(mounts=(Mount(it.folder, "/assets/here"),)) as sandbox:
        _equal((await sandbox.exec("cat /assets/here/asset")).stdout, b"asset\n", "a mounted file")
        _require(not (await sandbox.exec("touch /assets/here/new", user="root")).ok, "a mount can be written")
        inside = [change.path for change in await sandbox.changes() if change.path.startswith("/assets/here/")]
        _equal(inside, [], "changes below a mount")
    async with _refused("a mount that does not exist"):
        await it.sandbox(mounts=(Mount(it.folder / "missing", "/x"),)).start()


@_promise("mounts", "fork")
async def a_fork_can_mount_where_a_link_was_planted(it: Subject) -> None:
    (it.folder / "test.sh").write_text("real\n")
    async with it.sandbox() as origin:
        await origin.exec("mkdir /srv/evil; echo planted > /srv/evil/test.sh; ln -s /srv/evil /tests", user="root")
        async with _fork(origin, mounts=[Mount(it.folder, "/tests")]) as fork:
            shown = await fork.exec("cat /tests/test.sh /srv/evil/test.sh; test -L /tests || echo plain")
            _equal(shown.stdout, b"real\nplanted\nplain\n", "what is seen through the mount")


@_promise("snapshot")
async def a_snapshot_outlives_its_sandbox_and_starts_many(it: Subject) -> None:
    kept = f"{it.spec.workdir}/kept"
    async with it.sandbox() as sandbox:
        await sandbox.exec("echo kept > kept")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo later > kept")
    for _ in range(2):
        async with it.backend.create(it.spec, snapshot=snapshot) as restored:
            _equal(await restored.read_file(kept), b"kept\n", "a file of the snapshot")
            _equal(set(await _changed(restored)), {kept}, "changes of a restored sandbox")
    await it.backend.discard(snapshot)
    async with _refused("a snapshot that was discarded"):
        await it.backend.create(it.spec, snapshot=snapshot).start()


# --- life ---


@_promise()
async def stopping_twice_is_fine_and_a_stopped_sandbox_says_so(it: Subject) -> None:
    sandbox = it.sandbox()
    await sandbox.start()
    await sandbox.stop()
    await sandbox.stop()
    async with _refused("a command in a stopped sandbox", RuntimeFailure):
        await sandbox.exec("true")


@_promise()
async def sandboxes_do_not_see_each_others_files(it: Subject) -> None:
    async with it.sandbox() as first, it.sandbox() as second:
        await first.write_file("/tmp/secret", b"1")  # noqa: S108
        async with _refused("a file of another sandbox", RuntimeFailure):
            await second.read_file("/tmp/secret")  # noqa: S108


@_promise("image")
async def an_unknown_image_says_which_one(it: Subject) -> None:
    try:
        await it.backend.resolve("benchcube-check/no-such-image:1")
    except EnvironmentFailure as error:
        _require("no-such-image" in str(error), f"the image is not named: {error}")
        return
    raise BackendFault("an unknown image was found")


@_promise()
async def the_network_changes_to_what_it_has_and_to_nothing_else(it: Subject) -> None:
    modes = [mode for mode in _MODES if f"network.{mode}" in it.capabilities]
    async with it.sandbox(network=NetworkPolicy(modes[0])) as sandbox:
        for mode in (*modes[1:], modes[0]):
            await sandbox.set_network(NetworkPolicy(mode, ("example.com",) if mode == "allowlist" else ()))
            _require((await sandbox.exec("true")).ok, f"nothing runs after a change to {mode}")
        for mode in set(_MODES) - set(modes):
            async with _refused(f"the network {mode}", UnsupportedError):
                await sandbox.set_network(NetworkPolicy(mode, ("example.com",)))
