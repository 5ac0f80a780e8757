"""What the store keeps, and what pruning selects and removes."""

import json
import os

import pytest

from benchflow.cli import main
from benchflow.sandbox.images import LayerStore
from benchflow.sandbox.images.cached_layers import entries, remove
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_sources import add_rootfs


@pytest.mark.anyio
async def test_pruning_frees_built_layers_and_keeps_registered_images(registry, store, tmp_path, monkeypatch, capsys):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("x" * 10)
    await add_rootfs(registry, "base:1", tmp_path / "root")

    async def make(folder):
        (folder / "built").write_text("y" * 1000)

    for key in ("old", "new"):
        await store.layer(key, make)
    os.utime(store.path("old"), (1, 1))
    (store.root / "proofs").mkdir()
    (store.root / "proofs/p.json").write_text("{}")
    monkeypatch.setenv("BENCHCUBE_STORE", str(store.root))
    assert main(["cache", "show", "--json"]) == 0
    shown = {row["kind"]: row["count"] for row in json.loads(capsys.readouterr().out)["kinds"]}
    assert shown == {"images": 1, "layers": 2, "userland": 0, "proofs": 1, "gains": 0}
    assert main(["cache", "prune", "--older-than", "30d", "--dry-run", "--json"]) == 0
    assert [part["name"] for part in json.loads(capsys.readouterr().out)["removed"]] == ["old"]
    assert store.has("old")


@pytest.mark.parametrize(("options", "left"), [(["--older-than", "30d"], ["new"]), (["--unused"], [])])
def test_what_is_selected_is_removed_whole(store, monkeypatch, capsys, options, left):
    for key in ("old", "new"):
        store.path(key).mkdir()
        (store.path(key) / "file").write_text("z")
    os.utime(store.path("old"), (1, 1))
    monkeypatch.setenv("BENCHCUBE_STORE", str(store.root))
    assert main(["cache", "prune", *options]) == 0
    assert "removed" in capsys.readouterr().out
    assert [path.name for path in store.layers.iterdir()] == left
    assert list((store.root / "tmp").iterdir()) == []


def test_pruning_without_a_criterion_is_wrong_usage(capsys):
    assert main(["cache", "prune"]) == 2
    assert "--older-than" in capsys.readouterr().err


@pytest.mark.anyio
async def test_both_forms_of_a_layer_belong_to_its_image_and_only_the_chosen_orphan_goes(registry, store, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("x")
    (layer,) = (await add_rootfs(registry, "base:1", tmp_path / "root")).layers
    mapped = LayerStore(store.root, FileWork(mapped=True))
    for path in (mapped.path(layer), store.path("orphan"), mapped.path("orphan")):
        path.mkdir()
    found = {entry.path.name: entry for entry in entries(registry)}
    kinds = {name: entry.kind for name, entry in found.items()}
    assert kinds == {layer: "images", f"{layer}-ids": "images", "orphan": "layers", "orphan-ids": "layers"}
    await remove(registry, found["orphan"])
    assert (store.has("orphan"), mapped.has("orphan")) == (False, True)
    if os.geteuid() == 0:  # others need a granted range for it
        await remove(registry, found["orphan-ids"])
        assert not mapped.has("orphan")


@pytest.mark.anyio
async def test_nothing_is_pruned_while_an_image_is_pulled(store, monkeypatch):
    store.path("built").mkdir()
    monkeypatch.setenv("BENCHCUBE_STORE", str(store.root))
    async with store.locked("pull-x"):
        assert main(["cache", "prune", "--unused"]) != 0
    assert store.has("built")
    assert not store.in_use()
