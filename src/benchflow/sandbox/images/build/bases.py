"""What FROM means: an image of the store or of a registry, nothing (`scratch`), or a substitute.

A substitute is what the caller named (`--base-image`), else a registered image that stands for the missing one.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.build.build_stage import Stage
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry, canonical_name

HOST: Final = "host"
SCRATCH: Final = "scratch"
IMAGE_MISSING: Final = "image-missing"
_HOST_FORMAT: Final = "2"
"""Changes with what the host profile consists of."""
_HOST_FILES: Final = ("/etc/os-release", "/var/lib/dpkg/status", "/var/lib/rpm", "/lib/apk/db/installed")

Obtain = Callable[[ImageRegistry, str], Awaitable[ImageRecord]]
"""An image of the store, pulled if it is not there; an `EnvironmentFailure` (`image-missing`) says why it cannot be."""


class Bases:
    """Resolves base images; `substitute` is `host` or a registered image, used for one that is not available."""

    def __init__(self, registry: ImageRegistry, substitute: str | None = None, obtain: Obtain | None = None) -> None:
        self._registry: Final = registry
        self._substitute: Final = substitute
        self._obtain: Final = obtain or registered

    async def stage(self, image: str) -> Stage:
        """A fresh stage on `image` or its substitute; an `EnvironmentFailure` says how to make the image available."""
        try:
            return await self.exact(image)
        except EnvironmentFailure as error:
            if error.code != IMAGE_MISSING:
                raise
            found = await self.substitute(image)
            if found is None:
                raise
            return found

    async def exact(self, image: str) -> Stage:
        """A fresh stage on the very image."""
        if image == SCRATCH:
            return await self._scratch()
        return await self._stage(await self._obtain(self._registry, image))

    async def substitute(self, image: str) -> Stage | None:
        """A fresh stage on what replaces an image that is not available; None if nothing does."""
        if self._substitute == HOST:
            return replace(host_stage(), instead_of=(image,))
        if self._substitute is not None:
            record: ImageRecord | None = await self._obtain(self._registry, self._substitute)
        else:
            record = self._registry.stand_in(image)
        if record is None:
            return None
        return replace(await self._stage(record), fidelity="substituted", instead_of=(image,))

    async def _stage(self, record: ImageRecord) -> Stage:
        await self._registry.require_whole(record)
        key = record.digest.removeprefix("sha256:")
        return Stage(record.name, key, record.config, record.layers, base_digest=record.pin)

    async def _scratch(self) -> Stage:
        key = hashlib.sha256(b"scratch").hexdigest()

        async def nothing(folder: Path) -> None:
            del folder

        await self._registry.store.layer(key, nothing)
        return Stage(SCRATCH, key, ImageConfig(), (key,))


async def registered(registry: ImageRegistry, image: str) -> ImageRecord:
    """An image of the store; nothing is pulled."""
    record = registry.get(image)
    if record is None:
        raise missing_image(image)
    return record


def host_stage() -> Stage:
    """A stage on this machine's userland; its key changes with the packages of the machine."""
    digest = hashlib.sha256(f"{_HOST_FORMAT} {platform.machine()}".encode())
    for name in _HOST_FILES:
        try:
            status = Path(name).stat()
        except OSError:
            continue
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
    config = ImageConfig()
    return Stage(HOST, digest.hexdigest(), config, on_host=True, fidelity="substituted")


def missing_image(image: str, reason: str | None = None) -> EnvironmentFailure:
    """The image is not available; the message says why, and what provides it."""
    from benchflow.sandbox.images.recipes import recipe_for  # loaded when something is missing

    name, recipe = canonical_name(image), recipe_for(image)
    ready = f"create a substitute with `bench images add --recipe {recipe}`, " if recipe is not None else ""
    message = (
        f"{reason or f'The image {name} is not in the store of this machine.'} Add it with "
        f"`bench images add {name} --oci LAYOUT` (or `--rootfs DIR`, `--debootstrap SUITE`, `--engine`), "
        f"{ready}or run on this machine's userland with `--base-image host`."
    )
    return EnvironmentFailure(message, code=IMAGE_MISSING, path="environment")
