"""File systems of a limited size that a sandbox writes to, made and mounted in the zygote's mount namespace.

For a driver that is root: an ext4 image in a sparse file, copied from a template. For anyone else: a tmpfs. Both vanish
with the zygote; the image file is collected like every other leftover.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Final

from benchflow.sandbox.inside import syscalls as sc

_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_AUTOCLEAR: Final = 4
_ATTEMPTS: Final = 64
_INODE: Final = 256
_OVERHEAD: Final = 4 << 20
_BYTES_PER_INODE: Final = 16 << 10
_MOUNT_FLAGS: Final = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOATIME


def mount_memory(target: str, size: int, inodes: int) -> None:
    """A tmpfs of that size."""
    options = f"mode=755,size={size}" + (f",nr_inodes={inodes}" if inodes else "")
    sc.mount("tmpfs", target, "tmpfs", _MOUNT_FLAGS, options)


def mount_image(target: str, image: Path, templates: Path, size: int, inodes: int) -> None:
    """An ext4 file system of that size in the new file `image`."""
    count = inodes + 16 if inodes else max(1024, size // _BYTES_PER_INODE)
    template = _template(templates, size + count * _INODE + _OVERHEAD, count)
    _copy_sparse(template, image)
    device = _attach(image)
    try:
        sc.mount(f"/dev/{_device_name(device)}", target, "ext4", _MOUNT_FLAGS)
    finally:
        os.close(device)
    with contextlib.suppress(OSError):
        os.rmdir(f"{target}/lost+found")


def _template(folder: Path, size: int, inodes: int) -> Path:
    """An empty file system, made once per size."""
    path = folder / f"ext4-{size}-{inodes}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{path.name}.{os.getpid()}"
    try:
        with unfinished.open("xb") as file:
            file.truncate(size)
        command = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-I", str(_INODE), "-N", str(inodes)]
        command += ["-O", "^has_journal,^resize_inode,uninit_bg", "-E", "lazy_itable_init=1,nodiscard", str(unfinished)]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        if done.returncode:
            raise OSError(errno.EIO, f"mkfs.ext4 failed: {done.stderr.decode(errors='replace').strip()}")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _copy_sparse(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        position = 0
        while position < size:
            try:
                start = os.lseek(reader.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            os.lseek(reader.fileno(), start, os.SEEK_SET)
            os.lseek(writer.fileno(), start, os.SEEK_SET)
            while start < end:
                start += os.sendfile(writer.fileno(), reader.fileno(), None, end - start)
            position = end


def _attach(image: Path) -> int:
    """A loop device for the file; it goes away with its last user."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _loop_config(backing, _AUTOCLEAR))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device
        raise OSError(errno.EBUSY, "no free loop device")
    finally:
        os.close(control)
        os.close(backing)


def _loop_config(backing: int, flags: int) -> bytes:
    """`struct loop_config`: descriptor, block size, `struct loop_info64`, reserved words."""
    info = struct.pack("<QQQQQIIII64s64s32s16s", 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"", b"")
    return struct.pack("<II", backing, 0) + info + bytes(64)


def _device_name(device: int) -> str:
    return os.readlink(f"/proc/self/fd/{device}").rpartition("/")[2]
