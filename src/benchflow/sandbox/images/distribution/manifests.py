"""What registries say about an image: indexes of platforms and manifests, of OCI and of Docker. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.distribution.reference import DIGEST
from benchflow.sandbox.images.oci import INDEX_TYPES, machine_architecture

MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPTED: Final = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_CONFIG_TYPES: Final = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob: its kind, digest and size."""

    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image for one platform; layers lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


def read_manifest(data: bytes) -> Mapping[str, Any]:
    """A manifest or an index as a mapping."""
    try:
        values = json.loads(data)
    except ValueError as error:
        raise invalid("its manifest is not JSON") from error
    if not isinstance(values, dict):
        raise invalid("its manifest is not a mapping")
    if values.get("schemaVersion") != 2:
        raise invalid("it has a manifest of schema 1, which registries no longer serve; push the image again")
    return values


def is_index(values: Mapping[str, Any]) -> bool:
    return values.get("mediaType") in INDEX_TYPES or "manifests" in values


def choose_platform(index: Mapping[str, Any], platform: str | None) -> str:
    """The digest of the image for `platform` (`linux/amd64`, `linux/arm/v7`), default: this machine's."""
    wanted = (platform or machine_platform()).split("/")
    offered = []
    try:
        for item in index["manifests"]:
            there = item.get("platform") or {}
            parts = [there.get("os", ""), there.get("architecture", ""), there.get("variant", "")]
            if parts[: len(wanted)] == wanted:
                return _digest(item["digest"])
            offered.append("/".join(part for part in parts if part))
    except (KeyError, TypeError, AttributeError) as error:
        raise invalid("its index cannot be read") from error
    known = sorted({name for name in offered if name and "unknown" not in name})
    raise invalid(f"it does not exist for {'/'.join(wanted)}; the registry has it for {', '.join(known) or 'nothing'}")


def image_manifest(values: Mapping[str, Any]) -> Manifest:
    """The configuration and the layers of an image."""
    try:
        config = _descriptor(values["config"])
        layers = tuple(_descriptor(item) for item in values["layers"])
    except (KeyError, TypeError, ValueError) as error:
        raise invalid(f"its manifest cannot be read ({error})") from error
    if config.media_type not in _CONFIG_TYPES:
        raise invalid(f"it is not a container image, but {config.media_type or 'something unknown'}")
    for layer in layers:
        if "foreign" in layer.media_type or "tar" not in layer.media_type:
            raise invalid(f"its layer {layer.digest} is {layer.media_type}, not a tar archive")
    return Manifest(config, layers)


def machine_platform() -> str:
    """This machine as indexes name it."""
    return f"linux/{machine_architecture()}"


def invalid(reason: str) -> EnvironmentFailure:
    """An image that exists and cannot be used; nothing is tried in its place."""
    return EnvironmentFailure(f"The image is refused: {reason}.", code="image-invalid")


def _descriptor(item: Mapping[str, Any]) -> Descriptor:
    size = int(item["size"])
    if size < 0:
        raise ValueError("a negative size")
    return Descriptor(str(item.get("mediaType", "")), _digest(item["digest"]), size)


def _digest(value: object) -> str:
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise invalid(f"{value!r} is not a sha256 digest")
    return value
