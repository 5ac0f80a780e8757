"""Which image a package runs on: the one it names, else the one its Dockerfile builds, else a substitute."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchflow.errors import EnvironmentFailure, UnsupportedError, UsageError
from benchflow.sandbox.factory import find_image, prepare, task_package
from benchflow.sandbox.protocol import Image
from benchflow.sandbox.pulling import PullSettings
from benchflow.sandbox.task_policy import declared_image
from benchflow.testing import InMemoryBackend

pytestmark = pytest.mark.anyio


class Backend(InMemoryBackend):
    """Has the images it is given; its builds succeed if the base image of the Dockerfile, `base:1`, is among them."""

    def __init__(self, *images):
        super().__init__()
        self.images = images

    async def resolve(self, image):
        if image not in self.images:
            raise EnvironmentFailure(f"There is no {image}.", code="image-missing")
        return Image(image, f"sha256:{image}", base=image)

    async def build(self, context, *, dockerfile="Dockerfile", **options):
        base = options.get("base_image") or "base:1"
        found = await self.resolve(base)
        return replace(found, reference="built", fidelity="exact" if base == "base:1" else "substituted")


def find(backend, name=None, context=None, base_image=None):
    return find_image(backend, name, context, timeout_sec=60, base_image=base_image, pull=PullSettings())


CONTEXT = Path("environment")


async def test_the_named_image_is_taken_and_nothing_is_built():
    found = await find(Backend("named:1"), "named:1", CONTEXT)
    assert (found.base, found.fidelity, found.instead_of) == ("named:1", "exact", ())


async def test_a_named_image_that_is_not_available_is_built_from_the_dockerfile():
    found = await find(Backend("base:1"), "named:1", CONTEXT)
    assert (found.base, found.fidelity, found.instead_of) == ("base:1", "built", ("named:1",))


async def test_the_dockerfile_goes_before_a_substitute():
    found = await find(Backend("base:1", "other:1"), "named:1", CONTEXT, base_image="other:1")
    assert (found.reference, found.fidelity) == ("built", "substituted")


async def test_without_a_dockerfile_a_substitute_replaces_the_named_image():
    found = await find(Backend("other:1"), "named:1", base_image="other:1")
    assert (found.base, found.fidelity, found.instead_of) == ("other:1", "substituted", ("named:1",))


async def test_neither_image_nor_base_of_the_dockerfile_is_an_error_that_names_both():
    with pytest.raises(EnvironmentFailure, match=r"image named:1 is not available.*There is no base:1") as caught:
        await find(Backend(), "named:1", CONTEXT)
    assert caught.value.code == "image-missing"


async def test_a_package_that_names_nothing_has_no_image():
    assert await find(Backend()) is None


@pytest.mark.parametrize(
    ("key", "dockerfile", "expected"),
    [
        ("base_image", "FROM shared:1", None),
        ("base_image", None, "shared:1"),
        ("image", "FROM shared:1", "shared:1"),
    ],
)
async def test_a_dockerfile_goes_before_the_base_image_of_a_manifest_and_after_its_image(
    make_package, key, dockerfile, expected
):
    files = {"environment.toml": f"[environment]\nname = 'web'\n{key} = 'shared:1'\n"}
    if dockerfile is not None:
        files["environment/Dockerfile"] = dockerfile
    package = make_package("benchflow:\n  environment: {manifest: environment.toml}\n", files)
    assert declared_image(task_package(package).view) == expected


async def test_a_substitute_that_does_not_exist_is_refused_even_if_it_is_not_needed(make_package):
    package = task_package(make_package("environment:\n  network_mode: no-network\n"))
    with pytest.raises(UsageError, match="--base-image nothing:1"):
        await prepare(package, Backend(), base_image="nothing:1")


async def test_a_build_that_just_failed_is_not_tried_again(make_package):
    class Broken(Backend):
        builds = 0

        def __init__(self):
            super().__init__("base:1")
            self.declared |= {"build.dockerfile"}

        async def build(self, context, *, dockerfile="Dockerfile", **options):
            self.builds += 1
            raise EnvironmentFailure("RUN false failed.", code="build-failed", file="Dockerfile", line=2)

    package = task_package(make_package("", {"environment/Dockerfile": "FROM base:1\nRUN false\n"}))
    backend, other = Broken(), Broken()
    for one in (backend, backend, other):
        with pytest.raises(EnvironmentFailure, match="RUN false failed") as caught:
            await prepare(package, one)
        assert (caught.value.file, caught.value.line) == ("environment/Dockerfile", 2)
    assert (backend.builds, other.builds) == (1, 1)
    with pytest.raises(EnvironmentFailure):
        await prepare(package, backend, machine={"BENCHCUBE_PERMITTED_NETWORKS": "192.0.2.0/24"})
    assert backend.builds == 2


async def test_this_machines_userland_is_refused_by_a_backend_that_cannot_use_it():
    with pytest.raises(UnsupportedError, match="--base-image host"):
        await find(Backend(), "named:1", base_image="host")
