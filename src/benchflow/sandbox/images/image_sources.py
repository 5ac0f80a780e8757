"""Where images come from: a root folder or tar, an OCI image, a container engine; see also `recipes`.

Each function takes the registry and a name, and registers what it made; nothing is registered, and nothing
is left behind, when it fails.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.to_thread

from benchflow.errors import EnvironmentFailure, InfrastructureFailure, UsageError
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry, canonical_name
from benchflow.sandbox.images.layer_store import disk_errors
from benchflow.sandbox.images.oci import LayerBlob, read_layout, verify_blob
from benchflow.sandbox.images.unpack import Unpacked, unpack_layer

_ONE_LINE: Final = re.compile(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)", re.MULTILINE)
_FIELD: Final = re.compile(r"^URIs:\s*(\S+)", re.MULTILINE)


async def add_rootfs(
    registry: ImageRegistry,
    name: str,
    source: Path,
    *,
    config: ImageConfig | None = None,
    origin: str | None = None,
    stands_for: tuple[str, ...] = (),
) -> ImageRecord:
    """Register a root file system: a folder, or a tar of one."""
    _require(source)
    async with work_folder(registry) as work:
        layer = work / "layer"
        layer.mkdir(mode=0o755)
        with disk_errors(registry.store.root):
            digest, unpacked = await registry.store.work.run(_unpack_rootfs, source, layer)
        await _publish(registry, layer, digest)
    made = origin or f"rootfs {source}"
    return register(registry, name, [digest], config or ImageConfig(), made, unpacked.size, stands_for=stands_for)


async def add_oci(registry: ImageRegistry, name: str, source: Path, *, origin: str | None = None) -> ImageRecord:
    """Register an image from an OCI layout folder, an OCI archive or an archive of `docker save`."""
    _require(source)
    async with work_folder(registry) as work:
        with disk_errors(registry.store.root):
            folder = await anyio.to_thread.run_sync(_opened, source, work / "layout")
        image = read_layout(folder)
        added = [await _add_blob(registry, blob) for blob in image.layers]
        config = ImageConfig.from_oci(image.config)
    keys = [key for key, _ in added]
    total = sum(size for _, size in added)
    return register(registry, name, keys, config, origin or f"oci {source}", total, manifests=image.manifests)


async def add_from_engine(registry: ImageRegistry, name: str, engine: str | None = None) -> ImageRecord:
    """Register an image that a container engine of this machine holds."""
    candidates = [engine] if engine else ["docker", "podman"]
    command = next((tool for tool in candidates if shutil.which(tool)), None)
    if command is None:
        message = f"No container engine is installed ({' or '.join(candidates)})."
        raise InfrastructureFailure(message, code="tool-missing")
    async with work_folder(registry) as work:
        archive = work / "image.tar"
        await _run([command, "save", "-o", str(archive), name], what=f"{command} save {name}")
        return await add_oci(registry, name, archive, origin=f"{command} {name}")


@asynccontextmanager
async def work_folder(registry: ImageRegistry) -> AsyncIterator[Path]:
    """A folder of the store that is removed at the end."""
    registry.store.prepare()
    async with registry.store.scratch(f"import-{os.urandom(8).hex()}") as folder:
        yield folder


def _unpack_rootfs(source: Path, layer: Path) -> tuple[str, Unpacked]:
    """Unpack and hash; a folder goes through tar, which keeps owners, hard links and holes."""
    if source.is_file():
        with source.open("rb") as file:
            return _unpack_hashed(file, layer)
    command = [
        "tar",
        "-C",
        str(source),
        "--one-file-system",
        "--sort=name",
        "--numeric-owner",
        "-cf",
        "-",
        ".",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout is None:
            raise InfrastructureFailure("tar produced no output.", code="tool-missing")
        try:
            result = _unpack_hashed(process.stdout, layer)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise EnvironmentFailure(f"{source} cannot be read completely.", code="archive-invalid")
    return result


def _unpack_hashed(file: IO[bytes], layer: Path) -> tuple[str, Unpacked]:
    reader = _HashingReader(file)
    unpacked = unpack_layer(io.BufferedReader(reader, 1 << 20), layer, whiteouts=False)
    while reader.read(1 << 20):
        pass
    if not any(layer.iterdir()):
        raise EnvironmentFailure("The root file system is empty.", code="image-invalid")
    return reader.digest.hexdigest(), unpacked


class _HashingReader(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # RawIOBase hands over any writable buffer
        data = self._file.read(len(view))
        view[: len(data)] = data
        self.digest.update(data)
        return len(data)


async def _publish(registry: ImageRegistry, folder: Path, key: str) -> None:
    async def make(target: Path) -> None:
        _take_place(folder, target)

    await registry.store.layer(key, make)


def _take_place(folder: Path, target: Path) -> None:
    target.rmdir()
    folder.rename(target)


def _require(source: Path) -> None:
    if not source.exists():
        raise UsageError(f"{source} does not exist.", code="missing-path")


async def _add_blob(registry: ImageRegistry, blob: LayerBlob) -> tuple[str, int]:
    key = blob.digest.removeprefix("sha256:")
    size = 0

    async def make(target: Path) -> None:
        nonlocal size
        await anyio.to_thread.run_sync(verify_blob, blob)
        size = (await registry.store.work.run(unpack_blob, blob.path, target)).size

    path, existed = await registry.store.layer(key, make)
    return key, await registry.store.work.run(tree_size, path) if existed else size


def unpack_blob(path: Path, target: Path) -> Unpacked:
    """Unpack a layer of an image, compressed or not, into the folder `target`."""
    with path.open("rb") as file:
        return unpack_layer(file, target)


def tree_size(folder: Path) -> int:
    """Bytes of the regular files below a folder."""
    return sum(Path(parent, name).lstat().st_size for parent, _, names in os.walk(folder) for name in names)


def _opened(source: Path, folder: Path) -> Path:
    """The layout itself, or the files of an image archive; its layers are checked when they are unpacked."""
    if source.is_dir():
        return source
    folder.mkdir()
    with source.open("rb") as stream:
        if not tarfile.is_tarfile(stream):
            message = f"{source} is neither an OCI layout folder nor an image archive."
            raise UsageError(message, code="image-invalid")
        stream.seek(0)
        unpack_layer(stream, folder, whiteouts=False)
    return folder


async def _run(command: Sequence[str], *, what: str) -> None:
    """Run a program of this machine to its end; its last lines are in the error when it fails."""
    result = await anyio.run_process(list(command), check=False, stderr=subprocess.STDOUT)
    if result.returncode:
        tail = "\n".join(result.stdout.decode(errors="replace").splitlines()[-15:])
        raise EnvironmentFailure(f"{what} exited with code {result.returncode}:\n{tail}", code="image-failed")


def register(
    registry: ImageRegistry,
    name: str,
    layers: Sequence[str],
    config: ImageConfig,
    source: str,
    size: int,
    *,
    manifests: tuple[str, ...] = (),
    platform: str | None = None,
    stands_for: tuple[str, ...] = (),
) -> ImageRecord:
    """Give layers of the store a name, which replaces an image of that name."""
    added_at = datetime.now(UTC).isoformat(timespec="seconds")
    record = ImageRecord(
        canonical_name(name), tuple(layers), config, source, added_at, size, stands_for, manifests, platform
    )
    registry.save(record)
    return record


def debian_mirror(apt: Path = Path("/etc/apt")) -> str:
    """The first archive of the apt configuration; an `InfrastructureFailure` when there is none."""
    sources = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for path in sources:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        pattern = _FIELD if path.suffix == ".sources" else _ONE_LINE
        match = pattern.search(path.read_text(encoding="utf-8", errors="replace"))
        if match:
            return match[1]
    raise InfrastructureFailure(f"No package mirror is configured in {apt}.", code="mirror-missing")
