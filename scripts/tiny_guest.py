"""A disk image for tests of virtual machines: Debian's kernel, busybox, and a web server on port 5000.

`tiny_guest()` builds it once, in the user's cache, from Debian packages that are downloaded and not installed. It
starts in some three seconds of processor time without KVM.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

CACHE = Path.home() / ".cache/benchcube-tests"
_PACKAGES = ("mtools", "syslinux")
_MODULES = (
    *("virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev", "virtio/virtio_pci_legacy_dev"),
    *("virtio/virtio_pci", "../net/core/failover", "net/net_failover", "net/virtio_net", "block/virtio_blk"),
)
"""In the order in which they are loaded."""
_MEGABYTES = 24
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module.ko; done
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
echo "the guest is ready"
exec httpd -f -p 5000 -h /www
"""
_CGI = """#!/bin/busybox sh
# The answer to /cgi-bin/NAME?WORDS; NAME is that of the file.
echo Content-Type: text/plain; echo
case ${0##*/} in
  about) nproc; head -1 /proc/meminfo ;;
  write) echo "$QUERY_STRING" > /memory; echo "$QUERY_STRING" | dd of=/dev/vda bs=512 seek=49151 conv=sync,fsync ;;
  read) cat /memory; dd if=/dev/vda bs=512 skip=49151 count=1 iflag=direct | tr -d '\\0' ;;
  reach) nc -w 2 10.0.2.2 "$QUERY_STRING" < /dev/null && echo reached ;;
  end) poweroff -f ;;
esac 2>/dev/null
"""
_LOADER = "SERIAL 0\nDEFAULT guest\nLABEL guest\nLINUX vmlinuz\nINITRD initrd\nAPPEND console=ttyS0 quiet panic=-1\n"


class GuestUnavailable(Exception):
    """The image cannot be built here; the message says what is missing."""


def tiny_guest() -> Path:
    """The path of the raw disk image."""
    for program in ("busybox", "apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(program) is None:
            raise GuestUnavailable(f"The guest of the tests needs the command {program}.")
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    image = CACHE / f"guest-{key}.img"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "guest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            for old in CACHE.glob("guest-*.img"):
                old.unlink()
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                _build(Path(folder)).replace(image)
    return image


def _build(folder: Path) -> Path:
    _unpack_packages(folder)
    (kernel,) = (folder / "boot").glob("vmlinuz-*")
    (folder / "initrd").write_bytes(_initrd(folder))
    (folder / "loader").write_text(_LOADER)
    disk = folder / "disk"
    with disk.open("wb") as stream:
        stream.truncate(_MEGABYTES << 20)
    tools = folder / "usr/bin"
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}  # syslinux calls mtools
    _run([tools / "mformat", "-i", disk, "-T", str(_MEGABYTES << 11), "-h", "16", "-s", "63", "::"], env)
    for path, name in ((kernel, "vmlinuz"), (folder / "initrd", "initrd"), (folder / "loader", "syslinux.cfg")):
        _run([tools / "mcopy", "-i", disk, path, f"::{name}"], env)
    _run([tools / "syslinux", "--install", disk], env)
    return disk


def _unpack_packages(folder: Path) -> None:
    """The kernel that Debian offers now, and the programs that write the disk, into a folder."""
    asked = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=False
    )
    kernels = [line.split()[-1] for line in asked.stdout.splitlines() if "Depends: linux-image-" in line]
    if not kernels:
        raise GuestUnavailable("Debian's kernel for clouds is not listed; run `apt-get update` as root.")
    _run(["apt-get", "download", "-qq", kernels[0], *_PACKAGES], cwd=folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", package, folder])


def _initrd(folder: Path) -> bytes:
    (drivers,) = folder.glob("lib/modules/*/kernel/drivers")
    files = {f"modules/{Path(each).name}.ko": (drivers / f"{each}.ko").read_bytes() for each in _MODULES}
    files |= {"bin/busybox": Path(shutil.which("busybox") or "").read_bytes(), "www/screenshot": _png()}
    files["init"] = _INIT.format(modules=" ".join(Path(each).name for each in _MODULES)).encode()
    files |= {f"www/cgi-bin/{name}": _CGI.encode() for name in ("about", "write", "read", "reach", "end")}
    folders = ["bin", "dev", "proc", "sys", "modules", "www", "www/cgi-bin"]
    entries = [_entry(name, b"", 0o040755) for name in folders]
    entries += [_entry(name, content, 0o100755) for name, content in files.items()]
    return gzip.compress(b"".join([*entries, _entry("TRAILER!!!", b"", 0)]), 6)


def _entry(name: str, content: bytes, mode: int) -> bytes:
    """One file of a cpio archive, in the form that kernels read."""
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % each for each in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _png() -> bytes:
    """One green pixel."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\0\xff\0")),
        (b"IEND", b""),
    ]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _run(words: Sequence[str | Path], env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in words], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestUnavailable(f"`{Path(words[0]).name}` failed: {(done.stderr or done.stdout).strip()}")
