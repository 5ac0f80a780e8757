"""A real FUSE file system that grants every lock: `python lockless_mount.py FOLDER` mounts it and serves until killed.

It keeps files in memory and speaks the kernel's protocol directly, because no package has a file system that claims
locks and does not keep them. Only what creating, locking and removing files takes is answered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from dataclasses import dataclass, field

FLOCK_LOCKS = 1 << 10
"""The flag with which a file system takes over locks from the kernel."""
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, OPEN, READ, WRITE = 1, 2, 3, 4, 9, 10, 11, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 17, 18, 20, 25, 26, 27, 28, 29, 30
SETLK, SETLKW, CREATE, INTERRUPT, BATCH_FORGET = 32, 33, 35, 36, 42
NO_REPLY = (FORGET, BATCH_FORGET, INTERRUPT)
DONE = (SETLK, SETLKW, RELEASE, RELEASEDIR, FSYNC, FSYNCDIR, FLUSH)
FOLDER, FILE = 0o040700, 0o100600


@dataclass
class Node:
    mode: int
    data: bytearray = field(default_factory=bytearray)
    children: dict[bytes, int] = field(default_factory=dict)


class Lockless:
    def __init__(self) -> None:
        self.nodes = {1: Node(FOLDER)}

    def answer(self, opcode: int, number: int, body: bytes) -> bytes | int:  # noqa: C901  # one case per request
        """The body of a reply, or the number of an error."""
        if opcode == INIT:
            major, minor = struct.unpack_from("<II", body)
            return struct.pack("<IIIIHHIIHHI28x", major, min(minor, 31), 65536, FLOCK_LOCKS, 8, 6, 65536, 1, 0, 0, 0)
        node = self.nodes.get(number)
        if node is None:
            return errno.ENOENT
        if opcode in DONE:
            return b""
        if opcode in (GETATTR, SETATTR):
            return struct.pack("<QII", 0, 0, 0) + self.attributes(number)
        if opcode == LOOKUP:
            found = node.children.get(body.rstrip(b"\0"))
            return errno.ENOENT if found is None else self.entry(found)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if opcode == MKDIR:
            return self.entry(self.made(node, body[8:], FOLDER))
        if opcode == CREATE:
            return self.entry(self.made(node, body[16:], FILE)) + struct.pack("<QII", 0, 0, 0)
        if opcode in (UNLINK, RMDIR):
            return b"" if node.children.pop(body.rstrip(b"\0"), None) else errno.ENOENT
        if opcode == WRITE:
            offset, size = struct.unpack_from("<QI", body, 8)
            node.data[offset : offset + size] = body[40 : 40 + size]
            return struct.pack("<II", size, 0)
        if opcode == READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            return bytes(node.data[offset : offset + size])
        if opcode == READDIR:
            return self.listed(node, *struct.unpack_from("<Q", body, 8))
        return bytes(80) if opcode == STATFS else errno.ENOSYS

    def made(self, parent: Node, name: bytes, mode: int) -> int:
        number = max(self.nodes) + 1
        self.nodes[number] = Node(mode)
        parent.children[name.rstrip(b"\0")] = number
        return number

    def attributes(self, number: int) -> bytes:
        node = self.nodes[number]
        return struct.pack("<6Q10I", number, len(node.data), 0, 0, 0, 0, 0, 0, 0, node.mode, 1, 0, 0, 0, 4096, 0)

    def entry(self, number: int) -> bytes:
        return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self.attributes(number)

    def listed(self, node: Node, offset: int) -> bytes:
        written = b""
        for place, (name, number) in enumerate(node.children.items(), 1):
            if place > offset:
                padding = bytes(-len(name) % 8)
                kind = self.nodes[number].mode >> 12
                written += struct.pack("<QQII", number, place, len(name), kind) + name + padding
        return written


def serve(folder: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"lockless", folder.encode(), b"fuse.lockless", 0, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    system = Lockless()
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError as error:
            if error.errno == errno.ENODEV:  # it was unmounted
                return
            raise
        _, opcode, unique, number = struct.unpack_from("<IIQQ", request)
        if opcode in NO_REPLY:
            continue
        found = system.answer(opcode, number, request[40:])
        error, body = (-found, b"") if isinstance(found, int) else (0, found)
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


if __name__ == "__main__":
    serve(sys.argv[1])
