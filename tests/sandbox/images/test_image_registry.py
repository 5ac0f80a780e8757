"""Names stand for layers; a name has one spelling and a removed image takes along only what it alone needs."""

import pytest

from benchflow.errors import EnvironmentFailure, InfrastructureFailure, UsageError
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord, canonical_name
from benchflow.sandbox.protocol import Healthcheck

pytestmark = pytest.mark.anyio


async def add(registry, name, *layers, config=None):
    async def nothing(folder):
        (folder / "x").write_text(name)

    for key in layers:
        await registry.store.layer(key, nothing)
    record = ImageRecord(canonical_name(name), layers, config or ImageConfig(), "test", "2026-01-01", 1)
    registry.save(record)
    return record


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("debian", "debian:latest"),
        ("debian:12", "debian:12"),
        ("docker.io/library/debian", "debian:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/me/app", "me/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("ghcr.io/a/b:1.0", "ghcr.io/a/b:1.0"),
        ("a@sha256:abcd", "a@sha256:abcd"),
    ],
)
async def test_an_image_name_has_one_spelling(name, canonical):
    assert canonical_name(name) == canonical
    assert canonical_name(canonical) == canonical


@pytest.mark.parametrize("name", ["", "UPPER", "a b", "../x", "-x", "a" * 300, "x/", "x:"])
async def test_what_is_no_image_name_is_refused(name):
    with pytest.raises(UsageError):
        canonical_name(name)


async def test_a_registered_image_is_found_under_every_spelling(registry):
    record = await add(registry, "debian:12", "one", "two")
    found = registry.get("docker.io/library/debian:12")
    assert found == record
    image = registry.image(found)
    assert image.layers == (registry.store.path("one"), registry.store.path("two"))
    assert image.digest == record.digest
    assert (image.base, image.fidelity) == ("debian:12", "exact")


async def test_settings_survive_registration(registry):
    config = ImageConfig(
        env={"PATH": "/bin", "EMPTY": "", "EQ": "a=b"},
        workdir="/w",
        user="me",
        entrypoint=("a",),
        command=("b", "c"),
        shell=("/bin/bash", "-c"),
        healthcheck=Healthcheck(("x", "y"), 1.5, 2.0, 3.0, 4.0, 5),
        ports=("80/tcp",),
        volumes=("/v",),
        labels={"k": "v"},
        stop_signal="SIGINT",
        maintainer="m",
        triggers=("RUN x",),
    )
    await add(registry, "full", "one", config=config)
    assert registry.get("full").config == config


async def test_removing_keeps_layers_that_others_need(registry):
    await add(registry, "a", "shared", "own")
    await add(registry, "b", "shared")
    registry.store.use.close()
    removal = await registry.remove("a")
    assert (removal.record.name, removal.shared, removal.busy) == ("a:latest", {"shared": ("b:latest",)}, ())
    assert registry.get("a") is None
    assert registry.store.has("shared")
    assert not registry.store.has("own")
    assert [record.name for record in registry.all()] == ["b:latest"]
    assert await registry.remove("a") is None


async def test_an_image_whose_layer_is_missing_is_still_registered(registry):
    await add(registry, "a", "one")
    await registry.store.remove("one")
    assert registry.get("a") in registry.all()


async def test_a_record_that_cannot_be_read_is_said(registry):
    await add(registry, "a", "one")
    (path,) = registry.folder.iterdir()
    path.write_text("{")
    with pytest.raises(InfrastructureFailure, match="cannot be read"):
        registry.get("a")


async def test_resolving_an_unknown_image_says_what_helps(backend):
    with pytest.raises(EnvironmentFailure, match="bench images add nobody:latest") as caught:
        await backend.resolve("nobody")
    assert caught.value.code == "image-missing"
