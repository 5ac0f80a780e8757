"""Disk images of virtual machines: formats, downloads, checksums, and what must not be used."""

import bz2
import gzip
import hashlib
import io
import lzma
import shutil
import subprocess
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cube.infra_local import LocalInfraConfig
from cube.qemu import qemu_host
from cube.qemu.image_source import parsed_hash
from cube.resource import ResourceNotReadyError, VMResourceConfig
from cube.vm import VMError

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img (Debian: qemu-utils)")
DISK = (b"\xfa\xf4" * 255 + b"\x55\xaa") + bytes(1 << 20) + bytes(range(256)) * 512
"""A boot sector that halts, a hole, and something behind it."""
PACKED = {"disk": bytes, "disk.gz": gzip.compress, "disk.xz": lzma.compress, "disk.bz2": bz2.compress}


def zipped(**files):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"folder/{name}", content)
    return target.getvalue()


def tarred(content):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        about = tarfile.TarInfo("disk")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    return target.getvalue()


def qemu_img(*words):
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


class Files(BaseHTTPRequestHandler):
    """One file, as servers of downloads have it; `cut` ends a connection early."""

    content, etag, cut, ranges = DISK, '"one"', None, True
    asked: list

    def do_GET(self):
        kind = type(self)
        kind.asked.append((self.headers.get("Range"), self.headers.get("If-Range")))
        start = 0
        if kind.ranges and self.headers.get("Range") and self.headers.get("If-Range") in (None, kind.etag):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if start >= len(kind.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(kind.content) - 1}/{len(kind.content)}")
        if kind.etag:
            self.send_header("ETag", kind.etag)
        self.send_header("Content-Length", str(len(kind.content) - start))
        self.end_headers()
        self.wfile.write(kind.content[start : kind.cut])
        kind.cut = None

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    kind = type("Served", (Files,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        kind.url = f"http://127.0.0.1:{served.server_port}/disk"
        yield kind
        served.shutdown()
        thread.join()


@pytest.fixture
def infra(tmp_path, monkeypatch):
    monkeypatch.setattr("cube._CUBE_CACHE_ROOT", tmp_path / "cache")
    monkeypatch.setattr("cube.provision_store._DEFAULT_STORE_DIR", tmp_path / "cache/provisions")
    monkeypatch.setattr(qemu_host, "missing_programs", lambda: None)
    return LocalInfraConfig(enable_kvm=False)


def provisioned(infra, source, **settings):
    """The content of the disk that a machine would be launched from; nothing else is left in the folder."""
    resource = VMResourceConfig(name="a machine", source_url=str(source), **settings)
    infra.provision(resource)
    assert infra.provision_status(resource) == "ready"
    image = infra.provision_info(resource)["image"]
    files = [path.name for path in infra.image_dir.iterdir() if not path.name.endswith(".lock")]
    assert files == [image.rpartition("/")[2]]
    qemu_img("convert", "-f", "qcow2", "-O", "raw", image, infra.image_dir.parent / "back")
    return (infra.image_dir.parent / "back").read_bytes()


@pytest.mark.parametrize("name", PACKED)
def test_an_image_is_unpacked_and_converted_once(infra, tmp_path, name):
    packed = PACKED[name](DISK)
    (tmp_path / name).write_bytes(packed)
    assert provisioned(infra, tmp_path / name) == DISK
    assert provisioned(infra, (tmp_path / name).as_uri()) == DISK
    assert (tmp_path / name).read_bytes() == packed


@pytest.mark.parametrize("kind", ["qcow2", "vmdk", "vdi", "vhdx", "vpc"])
def test_formats_of_other_programs_are_converted(infra, tmp_path, kind):
    (tmp_path / "raw").write_bytes(DISK)
    qemu_img("convert", "-f", "raw", "-O", kind, tmp_path / "raw", tmp_path / "disk")
    assert provisioned(infra, tmp_path / "disk")[: len(DISK)] == DISK
    (tmp_path / "packed").write_bytes(zipped(disk=(tmp_path / "disk").read_bytes()))
    resource = VMResourceConfig(name="packed", source_url=str(tmp_path / "packed"))
    infra.provision(resource)
    assert infra.provision_status(resource) == "ready"


USELESS = {
    "a page": (b"<html>404</html>", "neither a known format nor a raw disk with a boot sector"),
    "nothing": (b"", "neither a known format"),
    "tar": (tarred(DISK), "is a tar archive, not a disk image"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with Zstandard"),
    "two files": (zipped(one=DISK, two=DISK), "has 2 files, and one disk image was expected"),
    "half a gz": (gzip.compress(DISK)[:-20], "cannot be unpacked"),
    "half a zip": (zipped(disk=DISK)[:300], "cannot be unpacked"),
    "half a qcow2": (b"QFI\xfb" + bytes(8), "is a cut-off disk image"),
    "a damaged qcow2": (b"QFI\xfb\0\0\0\3" + bytes(92), "cannot be created by qemu-img"),
}


@pytest.mark.parametrize("name", USELESS)
def test_what_is_not_a_disk_image_is_refused_and_leaves_nothing(infra, tmp_path, name):
    content, message = USELESS[name]
    (tmp_path / "disk").write_bytes(content)
    resource = VMResourceConfig(name="vm", source_url=str(tmp_path / "disk"))
    with pytest.raises(VMError, match=message) as caught:
        infra.provision(resource)
    assert str(tmp_path / "disk") in str(caught.value)
    assert infra.provision_status(resource) == "needs_provisioning"
    assert [path.suffix for path in infra.image_dir.iterdir()] == [".lock"]


def test_an_image_never_brings_another_file_of_this_machine_into_a_guest(infra, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"the key" + bytes(505))
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", secret, tmp_path / "backed")
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={secret}", tmp_path / "external", "1M")
    secret.write_bytes(b"the key" + bytes(505))
    qemu_img("convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=monolithicFlat", secret, tmp_path / "flat.vmdk")
    qemu_img("convert", "-f", "raw", "-O", "vmdk", secret, tmp_path / "sparse.vmdk")
    sparse = (tmp_path / "sparse.vmdk").read_bytes()
    (tmp_path / "parts.vmdk").write_bytes(sparse[:12] + bytes(8) + sparse[20:])  # capacity 0: its parts are elsewhere
    kind = b'createType="monolithicSparse"'
    hint = f'parentFileNameHint="{secret}"'.encode()
    (tmp_path / "parent.vmdk").write_bytes(sparse.replace(kind, kind + b"\n" + hint, 1))
    for name in ("backed", "external", "flat.vmdk", "parts.vmdk", "parent.vmdk"):
        with pytest.raises(VMError, match="needs another file|of several files|neither a known format"):
            infra.provision(VMResourceConfig(name="vm", source_url=str(tmp_path / name)))
    vm = VMResourceConfig(name="own")
    infra.register(vm, {"image": str(tmp_path / "backed")})
    with pytest.raises(VMError, match="needs another file"):
        infra.launch(vm)


def test_a_checksum_is_compared_before_anything_is_used(infra, tmp_path, server):
    (tmp_path / "disk").write_bytes(DISK)
    digest = hashlib.sha256(DISK).hexdigest()
    assert provisioned(infra, tmp_path / "disk", source_hash=f"sha256:{digest}") == DISK
    for source in (tmp_path / "disk", server.url):
        other = VMResourceConfig(name="other", source_url=str(source), source_hash="0" * 64)
        with pytest.raises(VMError, match=f"has the sha256 {digest}, and 0+ was expected"):
            infra.provision(other)
    assert not list(infra.image_dir.glob(".*.part*"))
    assert parsed_hash(f" SHA256={digest.upper()} ") == ("sha256", digest)
    assert parsed_hash("d" * 32) == ("md5", "d" * 32)
    for wrong in ("", "sha256:12", f"md5:{digest}", "x" * 64):
        with pytest.raises(VMError, match="is not sha256:HEX"):
            parsed_hash(wrong)


def test_an_interrupted_download_is_resumed(infra, server):
    server.cut = 700_000
    resource = VMResourceConfig(name="a machine", source_url=server.url)
    with pytest.raises(VMError, match="cannot be downloaded: .* provision again to resume"):
        infra.provision(resource)
    assert provisioned(infra, server.url) == DISK
    assert server.asked == [(None, None), ("bytes=700000-", '"one"')]
    infra.provision(resource)
    assert len(server.asked) == 2


@pytest.mark.parametrize("change", [{"etag": '"two"'}, {"ranges": False}, {"etag": None}])
def test_a_download_starts_again_if_the_file_may_have_changed(infra, server, change):
    if change == {"etag": None}:
        server.etag = None
    server.cut = 700_000
    with pytest.raises(VMError):
        infra.provision(VMResourceConfig(name="a machine", source_url=server.url))
    for name, value in change.items():
        setattr(server, name, value)
    server.content = DISK[:512] + bytes(range(255, -1, -1)) * 4096
    assert provisioned(infra, server.url) == server.content


def test_processes_that_want_one_image_download_it_once(infra, server):
    resource = VMResourceConfig(name="a machine", source_url=server.url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: infra.provision(resource), range(4)))
    assert len(server.asked) == 1


def test_another_source_is_provisioned_again_and_unprovisioning_removes_the_image(infra, tmp_path):
    (tmp_path / "disk").write_bytes(DISK)
    resource = VMResourceConfig(name="vm", source_url=str(tmp_path / "disk"))
    twin = VMResourceConfig(name="vm two", source_url=str(tmp_path / "disk"))
    infra.provision(resource)
    infra.provision(twin)
    first = infra.provision_info(resource)["image"]
    assert infra.provision_info(twin)["image"] == first
    (tmp_path / "disk").write_bytes(DISK + DISK[:512])
    assert infra.provision_status(resource) == "needs_provisioning"
    with pytest.raises(ResourceNotReadyError, match="Resource 'vm' is not provisioned on 'local'"):
        infra.launch(resource)
    infra.provision(resource)
    assert infra.provision_info(resource)["image"] != first
    assert Path(first).exists()
    infra.unprovision(twin)
    assert not Path(first).exists()
    infra.unprovision(resource)
    infra.unprovision(resource)
    assert infra.provision_status(resource) == "needs_provisioning"
    assert not list(infra.image_dir.glob("*.qcow2"))
    infra.provision(resource)
    (tmp_path / "disk").unlink()  # what was provisioned stays
    assert infra.provision_status(resource) == "ready"
    assert infra.provision_status(resource.model_copy(update={"source_url": None})) == "needs_provisioning"


def test_a_registered_image_is_used_and_never_removed(infra, tmp_path):
    (tmp_path / "disk").write_bytes(DISK)
    resource = VMResourceConfig(name="own")
    infra.register(resource, {"image": str(tmp_path / "disk")})
    assert infra.provision_status(resource) == "ready"
    infra.unprovision(resource)
    assert (tmp_path / "disk").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/proc", "The image /proc is not a file"),
        ("/nowhere/disk", "The image /nowhere/disk cannot be read: No such file"),
        ("ftp://example.org/disk", "must be a path, or an http, https or file URL"),
        ("http://127.0.0.1:1/disk", "cannot be downloaded: .*Connection refused"),
        (None, "has no source_url. Give one, or register the disk image"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(infra, source, message):
    with pytest.raises((VMError, ResourceNotReadyError), match=message):
        infra.provision(VMResourceConfig(name="vm", source_url=source))
