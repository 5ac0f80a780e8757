"""What every sandbox backend promises of commands, processes and files, one function each."""

from __future__ import annotations

import os

import anyio

from benchflow.errors import BenchflowError, RuntimeFailure
from benchflow.testing.promise_table import (
    PATIENCE,
    Subject,
    beating,
    beats,
    equal,
    promise,
    refused,
    require,
    size_of_file,
    until_beating,
)

# --- commands ---


@promise()
async def a_string_is_run_by_the_shell_and_both_streams_come_back(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        equal((result.exit_code, result.stdout, result.stderr), (3, b"out\n", b"err\n"), "exit code and output")
        require(not result.ok and not result.timed_out and result.duration_sec > 0, "the result is not as it ended")


@promise()
async def a_list_is_run_without_a_shell(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        equal((await sandbox.exec(["echo", "$HOME", "a  b"])).stdout, b"$HOME a  b\n", "output")
        equal((await sandbox.exec(["no-such-command"])).exit_code, 127, "exit code of a missing command")


@promise()
async def a_signal_is_reported_as_a_shell_does(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        equal((await sandbox.exec("sh -c 'kill -9 $$'")).exit_code, 137, "exit code after SIGKILL")


@promise()
async def an_unknown_user_is_an_error_and_not_a_result(it: Subject) -> None:
    async with it.sandbox() as sandbox, refused("an unknown user", RuntimeFailure):
        await sandbox.exec("true", user="nobody-knows-me")


@promise()
async def variables_are_the_specs_and_the_commands_and_never_the_drivers(it: Subject) -> None:
    os.environ["BENCHFLOW_CHECK_SECRET"] = "hunter2"  # noqa: S105 - what must not be seen
    try:
        async with it.sandbox(env={**it.spec.env, "FROM_SPEC": "a b"}) as sandbox:
            shown = await sandbox.exec('echo "$FROM_SPEC|$FROM_EXEC|$PATH"; env', env={"FROM_EXEC": "x=y 'z'"})
    finally:
        del os.environ["BENCHFLOW_CHECK_SECRET"]
    require(shown.stdout.startswith(b"a b|x=y 'z'|"), f"variables are not as given: {shown.stdout[:80]!r}")
    require(b"hunter2" not in shown.stdout, "variables of the driver are visible inside")
    require(shown.stdout.splitlines()[0] != b"a b|x=y 'z'|", "PATH is empty")


@promise()
async def commands_start_in_the_working_folder_and_may_write_there(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        result = await sandbox.exec("pwd; touch here && echo ok")
        equal(result.stdout.split(), [it.spec.workdir.encode(), b"ok"], "working folder")
        equal((await sandbox.exec("pwd", cwd="/tmp")).stdout, b"/tmp\n", "a folder of its own")  # noqa: S108


@promise()
async def a_command_whose_folder_is_not_there_does_not_run(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        try:
            result = await sandbox.exec("echo ran", cwd="/no/such/folder")
        except BenchflowError:
            return
        require(not result.ok and b"ran" not in result.stdout, "it ran somewhere else")


@promise()
async def input_is_passed_whole_and_closed(it: Subject) -> None:
    data = os.urandom(300_000)
    async with it.sandbox() as sandbox:
        require((await sandbox.exec(["cat"], stdin=data)).stdout == data, "input did not arrive as it was")
        result = await sandbox.exec(["cat"], timeout=PATIENCE)
        equal((result.exit_code, result.stdout), (0, b""), "a reader without input")


@promise()
async def output_past_the_cap_loses_its_middle_and_is_counted(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        result = await sandbox.exec("echo first; head -c 300000 /dev/zero; echo; echo last", max_output=10_000)
        out = result.stdout
        require(len(out) <= 10_000 and out.startswith(b"first\n") and out.endswith(b"last\n"), "kept output")
        equal(result.dropped_bytes + len(out), 300_012, "kept and dropped bytes")


@promise()
async def output_is_streamed_while_a_command_runs(it: Subject) -> None:
    first, last, seen = anyio.Event(), anyio.Event(), list[tuple[str, bytes]]()

    def sink(stream: str, data: bytes) -> None:
        seen.append((stream, data))
        (last if first.is_set() else first).set()

    waiting = "echo early; while ! test -e /tmp/go; do sleep 0.05; done; echo late >&2"
    async with it.sandbox() as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: sandbox.exec(waiting, on_output=sink))
        with anyio.fail_after(PATIENCE):
            await first.wait()
            await sandbox.write_file("/tmp/go", b"")  # noqa: S108
            await last.wait()
    equal(seen, [("stdout", b"early\n"), ("stderr", b"late\n")], "streamed output")


@promise("limits.time")
async def a_timeout_ends_the_whole_tree_and_keeps_the_output(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        tree = f"echo before; ({beating('beat')}) & sh -c '{beating('beat')}'"
        result = await sandbox.exec(tree, timeout=1.0)
        require(result.timed_out and not result.ok, "the timeout is not reported")
        equal((result.exit_code, result.stdout), (137, b"before\n"), "exit code and output at the timeout")
        require(not await beats(sandbox, f"{it.spec.workdir}/beat"), "something of the command still runs")
        require((await sandbox.exec("true")).ok, "the sandbox did not survive a timeout")


@promise()
async def a_cancelled_caller_leaves_nothing_running(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        with anyio.move_on_after(1.0):
            await sandbox.exec(beating("beat"))
        require(not await beats(sandbox, f"{it.spec.workdir}/beat"), "the command of a cancelled caller still runs")


@promise()
async def commands_run_side_by_side(it: Subject) -> None:
    results: dict[int, bytes] = {}
    async with it.sandbox() as sandbox:

        async def run(number: int) -> None:
            script = f"touch {number}; while ! test -e {1 - number}; do sleep 0.02; done; echo {number}"
            results[number] = (await sandbox.exec(script, timeout=PATIENCE)).stdout

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, 0)
            tasks.start_soon(run, 1)
    equal(results, {0: b"0\n", 1: b"1\n"}, "what two commands that wait for each other print")


@promise()
async def a_process_answers_while_it_runs(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        process = await sandbox.process("while read line; do echo got $line; done; echo done >&2; exit 5")
        output = process.stdout()
        for word in (b"one", b"two"):
            await process.send(word + b"\n")
            with anyio.fail_after(PATIENCE):
                equal(await anext(output), b"got " + word + b"\n", "the answer")
        await process.close_stdin()
        equal(b"".join([data async for data in output]), b"", "output after the last answer")
        equal(b"".join([data async for data in process.stderr()]), b"done\n", "standard error")
        equal(await process.wait(), 5, "exit code")


@promise()
async def a_killed_process_takes_its_children_along(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        process = await sandbox.process(f"({beating('beat')}) & {beating('beat')}")
        beat = f"{it.spec.workdir}/beat"
        await until_beating(sandbox, beat)
        await process.kill()
        await process.kill()
        equal(await process.wait(), 137, "exit code of a killed process")
        require(not await beats(sandbox, beat), "children of a killed process still run")


@promise()
async def processes_end_when_they_are_all_to_end_and_files_stay(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        beat = f"{it.spec.workdir}/beat"
        await sandbox.process(beating("beat"))
        await until_beating(sandbox, beat)
        await sandbox.kill_processes()
        require(not await beats(sandbox, beat), "something still runs")
        require(not await sandbox.has_processes(), "has_processes says that something still runs")
        require(await size_of_file(sandbox, beat), "the files are gone")


# --- files ---


@promise()
async def a_written_file_is_read_back(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        await sandbox.write_file("/srv/deep/er/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        equal(await sandbox.read_file("/srv/deep/er/run.sh"), b"#!/bin/sh\necho ran\n", "contents")
        equal((await sandbox.exec("/srv/deep/er/run.sh")).stdout, b"ran\n", "the file as a program")


@promise()
async def planted_links_are_replaced_and_never_followed(it: Subject) -> None:
    (it.folder / "sub").mkdir()
    (it.folder / "sub" / "test.sh").write_text("real")
    async with it.sandbox() as sandbox:
        plant = "mkdir -p /srv/evil /srv/v; echo own > /srv/evil/own; ln -s /srv/evil/own /srv/file"
        done = await sandbox.exec(f"{plant}; ln -s /srv/evil /srv/tests; ln -s /srv/evil /srv/v/sub", user="root")
        require(done.ok, f"links cannot be planted: {done.stderr!r}")
        await sandbox.write_file("/srv/file", b"new")
        await sandbox.upload(it.folder, "/srv/tests")
        await sandbox.upload(it.folder, "/srv/v")
        equal(await sandbox.read_file("/srv/evil/own"), b"own\n", "the file behind a link that was written")
        equal((await sandbox.exec("ls /srv/evil")).stdout, b"own\n", "the folder behind a link that was uploaded to")
        for place in ("/srv/tests/sub/test.sh", "/srv/v/sub/test.sh"):
            equal(await sandbox.read_file(place), b"real", place)


@promise()
async def unsafe_paths_are_refused(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        for path in ("relative", "/tmp/../etc/passwd", ""):  # noqa: S108
            async with refused(f"reading {path!r}"):
                await sandbox.read_file(path)
            async with refused(f"writing {path!r}"):
                await sandbox.write_file(path, b"")


@promise()
async def only_regular_files_of_the_allowed_size_are_read(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        await sandbox.exec("mkdir odd; ln -s /etc/passwd odd/link; ln -s /etc odd/up; head -c 2000 /dev/zero > odd/big")
        odd = f"{it.spec.workdir}/odd"
        for name in ("", "/link", "/up/passwd", "/missing"):
            with anyio.fail_after(PATIENCE):
                async with refused(f"reading odd{name}", RuntimeFailure):
                    await sandbox.read_file(odd + name)
        async with refused("a file that is too large", RuntimeFailure):
            await sandbox.read_file(f"{odd}/big", max_bytes=1999)
        equal(len(await sandbox.read_file(f"{odd}/big", max_bytes=2000)), 2000, "size")


@promise()
async def a_tree_goes_in_and_comes_out_unchanged(it: Subject) -> None:
    source, data = it.folder / "in", os.urandom(100_000)
    (source / "a b" / "ü").mkdir(parents=True)
    (source / "a b" / "ü" / "data.bin").write_bytes(data)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("a b/ü")
    async with it.sandbox() as sandbox:
        await sandbox.upload(source, "/srv/tree")
        equal((await sandbox.exec("/srv/tree/run.sh")).stdout, b"ran\n", "an uploaded program")
        await sandbox.download("/srv/tree", it.folder / "out")
        await sandbox.download("/srv/tree/run.sh", it.folder / "one")
    out = it.folder / "out"
    require((out / "a b" / "ü" / "data.bin").read_bytes() == data, "contents changed on the way")
    require((out / "run.sh").stat().st_mode & 0o111, "modes were lost")
    equal(str((out / "link").readlink()), "a b/ü", "the target of a link")
    equal((it.folder / "one").read_text(), "#!/bin/sh\necho ran\n", "a single file")


@promise()
async def links_that_leave_and_oversized_trees_do_not_come_out(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        await sandbox.exec(
            "mkdir -p out/links out/inner out/many; ln -s /etc/passwd out/links/absolute; ln -s ../../.. out/inner/up"
            "; for i in 1 2 3; do head -c 999 /dev/zero > out/many/$i; done"
        )
        out = f"{it.spec.workdir}/out"
        for name in ("links", "inner", "missing"):
            with anyio.fail_after(PATIENCE):
                async with refused(f"downloading {name}", RuntimeFailure):
                    await sandbox.download(f"{out}/{name}", it.folder / name)
            require(not (it.folder / name).exists(), f"{name} was refused and left something")
        async with refused("more bytes than allowed", RuntimeFailure):
            await sandbox.download(f"{out}/many", it.folder / "many", max_bytes=2000)
        await sandbox.download(f"{out}/many", it.folder / "many", max_bytes=3000, max_files=4)
        equal(len(list((it.folder / "many").iterdir())), 3, "files that came out")
