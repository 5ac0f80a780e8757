"""The format of a disk image, read from its first bytes.

Formats that may name other files are looked into: an image from elsewhere must not bring a file of this machine into a
guest. QEMU always gets the format that is found here and never guesses.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from cube.vm import VMError

_MAGIC: Final = {b"QFI\xfb": "qcow2", b"KDMV": "vmdk", b"vhdxfile": "vhdx", b"conectix": "vpc"}
_VDI: Final = (0x40, b"\x7f\x10\xda\xbe")
_ARCHIVES: Final = {
    (0, b"7z\xbc\xaf"): "a 7-Zip archive",
    (0, b"\x28\xb5\x2f\xfd"): "compressed with Zstandard",
    (257, b"ustar"): "a tar archive",
}
_BOOT: Final = (510, b"\x55\xaa")
"""The signature of a first sector that a BIOS starts."""
_SECTOR: Final = 512
_HEAD: Final = 4096
_DESCRIPTOR: Final = 65536
_VMDK: Final = (b'createType="monolithicSparse"', b'createType="streamOptimized"')


def disk_format(path: Path, name: str | None = None) -> str:
    """The name that QEMU has for the format; a `VMError` if this is not a self-contained disk image.

    `name` is what messages call it.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
        found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        if found == "qcow2":
            problem = _qcow2_problem(head)
        elif found == "vmdk":
            problem = _vmdk_problem(head, _vmdk_descriptor(head, path))
        elif found is not None or _has(head, *_VDI):
            found, problem = found or "vdi", None
        else:
            found, problem = "raw", _raw_problem(head, path.stat().st_size)
    if problem is not None:
        raise VMError(f"The image {name or path} {problem}.")
    return found


def _has(head: bytes, offset: int, magic: bytes) -> bool:
    return head[offset : offset + len(magic)] == magic


def _qcow2_problem(head: bytes) -> str | None:
    if len(head) < 80:
        return "is a cut-off disk image"
    version, backing = struct.unpack_from(">IQ", head, 4)
    encrypted = struct.unpack_from(">I", head, 32)[0]
    features = struct.unpack_from(">Q", head, 72)[0] if version >= 3 else 0
    if backing or features & 4:
        return "needs another file for its content; make one file of both with `qemu-img convert`"
    return "is encrypted" if encrypted else None


def _vmdk_descriptor(head: bytes, path: Path) -> bytes:
    offset, size = struct.unpack_from("<QQ", head.ljust(48, b"\0"), 28)
    with path.open("rb") as stream:
        stream.seek(min(offset * _SECTOR, path.stat().st_size))
        return stream.read(min(size * _SECTOR, _DESCRIPTOR))


def _vmdk_problem(head: bytes, descriptor: bytes) -> str | None:
    capacity = struct.unpack_from("<Q", head.ljust(48, b"\0"), 12)[0]
    whole = capacity and b"parentFileNameHint" not in descriptor and any(kind in descriptor for kind in _VMDK)
    return None if whole else "is a VMDK image of several files; make one file of them with `qemu-img convert`"


def _raw_problem(head: bytes, size: int) -> str | None:
    """What is not known is raw; whether it is a disk shows the signature of its boot sector."""
    for (offset, magic), name in _ARCHIVES.items():
        if _has(head, offset, magic):
            return f"is {name}, not a disk image; unpack it and give the image itself"
    if not _has(head, *_BOOT) or size % _SECTOR:
        return "is not a disk image: neither a known format nor a raw disk with a boot sector"
    return None
