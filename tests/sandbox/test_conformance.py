"""What every backend promises. A backend that lacks a capability declares it, and refuses to start what needs it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import Change, Limits, NetworkPolicy, SandboxSpec
from benchflow.testing import PROMISES, check_backend, check_promise

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def alive(sandbox, marker):
    """How many processes inside run `sleep MARKER`."""
    script = r"for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; echo; done 2>/dev/null"
    listed = await sandbox.exec(script, user="root")
    return sum(line.split() == ["sleep", marker] for line in listed.stdout.decode().splitlines())


@contextlib.asynccontextmanager
async def forked(sandbox, **options):
    """A fork, which is started when it is given, for the time of a block."""
    fork = await sandbox.fork(**options)
    try:
        yield fork
    finally:
        await fork.stop()


async def changed(sandbox) -> dict[str, Change]:
    return {change.path: change for change in await sandbox.changes()}


# --- what plugin authors are promised too ---

SHOWN_BELOW = {
    "a_cancelled_caller_leaves_nothing_running",
    "a_fork_can_have_chosen_paths_as_they_were_built",
    "a_fork_has_the_files_and_goes_its_own_way",
    "a_killed_process_takes_its_children_along",
    "a_timeout_ends_the_whole_tree_and_keeps_the_output",
    "a_tree_goes_in_and_comes_out_unchanged",
    "a_written_file_is_read_back",
    "changes_name_what_was_added_changed_and_deleted",
    "links_that_leave_and_oversized_trees_do_not_come_out",
    "only_regular_files_of_the_allowed_size_are_read",
    "processes_end_when_they_are_all_to_end_and_files_stay",
    "sandboxes_do_not_see_each_others_files",
}
"""Promises of which a test below asks more; starting containers for both would take a minute."""


async def test_the_local_backend_keeps_all_that_plugin_authors_are_asked_for(local_backend):
    report = await check_backend(local_backend)
    assert {*report.kept, *report.left_out} == set(PROMISES)
    assert set(report.kept) >= SHOWN_BELOW


@pytest.mark.parametrize("promise", [name for name in PROMISES if name not in SHOWN_BELOW])
async def test_a_backend_keeps_what_every_backend_promises(bench, promise):
    assert PROMISES[promise][1] <= bench.capabilities, (
        "what a backend of this machine lacks is checked for being refused"
    )
    await check_promise(bench.backend, promise, spec=SandboxSpec(image=bench.image))


# --- commands ---


async def test_a_missing_command_ends_with_127(box):
    assert (await box.exec(["no-such-command"])).exit_code == 127
    assert (await box.exec("no-such-command")).exit_code == 127


async def test_commands_run_unprivileged_unless_told_otherwise(box):
    assert (await box.exec("id -u")).stdout.strip() not in (b"", b"0")
    assert (await box.exec("id -u", user="root")).stdout.strip() == b"0"


async def test_commands_run_as_a_named_user(bench, box):
    if "users" not in bench.capabilities:
        pytest.fail("a backend without users must be checked for refusing them")
    result = await box.exec("id -u; id -g; echo $HOME", user="other")
    assert result.stdout.split() == [b"1001", b"1001", b"/tmp"]


async def test_the_environment_is_the_images_the_specs_and_the_commands(box):
    result = await box.exec(
        "echo $PATH; echo $FROM_SPEC; echo $FROM_EXEC; echo $HTTP_PROXY",
        env={"FROM_EXEC": "x=y 'z'", "HTTP_PROXY": "http://p:1"},
    )
    lines = result.stdout.decode().splitlines()
    assert "/bin" in lines[0]
    assert lines[1:] == ["a b", "x=y 'z'", "http://p:1"]


async def test_a_working_folder_of_the_image_is_its_users_with_all_that_is_in_it(bench):
    async with bench.sandbox(workdir="/srv/work") as sandbox:
        assert await sandbox.changes() == []
        result = await sandbox.exec("pwd; cat given.txt; echo more >> given.txt; mkdir own && touch own/x && echo ok")
        assert (result.exit_code, result.stdout) == (0, b"/srv/work\ngiven\nok\n")
        assert set(await changed(sandbox)) == {"/srv/work/given.txt", "/srv/work/own", "/srv/work/own/x"}
        async with forked(sandbox, revert=lambda changes: [change.path for change in changes]) as fork:
            assert await changed(fork) == {}
            result = await fork.exec("cat given.txt; echo again >> given.txt && echo ok")
            assert (result.exit_code, result.stdout) == (0, b"given\nok\n")


async def test_an_image_without_an_unprivileged_user_is_given_one(bench):
    async with bench.backend.create(SandboxSpec(image=bench.bare)) as sandbox:
        result = await sandbox.exec("id -un; id -u; echo $HOME; touch ~/x here && echo ok; id -u node")
        assert result.stdout.split() == [b"agent", b"1001", b"/home/agent", b"ok", b"1000"]
        assert set(await changed(sandbox)) == {"/home/agent/x", "/app/here"}
        assert not (await sandbox.exec("touch /opt/built.txt")).ok


async def test_a_timeout_kills_the_whole_tree_however_it_daemonised(box):
    tree = "echo before; (setsid sleep 7101 &); setsid sh -c 'setsid sleep 7101 & exec sleep 7101' & sleep 7101"
    result = await box.exec(tree, timeout=1)
    assert result.timed_out
    assert not result.ok
    assert (result.exit_code, result.stdout) == (137, b"before\n")
    assert await alive(box, "7101") == 0


async def test_a_timeout_leaves_other_commands_alone(box):
    other = await box.process("exec sleep 7102")
    assert (await box.exec("sleep 7103", timeout=0.3)).timed_out
    assert await alive(box, "7102") == 1
    assert await alive(box, "7103") == 0
    await other.kill()
    assert await alive(box, "7102") == 0


async def test_a_cancelled_caller_leaves_nothing_running(box):
    with anyio.move_on_after(1.0):
        await box.exec("sleep 7104")
    assert await alive(box, "7104") == 0


# --- processes to talk to ---


async def test_a_killed_process_takes_its_children_along_and_can_be_killed_again(box):
    process = await box.process("sleep 7105 & sleep 7105")
    await process.kill()
    await process.kill()
    assert await process.wait() == 137
    assert await alive(box, "7105") == 0


# --- files ---


async def test_a_written_file_is_read_back_with_owner_and_mode(box):
    await box.write_file("/srv/deep/er/file.bin", b"\0\xff data", owner="agent", mode=0o640)
    assert await box.read_file("/srv/deep/er/file.bin") == b"\0\xff data"
    shown = await box.exec("stat -c '%u %g %a' /srv/deep/er/file.bin")
    assert shown.stdout.split() == [b"1000", b"1000", b"640"]


async def test_only_regular_files_of_the_allowed_size_are_read(box):
    await box.exec(
        "cd /tmp && mkdir -p odd/dir && mkfifo odd/pipe && ln -s /etc/passwd odd/link && ln -s /etc odd/folder"
        " && head -c 2000 /dev/zero > odd/big"
    )
    for name in ("dir", "pipe", "link", "folder/passwd", "missing"):
        with anyio.fail_after(30), pytest.raises(SandboxFailure):
            await box.read_file(f"/tmp/odd/{name}")
    with pytest.raises(SandboxFailure):
        await box.read_file("/tmp/odd/big", max_bytes=1999)
    assert len(await box.read_file("/tmp/odd/big", max_bytes=2000)) == 2000


async def test_a_tree_goes_in_and_comes_out_unchanged(box, tmp_path):
    source = tmp_path / "in"
    (source / "a b" / "ü").mkdir(parents=True)
    (source / "a b" / "ü" / "data.bin").write_bytes(os.urandom(200_000))
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "empty").write_bytes(b"")
    (source / "link").symlink_to("a b/ü")
    await box.upload(source, "/srv/tree", owner="agent")
    assert (await box.exec("/srv/tree/run.sh; stat -c %u /srv/tree/run.sh")).stdout == b"ran\n1000\n"
    await box.download("/srv/tree", tmp_path / "out")
    await box.download("/srv/tree/run.sh", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "#!/bin/sh\necho ran\n"
    assert (tmp_path / "out" / "a b" / "ü" / "data.bin").read_bytes() == (
        source / "a b" / "ü" / "data.bin"
    ).read_bytes()
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o111
    assert (tmp_path / "out" / "empty").read_bytes() == b""
    assert (tmp_path / "out" / "link").readlink() == Path("a b/ü")


async def test_planted_links_special_files_and_oversized_trees_do_not_come_out(box, tmp_path):
    await box.exec(
        "cd /tmp && mkdir -p out/links out/pipes out/inner out/many && ln -s /etc/passwd out/links/absolute"
        " && mkfifo out/pipes/p && ln -s ../../.. out/inner/up && ln -s /tmp/out/many out/alias"
        " && for i in 1 2 3 4 5; do head -c 999 /dev/zero > out/many/$i; done"
    )
    for name in ("links", "pipes", "inner", "alias", "missing"):
        with anyio.fail_after(60), pytest.raises(SandboxFailure):
            await box.download(f"/tmp/out/{name}", tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(SandboxFailure):
        await box.download("/tmp/out/many", tmp_path / "m", max_bytes=4000)
    with pytest.raises(SandboxFailure):
        await box.download("/tmp/out/many", tmp_path / "m", max_files=4)
    assert not (tmp_path / "m").exists()
    await box.download("/tmp/out/many", tmp_path / "m", max_bytes=5000, max_files=6)
    assert len(list((tmp_path / "m").iterdir())) == 5


async def test_a_huge_sparse_file_is_refused_at_once(box, tmp_path):
    await box.exec("truncate -s 200G /tmp/sparse")
    with anyio.fail_after(30), pytest.raises(SandboxFailure):
        await box.download("/tmp/sparse", tmp_path / "sparse")


# --- changes, forks, snapshots ---


async def test_changes_name_what_was_added_changed_and_deleted(bench):
    async with bench.sandbox() as sandbox:
        assert await sandbox.changes() == []
        await sandbox.exec(
            "mkdir /opt/new && echo 12345 > /opt/new/file && ln -s file /opt/new/link && echo more >> /opt/built.txt"
            " && rm /opt/doomed.txt && mkfifo /opt/pipe && touch /app/mine",
            user="root",
        )
        found = await changed(sandbox)
        assert {path: (change.kind, change.type) for path, change in found.items() if change.kind != "deleted"} == {
            "/app/mine": ("added", "file"),
            "/opt/built.txt": ("changed", "file"),
            "/opt/new": ("added", "directory"),
            "/opt/new/file": ("added", "file"),
            "/opt/new/link": ("added", "symlink"),
            "/opt/pipe": ("added", "special"),
        }
        assert [path for path, change in found.items() if change.kind == "deleted"] == ["/opt/doomed.txt"]
        assert found["/opt/new/file"].size == 6
        assert found["/opt/new/link"].target == "file"
        assert list(found) == sorted(found)


async def test_a_fork_has_the_files_and_goes_its_own_way(bench):
    if "fork" not in bench.capabilities:
        pytest.fail("a backend without forks must be checked for refusing them")
    async with bench.sandbox() as origin:
        await origin.exec("echo shared > /app/shared; echo gone > /app/gone; rm /opt/doomed.txt", user="root")
        await origin.process("sleep 7106")
        async with forked(origin) as fork:
            assert await alive(fork, "7106") == 0
            assert await alive(origin, "7106") == 1
            assert await fork.read_file("/app/shared") == b"shared\n"
            await fork.exec("echo fork > /app/shared; rm /app/gone; echo x > /app/only-here", user="root")
            await origin.exec("echo origin > /app/shared", user="root")
            assert await fork.read_file("/app/shared") == b"fork\n"
            assert await origin.read_file("/app/shared") == b"origin\n"
            with pytest.raises(SandboxFailure):
                await origin.read_file("/app/only-here")
            kinds = {path: change.kind for path, change in (await changed(fork)).items()}
            assert kinds == {"/app/shared": "added", "/app/only-here": "added", "/opt/doomed.txt": "deleted"}
            async with forked(fork) as grandchild:
                assert await grandchild.read_file("/app/only-here") == b"x\n"
        assert (await origin.exec("true")).ok


async def test_a_fork_can_have_chosen_paths_as_they_were_built(bench):
    async with bench.sandbox() as origin:
        await origin.exec(
            # the changed file has its former size and time
            "echo mine > /app/mine; touch -r /opt/built.txt /tmp/t; echo 'ANOTHER TEXT__' > /opt/built.txt;"
            "touch -r /tmp/t /opt/built.txt; rm /tmp/t /opt/doomed.txt; mkdir /opt/new;"
            "echo x > /opt/new/x; ln -s /etc /opt/link; echo evil > /usr/bin/evil",
            user="root",
        )
        told = []

        def revert(changes):
            told.extend(changes)
            return ["/opt", "/usr/bin/evil"]

        async with forked(origin, revert=revert) as fork:
            shown = await fork.exec("cat /app/mine /opt/built.txt /opt/doomed.txt; ls /opt /usr/bin")
            assert shown.stdout.decode().split("\n")[:3] == ["mine", "from the image", "to be deleted"]
            assert b"new" not in shown.stdout
            assert b"evil" not in shown.stdout
            assert set(await changed(fork)) == {"/app/mine"}
        assert {change.path for change in told} == {
            *("/app/mine", "/opt/built.txt", "/opt/doomed.txt", "/opt/link", "/opt/new", "/opt/new/x", "/usr/bin/evil")
        }
        assert await origin.read_file("/opt/new/x") == b"x\n"


# --- processes, limits, life ---


async def test_kill_processes_ends_everything_and_keeps_files_and_sandbox(bench):
    async with bench.sandbox() as sandbox:
        await sandbox.exec("(setsid sleep 7107 &) >/dev/null 2>&1; echo kept > /app/kept")
        await sandbox.exec("(setsid sh -c 'trap \"\" TERM HUP INT; sleep 7107' &) >/dev/null 2>&1", user="root")
        assert await alive(sandbox, "7107") == 2
        await sandbox.kill_processes()
        assert await alive(sandbox, "7107") == 0
        assert not await sandbox.has_processes()
        assert await sandbox.read_file("/app/kept") == b"kept\n"


async def test_a_fork_bomb_ends_at_the_limit_and_the_sandbox_can_be_cleared(bench):
    if "limits.pids" not in bench.capabilities:
        return
    async with bench.sandbox(limits=Limits(pids=60)) as sandbox:
        await sandbox.exec("f() { f | f & }; f; sleep 60", timeout=2)
        await sandbox.exec("for i in $(seq 100); do setsid sleep 7108 & done; wait", timeout=2)
        with anyio.fail_after(60):
            await sandbox.kill_processes()
        assert await alive(sandbox, "7108") == 0
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


async def test_a_memory_hog_is_killed_and_the_sandbox_lives_on(bench):
    if "limits.memory" not in bench.capabilities:
        return
    async with bench.sandbox(limits=Limits(memory_mb=64)) as sandbox:
        hog = await sandbox.exec("head -c 200000000 /dev/zero | tail", timeout=60)
        assert not hog.timed_out
        assert b"hog survived" not in hog.stdout
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


async def test_sandboxes_do_not_see_each_other(bench):
    async with bench.sandbox(hostname="first") as first, bench.sandbox(hostname="second") as second:
        await first.write_file("/tmp/secret", b"1")
        await first.process("sleep 7109")
        assert await alive(second, "7109") == 0
        with pytest.raises(SandboxFailure):
            await second.read_file("/tmp/secret")
        assert (await first.exec("hostname")).stdout == b"first\n"
        assert (await second.exec("hostname")).stdout == b"second\n"


# --- network ---


async def interfaces(sandbox):
    """Names of interfaces that are there beside loopback."""
    listed = await sandbox.exec("cat /proc/net/dev")
    return [line.split(":")[0].strip() for line in listed.stdout.decode().splitlines()[2:]]


async def test_without_network_there_is_loopback_and_nothing_else(bench):
    async with bench.sandbox(network=NetworkPolicy("none")) as sandbox:
        assert await interfaces(sandbox) == ["lo"]
        served = await sandbox.exec(
            "echo hello | nc -l -p 7000 127.0.0.1 & sleep 0.3; nc 127.0.0.1 7000 </dev/null; wait"
        )
        assert served.stdout == b"hello\n"


async def test_the_network_changes_from_phase_to_phase(bench):
    async with bench.sandbox(network=NetworkPolicy("none")) as sandbox:
        await sandbox.set_network(NetworkPolicy("public"))
        assert len(await interfaces(sandbox)) > 1
        await sandbox.set_network(NetworkPolicy("none"))
        assert await interfaces(sandbox) == ["lo"]


async def test_an_allowlist_lets_nothing_else_out(bench):
    if "network.allowlist" not in bench.capabilities:
        return
    async with bench.sandbox(network=NetworkPolicy("allowlist", ("allowed.example",))) as sandbox:
        environment = (await sandbox.exec("env")).stdout.decode()
        assert "HTTP_PROXY=http://" in environment
        ask = (
            "proxy=${HTTP_PROXY#http://}; printf 'CONNECT %s:443 HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' $0 $0"
            " | nc -w 10 ${proxy%:*} ${proxy#*:}"
        )
        refused = await sandbox.exec(["sh", "-c", ask, "other.example"], timeout=40)
        assert b" 403 " in refused.stdout.splitlines()[0]
        direct = await sandbox.exec("nc -w 3 192.0.2.1 80 </dev/null", timeout=20)
        assert not direct.ok
        await sandbox.set_network(NetworkPolicy("none"))
        assert await interfaces(sandbox) == ["lo"]
        assert "HTTP_PROXY" not in (await sandbox.exec("env")).stdout.decode()


async def test_a_port_inside_can_be_dialled(bench):
    async with bench.sandbox(network=NetworkPolicy("none")) as sandbox:
        server = await sandbox.process("nc -l -p 7200 -e cat")
        connected = None
        with anyio.fail_after(30):
            while connected is None:
                try:
                    connected = await sandbox.dial(7200)
                except ConnectionError:
                    await anyio.sleep(0.1)
        with connected:
            connected.setblocking(True)
            connected.sendall(b"ping\n")
            assert connected.recv(16) == b"ping\n"
        await server.kill()
        with pytest.raises(ConnectionError):
            await sandbox.dial(7201)


async def test_a_socket_of_the_caller_listens_inside_until_it_is_closed(bench):
    async with bench.sandbox(network=NetworkPolicy("none")) as sandbox:
        listening = await sandbox.listen(7300)
        other = await sandbox.listen(7300)
        assert listening.getsockname() == ("127.0.0.1", 7300)
        assert other.getsockname()[1] != 7300
        other.close()

        async def greet() -> None:
            accepted, _ = await anyio.to_thread.run_sync(listening.accept)
            with accepted:
                accepted.sendall(b"hello\n")

        with listening:
            listening.setblocking(True)
            async with anyio.create_task_group() as group:
                group.start_soon(greet)
                heard = await sandbox.exec("nc -w 30 127.0.0.1 7300 </dev/null", timeout=60)
            assert heard.stdout == b"hello\n"
        assert not (await sandbox.exec("nc -w 3 127.0.0.1 7300 </dev/null", timeout=30)).ok
