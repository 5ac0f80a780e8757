"""Images come from a registry into the store, whole and verified, or not at all."""

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.distribution import ImageUnavailable, PullSettings, obtain_image, pull_image
from benchflow.sandbox.images.layer_tree import LayerTree
from benchflow.sandbox.images.oci import machine_architecture

pytestmark = pytest.mark.anyio


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
