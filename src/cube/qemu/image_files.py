"""Disk images, ready to be launched from: unpacked, in QEMU's own format, one file each, in the image folder.

A file appears whole or not at all, under a name that follows from its source. Processes that want the same one wait
for each other.
"""

from __future__ import annotations

import bz2
import fcntl
import gzip
import hashlib
import lzma
import re
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from cube import leash
from cube.qemu import image_source
from cube.qemu.disk_format import disk_format
from cube.qemu.qemu_host import IMAGES
from cube.vm import VMError

_CHUNK: Final = 1 << 20
_PACKED: Final[dict[bytes, Callable[..., Any]]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}
_ZIP: Final = b"PK\x03\x04"
_FORMAT: Final = "qcow2"


def provide_image(source: str, source_hash: str | None, folder: Path) -> dict[str, str]:
    """Bring an image, unless it is already there; what to record of it.

    `image` is the path of the file, `source` tells whether another one is meant meanwhile.
    """
    identity = image_source.source_identity(source, source_hash)
    name = urlsplit(source).path.rpartition("/")[2].partition(".")[0]
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "image"
    target = folder / f"{label}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.{_FORMAT}"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        if not target.exists():
            _bring(source, source_hash, target)
    return {"image": str(target.absolute()), "source": identity}


def remove_image(image: str, folder: Path) -> None:
    """Remove the file of an image, if it is one of the folder, and what is left of its download."""
    path = Path(image)
    if path.parent == folder.absolute():
        for each in (path, *folder.glob(f".{path.stem}.*")):
            each.unlink(missing_ok=True)


def create_overlay(image: Path, overlay: Path) -> None:
    """An empty disk over an image: what a machine writes goes there, and the image stays as it is."""
    words = ["create", "-q", "-f", _FORMAT, "-F", disk_format(image), "-b", str(image.absolute()), str(overlay)]
    _qemu_img(words, f"A disk over {image}")


def _bring(source: str, source_hash: str | None, target: Path) -> None:
    download, unpacked, converted = (target.with_name(f".{target.stem}.{part}") for part in ("part", "disk", "new"))
    try:
        fetched = image_source.fetch(source, source_hash, download)
        try:
            disk = _unpacked(fetched, unpacked, source)
            kind = disk_format(disk, source)
            if kind == _FORMAT and disk in (download, unpacked):
                disk.replace(converted)
            else:
                words = ["convert", "-f", kind, "-O", _FORMAT, str(disk.absolute()), str(converted)]
                _qemu_img(words, f"The image {source}")
        except VMError:
            image_source.forget(download)  # it arrived whole and is of no use
            raise
        converted.replace(target)
    except OSError as error:
        raise VMError(f"The image {source} cannot be stored in {target.parent}: {error.strerror or error}.") from error
    finally:
        unpacked.unlink(missing_ok=True)
        converted.unlink(missing_ok=True)
    image_source.forget(download)


def _unpacked(path: Path, target: Path, name: str) -> Path:
    """The only file of a zip archive, or the content of a compressed file; the file itself if it is neither."""
    with path.open("rb") as stream:
        head = stream.read(8)
    try:
        if head.startswith(_ZIP):
            with zipfile.ZipFile(path) as archive:
                files = [each for each in archive.infolist() if not each.is_dir()]
                if len(files) != 1:
                    raise VMError(f"The archive {name} has {len(files)} files, and one disk image was expected.")
                with archive.open(files[0]) as content:
                    return _copied(content, target)
        for magic, opened in _PACKED.items():
            if head.startswith(magic):
                with opened(path, "rb") as content:
                    return _copied(content, target)
    except (zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, NotImplementedError) as error:
        raise VMError(f"The image {name} cannot be unpacked: {error}.") from error
    return path


def _copied(content: IO[bytes], target: Path) -> Path:
    """Written with holes where there are only zeros: disks are mostly empty."""
    empty = bytes(_CHUNK)
    with target.open("wb") as stream:
        while chunk := content.read(_CHUNK):
            if chunk == empty[: len(chunk)]:
                stream.seek(len(chunk), 1)
            else:
                stream.write(chunk)
        stream.truncate()
    return target


def _qemu_img(words: list[str], what: str) -> None:
    program = shutil.which(IMAGES)
    if program is None:
        raise VMError(f"{what} needs the command {IMAGES} (Debian: `apt-get install qemu-utils`).")
    process = leash.start([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said = process.communicate()[0].decode(errors="replace").strip()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise VMError(f"{what} cannot be created by qemu-img: {said.removeprefix('qemu-img: ')}.")


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time."""
    with target.with_name(f".{target.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
