"""Images come from folders, tars, OCI layouts and archives; what is wrong with one is said and leaves nothing."""

import hashlib
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from benchflow.errors import BenchflowError, EnvironmentFailure, InfrastructureFailure, UsageError
from benchflow.sandbox.images import image_sources, recipes
from benchflow.sandbox.images.image_sources import debian_mirror
from benchflow.sandbox.images.layer_tree import LayerTree
from benchflow.sandbox.images.oci import machine_architecture

pytestmark = pytest.mark.anyio


class Layout:
    """An OCI layout on disk, put together by hand."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data, kind):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def image(self, layers, architecture=None, kind="application/vnd.oci.image.layer.v1.tar+gzip", **config):
        descriptors = [self.blob(layer.getvalue(), kind) for layer in layers]
        configuration = {"os": "linux", "architecture": architecture or machine_architecture(), "config": config}
        manifest = {"config": self.blob(configuration, "c"), "layers": descriptors}
        return self.blob(manifest, "application/vnd.oci.image.manifest.v1+json")

    def index(self, *descriptors):
        (self.folder / "index.json").write_text(json.dumps({"manifests": list(descriptors)}))
        return self.folder


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


def tree(registry, record):
    return LayerTree(registry.image(record).layers)


def untouched(registry):
    return registry.all() == [] and list((registry.store.root / "tmp").iterdir()) == []


def two_layers(tar, compress="gz"):
    low = tar(("etc", None), ("etc/a", "low"), ("etc/b", "low"), ("d", None), ("d/x", "x"), compress=compress)
    high = tar(("etc/.wh.a", ""), ("etc/b", "high"), ("d/.wh..wh..opq", ""), ("d/y", "y"), compress=compress)
    return [low, high]


async def test_an_oci_layout_keeps_layers_whiteouts_and_settings(registry, layout, tar):
    source = layout.index(
        layout.image(
            two_layers(tar), Env=["PATH=/bin", "A=1"], User="7", WorkingDir="/w", Cmd=["run"], Entrypoint=["e"]
        )
    )
    record = await image_sources.add_oci(registry, "app:1", source)
    found = tree(registry, record)
    assert found.names("/etc") == ["b"]
    assert found.read_text("/etc/b") == "high"
    assert found.names("/d") == ["y"]
    image = registry.image(record)
    assert (image.env, image.user, image.workdir) == ({"PATH": "/bin", "A": "1"}, "7", "/w")
    assert (image.entrypoint, image.command) == (("e",), ("run",))
    (listed,) = json.loads((source / "index.json").read_text())["manifests"]
    assert image.base_digest == record.pin == listed["digest"]
    assert registry.get(f"app@{record.pin}") == record


async def test_an_archive_of_a_layout_is_the_same_image(registry, layout, tar, tmp_path):
    source = layout.index(layout.image(two_layers(tar)))
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as file:
        file.add(source, arcname=".")
    assert (await image_sources.add_oci(registry, "b", archive)).digest == (
        await image_sources.add_oci(registry, "a", source)
    ).digest


async def test_an_archive_of_docker_save_is_read(registry, tar, tmp_path):
    layers = [layer.getvalue() for layer in two_layers(tar, compress="")]
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    configuration = {"os": "linux", "architecture": machine_architecture(), "config": {"Cmd": ["x"]}}
    manifest = [{"Config": "config.json", "Layers": names}]
    entries = [("manifest.json", json.dumps(manifest))]
    entries.append(("config.json", json.dumps({**configuration, "rootfs": {"diff_ids": digests}})))
    folder = tmp_path / "save"
    folder.mkdir()
    for name, text in entries:
        (folder / name).write_text(text)
    for name, layer in zip(names, layers, strict=True):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(layer)
    record = await image_sources.add_oci(registry, "saved", folder)
    assert tree(registry, record).names("/etc") == ["b"]
    assert record.config.command == ("x",)


async def test_the_image_for_this_machine_is_chosen_among_platforms(registry, layout, tar):
    def descriptor(architecture, text):
        made = layout.image([tar(("which", text), compress="gz")], architecture)
        return {**made, "platform": {"os": "linux", "architecture": architecture}}

    inner = {"manifests": [descriptor("s390x", "other"), descriptor(machine_architecture(), "mine")]}
    outer = layout.blob(inner, "application/vnd.oci.image.index.v1+json")
    record = await image_sources.add_oci(registry, "multi", layout.index(outer))
    assert tree(registry, record).read_text("/which") == "mine"


async def test_a_layer_that_is_there_already_is_not_unpacked_again(registry, layout, tar):
    source = layout.index(layout.image(two_layers(tar)))
    first = await image_sources.add_oci(registry, "a", source)
    before = [registry.store.path(key).stat().st_ino for key in first.layers]
    second = await image_sources.add_oci(registry, "b", source)
    assert [registry.store.path(key).stat().st_ino for key in second.layers] == before
    assert second.size == first.size


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda layout, tar: layout.index(), "no image"),
        (lambda layout, tar: layout.index(layout.image([], "s390x")), "s390x"),
        (
            lambda layout, tar: layout.index(layout.image([tar(("a", "a"))]), layout.image([tar(("b", "b"))])),
            "2 images",
        ),
        (lambda layout, tar: layout.index({"digest": "sha256:" + "0" * 64}), "missing"),
        (lambda layout, tar: layout.index({"digest": "../../etc/passwd"}), "digest"),
        (lambda layout, tar: layout.index(layout.blob({}, "m")), "has no"),
        (lambda layout, tar: (layout.folder / "index.json").write_text("{"), "cannot be read"),
        (lambda layout, tar: None, "neither index.json"),
    ],
)
async def test_a_layout_that_is_wrong_is_refused_and_leaves_nothing(registry, layout, tar, spoil, part):
    spoil(layout, tar)
    with pytest.raises(EnvironmentFailure, match=part):
        await image_sources.add_oci(registry, "bad", layout.folder)
    assert untouched(registry)


async def test_a_blob_with_other_bytes_is_refused(registry, layout, tar):
    source = layout.index(layout.image([tar(("a", "a"), compress="gz")]))
    for blob in (source / "blobs/sha256").iterdir():
        data = blob.read_bytes()
        if data[:2] == b"\x1f\x8b":
            blob.write_bytes(tar(("evil", "evil"), compress="gz").getvalue())
    with pytest.raises(EnvironmentFailure, match="does not match its digest"):
        await image_sources.add_oci(registry, "bad", source)
    assert untouched(registry)
    assert list(registry.store.layers.iterdir()) == []


async def test_a_hostile_layer_is_refused_and_leaves_nothing(registry, layout, tar, tmp_path):
    source = layout.index(layout.image([tar(("../../../../evil", "x"), compress="gz")]))
    with pytest.raises(EnvironmentFailure) as caught:
        await image_sources.add_oci(registry, "bad", source)
    assert caught.value.code == "archive-unsafe"
    assert untouched(registry)
    assert not list(tmp_path.rglob("evil"))


def make_rootfs(folder):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tool").write_text("tool")
    (folder / "bin" / "tool").chmod(0o755)
    os.link(folder / "bin" / "tool", folder / "bin" / "again")
    (folder / "link").symlink_to("/bin/tool")
    os.mkfifo(folder / "pipe")
    return folder


async def test_a_root_folder_and_its_tar_become_the_same_image(registry, tmp_path):
    folder = make_rootfs(tmp_path / "root")
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as file:
        file.add(folder, arcname=".")
    for source in (folder, archive):
        record = await image_sources.add_rootfs(registry, "root", source)
        layer = registry.store.path(record.layers[0])
        assert sorted(path.name for path in layer.iterdir()) == ["bin", "link"]
        assert (layer / "bin/tool").stat().st_ino == (layer / "bin/again").stat().st_ino
        assert stat.S_IMODE((layer / "bin/tool").stat().st_mode) == 0o755
        assert record.config.env["PATH"]


async def test_the_same_root_folder_is_kept_once(registry, tmp_path):
    folder = make_rootfs(tmp_path / "root")
    first = await image_sources.add_rootfs(registry, "a", folder)
    second = await image_sources.add_rootfs(registry, "b", folder)
    assert first.layers == second.layers
    assert len(list(registry.store.layers.iterdir())) == 1


async def test_names_like_whiteouts_are_files_in_a_root_folder(registry, tmp_path):
    folder = make_rootfs(tmp_path / "root")
    (folder / ".wh.bin").write_text("a file")
    record = await image_sources.add_rootfs(registry, "a", folder)
    assert tree(registry, record).read_text("/.wh.bin") == "a file"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: None, UsageError),
        (lambda path: path.mkdir(), EnvironmentFailure),
        (lambda path: path.write_text("no tar"), EnvironmentFailure),
    ],
)
async def test_what_is_no_root_file_system_is_refused(registry, tmp_path, make, kind):
    make(tmp_path / "source")
    with pytest.raises(kind):
        await image_sources.add_rootfs(registry, "a", tmp_path / "source")
    assert registry.all() == []


async def test_what_is_no_image_archive_is_refused(registry, tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(UsageError, match="neither"):
        await image_sources.add_oci(registry, "a", tmp_path / "file")


@pytest.mark.parametrize("add", [recipes.add_recipe, image_sources.add_from_engine])
async def test_a_missing_tool_is_named(registry, monkeypatch, add):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InfrastructureFailure) as caught:
        await add(registry, "debian", "docker")
    assert caught.value.code == "tool-missing"


async def test_an_engine_that_does_not_have_the_image_says_so(registry, tmp_path, monkeypatch):
    tool = tmp_path / "docker"
    tool.write_text("#!/bin/sh\necho no such image >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(BenchflowError, match="no such image"):
        await image_sources.add_from_engine(registry, "a")
    assert untouched(registry)


async def test_a_recipe_replaces_an_image_at_once_and_never_without_what_it_stands_for(registry, tmp_path, monkeypatch):
    tool = tmp_path / "debootstrap"
    tool.write_text('#!/bin/sh\nmkdir -p "$4/etc/apt" "$4/usr/local/bin" && echo ID=debian > "$4/etc/os-release"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    saved = []
    monkeypatch.setattr(type(registry), "save", lambda _, record: saved.append(record))
    made = await recipes.add_recipe(registry, "debian", stands_for=("debian:*",))
    assert saved == [made]
    assert (made.stands_for, made.source) == (("debian:*",), "recipe debian (bookworm)")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", "# deb http://no\ndeb [arch=amd64] http://mirror.test/debian bookworm main\n"),
        ("sources.list.d/x.list", "deb http://mirror.test/debian bookworm main\n"),
        ("sources.list.d/x.sources", "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\n"),
    ],
)
def test_the_mirror_is_the_one_apt_uses(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    Path(tmp_path, "sources.list.d").mkdir(exist_ok=True)
    Path(tmp_path, "sources.list.d", "a.disabled").write_text("deb http://wrong x\n")
    assert debian_mirror(tmp_path) == "http://mirror.test/debian"


def test_a_machine_without_mirror_is_said(tmp_path):
    with pytest.raises(InfrastructureFailure, match="mirror"):
        debian_mirror(tmp_path)
