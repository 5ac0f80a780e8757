"""Layers of the store are looked at before they are used: what is damaged is made again, or said to be damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images import layer_store
from benchflow.sandbox.images.image_registry import ImageRegistry
from benchflow.sandbox.images.image_sources import add_rootfs
from benchflow.sandbox.images.layer_store import LayerStore
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import SandboxSpec

pytestmark = pytest.mark.anyio


def _truncate(layer: Path) -> None:
    os.truncate(layer / "etc/passwd", 1)


def _rewrite(layer: Path) -> None:
    (layer / "etc/passwd").write_text("r00t")


def _remove(layer: Path) -> None:
    (layer / "etc/passwd").unlink()


def _add(layer: Path) -> None:
    (layer / "etc/more").touch()


def _relink(layer: Path) -> None:
    (layer / "etc/link").unlink()
    (layer / "etc/link").symlink_to("elsewhere")


def _open(layer: Path) -> None:
    (layer / "etc/passwd").chmod(0o666)


def _unseal(layer: Path) -> None:
    os.removexattr(layer, "user.benchcube.seal")


DAMAGE = [_truncate, _rewrite, _remove, _add, _relink, _open, _unseal, shutil.rmtree]


async def make(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc/passwd").write_text("root")
    (folder / "etc/link").symlink_to("passwd")
    (folder / os.fsdecode(b"etc/\xff")).mkdir()


def look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process would."""
    monkeypatch.setattr(layer_store, "_whole", set())


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_layer_is_made_again(
    damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LayerStore(tmp_path)
    layer, existed = await store.layer("key", make)
    assert not existed
    look_again(monkeypatch)
    assert (await store.layer("key", make))[1]
    damage(layer)
    look_again(monkeypatch)
    assert not (await store.layer("key", make))[1]
    assert (layer / "etc/passwd").read_text() == "root"
    assert {path.name for path in (layer / "etc").iterdir()} == {"link", "passwd", os.fsdecode(b"\xff")}
    assert await store.is_whole("key")


async def test_reading_a_layer_does_not_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LayerStore(tmp_path)
    layer, _ = await store.layer("key", make)
    assert (layer / "etc/passwd").read_text() == "root"
    shutil.copytree(tmp_path, tmp_path.parent / "moved", symlinks=True)
    look_again(monkeypatch)
    assert await store.is_whole("key")
    assert await LayerStore(tmp_path.parent / "moved").is_whole("key")


async def test_a_damaged_image_that_was_added_by_hand_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "rootfs"
    (source / "etc").mkdir(parents=True)
    (source / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    backend = LocalBackend(tmp_path / "store")
    registry = ImageRegistry(LayerStore(tmp_path / "store"))
    record = await add_rootfs(registry, "acme/base:1", source)
    try:
        assert (await backend.resolve("acme/base:1")).layers
        _truncate(registry.store.path(record.layers[0]))
        look_again(monkeypatch)
        with pytest.raises(EnvironmentFailure, match=r"acme/base:1 is damaged.*bench images remove") as caught:
            await backend.resolve("acme/base:1")
        assert caught.value.code == "image-damaged"
        await add_rootfs(registry, "acme/base:1", source)
        assert (await backend.resolve("acme/base:1")).layers
    finally:
        await backend.close()


async def test_an_image_whose_layer_was_deleted_is_named_as_damaged_and_can_be_removed(tmp_path: Path) -> None:
    source = tmp_path / "rootfs"
    (source / "etc").mkdir(parents=True)
    backend = LocalBackend(tmp_path / "store")
    registry = ImageRegistry(LayerStore(tmp_path / "store"))
    record = await add_rootfs(registry, "acme/base:1", source)
    shutil.rmtree(registry.store.path(record.layers[0]))
    (tmp_path / "Dockerfile").write_text("FROM acme/base:1\n")
    missing = (
        r"The image acme/base:1 is damaged: its layer \w+ is missing from the store\. Remove it with `bench images"
    )
    try:
        for use in (backend.resolve("acme/base:1"), backend.build(tmp_path)):
            with pytest.raises(EnvironmentFailure, match=missing) as caught:
                await use
            assert caught.value.code == "image-damaged"
        removal = await registry.remove("acme/base:1")
        assert removal is not None
        assert (removal.record, removal.busy) == (record, ())
        assert registry.get("acme/base:1") is None
    finally:
        await backend.close()


@pytest.mark.sandbox
async def test_the_damaged_layer_of_the_machines_userland_is_made_again(tmp_path: Path) -> None:
    for damage in (None, "etc/passwd"):
        backend = LocalBackend(tmp_path / "store")
        try:
            async with backend.create(SandboxSpec()) as box:
                assert (await box.exec("grep ^agent: /etc/passwd")).ok, damage
            (layer,) = (path for path in backend.store.layers.glob("host-*") if not path.name.endswith("folders"))
            os.truncate(layer / "etc/passwd", 0)
        finally:
            await backend.close()
