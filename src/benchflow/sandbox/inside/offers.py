"""What processes of a box offer to others: the ports they listen on and the sockets they named.

`read_offers` lists them from the kernel's tables, `connect` reaches one in the namespaces of its box, `listen` opens
the same address in another box. Programs of a box take no part in any of it, and nothing is imported here.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple

from benchflow.sandbox.inside import syscalls as sc

Kind = Literal["tcp", "udp", "stream", "packet", "datagram"]
"""Of the internet: `tcp`, `udp`. Of the Unix domain: `stream`, `packet` (both accept connections), `datagram`."""

MOST: Final = 128
"""How many offers of a box are forwarded."""
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - addresses that programs of a box listen on
OWN_DESCRIPTORS: Final = "/proc/self/fd"
_TYPES: Final = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM, "stream": socket.SOCK_STREAM,
                 "packet": socket.SOCK_SEQPACKET, "datagram": socket.SOCK_DGRAM}  # fmt: skip
_UNIX_KINDS: Final[dict[str, Kind]] = {"0001": "stream", "0002": "datagram", "0005": "packet"}
_INTERNET: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("tcp", "tcp", "0A"),
    ("tcp6", "tcp", "0A"),
    ("udp", "udp", "07"),
    ("udp6", "udp", "07"),
)
"""Table, kind, and the state of a socket that waits for anybody."""
_TABLE_BYTES: Final = 1 << 20
_LISTENING: Final = 0x10000
_UNCONNECTED: Final = "01"
_UNASKED: Final = re.compile(r"\0[0-9a-f]{5}")
"""A name that the kernel chose."""
_BACKLOG: Final = 1024


class Offer(NamedTuple):
    """One address that a box offers. `place` is an IP address, a path, or a name that begins with a zero byte."""

    kind: Kind
    place: str
    port: int = 0
    alone: bool = False
    """Of an IPv6 address: IPv4 clients are not served by it."""
    rights: tuple[int, int, int] = (0, 0, 0)
    """Permissions, user and group of a path."""

    def __str__(self) -> str:
        if self.kind in ("tcp", "udp"):
            return f"{self.kind} {f'[{self.place}]' if ':' in self.place else self.place}:{self.port}"
        return f"socket {self.place.replace(chr(0), '@')}"

    @property
    def domain(self) -> socket.AddressFamily:
        if self.kind in ("tcp", "udp"):
            return socket.AF_INET6 if ":" in self.place else socket.AF_INET
        return socket.AF_UNIX

    @classmethod
    def from_message(cls, values: Sequence[object]) -> Offer:
        *fields, rights = values
        return cls(*fields, rights=tuple(rights))  # type: ignore[arg-type,misc] # written by the other end of our own wire


def read_offers(tables: str = "/proc/net", processes: str = "/proc") -> tuple[list[Offer], list[str]]:
    """What is offered in the namespaces of this process, and what of it cannot be forwarded, in words.

    `processes` is where those that offer it are found: a relative path is relative to the folder of one of them.
    """
    found: dict[Offer, None] = {}
    unusable: list[str] = []
    for table, kind, state in _INTERNET:
        for line in _lines(f"{tables}/{table}"):
            if len(line) > 3 and line[3] == state:
                place, port = _address(line[1])
                found[Offer(kind, place, port)] = None
    plain = {(offer.kind, offer.port) for offer in found if ":" not in offer.place}
    offers = [offer._replace(alone=_alone(offer, plain)) if ":" in offer.place else offer for offer in found]
    for line in _lines(f"{tables}/unix", 7):
        named = _named(line)
        if named is None:
            continue
        if named.place.startswith("\0"):
            offers.append(named)
            continue
        relative = not named.place.startswith("/")
        try:
            place = f"{_folder_of(line[6], processes)}/{named.place}" if relative else named.place
            offers.append(_with_rights(named._replace(place=place)))
        except OSError:  # nobody can connect to an absolute path that is gone
            unusable += [f"{named} (its path is relative)"] if relative else []
    offers = sorted(dict.fromkeys(offers), key=lambda offer: offer.kind in ("udp", "datagram"))
    return offers[:MOST], unusable + [str(offer) for offer in offers[MOST:]]


def connect(offer: Offer, descriptors: str = OWN_DESCRIPTORS) -> socket.socket:
    """A socket that does not block and is connected, or about to be; an `OSError` if nobody takes it.

    `descriptors` is where this process finds its own. A path may lead over links, but never out of the box.
    """
    opened = socket.socket(offer.domain, _TYPES[offer.kind])
    try:
        opened.setblocking(False)
        with _address_of(offer, descriptors) as address:
            number = opened.connect_ex(address)
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, os.strerror(number))
    except BaseException:
        opened.close()
        raise
    return opened


def listen(offer: Offer, closed: Sequence[str] = (), descriptors: str = OWN_DESCRIPTORS) -> socket.socket:
    """A socket at the address of an offer of another box.

    A path below one of `closed` is refused, and so is an abstract name that begins with one.
    """
    opened = socket.socket(offer.domain, _TYPES[offer.kind])
    try:
        if offer.domain != socket.AF_UNIX:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if offer.domain == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, offer.alone)
            sc.bind_socket(opened, (offer.place, offer.port))
        elif offer.place.startswith("\0"):
            if any(offer.place.startswith(place) for place in closed if place.startswith("\0")):
                raise OSError(errno.EACCES, "nothing may be offered at such a name")
            sc.bind_socket(opened, offer.place)
        else:
            _bind_path(opened, offer, closed, descriptors)
        if offer.kind not in ("udp", "datagram"):
            opened.listen(_BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


def listen_all(
    wanted: Sequence[Sequence[object]],
    closed: Sequence[str],
    descriptors: str = OWN_DESCRIPTORS,
    taken: Callable[[int], bool] | None = None,
) -> tuple[list[socket.socket], list[str | None]]:
    """`listen` for each offer of a message: the sockets, and for each offer None or why there is no socket.

    Ports for connections that are `taken` are not listened at, even where the kernel would permit it.
    """
    opened: list[socket.socket] = []
    reasons: list[str | None] = []
    for values in wanted:
        offer = Offer.from_message(values)
        try:
            if taken is not None and offer.kind == "tcp" and taken(offer.port):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            opened.append(listen(offer, closed, descriptors))
            reasons.append(None)
        except OSError as error:
            reasons.append(error.strerror or str(error))
    return opened, reasons


def _lines(path: str, most: int = -1) -> list[list[str]]:
    """The rows of a table; one that is very long is read in part."""
    try:
        with open(path, "rb") as file:
            text = os.fsdecode(file.read(_TABLE_BYTES))
    except FileNotFoundError:  # a kernel without IPv6
        return []
    return [line.split(None, most) for line in text.split("\n")[1:]]


def _address(text: str) -> tuple[str, int]:
    """Address and port of a table, where the address is made of words in this machine's byte order."""
    words, _, port = text.partition(":")
    data = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data), int(port, 16)


def _alone(offer: Offer, plain: set[tuple[Kind, int]]) -> bool:
    """Whether an IPv6 socket serves IPv6 only, which no table says: then the port is free for IPv4."""
    if offer.place != "::" or (offer.kind, offer.port) in plain:
        return not offer.place.startswith("::ffff:")
    with socket.socket(socket.AF_INET, _TYPES[offer.kind]) as probe:
        try:
            sc.bind_socket(probe, (WILDCARDS[0], offer.port))
        except OSError:
            return False
    return True


def _named(line: list[str]) -> Offer | None:
    """The offer of a row of the table of Unix sockets."""
    if len(line) < 8 or line[4] not in _UNIX_KINDS:
        return None
    kind, name = _UNIX_KINDS[line[4]], line[7]
    if not (line[5] == _UNCONNECTED if kind == "datagram" else int(line[3], 16) & _LISTENING):
        return None
    if name.startswith("@"):
        kept = name.rstrip("@")  # zero bytes are shown as @; at the end they are padding
        name = "\0" + kept[1:] + "\0" * (len(name) - len(kept))
        if _UNASKED.fullmatch(name):
            return None
    return Offer(kind, name)


def _folder_of(inode: str, processes: str) -> str:
    """The working folder of a process that holds a socket; a `FileNotFoundError` if none is seen to."""
    for pid in filter(str.isdecimal, os.listdir(processes)):
        with suppress(OSError):  # it has ended, or hides what it has open
            for fd in os.listdir(f"{processes}/{pid}/fd"):
                if os.readlink(f"{processes}/{pid}/fd/{fd}") == f"socket:[{inode}]":
                    return os.readlink(f"{processes}/{pid}/cwd").rstrip("/")
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _with_rights(offer: Offer) -> Offer:
    fd = _open_socket(offer.place)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return offer._replace(rights=(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid))


def _open_socket(path: str) -> int:
    """A handle of the socket at a path; what leads there through another process's files is not followed."""
    fd = sc.open_beneath(sc.AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, resolve=sc.RESOLVE_NO_MAGICLINKS)
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENOTSOCK, f"'{path}' is not a socket")
    return fd


@contextmanager
def _address_of(offer: Offer, descriptors: str) -> Iterator[tuple[str, int] | str | bytes]:
    """The address of an offer as `connect` takes it, valid in the block."""
    if offer.domain != socket.AF_UNIX:
        yield (offer.place, offer.port)
    elif offer.place.startswith("\0"):
        yield os.fsencode(offer.place)
    else:
        fd = _open_socket(offer.place)
        try:
            yield f"{descriptors}/{fd}"
        finally:
            os.close(fd)


def _bind_path(opened: socket.socket, offer: Offer, closed: Sequence[str], descriptors: str) -> None:
    """Take the place of a socket file that nobody serves here, with its permissions."""
    folder, _, name = offer.place.rpartition("/")
    fd = _claim_folder(folder or "/")
    try:
        real = os.readlink(f"{descriptors}/{fd}").rstrip("/") + "/"
        if any(real.startswith(place.rstrip("/") + "/") for place in closed):
            raise OSError(errno.EACCES, f"nothing may be offered in '{real}'")
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                raise OSError(errno.EEXIST, "another file has its path")
            os.unlink(name, dir_fd=fd)
        sc.bind_socket(opened, f"{descriptors}/{fd}/{name}")
        mode, uid, gid = offer.rights
        with suppress(OSError):  # an id that this box does not have; then it is root's
            os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
        os.chmod(f"{descriptors}/{fd}/{name}", mode)
    finally:
        os.close(fd)


def _claim_folder(path: str) -> int:
    """A handle of a folder, which is made if it is missing; never in the files of another process."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return sc.open_beneath(sc.AT_FDCWD, path, flags, resolve=sc.RESOLVE_NO_MAGICLINKS)
    except FileNotFoundError:
        above, _, name = path.rpartition("/")
        parent = _claim_folder(above or "/")
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)
