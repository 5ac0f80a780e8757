"""Images come from a registry into the store, whole and verified, or not at all."""

import gzip
import hashlib
import os
import re

import anyio
import pytest
import zstandard

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.distribution import (
    ImageUnavailable,
    PullSettings,
    obtain_image,
    pull_image,
    registry_client,
)
from benchflow.sandbox.images.distribution.pull import LEARNED
from benchflow.sandbox.images.layer_tree import LayerTree
from benchflow.sandbox.images.oci import machine_architecture

pytestmark = pytest.mark.anyio


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read(images, record, path):
    tree = LayerTree(images.image(record).layers)
    return tree.find(path).source.read_text()


async def test_an_image_that_is_not_in_the_store_is_pulled_with_its_layers_and_settings(served, images, layer):
    pushed = served.push("plain", layer(a="low", b="low"), layer(b="high"), Env=["X=1"], WorkingDir="/w")
    record = await obtain_image(images, served.name("plain"))
    assert (read(images, record, "/a"), read(images, record, "/b")) == ("low", "high")
    assert (record.config.workdir, record.config.env["X"]) == ("/w", "1")
    assert record.manifests == (pushed["digest"],)
    assert record.platform == f"linux/{machine_architecture()}"
    assert images.get(served.name("plain")) == record


@pytest.mark.parametrize("form", ["oci", "docker"])
async def test_an_index_gives_the_image_of_the_platform(served, images, layer, form):
    here = served.push("many", layer(p="here"), tag=None, form=form)
    other = served.push("many", layer(p="other"), tag=None, form=form, architecture="s390x")
    index = served.push_index("many", {"linux/s390x": other, f"linux/{machine_architecture()}": here}, form=form)
    record = await pull_image(images, served.name("many"))
    assert read(images, record, "/p") == "here"
    assert record.manifests == (index["digest"], here["digest"])
    foreign = await pull_image(images, served.name("many"), settings=PullSettings(platform="linux/s390x"))
    assert read(images, foreign, "/p") == "other"
    assert read(images, await obtain_image(images, served.name("many")), "/p") == "here"
    with pytest.raises(EnvironmentFailure, match="does not exist for linux/riscv64; the registry has it for .*s390x"):
        await pull_image(images, served.name("many"), settings=PullSettings(platform="linux/riscv64"))


async def test_never_asks_no_registry(images):
    with pytest.raises(ImageUnavailable, match="is not in the store") as caught:
        await obtain_image(images, "127.0.0.1:1/x", settings=PullSettings("never"))
    assert caught.value.code == "image-missing"


async def test_a_tag_that_moved_is_pulled_again_by_always_only(served, images, layer):
    name = served.name("moving")
    first = served.push("moving", layer(a="old"))
    await obtain_image(images, name)
    second = served.push("moving", layer(a="new"))
    assert (await obtain_image(images, name)).manifests == (first["digest"],)
    LEARNED.clear()
    renewed = await obtain_image(images, name, settings=PullSettings("always"))
    assert renewed.manifests == (second["digest"],)
    assert read(images, renewed, "/a") == "new"
    assert await obtain_image(images, f"{name}@{second['digest']}", settings=PullSettings("never")) == renewed


async def test_a_broken_blob_is_named_and_leaves_nothing(served, images, layer):
    data = layer(a="broken later")
    served.push("broken", layer(b="good"), data)
    blob = served.stored_blob(digest_of(data))
    blob.write_bytes(b"x" * len(data))
    with pytest.raises(EnvironmentFailure, match=f"{digest_of(data)} does not match its digest") as caught:
        await pull_image(images, served.name("broken"))
    assert (caught.value.code, isinstance(caught.value, ImageUnavailable)) == ("image-invalid", False)
    assert images.all() == []
    left = [path for name in ("layers", "downloads", "tmp") for path in (images.store.root / name).iterdir()]
    assert digest_of(data).removeprefix("sha256:") not in {path.name.partition(".")[0] for path in left}


async def test_a_download_that_is_cut_continues_where_it_stopped(served, images, layer, serve, cutter):
    served.push("long", layer(a=os.urandom(400_000)))
    front = cutter(served.port, times=2)
    with serve(front) as port:
        record = await pull_image(images, f"127.0.0.1:{port}/long:1")
    assert (images.store.path(record.layers[0]) / "a").stat().st_size == 400_000
    ranges = [re.search(r"Range: bytes=(\d+)-", text) for text in front.blobs[-2:]]
    assert all(found and int(found[1]) > 50_000 for found in ranges)


async def test_a_later_command_continues_what_an_earlier_one_had_to_give_up(served, images, layer, serve, cutter):
    data = layer(a=os.urandom(400_000))
    served.push("given-up", data)
    broken = cutter(served.port, after=150_000, times=99)
    broken.only_the_first = True
    with serve(broken) as port, pytest.raises(EnvironmentFailure, match="was cut.*try again to continue") as caught:
        await pull_image(images, f"127.0.0.1:{port}/given-up:1")
    assert caught.value.code == "pull-interrupted"
    assert images.all() == []
    whole = cutter(served.port, times=0)
    with serve(whole) as port:
        await pull_image(images, f"127.0.0.1:{port}/given-up:1")
    assert int(re.search(r"Range: bytes=(\d+)-", whole.blobs[-1])[1]) > 100_000
    assert list((images.store.root / "downloads").iterdir()) == []


async def test_many_who_want_one_image_cause_one_download(served, images, layer, serve, cutter):
    served.push("wanted", layer(a="a"), layer(b="b"))
    counter = cutter(served.port, times=0)
    with serve(counter) as port:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(obtain_image, images, f"127.0.0.1:{port}/wanted:1")
    assert len(counter.blobs) == 3
    assert len(counter.requests) == 5


async def test_progress_reaches_the_whole_and_ends(served, images, layer):
    served.push("shown", layer(a=os.urandom(100_000)), layer(b="b"))
    seen = []
    await pull_image(images, served.name("shown"), settings=PullSettings(on_progress=seen.append))
    assert seen[0].done == 0
    assert seen[-1].finished
    assert seen[-1].done == seen[-1].total > 100_000


async def test_a_pin_is_what_is_pulled_even_when_the_tag_moved(served, images, layer):
    name = served.name("pinned")
    old = served.push("pinned", layer(a="old"))
    served.push("pinned", layer(a="new"))
    settings = PullSettings(pins={name: old["digest"]})
    assert read(images, await obtain_image(images, name, settings=settings), "/a") == "old"
    assert read(images, await obtain_image(images, name), "/a") == "new"
    assert read(images, await obtain_image(images, name, settings=settings), "/a") == "old"


async def test_a_registry_that_has_another_digest_than_the_pinned_one_is_refused(served, images, layer):
    pushed = served.push("drifted", layer(a="a"))
    wanted = "sha256:" + "0" * 64
    with pytest.raises(EnvironmentFailure, match=f"as {pushed['digest']}, but {wanted} is required") as caught:
        await obtain_image(images, served.name("drifted"), settings=PullSettings(pins={served.name("drifted"): wanted}))
    assert (caught.value.code, isinstance(caught.value, ImageUnavailable)) == ("image-digest-differs", False)
    assert images.all() == []


async def test_a_server_that_sends_another_manifest_than_asked_for_is_refused(served, images, layer, web):
    wanted = served.push("liar", layer(a="a"))["digest"]
    other = served.push("other", layer(a="b"))["digest"]

    def liar(method, path, headers, body):
        return served.forward(path.replace(f"liar/manifests/{wanted}", f"other/manifests/{other}"), headers)

    with web(liar) as port, pytest.raises(EnvironmentFailure, match=f"sent {other} for {wanted}") as caught:
        await pull_image(images, f"127.0.0.1:{port}/liar@{wanted}")
    assert caught.value.code == "image-digest-differs"


async def test_an_image_that_the_registry_does_not_have_is_said_to_be_missing(served, images):
    with pytest.raises(ImageUnavailable, match=r"nothing:1 cannot be pulled: .* does not have it") as caught:
        await pull_image(images, served.name("nothing"))
    assert (caught.value.code, caught.value.reason) == ("image-missing", "not-found")


async def test_a_registry_that_cannot_be_reached_is_asked_once(images, serve):
    asked = []

    def close(connection):
        asked.append(connection)
        connection.close()

    with serve(close) as port:
        counts = set()
        for name in ("a", "b", "a"):
            with pytest.raises(ImageUnavailable, match="cannot be reached") as caught:
                await obtain_image(images, f"127.0.0.1:{port}/{name}:1")
            assert caught.value.reason == "unreachable"
            counts.add(len(asked))
        assert len(counts) == 1
        with pytest.raises(ImageUnavailable, match="cannot be reached"):  # as a process that lives longer
            await obtain_image(images, f"127.0.0.1:{port}/a:1", settings=PullSettings(ask_again_sec=0))
        assert len(asked) > max(counts)


async def test_a_silent_registry_is_given_up_after_the_limit(images, serve, monkeypatch):
    monkeypatch.setattr(registry_client, "CONTACT_SEC", 0.3)
    held = []
    with serve(held.append) as port, pytest.raises(ImageUnavailable, match="no answer within 0.3 s"):
        await pull_image(images, f"127.0.0.1:{port}/a:1")


async def test_layers_in_zstd_are_unpacked(served, images, layer):
    plain = gzip.decompress(layer(a="packed"))
    packed = zstandard.ZstdCompressor().compress(plain)
    served.push("zstd", packed, kinds={"layer": "application/vnd.oci.image.layer.v1.tar+zstd"})
    assert read(images, await pull_image(images, served.name("zstd")), "/a") == "packed"


async def test_something_other_than_a_container_image_is_refused(served, images, layer):
    served.push("chart", layer(a="a"), kinds={"config": "application/vnd.cncf.helm.config.v1+json"})
    with pytest.raises(EnvironmentFailure, match="it is not a container image"):
        await pull_image(images, served.name("chart"))


async def test_a_manifest_that_only_the_index_knows_makes_the_image_invalid(served, images, layer, web):
    here = served.push("gap", layer(a="a"), tag=None)
    served.push_index("gap", {f"linux/{machine_architecture()}": here})

    def without(method, path, headers, body):
        return (404, {}, b"{}") if here["digest"] in path else served.forward(path, headers)

    with web(without) as port, pytest.raises(EnvironmentFailure, match="its index lists .* does not have") as caught:
        await pull_image(images, f"127.0.0.1:{port}/gap:1")
    assert (caught.value.code, isinstance(caught.value, ImageUnavailable)) == ("image-invalid", False)


@pytest.mark.parametrize(("config", "wrong"), [(b"no json", "is not JSON"), (b"[]", "is not an object")])
async def test_a_configuration_that_cannot_be_read_makes_the_image_invalid(served, images, layer, config, wrong):
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **served.blob("odd", config)},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **served.blob("odd", layer(a="a"))}],
    }
    served.manifest("odd", "1", manifest, manifest["mediaType"])
    with pytest.raises(EnvironmentFailure, match=wrong) as caught:
        await pull_image(images, served.name("odd"))
    assert caught.value.code == "image-invalid"


async def test_a_layer_that_is_gone_is_pulled_again(served, images, layer):
    served.push("pruned", layer(a="a"))
    record = await pull_image(images, served.name("pruned"))
    await images.store.remove(record.layers[0])
    LEARNED.clear()
    assert read(images, await pull_image(images, served.name("pruned")), "/a") == "a"


async def test_a_registry_that_fails_is_asked_again(images, web):
    asked = []

    def failing(method, path, headers, body):
        asked.append(path)
        return (200, {}, b"{}") if path == "/v2/" else (500, {}, b"{}")

    with web(failing) as port:
        for count in (1, 2):
            with pytest.raises(ImageUnavailable, match="answered 500") as caught:
                await pull_image(images, f"127.0.0.1:{port}/x:1")
            assert caught.value.reason == "failed"
            assert len([path for path in asked if "manifests" in path]) == count


async def test_what_was_refused_is_asked_for_again_with_other_credentials(images, web):
    asked = []

    def refusing(method, path, headers, body):
        asked.append(path)
        return (200, {}, b"{}") if path == "/v2/" else (403, {}, b"{}")

    with web(refusing) as port:
        name = f"127.0.0.1:{port}/x:1"
        for password, count in (("a", 1), ("a", 1), ("b", 2)):
            with pytest.raises(ImageUnavailable, match="answered 403"):
                await pull_image(images, name, settings=PullSettings(credentials={name: f"ann:{password}"}))
            assert len([path for path in asked if "manifests" in path]) == count
