"""Named images of the local backend: which layers belong to a name.

One JSON file per name below `images/` of the store, written whole. Names follow the convention of container
engines: `debian`, `debian:latest` and `docker.io/library/debian:latest` are the same image.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from benchflow.errors import EnvironmentFailure, InfrastructureFailure, UsageError
from benchflow.files import write_atomic
from benchflow.sandbox.images.image_config import ImageConfig, image_digest
from benchflow.sandbox.images.layer_store import LayerStore, disk_errors
from benchflow.sandbox.protocol import Image

_NAME: Final = re.compile(r"[a-z0-9]+([._/:@-]+[A-Za-z0-9]+)*")
_PREFIXES: Final = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/")


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """A registered image."""

    name: str
    layers: tuple[str, ...]
    """Keys in the layer store, lowest first."""
    config: ImageConfig
    source: str
    """Where it came from, for people: `debootstrap bookworm`, `rootfs base.tar`."""
    added_at: str
    size: int
    """Bytes of its files."""
    stands_for: tuple[str, ...] = ()
    """Patterns of names (`python:3.*`) of images that it replaces where they are not available."""
    manifests: tuple[str, ...] = ()
    """Digests by which a registry knows it: of its index, if it has one, and of its manifest. The first pins it."""
    platform: str | None = None
    """What it is for, where a registry said so: `linux/amd64`."""

    @property
    def digest(self) -> str:
        return image_digest(self.layers, self.config)

    @property
    def pin(self) -> str | None:
        """The digest by which a registry knows it."""
        return self.manifests[0] if self.manifests else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "digest": self.digest,
            "source": self.source,
            "added_at": self.added_at,
            "size": self.size,
            "layers": list(self.layers),
            "config": self.config.to_oci(),
            "manifests": list(self.manifests),
            "platform": self.platform,
            **({"stands_for": list(self.stands_for)} if self.stands_for else {}),
        }


@dataclass(frozen=True, slots=True)
class Removal:
    """An image that was removed, and which of its layers were not."""

    record: ImageRecord
    shared: Mapping[str, tuple[str, ...]]
    """Layers that other images need, and the names of those."""
    busy: tuple[str, ...]
    """Layers that running processes use."""


def canonical_name(name: str) -> str:
    """The one spelling of an image name; a name no engine would accept is a `UsageError`.

    A digest wins over a tag, which is left out beside it.
    """
    short = name
    for prefix in _PREFIXES:
        if short.startswith(prefix):
            short = short.removeprefix(prefix)
            break
    if not _NAME.fullmatch(short) or len(short) > 200:
        raise UsageError(f"{name!r} is not an image name.", code="image-name")
    rest, at, digest = short.partition("@")
    folder, slash, last = rest.rpartition("/")
    if at:
        return f"{folder}{slash}{last.partition(':')[0]}@{digest}"
    return short if ":" in last else f"{short}:latest"


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern such as `python:3.*` is for the image of that name, from whatever registry it comes."""
    wanted = canonical_name(name).partition("@")[0]
    return fnmatch.fnmatchcase(wanted, pattern) or fnmatch.fnmatchcase(wanted, f"*/{pattern}")


class ImageRegistry:
    """The images of one store."""

    def __init__(self, store: LayerStore) -> None:
        self.store: Final = store
        self.folder: Final = store.root / "images"

    async def require_whole(self, record: ImageRecord) -> None:
        """An `EnvironmentFailure` if a layer is missing, changed or damaged: only the source of the image has it."""
        for key in record.layers:
            if await self.store.is_whole(key):
                continue
            wrong = "was changed or is incomplete" if self.store.has(key) else "is missing from the store"
            message = (
                f"The image {record.name} is damaged: its layer {key[:12]} {wrong}. Remove it "
                f"with `bench images remove {record.name}` and add it again (it came from {record.source})."
            )
            raise EnvironmentFailure(message, code="image-damaged", path="environment")

    def get(self, name: str) -> ImageRecord | None:
        """The image of that name, whole or not; None if it is not registered.

        One that is asked for by digest may be registered under any tag of its repository.
        """
        canonical = canonical_name(name)
        try:
            text = self._path(canonical).read_text(encoding="utf-8")
        except FileNotFoundError:
            repository, at, digest = canonical.partition("@")
            same = (r for r in self.all() if r.name.startswith((f"{repository}:", f"{repository}@"))) if at else ()
            return next((record for record in same if digest in record.manifests), None)
        return _read(text, self._path(canonical))

    def save(self, record: ImageRecord) -> None:
        """Register, replacing an image of the same name."""
        self.store.prepare()
        with disk_errors(self.store.root):
            self.folder.mkdir(exist_ok=True)
            write_atomic(self._path(record.name), json.dumps(record.to_dict(), indent=1) + "\n")

    def all(self) -> list[ImageRecord]:
        """Every registered image, by name."""
        paths = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        return sorted((_read(path.read_text(encoding="utf-8"), path) for path in paths), key=lambda r: r.name)

    def stand_in(self, name: str) -> ImageRecord | None:
        """The image that replaces one of that name; of several, the one with the longest pattern."""
        fitting = [
            (len(pattern), record.added_at, record.name, record)
            for record in self.all()
            for pattern in record.stands_for
            if fits(name, pattern)
        ]
        return max(fitting)[-1] if fitting else None

    def layers(self) -> set[str]:
        """The keys of all layers that registered images need."""
        return {key for record in self.all() for key in record.layers}

    def needs(self, key: str) -> bool:
        """Whether a registered image has this layer."""
        return key in self.layers()

    async def remove(self, name: str) -> Removal | None:
        """Remove an image and the layers that only it needs; None if there is no such image."""
        record = self.get(name)
        if record is None:
            return None
        self._path(record.name).unlink(missing_ok=True)
        keys = dict.fromkeys(record.layers)
        others = {key: tuple(other.name for other in self.all() if key in other.layers) for key in keys}
        unneeded = [key for key, users in others.items() if not users]
        busy = [key for key in unneeded if not await self.store.remove(key, unless=partial(self.needs, key))]
        return Removal(record, {key: users for key, users in others.items() if users}, tuple(busy))

    def image(self, record: ImageRecord) -> Image:
        """The record as backends take it."""
        image = make_image(self.store, record.layers, record.config, base=record.name)
        return replace(image, base_digest=record.pin)

    def _path(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe='')}.json"


def make_image(store: LayerStore, layers: Sequence[str], config: ImageConfig, *, base: str) -> Image:
    """An image of the local backend from keys and settings."""
    return config.image(image_digest(layers, config), base=base, layers=[store.path(key) for key in layers])


def _read(text: str, path: Path) -> ImageRecord:
    try:
        values = json.loads(text)
        return ImageRecord(
            name=values["name"],
            layers=tuple(values["layers"]),
            config=ImageConfig.from_oci(values["config"]),
            source=values["source"],
            added_at=values["added_at"],
            size=values["size"],
            manifests=tuple(values.get("manifests") or ()),
            platform=values.get("platform"),
            stands_for=tuple(values.get("stands_for", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        message = f"The image record {path} cannot be read; remove it and add the image again."
        raise InfrastructureFailure(message, code="image-record-invalid", file=str(path)) from error
