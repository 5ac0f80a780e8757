"""What the store keeps, and what pruning selects and removes beside processes that use it."""

import json
import os
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from benchflow.cli import main
from benchflow.sandbox.images import LayerStore
from benchflow.sandbox.images.cached_layers import Entry, entries, prunable, remove
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_sources import add_rootfs, work_folder
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import NetworkPolicy, SandboxSpec
from benchflow.sandbox.store_use import StoreUse

LONG_AGO = time.time() - 40 * 86400


@pytest.fixture
def command(store, monkeypatch, capsys):
    """Run `bench cache` on the store; gives what it printed as JSON."""
    monkeypatch.setenv("BENCHCUBE_STORE", str(store.root))

    async def run(*words):
        assert await anyio.to_thread.run_sync(main, ["cache", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


async def write(folder):
    (folder / "built").write_text("y" * 1000)


def last_used(store, key, when):
    os.utime(store.root / "used" / key, (when, when))


def names(found):
    return [part["name"] for part in found]


@pytest.mark.anyio
async def test_pruning_frees_built_layers_and_keeps_registered_images(registry, store, tmp_path, command):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("x" * 10)
    await add_rootfs(registry, "base:1", tmp_path / "root")
    for key in ("old", "new"):
        await store.layer(key, write)
    last_used(store, "old", LONG_AGO)
    (store.root / "proofs/package").mkdir(parents=True)
    (store.root / "proofs/package/p.json").write_text("{}")
    (store.root / "downloads").mkdir()
    (store.root / "downloads/part").write_text("abc")
    store.use.close()
    shown = {row["kind"]: row["count"] for row in (await command("show"))["kinds"]}
    expected = {"images": 1, "layers": 2, "userland": 0, "proofs": 1, "gains": 0, "downloads": 1, "leftovers": 0}
    expected |= {"packages": 0, "repositories": 0}
    assert shown == expected
    assert names((await command("prune", "--older-than", "30d", "--dry-run"))["removed"]) == ["old"]
    assert store.has("old")
    planned = await command("prune", "--unused", "--dry-run")
    done = await command("prune", "--unused")
    assert planned["removed"] == done["removed"]
    assert sorted(names(done["removed"])) == ["new", "old", "p.json", "part"]
    assert [path.name for path in store.layers.iterdir()] == list(registry.get("base:1").layers)
    assert list(store.temporary.iterdir()) == []


@pytest.mark.anyio
async def test_a_layer_that_a_process_asked_for_is_kept_until_it_ends(store, command):
    await store.layer("mine", write)
    other = LayerStore(store.root)
    await other.layer("others", write)
    store.use.close()
    for words in (("--unused", "--dry-run"), ("--unused",), ("--max-size", "0MB")):
        assert names((await command("prune", *words))["in_use"]) == ["others"]
    assert (store.has("mine"), store.has("others")) == (False, True)
    assert await other.is_whole("others")
    del other
    assert names((await command("prune", "--unused"))["removed"]) == ["others"]


@pytest.mark.anyio
async def test_the_last_use_is_recorded_whatever_the_access_time_says(store):
    await store.layer("key", write)
    path = store.path("key")
    last_used(store, "key", LONG_AGO)
    os.utime(path, (time.time(), LONG_AGO))
    assert store.use.last(path) == pytest.approx(LONG_AGO)
    assert await LayerStore(store.root).is_whole("key")
    assert store.use.last(path) > LONG_AGO + 1000


@pytest.mark.anyio
async def test_what_is_worked_on_is_no_leftover_and_what_a_killed_process_left_is(registry, store, command):
    killed = store.temporary / "import-1.2"
    killed.mkdir()
    (killed / "part").write_text("x")
    async with work_folder(registry) as busy, store.locked("blob"):
        (store.root / "downloads").mkdir()
        (store.root / "downloads/blob").write_text("x")
        pruned = await command("prune", "--unused")
        assert (names(pruned["removed"]), sorted(names(pruned["in_use"]))) == (
            ["import-1.2"],
            sorted([busy.name, "blob"]),
        )
        assert busy.is_dir()
    assert list(store.temporary.iterdir()) == []
    assert names((await command("prune", "--unused", "--kind", "downloads"))["removed"]) == ["blob"]


@pytest.mark.anyio
async def test_an_image_that_is_registered_before_its_layer_is_removed_keeps_it(registry, store, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("x")
    record = await add_rootfs(registry, "base:1", tmp_path / "root")
    registry.folder.joinpath("base%3A1.json").rename(tmp_path / "record")
    store.use.close()
    (layer,) = entries(registry)
    assert layer.kind == "layers"
    (tmp_path / "record").rename(registry.folder / "base%3A1.json")
    assert not await remove(registry, layer)
    await registry.require_whole(record)


def layer(name, *, used, below=(), in_use=False, kind="layers"):
    return Entry(kind, Path(name), 10, used, in_use, tuple(below))


def test_with_a_layer_goes_what_was_built_on_it_and_before_it():
    stack = [layer("a", used=1), layer("b", used=2, below="a"), layer("c", used=3, below="ab"), layer("x", used=4)]
    chosen = prunable(stack, kinds=["layers"], max_size=35)
    assert [entry.path.name for entry in chosen] == ["c", "b", "a"]
    user = layer("prepared", used=9, below="a", kind="userland")
    assert user in prunable([*stack, user], kinds=["layers"], before=2)


def test_a_layer_stays_while_something_built_on_it_is_in_use():
    stack = [layer("a", used=1), layer("b", used=2, below="a", in_use=True), layer("x", used=3)]
    assert [entry.path.name for entry in prunable(stack, kinds=["layers"], before=9)] == ["x"]


def test_pruning_without_a_criterion_is_wrong_usage(capsys):
    assert main(["cache", "prune"]) == 2
    assert "--older-than" in capsys.readouterr().err


@pytest.mark.anyio
async def test_both_forms_of_a_layer_belong_to_its_image_and_only_the_chosen_orphan_goes(registry, store, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("x")
    (key,) = (await add_rootfs(registry, "base:1", tmp_path / "root")).layers
    mapped = LayerStore(store.root, FileWork(mapped=True))
    for path in (mapped.path(key), store.path("orphan"), mapped.path("orphan")):
        path.mkdir()
    found = {entry.path.name: entry for entry in entries(registry)}
    kinds = {name: entry.kind for name, entry in found.items()}
    assert kinds == {key: "images", f"{key}-ids": "images", "orphan": "layers", "orphan-ids": "layers"}
    await remove(registry, found["orphan"])
    assert (store.has("orphan"), mapped.has("orphan")) == (False, True)
    if os.geteuid() == 0:  # others need a granted range for it
        await remove(registry, found["orphan-ids"])
        assert not mapped.has("orphan")


@pytest.mark.anyio
async def test_a_store_that_does_not_exist_holds_nothing_and_lists_nothing(tmp_path):
    use = StoreUse(tmp_path / "nowhere")
    await use.hold("layer")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.anyio
@pytest.mark.slow
async def test_builds_and_sandboxes_succeed_while_the_store_is_pruned_all_the_time(tmp_path, context, command, store):
    (context / "Dockerfile").write_text("FROM any:1\nRUN echo one > /one\nRUN echo two > /two\n")
    ended = anyio.Event()

    async def prune():
        while not ended.is_set():
            await command("prune", "--unused")
            await anyio.sleep(0.05)  # leave the processor to the jobs

    async def job():
        backend = LocalBackend(store.root)
        try:
            image = await backend.build(context, base_image="host", network=NetworkPolicy("none"))
            async with backend.create(SandboxSpec(image=image, workdir="/app")) as sandbox:
                assert (await sandbox.exec(["cat", "/one", "/two"])).stdout == b"one\ntwo\n"
        finally:
            await backend.close()

    async with anyio.create_task_group() as pruning:
        pruning.start_soon(prune)
        async with anyio.create_task_group() as jobs:
            for _ in range(2):
                jobs.start_soon(job)
        await job()
        ended.set()
    await command("prune", "--unused")
    assert [list(folder.iterdir()) for folder in (store.layers, store.temporary, store.root / "used")] == [[], [], []]
