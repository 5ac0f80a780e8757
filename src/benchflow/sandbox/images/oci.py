"""Images from elsewhere: OCI layouts, OCI archives and the archives of `docker save`.

Finds the image for this machine's platform, checks every blob against its digest and unpacks each layer once.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.errors import EnvironmentFailure

_MAX_JSON: Final = 8 << 20
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
INDEX_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


@dataclass(frozen=True, slots=True)
class LayerBlob:
    """A layer of an image in an unpacked archive."""

    path: Path
    digest: str
    """`sha256:…` of the blob, or of its content for archives that name only that."""


@dataclass(frozen=True, slots=True)
class OciImage:
    """An image found in a layout: its settings and its layers, lowest first."""

    config: Mapping[str, Any]
    layers: tuple[LayerBlob, ...]
    manifests: tuple[str, ...] = ()
    """Digests of its index, if it is in one, and of its manifest, as a registry knows it by them."""


def machine_architecture() -> str:
    """This machine's architecture as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def read_layout(folder: Path) -> OciImage:
    """The image in an unpacked layout or archive; an `EnvironmentFailure` says what is wrong with it."""
    if (folder / "index.json").is_file():
        return _read_oci(folder)
    if (folder / "manifest.json").is_file():
        return _read_docker(folder)
    raise _invalid("it has neither index.json nor manifest.json")


def verify_blob(blob: LayerBlob) -> None:
    """Refuse a blob whose bytes are not what its digest says."""
    digest = hashlib.sha256()
    with blob.path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        raise _invalid(f"the blob {blob.digest} does not match its digest")


def _read_oci(folder: Path) -> OciImage:
    descriptor = _choose(_json_file(folder / "index.json"))
    digests = [descriptor["digest"]]
    manifest = _json_blob(folder, descriptor["digest"])
    if descriptor.get("mediaType") in INDEX_TYPES or "manifests" in manifest:
        descriptor = _choose(manifest)
        digests.append(descriptor["digest"])
        manifest = _json_blob(folder, descriptor["digest"])
    try:
        configuration = _json_blob(folder, manifest["config"]["digest"])
        layers = tuple(LayerBlob(_blob(folder, item["digest"]), item["digest"]) for item in manifest["layers"])
    except (KeyError, TypeError) as error:
        raise _invalid(f"its manifest has no {error}") from error
    _check_platform(configuration)
    return OciImage(configuration.get("config") or {}, layers, tuple(digests))


def _read_docker(folder: Path) -> OciImage:
    entries = _json_file(folder / "manifest.json")
    if not isinstance(entries, list) or len(entries) != 1:
        raise _invalid("it contains several images; save one at a time")
    try:
        configuration = _json_file(_inside(folder, entries[0]["Config"]))
        content = configuration["rootfs"]["diff_ids"]
        paths = [_inside(folder, name) for name in entries[0]["Layers"]]
    except (KeyError, TypeError) as error:
        raise _invalid(f"its manifest has no {error}") from error
    if len(content) != len(paths):
        raise _invalid("its manifest and its configuration have different numbers of layers")
    _check_platform(configuration)
    layers = tuple(LayerBlob(path, digest) for path, digest in zip(paths, content, strict=True))
    return OciImage(configuration.get("config") or {}, layers)


def _choose(index: Any) -> Mapping[str, Any]:
    """The one manifest for this machine."""
    try:
        found = [item for item in index["manifests"] if _fits(item)]
    except (KeyError, TypeError) as error:
        raise _invalid("its index lists no manifests") from error
    digests = {item["digest"] for item in found}
    if len(digests) != 1:
        count = "no image" if not digests else f"{len(digests)} images"
        raise _invalid(f"it contains {count} for linux/{machine_architecture()} instead of one")
    chosen: Mapping[str, Any] = found[0]
    return chosen


def _fits(descriptor: Mapping[str, Any]) -> bool:
    wanted = descriptor.get("platform")
    if wanted is None:
        return True
    return (wanted.get("os"), wanted.get("architecture")) == ("linux", machine_architecture())


def _check_platform(configuration: Mapping[str, Any]) -> None:
    system = configuration.get("os", "linux")
    architecture = configuration.get("architecture", machine_architecture())
    if (system, architecture) != ("linux", machine_architecture()):
        raise _invalid(f"it is for {system}/{architecture}, this machine is linux/{machine_architecture()}")


def _blob(folder: Path, digest: str) -> Path:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", str(digest)):
        raise _invalid(f"{digest!r} is not a sha256 digest")
    path = folder / "blobs" / "sha256" / digest.removeprefix("sha256:")
    if path.is_symlink() or not path.is_file():
        raise _invalid(f"the blob {digest} is missing")
    return path


def _json_blob(folder: Path, digest: str) -> Any:
    path = _blob(folder, digest)
    verify_blob(LayerBlob(path, digest))
    return _json_file(path)


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise _invalid(f"{name} is not in it")
    return path


def _json_file(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise _invalid(f"{path.name} is too large")
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _invalid(f"{path.name} cannot be read") from error


def _invalid(reason: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"The image is refused: {reason}.", code="image-invalid")
