"""The bytes of a canonical zip archive: the one way in which this project writes given members. Pure.

Members are stored, not compressed: compressors of different machines produce different bytes, and stored members are
read at random, as fast as the disk, and can never expand. Headers hold nothing that depends on time, machine or user.
Because a list of members has exactly one layout, a reader compares headers instead of trusting them.
"""

from __future__ import annotations

import stat
import struct
from typing import Final, Literal, NamedTuple

Kind = Literal["file", "program", "link", "folder"]
KINDS: Final[tuple[Kind, ...]] = ("file", "program", "link", "folder")
_MODES: Final[dict[Kind, int]] = {
    "file": stat.S_IFREG | 0o644,
    "program": stat.S_IFREG | 0o755,
    "link": stat.S_IFLNK | 0o777,
    "folder": stat.S_IFDIR | 0o755,
}
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")
_OFFSET64: Final = struct.Struct("<2HQ")
LOCAL_BYTES: Final = _LOCAL.size
CENTRAL_BYTES: Final = _CENTRAL.size
LOCAL_SIGNATURE: Final = b"PK\3\4"
CENTRAL_SIGNATURE: Final = b"PK\1\2"
_VERSION: Final = 20
_VERSION64: Final = 45
_UNIX: Final = 3 << 8
_UTF8: Final = 0x800
_STORED: Final = 0
_TIME: Final = 0
_DATE: Final = 1 << 5 | 1
"""The first of January 1980, the earliest that the format knows."""
_FULL16: Final = 0xFFFF
_FULL32: Final = 0xFFFF_FFFF
_MS_FOLDER: Final = 0x10
CRC_AT: Final = 14
"""Where the checksum is in a local header."""
CENTRAL_CRC_AT: Final = 16


def member_name(path: str, kind: Kind) -> bytes:
    """The name as it is in the archive."""
    return (f"{path}/" if kind == "folder" else path).encode()


def local_header(name: bytes, size: int, crc: int) -> bytes:
    return _LOCAL.pack(LOCAL_SIGNATURE, _VERSION, _UTF8, _STORED, _TIME, _DATE, crc, size, size, len(name), 0) + name


def central_header(name: bytes, kind: Kind, size: int, crc: int, offset: int) -> bytes:
    far = offset >= _FULL32
    extra = _OFFSET64.pack(1, 8, offset) if far else b""
    version = _VERSION64 if far else _VERSION
    attributes = _MODES[kind] << 16 | (_MS_FOLDER if kind == "folder" else 0)
    return (
        _CENTRAL.pack(
            CENTRAL_SIGNATURE,
            _UNIX | version,
            version,
            _UTF8,
            _STORED,
            _TIME,
            _DATE,
            crc,
            size,
            size,
            len(name),
            len(extra),
            0,
            0,
            0,
            attributes,
            _FULL32 if far else offset,
        )
        + name
        + extra
    )


def end_records(count: int, offset: int, size: int) -> bytes:
    """What follows the central directory, which has `count` entries in `size` bytes at `offset`."""
    far = b""
    if count >= _FULL16 or offset >= _FULL32 or size >= _FULL32:
        end64 = _END64.pack(
            b"PK\6\6", _END64.size - 12, _UNIX | _VERSION64, _VERSION64, 0, 0, count, count, size, offset
        )
        far = end64 + _LOCATOR.pack(b"PK\6\7", 0, offset + size, 1)
    few = min(count, _FULL16)
    return far + _END.pack(b"PK\5\6", 0, 0, few, few, min(size, _FULL32), min(offset, _FULL32), 0)


class FoundHeader(NamedTuple):
    """The fields of a header in a file, whatever they say."""

    flags: int
    method: int
    size: int
    name: bytes
    attributes: int | None
    """None in a local header."""

    @property
    def encrypted(self) -> bool:
        return bool(self.flags & 0x1)

    @property
    def compressed(self) -> bool:
        return self.method != _STORED

    @property
    def linked(self) -> bool:
        return self.attributes is not None and stat.S_ISLNK(self.attributes >> 16)

    @property
    def special(self) -> bool:
        """Whether it claims to be a pipe, a socket or a device."""
        mode = (self.attributes or 0) >> 16
        return stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)

    @property
    def shown(self) -> str:
        return self.name[:200].decode("utf-8", "backslashreplace")


def read_header(data: bytes) -> FoundHeader | None:
    """The header that a piece of a file starts with, local or central, or None."""
    if data.startswith(LOCAL_SIGNATURE) and len(data) >= _LOCAL.size:
        _, _, flags, method, _, _, _, _, size, length, _ = _LOCAL.unpack_from(data)
        return FoundHeader(flags, method, size, data[_LOCAL.size : _LOCAL.size + length], None)
    if data.startswith(CENTRAL_SIGNATURE) and len(data) >= _CENTRAL.size:
        fields = _CENTRAL.unpack_from(data)
        name = data[_CENTRAL.size : _CENTRAL.size + fields[10]]
        return FoundHeader(fields[3], fields[4], fields[9], name, fields[15])
    return None
