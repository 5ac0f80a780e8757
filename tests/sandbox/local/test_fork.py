"""Forks, snapshots and changes: independent, whole, and as cheap for much as for little."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from benchflow.errors import UnsupportedError, UsageError
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Change, Limits, Mount, NetworkPolicy, SandboxSpec

pytestmark = pytest.mark.anyio


async def sh(box: LocalSandbox, command: str, user: str | None = None) -> str:
    result = await box.exec(command, user=user, timeout=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


def written(store: Path, path: str) -> int:
    """How many layers on the disk have this path."""
    return len(list(store.glob(f"owners/*/*/u/{path}")))


async def changed(box: LocalSandbox) -> dict[str, str]:
    return {change.path: change.kind for change in await box.changes()}


async def test_a_fork_has_the_files_and_is_independent(box: LocalSandbox) -> None:
    await sh(box, "echo one > file; mkdir dir; echo two > dir/inner")
    fork = await box.fork()
    async with anyio.create_task_group() as group:
        group.start_soon(sh, box, "echo parent > file; rm -r dir; touch only-parent")
        group.start_soon(sh, fork, "echo child > file; touch only-child")
    assert await sh(box, "cat file; ls") == "parent\nfile\nonly-parent"
    assert await sh(fork, "cat file; ls; cat dir/inner") == "child\ndir\nfile\nonly-child\ntwo"
    await fork.stop()
    assert await sh(box, "cat file") == "parent"


async def test_a_parent_can_stop_before_its_forks(backend: LocalBackend) -> None:
    box = backend.create(SandboxSpec())
    await box.start()
    await sh(box, "echo kept > file")
    fork = await box.fork()
    second = await fork.fork()
    await box.stop()
    await fork.stop()
    assert await sh(second, "cat file") == "kept"
    await second.stop()


async def test_forks_of_forks_stack_up(box: LocalSandbox) -> None:
    for number in range(12):
        await sh(box, f"echo {number} > file{number}")
        fork = await box.fork()
        assert await sh(fork, "ls | wc -l") == str(number + 1)
        await fork.stop()
    assert await sh(box, "cat file0 file11") == "0\n11"
    assert len(await box.changes()) == 12


async def test_the_written_layer_is_shared_not_copied(box: LocalSandbox, store: Path) -> None:
    await sh(box, "head -c 50000000 /dev/zero > big")
    fork = await box.fork()
    assert written(store, "app/big") == 1
    assert await sh(fork, "stat -c %s big") == "50000000"
    await fork.stop()


async def test_a_sandbox_whose_copies_are_gone_goes_on_as_it_is(box: LocalSandbox) -> None:
    await sh(box, "head -c 50000000 /dev/zero > big; echo kept > /dev/shm/file")
    running = box.link
    for number in range(3):
        fork = await box.fork()
        await sh(fork, "echo other > big")
        await fork.stop()
        assert await sh(box, f"touch {number}; stat -c %s big; cat /dev/shm/file") == "50000000\nkept"
    assert box.link is running
    assert set(await changed(box)) == {"/app/big", "/app/0", "/app/1", "/app/2"}


@pytest.mark.parametrize("limits", [Limits(), Limits(storage_mb=256)], ids=["unlimited", "limited"])
async def test_what_a_copy_of_much_shows_does_not_change_and_neither_does_what_is_copied(
    backend: LocalBackend, limits: Limits
) -> None:
    async with backend.create(SandboxSpec(limits=limits)) as box:
        await sh(box, "head -c 50000000 /dev/zero > big; mkdir dir; echo one > dir/file; ln -s dir link")
        fork = await box.fork()
        again = await box.fork()
        assert not await box.has_processes()
        await sh(box, "echo more >> big; rm -r dir; mkdir dir; echo two > dir/other; rm link")
        assert await sh(fork, "stat -c %s big; ls dir link/") == "50000000\ndir:\nfile\n\nlink/:\nfile"
        await sh(fork, "rm big dir/file")
        assert await sh(again, "stat -c %s big; cat link/file") == "50000000\none"
        await fork.stop()
        await again.stop()
        assert await sh(box, "stat -c %s big; cat dir/*; ls") == "50000005\ntwo\nbig\ndir"


async def test_a_fork_during_an_upload_sees_nothing_of_the_rest(box: LocalSandbox, tmp_path: Path) -> None:
    await sh(box, "head -c 50000000 /dev/zero > big")
    with (tmp_path / "file").open("wb") as file:
        file.truncate(300_000_000)
    async with anyio.create_task_group() as group:
        group.start_soon(box.upload, tmp_path / "file", "/app/file")
        await sh(box, "until test -s file; do sleep 0.01; done")
        fork = await box.fork()
        seen = await sh(fork, "stat -c %s file")
    assert await sh(box, "stat -c %s file") == "300000000"
    assert await sh(fork, "stat -c %s file") == seen
    await fork.stop()


async def test_a_small_layer_is_copied_with_all_that_makes_it_one(box: LocalSandbox) -> None:
    await sh(
        box,
        "mkdir -p dir; echo one > dir/file; ln dir/file twin; ln -s nowhere link; mkfifo pipe; truncate -s 5G holes;"
        " echo end >> holes; chmod 2751 dir; touch -d '2001-02-03 04:05:06.789' dir/file; rm -r /etc/apt;"
        " mkdir /etc/apt",
        user="root",
    )
    look = "stat -c '%n %F %h %s %a %U %y' dir dir/file twin pipe holes; readlink link; tail -c 4 holes; ls -A /etc/apt"
    before = await sh(box, look, user="root")
    running = box.link
    fork = await box.fork()
    assert box.link is running
    assert await sh(fork, look, user="root") == before
    assert int(await sh(fork, "du -k holes | cut -f1")) < 100
    assert await changed(fork) == await changed(box)
    await fork.stop()


@pytest.mark.parametrize("limits", [Limits(), Limits(storage_mb=64)], ids=["unlimited", "limited"])
async def test_a_tree_lies_over_what_a_fork_reverts_and_under_what_it_writes(
    backend: LocalBackend, tmp_path: Path, limits: Limits
) -> None:
    tree = tmp_path / "tree"
    for name in ("hidden/own", "hidden/inner/own", "usr/share/own"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("tree")
    (tree / "alias").symlink_to("/hidden")
    tree.chmod(0o755)
    async with backend.create(SandboxSpec(limits=limits)) as box:
        assert await box.lays(tree)
        await sh(box, "mkdir -p /hidden/inner /alias; echo x | tee /hidden/own /hidden/planted /hidden/inner/p", "root")
        fork = await box.fork(revert=lambda _: ["/hidden"], tree=tree)
        assert await sh(fork, "cd /; find hidden alias usr/share/own ! -type d | sort; cat hidden/own") == (
            "alias\nhidden/inner/own\nhidden/own\nusr/share/own\ntree"
        )
        await sh(fork, "echo written > /hidden/own; rm -r /hidden/inner", "root")
        assert await sh(fork, "cat /hidden/own; ls /hidden") == "written\nown"
        assert "/hidden/planted" not in await changed(fork)
        with pytest.raises(UnsupportedError):
            await fork.fork()
        await fork.stop()
        assert (tree / "hidden/own").read_text() == "tree"
        assert await sh(box, "cat /hidden/own") == "x"


@pytest.mark.parametrize("limits", [Limits(), Limits(storage_mb=32, inodes=200)], ids=["unlimited", "limited"])
async def test_copies_that_are_gone_leave_the_layers_as_they_were(
    backend: LocalBackend, store: Path, limits: Limits
) -> None:
    async with backend.create(SandboxSpec(limits=limits)) as box:
        await sh(box, "mkdir kept")
        copy = await box.fork()
        await copy.stop()
        await sh(box, "true")
        before = len(list(store.glob("owners/*/*")))
        for number in range(25):
            copy = await box.fork()
            await sh(copy, f"test ! -e {number}; rm -r kept; echo other > {number - 1}")
            await copy.stop()
            await sh(box, f"echo {number} > {number}; mv {number} kept/; ln kept/{number} {number}")
        assert await sh(box, "cat kept/0 24; ls | wc -l; ls kept | wc -l") == "0\n24\n26\n25"
        assert len(list(store.glob("owners/*/*"))) < before + 10
        assert {path: kind for path, kind in (await changed(box)).items() if kind != "added"} == {}


async def test_what_a_living_copy_or_a_snapshot_shows_does_not_change(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec()) as box:
        await sh(box, "echo 1 > file")
        snapshot = await box.snapshot()
        await sh(box, "echo 2 > file")
        copy = await box.fork()
        await sh(box, "echo 3 > file")
        gone = await box.fork()
        await gone.stop()
        await sh(box, "echo 4 > file")
        restored = backend.create(SandboxSpec(), snapshot=snapshot)
        await restored.start()
        assert [await sh(item, "cat file") for item in (restored, copy, box)] == ["1", "2", "4"]
        await copy.stop()
        await restored.stop()
        await backend.discard(snapshot)


async def test_a_sandbox_with_running_processes_forks_as_it_stands(box: LocalSandbox) -> None:
    writer = "i=0; while true; do i=$((i+1)); echo $i > t; mv t a; echo $i > t; mv t b; done"
    process = await box.process(writer)
    await box.exec("while ! test -s b; do sleep 0.02; done", timeout=30)
    forks = [await box.fork() for _ in range(3)]
    for fork in forks:
        first, second = (await sh(fork, "cat a b; echo")).split()
        assert 0 <= int(first) - int(second) <= 1, "the files of a fork are not of one moment"
        assert "$i > t" not in await sh(fork, "ps axww --no-headers"), "processes are not forked"
        await fork.stop()
    before = int(await sh(box, "cat a"))
    await box.exec(f"while test $(cat a) -le {before}; do sleep 0.02; done", timeout=30)
    await process.kill()


async def test_a_fork_after_its_processes_were_ended_shares_the_layer(box: LocalSandbox, store: Path) -> None:
    await box.process("head -c 50000000 /dev/zero > big; echo x > marked; sleep 1000")
    await box.exec("while ! test -s marked; do sleep 0.02; done", timeout=30)
    await box.kill_processes()
    fork = await box.fork()
    assert written(store, "app/marked") == 1
    await fork.stop()


async def test_a_fork_keeps_settings_and_takes_new_mounts_and_network(backend: LocalBackend, tmp_path: Path) -> None:
    (tmp_path / "hidden").write_text("for the verifier")
    spec = SandboxSpec(env={"WORD": "w"}, limits=Limits(pids=50), network=NetworkPolicy("allowlist", ("example.org",)))
    async with backend.create(spec) as box:
        assert "egress0" in await sh(box, "cat /proc/net/dev")
        fork = await box.fork(mounts=[Mount(tmp_path, "/verifier")], network=NetworkPolicy("none"))
        assert await sh(fork, "echo $WORD; cat /verifier/hidden", user="root") == "w\nfor the verifier"
        assert "egress0" not in await sh(fork, "cat /proc/net/dev")
        assert "egress0" in await sh(box, "cat /proc/net/dev")
        assert (await box.exec("ls /verifier")).exit_code != 0
        await fork.stop()


async def test_a_snapshot_can_be_come_back_to_again_and_again(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec()) as box:
        await sh(box, "echo good > state")
        snapshot = await box.snapshot()
        await sh(box, "echo bad > state")
    for _ in range(2):
        async with backend.create(SandboxSpec(), snapshot=snapshot) as again:
            assert await sh(again, "cat state; echo worse > state") == "good"
            assert await changed(again) == {"/app/state": "added"}
    await backend.discard(snapshot)
    with pytest.raises(UsageError, match="Unknown snapshot"):
        backend.create(SandboxSpec(), snapshot=snapshot)


async def test_a_sandbox_from_a_snapshot_that_was_never_started_lets_go_of_it(
    backend: LocalBackend, store: Path
) -> None:
    async with backend.create(SandboxSpec()) as box:
        await sh(box, "echo x > file")
        snapshot = await box.snapshot()
    unused = backend.create(SandboxSpec(), snapshot=snapshot)
    await unused.stop()
    await backend.discard(snapshot)
    with anyio.fail_after(10):
        while written(store, "app/file"):  # noqa: ASYNC110 - a helper process removes it
            await anyio.sleep(0.01)


async def test_changes_say_what_was_added_changed_and_deleted(box: LocalSandbox) -> None:
    assert await box.changes() == []
    await sh(box, "echo x > new; mkdir -p d/e; ln -s new link; mkfifo d/pipe")
    await sh(box, "echo more >> /etc/profile; rm /etc/issue", user="root")
    found = {(change.path, change.kind, change.type) for change in await box.changes()}
    assert found == {
        ("/app/new", "added", "file"),
        ("/app/d", "added", "directory"),
        ("/app/d/e", "added", "directory"),
        ("/app/d/pipe", "added", "special"),
        ("/app/link", "added", "symlink"),
        ("/etc/profile", "changed", "file"),
        ("/etc/issue", "deleted", "file"),
    }


async def test_changes_below_usr_count_like_all_others(box: LocalSandbox) -> None:
    result = await box.exec("rm /usr/bin/env && echo x > /usr/bin/made", user="root")
    if result.ok:
        assert await changed(box) == {"/usr/bin/env": "deleted", "/usr/bin/made": "added"}
    else:  # the machine's files belong to nobody inside: they cannot be changed at all
        assert await changed(box) == {}


async def test_a_fork_can_have_chosen_paths_as_they_were_built(box: LocalSandbox) -> None:
    await sh(box, "echo mine > kept; mkdir d; echo x > d/gone; ln -s /etc link")
    await sh(
        box, "echo evil >> /etc/profile; rm /etc/issue; rm -r /etc/skel; echo s > /etc/skel; mkdir /etc/new", "root"
    )
    told: list[str] = []

    def unwanted(changes: Sequence[Change]) -> list[str]:
        told.extend(change.path for change in changes)
        assert {change.target for change in changes if change.type == "symlink"} == {"/etc"}
        return ["/etc", "/app/d"]

    fork = await box.fork(revert=unwanted)
    assert {"/etc/profile", "/etc/issue", "/etc/skel", "/etc/new", "/app/kept", "/app/d"} <= set(told)
    assert await changed(fork) == {"/app/kept": "added", "/app/link": "added"}
    assert (
        await sh(fork, "ls; grep -c evil /etc/profile || true; test -d /etc/skel && echo folder")
        == "kept\nlink\n0\nfolder"
    )
    assert await sh(box, "cat d/gone; grep -c evil /etc/profile") == "x\n1"
    await fork.stop()


async def test_an_upper_folder_of_the_caller_becomes_a_layer(backend: LocalBackend, store: Path) -> None:
    from benchflow.sandbox.protocol import Image

    upper = store / "layers" / "made-by-test"
    upper.mkdir()
    async with backend.create(SandboxSpec(user="root", workdir="/"), upper=upper) as box:
        await sh(box, "mkdir /srv/made && echo built > /srv/made/file && echo x > /usr/local/tool && rm /etc/issue")
    assert (upper / "srv/made/file").read_text() == "built\n"
    image = Image("made", "sha256:0", layers=(upper,), base="host")
    async with backend.create(SandboxSpec(image=image, workdir="/srv/made")) as box:
        assert await sh(box, "cat file /usr/local/tool; ls /etc/issue 2>&1 | grep -c cannot") == "built\nx\n1"
        assert await sh(box, "id -un; echo more >> file; stat -c %U . file") == "agent\nagent\nagent"
        assert await changed(box) == {"/srv/made/file": "changed"}
