"""Whatever an archive holds, it lands inside the layer or is refused."""

import io
import os
import stat
import tarfile

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.layer_tree import is_opaque, is_whiteout
from benchflow.sandbox.images.unpack import UnpackLimits, unpack_layer


@pytest.fixture
def layer(tmp_path):
    folder = tmp_path / "layer"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text("untouched")
    return folder


def entry(name, kind, target="", **values):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    for key, value in values.items():
        setattr(info, key, value)
    return info


def unchanged(outside):
    return [p.name for p in outside.iterdir()] == ["victim"] and (outside / "victim").read_text() == "untouched"


def test_files_folders_links_and_permissions_arrive(layer, tar):
    stream = tar(
        ("a", None),
        ("a/file", "text"),
        entry("a/link", tarfile.SYMTYPE, "../elsewhere"),
        entry("a/hard", tarfile.LNKTYPE, "a/file"),
        entry("a/dir", tarfile.DIRTYPE, mode=0o2750, mtime=100),
    )
    result = unpack_layer(stream, layer)
    assert (layer / "a/file").read_text() == "text"
    assert str((layer / "a/link").readlink()) == "../elsewhere"
    assert (layer / "a/hard").stat().st_ino == (layer / "a/file").stat().st_ino
    assert stat.S_IMODE((layer / "a/dir").stat().st_mode) == 0o2750
    assert (layer / "a/dir").stat().st_mtime == 100
    assert (result.entries, result.size, result.left_out) == (5, 4, 0)


@pytest.mark.parametrize("compress", ["", "gz", "bz2", "xz"])
def test_compressed_archives_are_recognised(layer, tar, compress):
    unpack_layer(tar(("f", "x"), compress=compress), layer)
    assert (layer / "f").read_text() == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owners_are_kept_as_numbers(layer, tar):
    unpack_layer(tar(entry("f", tarfile.REGTYPE, uid=1234, gid=4321, uname="root", mode=0o4755)), layer)
    status = (layer / "f").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o4755)


@pytest.mark.parametrize(
    "make",
    [
        lambda out: [("../victim", "evil")],
        lambda out: [("a/../../victim", "evil")],
        lambda out: [entry("d", tarfile.SYMTYPE, str(out)), ("d/victim", "evil")],
        lambda out: [entry("d", tarfile.SYMTYPE, "../outside"), ("d/new", "evil")],
        lambda out: [entry("d", tarfile.SYMTYPE, "../outside"), ("d/new", None)],
        lambda out: [entry("a", tarfile.SYMTYPE, "b"), entry("b", tarfile.SYMTYPE, "../outside"), ("a/x/y", "e")],
        lambda out: [entry("h", tarfile.LNKTYPE, "../outside/victim"), ("h", "evil")],
        lambda out: [entry("d", tarfile.SYMTYPE, str(out)), entry("h", tarfile.LNKTYPE, "d/victim"), ("h", "e")],
        lambda out: [entry("s", tarfile.SYMTYPE, str(out / "victim")), entry("h", tarfile.LNKTYPE, "s")],
        lambda out: [entry("h", tarfile.LNKTYPE, "nowhere")],
        lambda out: [entry("h", tarfile.LNKTYPE, "")],
        lambda out: [("f", "x"), ("f/below", "evil")],
        lambda out: [("d", None), ("d/x", "1"), ("d", "now a file")],
        lambda out: [(".wh.", "")],
        lambda out: [(".wh...", "")],
        lambda out: [entry("d", tarfile.SYMTYPE, str(out)), ("d/.wh.victim", "")],
        lambda out: [entry("d", tarfile.SYMTYPE, str(out)), ("d/.wh..wh..opq", "")],
    ],
)
def test_an_archive_that_reaches_out_is_refused_and_changes_nothing_outside(layer, outside, tar, make):
    with pytest.raises(EnvironmentFailure) as caught:
        unpack_layer(tar(*make(outside)), layer)
    assert caught.value.code == "archive-unsafe"
    assert unchanged(outside)


def test_a_file_at_the_place_of_a_link_replaces_the_link_and_not_its_target(layer, outside, tar):
    unpack_layer(tar(entry("f", tarfile.SYMTYPE, str(outside / "victim")), ("f", "mine")), layer)
    assert (layer / "f").read_text() == "mine"
    assert not (layer / "f").is_symlink()
    assert unchanged(outside)


def test_a_folder_at_the_place_of_a_link_replaces_the_link(layer, outside, tar):
    unpack_layer(tar(entry("d", tarfile.SYMTYPE, str(outside)), ("d", None), ("d/new", "mine")), layer)
    assert (layer / "d/new").read_text() == "mine"
    assert unchanged(outside)


def test_absolute_names_are_taken_below_the_layer(layer, tar):
    unpack_layer(tar(("/etc/x", "1")), layer)
    assert (layer / "etc/x").read_text() == "1"


def test_devices_and_pipes_are_left_out_and_counted(layer, tar):
    stream = tar(
        entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("disk", tarfile.BLKTYPE, devmajor=8),
        entry("pipe", tarfile.FIFOTYPE),
    )
    assert unpack_layer(stream, layer).left_out == 3
    assert list(layer.iterdir()) == []


def test_whiteouts_become_those_of_the_overlay(layer, tar):
    unpack_layer(tar(("d", None), ("d/.wh.gone", ""), ("o", None), ("o/.wh..wh..opq", "")), layer)
    assert is_whiteout((layer / "d/gone").lstat())
    assert is_opaque(layer / "o", (layer / "o").lstat())


def test_a_name_that_is_whited_out_and_brought_anew_hides_only_what_lies_below(layer, tar):
    unpack_layer(
        tar((".wh.d", ""), ("d", None), ("d/x", "1"), ("e", None), (".wh.e", ""), ("f", "1"), (".wh.f", "")), layer
    )
    assert is_opaque(layer / "d", (layer / "d").lstat())
    assert is_opaque(layer / "e", (layer / "e").lstat())
    assert (layer / "f").read_text() == "1"


def test_attributes_of_the_overlay_cannot_be_planted(layer, tar):
    info = entry("d", tarfile.DIRTYPE)
    info.pax_headers = {"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.overlay.redirect": "/etc"}
    unpack_layer(tar(info), layer)
    assert os.listxattr(layer / "d") == []


@pytest.mark.parametrize("limits", [UnpackLimits(max_bytes=3), UnpackLimits(max_entries=1)])
def test_too_much_is_refused(layer, tar, limits):
    with pytest.raises(EnvironmentFailure, match="more than"):
        unpack_layer(tar(("a", "12"), ("b", "34")), layer, limits=limits)


@pytest.mark.parametrize("cut", [700, 1100])
def test_an_archive_that_ends_early_is_refused(layer, tar, cut):
    whole = tar(("a", "x" * 2000)).getvalue()
    with pytest.raises(EnvironmentFailure) as caught:
        unpack_layer(io.BytesIO(whole[:cut]), layer)
    assert caught.value.code == "archive-invalid"


@pytest.mark.parametrize("data", [b"not a tar at all" * 100, b"\x1f\x8b\x08 broken"])
def test_what_is_no_archive_is_refused(layer, data):
    with pytest.raises(EnvironmentFailure) as caught:
        unpack_layer(io.BytesIO(data), layer)
    assert caught.value.code == "archive-invalid"
