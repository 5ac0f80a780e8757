"""Layers are made once, published whole, and never half there."""

import errno
import os
import sys

import anyio
import pytest

from benchflow.errors import InfrastructureFailure
from benchflow.sandbox.images.layer_store import LayerStore
from benchflow.sandbox.inside.removal import remove_tree

pytestmark = pytest.mark.anyio

CHILD = """
import sys, time, os, anyio
from pathlib import Path
from benchflow.sandbox.images.layer_store import LayerStore

async def make(folder):
    with open(sys.argv[2], "a") as log:
        log.write("made\\n")
    await anyio.sleep(0.2)
    (folder / "file").write_text("whole")

async def main():
    path, _ = await LayerStore(Path(sys.argv[1])).layer("key", make)
    assert (path / "file").read_text() == "whole"

anyio.run(main)
"""


async def test_many_tasks_make_a_layer_once(store):
    made = 0

    async def make(folder):
        nonlocal made
        made += 1
        await anyio.sleep(0.02)
        (folder / "file").write_text("x")

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(store.layer, "key", make)
    assert made == 1
    assert (store.path("key") / "file").read_text() == "x"


@pytest.mark.slow
async def test_many_processes_make_a_layer_once(store, tmp_path):
    log = tmp_path / "log"
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(anyio.run_process, [sys.executable, "-c", CHILD, str(store.root), str(log)])
    assert log.read_text() == "made\n"


async def test_a_failed_layer_leaves_nothing_and_can_be_made_again(store):
    async def fail(folder):
        (folder / "half").write_text("half")
        raise RuntimeError("no")

    async def succeed(folder):
        (folder / "whole").write_text("whole")

    with pytest.raises(RuntimeError):
        await store.layer("key", fail)
    assert not store.has("key")
    assert list((store.root / "tmp").iterdir()) == []
    path, existed = await store.layer("key", succeed)
    assert not existed
    assert [p.name for p in path.iterdir()] == ["whole"]


async def test_a_cancelled_layer_leaves_nothing(store):
    async def forever(folder):
        (folder / "half").write_text("half")
        await anyio.sleep_forever()

    with anyio.move_on_after(0.05):
        await store.layer("key", forever)
    assert not store.has("key")
    assert list((store.root / "tmp").iterdir()) == []


async def test_what_a_killed_maker_left_is_removed_by_the_next(store):
    leftover = store.root / "tmp" / "key.dead"
    (leftover / "locked").mkdir(parents=True)
    (leftover / "locked").chmod(0)

    async def make(folder):
        assert not leftover.exists()

    await store.layer("key", make)


async def test_a_full_disk_is_said_in_one_sentence(store):
    async def make(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InfrastructureFailure, match="No space left") as caught:
        await store.layer("key", make)
    assert caught.value.code == "disk-full"
    assert list((store.root / "tmp").iterdir()) == []


async def test_a_store_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((InfrastructureFailure, NotADirectoryError)):
        LayerStore(tmp_path / "file" / "store").prepare()


async def test_only_the_owner_can_enter_a_store(store):
    assert store.root.stat().st_mode & 0o777 == 0o700


async def test_removing_copes_with_folders_too_deep_for_any_path(tmp_path):
    top = tmp_path / "deep"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 100, dir_fd=folder)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    remove_tree(top)
    assert not top.exists()


async def test_removing_follows_no_link(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "a")
    assert (tmp_path / "kept" / "file").read_text() == "x"


async def test_removing_copes_with_folders_without_permissions(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b").chmod(0)
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
