"""What FROM means: a registered image, nothing (`scratch`), or, where the caller said so, a substitute."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.build.build_stage import Stage
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRegistry, canonical_name

HOST: Final = "host"
SCRATCH: Final = "scratch"
_HOST_FILES: Final = ("/etc/os-release", "/var/lib/dpkg/status", "/var/lib/rpm", "/lib/apk/db/installed")


class Bases:
    """Resolves base images by the registry; `substitute` replaces one that is not registered."""

    def __init__(self, registry: ImageRegistry, substitute: str | None = None) -> None:
        self._registry: Final = registry
        self._substitute: Final = substitute

    async def stage(self, image: str) -> Stage:
        """A fresh stage on `image`; an `EnvironmentFailure` says how to make an unknown image known."""
        if image == SCRATCH:
            return await self._scratch()
        found = await self._registered(image)
        if found is not None:
            return found
        if self._substitute == HOST:
            return host_stage()
        if self._substitute is not None:
            found = await self._registered(self._substitute)
            if found is None:
                raise missing_image(self._substitute)
            return Stage(found.base, found.key, found.config, found.layers, fidelity="substituted")
        raise missing_image(image)

    async def _registered(self, image: str) -> Stage | None:
        record = self._registry.get(image)
        if record is None:
            return None
        await self._registry.require_whole(record)
        return Stage(record.name, record.digest.removeprefix("sha256:"), record.config, record.layers)

    async def _scratch(self) -> Stage:
        key = hashlib.sha256(b"scratch").hexdigest()

        async def nothing(folder: Path) -> None:
            del folder

        await self._registry.store.layer(key, nothing)
        return Stage(SCRATCH, key, ImageConfig(), (key,))


def host_stage() -> Stage:
    """A stage on this machine's userland; its key changes with the packages of the machine."""
    digest = hashlib.sha256(platform.machine().encode())
    for name in _HOST_FILES:
        try:
            status = Path(name).stat()
        except OSError:
            continue
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
    config = ImageConfig()
    return Stage(HOST, digest.hexdigest(), config, on_host=True, fidelity="substituted")


def missing_image(image: str) -> EnvironmentFailure:
    """The image is not available; the message says what provides it."""
    name = canonical_name(image)
    message = (
        f"The base image {name} is not registered on this machine. Add it with "
        f"`bench images add {name} --oci LAYOUT` (or `--rootfs DIR`, `--debootstrap SUITE`, `--engine`), "
        "or run on this machine's userland with `--base-image host`."
    )
    return EnvironmentFailure(message, code="image-missing", path="environment")
