"""Files in and out of a running sandbox, from the driver's side.

A single file is a descriptor that the supervisor hands out, copied by the kernel; a folder is a stream to or
from a child inside that has given up its privileges. What comes out is checked here again.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import anyio
import anyio.to_thread

from benchflow.errors import SandboxFailure
from benchflow.sandbox.inside import tree_stream
from benchflow.sandbox.inside.offers import Offer
from benchflow.sandbox.local.inside import messages
from benchflow.sandbox.local.link import Link, expect, next_message
from benchflow.sandbox.network.offered import connected, paired

_F_SETPIPE_SZ: Final = 1031
_BUFFER: Final = 1 << 20
_GONE: Final = "The sandbox ended during a copy."


async def upload(link: Link, source: Path, target: str, owner: str | None) -> None:
    """A file to `target`, or a folder's contents into `target`."""
    if await anyio.Path(source).is_dir():
        message = {"op": "receive-tree", "path": target, "owner": owner, "parcel": False}
        if await _send_parcel(link, source, message):
            return
        reader, writer = _pipe()
        await _stream(link, message, theirs=reader, ours=writer, work=lambda: _pack(source, writer))
        return
    with source.open("rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise SandboxFailure(f"'{source}' is neither a file nor a folder.", code="refused")
        created = await _create(link, target, owner, info.st_mode & 0o777)
        try:
            await anyio.to_thread.run_sync(_copy, file.fileno(), created, info.st_size)
        finally:
            os.close(created)


async def write_file(link: Link, path: str, data: bytes, owner: str | None, mode: int) -> None:
    """A new file with these bytes, replacing whatever is there."""
    created = await _create(link, path, owner, mode)
    try:
        with os.fdopen(created, "wb", buffering=0, closefd=False) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError as error:
        raise SandboxFailure(
            f"'{path}': {tree_stream.describe(error)}", code=tree_stream.kind_of(error) or None
        ) from error
    finally:
        os.close(created)


async def write_files(link: Link, files: Mapping[str, bytes]) -> None:
    """New files of root with these bytes, in one request."""
    data = os.memfd_create("files", os.MFD_CLOEXEC)
    try:
        with os.fdopen(data, "wb", closefd=False) as file:
            file.writelines(files.values())
        os.lseek(data, 0, os.SEEK_SET)
        sizes = [(path, len(content)) for path, content in files.items()]
        await link.call({"op": "create-files", "files": sizes}, (data,))
    finally:
        os.close(data)


async def read_file(link: Link, path: str, max_bytes: int) -> bytes:
    """The bytes of a regular file within the size limit."""
    fd, _ = await _open(link, path)
    if fd is None:
        raise SandboxFailure(f"'{path}' is a folder, not a file.", code="refused")
    try:
        data = bytearray()
        while len(data) <= max_bytes and (chunk := os.read(fd, max_bytes + 1 - len(data))):
            data += chunk
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise SandboxFailure(f"'{path}' is larger than {max_bytes} bytes.", code="too-large")
    return bytes(data)


async def download(link: Link, source: str, target: Path, max_bytes: int, max_files: int) -> None:
    """A file to `target`, or a folder's contents into it; a new target appears whole or not at all."""
    fd, parcel = await _open(link, source, parcel=True)
    if fd is not None:
        try:
            await anyio.to_thread.run_sync(_save, fd, source, target, max_bytes)
        finally:
            os.close(fd)
        return
    intake = tree_stream.Intake(max_bytes, max_files)
    if await anyio.Path(target).is_dir():
        await _fill(link, source, target, intake, parcel)
        return
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        unfinished.mkdir(parents=True)
        await _fill(link, source, unfinished, intake, parcel)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


async def _fill(link: Link, source: str, target: Path, intake: tree_stream.Intake, parcel: bytes | None) -> None:
    """Copy the contents of a folder into an existing one, from its parcel if it came as one."""
    if parcel is not None:
        try:
            _unpack(io.BytesIO(parcel), target, intake)
        except tree_stream.Refused as error:
            raise SandboxFailure(str(error), code="refused") from error
        return
    reader, writer = _pipe()
    message = {"op": "send-tree", "path": source}
    await _stream(link, message, theirs=writer, ours=reader, work=lambda: _unpack_pipe(reader, target, intake))


async def _send_parcel(link: Link, source: Path, message: messages.Message) -> bool:
    """Send a folder whole if it is small; whether it was."""
    directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        packed = tree_stream.pack_parcel(directory)
    finally:
        os.close(directory)
    if packed is None:
        return False
    try:
        await link.call({**message, "parcel": True}, (packed,))
    finally:
        os.close(packed)
    return True


async def dial(link: Link, offer: Offer) -> socket.socket:
    """A socket that is connected to an offer of the box; raises `ConnectionError` if nothing accepts it."""
    answer, fds = await link.call({"op": "dial", "offer": offer})
    return await connected(offer, answer, [socket.socket(fileno=fd) for fd in fds])


async def list_offers(link: Link) -> tuple[list[Offer], list[str]]:
    """What processes inside offer to others, and what of it cannot be forwarded."""
    answer, _ = await link.call({"op": "offers"})
    return [Offer.from_message(values) for values in answer["offers"]], answer["unusable"]


async def listen(
    link: Link, wanted: Sequence[Offer], closed: Sequence[str], *, yields: bool = True
) -> tuple[list[tuple[Offer, socket.socket]], list[str]]:
    """Listening sockets inside at the addresses of another box's offers, and which of them cannot be had.

    Those that yield give way to processes inside that bind their addresses.
    """
    answer, fds = await link.call({"op": "listen", "offers": wanted, "closed": closed, "yields": yields})
    return paired(wanted, answer["reasons"], [socket.socket(fileno=fd) for fd in fds])


async def _open(link: Link, path: str, *, parcel: bool = False) -> tuple[int | None, bytes | None]:
    """A descriptor of a regular file; for a folder its `parcel`, if one is wanted and it is small."""
    answer, fds = await link.call({"op": "open", "path": path, "parcel": parcel})
    if not answer["directory"]:
        return fds[0], None
    return None, tree_stream.open_parcel(fds[0]) if fds else None


async def _create(link: Link, path: str, owner: str | None, mode: int) -> int:
    _, fds = await link.call({"op": "create", "path": path, "owner": owner, "mode": mode})
    return fds[0]


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a user's pipes are at their limit: smaller ones do
        fcntl.fcntl(writer, _F_SETPIPE_SZ, _BUFFER)
    return reader, writer


async def _stream(link: Link, message: messages.Message, *, theirs: int, ours: int, work: Callable[[], None]) -> None:
    """Run our half of a copy in a thread while the other half runs inside.

    Of two errors the one that is not a mere consequence of the other is raised; an `OSError` is of this machine.
    """
    try:
        reply = link.request(message, (theirs,))
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    problem: OSError | None = None
    with reply:
        try:
            await anyio.to_thread.run_sync(work)
        except tree_stream.Refused as error:
            raise SandboxFailure(str(error), code="refused") from error
        except BrokenPipeError:
            pass  # the other half ended: it knows why
        except OSError as error:
            problem = error
        try:
            await _finish(reply)
        except SandboxFailure:
            if problem is None:
                raise
    if problem is not None:
        raise problem


async def _finish(reply: socket.socket) -> None:
    answer, _ = await next_message(reply)
    done = expect(answer, _GONE)
    if done["exit"] != 0:
        raise SandboxFailure("A copy was interrupted inside the sandbox.", code="cut-short")


def _pack(source: Path, writer: int) -> None:
    directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.fdopen(writer, "wb", buffering=_BUFFER) as output:
            tree_stream.pack(directory, output)
    finally:
        os.close(directory)


def _unpack_pipe(reader: int, target: Path, intake: tree_stream.Intake) -> None:
    with os.fdopen(reader, "rb", buffering=_BUFFER) as source:
        _unpack(source, target, intake)


def _unpack(source: BinaryIO, target: Path, intake: tree_stream.Intake) -> None:
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tree_stream.unpack(directory, source, intake)
    finally:
        os.close(directory)


def _copy(source: int, target: int, size: int) -> None:
    try:
        tree_stream.copy_bytes(source, target, size)
    except OSError as error:
        raise SandboxFailure(tree_stream.describe(error), code=tree_stream.kind_of(error) or None) from error


def _save(fd: int, name: str, target: Path, max_bytes: int) -> None:
    size = os.fstat(fd).st_size
    if size > max_bytes:
        raise SandboxFailure(f"'{name}' is larger than {max_bytes} bytes.", code="too-large")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            tree_stream.copy_bytes(fd, file.fileno(), size)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
