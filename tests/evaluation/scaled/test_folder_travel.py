"""Folders that travel: they arrive as they were, or not at all, and nothing in them leaves its place."""

import errno
import hashlib
import io
import os
import struct

import pytest

from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.scaled import folder_travel
from benchflow.evaluation.scaled.folder_travel import packed, reader, take_back
from benchflow.evaluation.scaled.orders import FolderStream
from benchflow.sandbox.inside import tree_stream
from benchflow.sandbox.inside.tree_stream import DEEPEST

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path):
    """What a rollout may leave, odd names included."""
    root = tmp_path / "there"
    (root / "verifier" / "empty").mkdir(parents=True)
    (root / "result.json").write_text("{}")
    (root / "verifier" / "run.sh").write_text("#!/bin/sh\n")
    (root / "verifier" / "run.sh").chmod(0o755)
    (root / os.fsdecode(b"\xff odd\nname")).write_bytes(b"\0\1")
    (root / "link").symlink_to("verifier/run.sh")
    return root


def content(root):
    return {
        path.relative_to(root).as_posix(): (
            path.lstat().st_mode,
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in root.rglob("*")
    }


async def test_a_folder_arrives_as_it_was(folder, tmp_path):
    stream = packed(folder, tmp_path / "stream")
    assert stream.data is not None
    await take_back(tmp_path / "here", stream, reader(tmp_path / "stream"))
    assert content(tmp_path / "here") == content(folder)


async def test_what_may_leave_a_sandbox_is_never_too_deep_for_the_way_back(folder, tmp_path):
    deep = folder / "agent" / "artifacts" / "/".join("d" * DEEPEST)
    deep.mkdir(parents=True)
    (deep / "file").write_text("kept")
    await take_back(tmp_path / "here", packed(folder, tmp_path / "stream"), reader(tmp_path / "stream"))
    assert (tmp_path / "here" / deep.relative_to(folder) / "file").read_text() == "kept"


async def test_a_large_folder_is_fetched_in_pieces_and_compared(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_travel, "CHUNK_BYTES", 1000)
    (folder / "large").write_bytes(os.urandom(folder_travel.INLINE_BYTES))
    place = tmp_path / "stream"
    stream = packed(folder, place)
    assert stream.data is None
    await take_back(tmp_path / "here", stream, reader(place))
    assert content(tmp_path / "here") == content(folder)
    damaged = bytearray(place.read_bytes())
    damaged[5000] ^= 1
    place.write_bytes(damaged)
    with pytest.raises(InfrastructureFailure, match="its digest is wrong"):
        await take_back(tmp_path / "damaged", stream, reader(place))
    place.write_bytes(damaged[:3000])
    with pytest.raises(InfrastructureFailure, match="only 3000 of"):
        await take_back(tmp_path / "short", stream, reader(place))
    assert not (tmp_path / "damaged").exists()
    assert not (tmp_path / "short").exists()


def record(kind, name, data=b""):
    return struct.pack("<BHIQq", kind, len(name), 0o644, len(data), 0) + name + data


END = record(0, b"")
FILE, LINK = 3, 4


@pytest.mark.parametrize(
    "hostile",
    [
        record(FILE, b"../out", b"x") + END,
        record(FILE, b"/out", b"x") + END,
        record(LINK, b"link", b"../..") + END,
        record(LINK, b"link", b"/etc") + END,
        record(LINK, b"link", b".") + record(FILE, b"link", b"x") + END,
        record(2, b"") + END,
        record(FILE, b"a", b"x")[:-1],
        b"",
    ],
)
async def test_a_stream_that_would_leave_its_folder_leaves_nothing(tmp_path, hostile):
    stream = FolderStream(len(hostile), hashlib.sha256(hostile).hexdigest(), hostile)
    with pytest.raises((InfrastructureFailure, FileExistsError)):
        await take_back(tmp_path / "rollouts" / "here", stream, reader(tmp_path / "nothing"))
    assert [path.name for path in tmp_path.rglob("*")] == []


def test_the_records_of_this_test_are_those_of_the_stream(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    os.utime(tmp_path / "a", ns=(0, 0))
    (tmp_path / "a").chmod(0o644)
    written = io.BytesIO()
    directory = os.open(tmp_path, os.O_RDONLY)
    tree_stream.pack(directory, written)
    os.close(directory)
    assert written.getvalue()[:-23] == record(FILE, b"a", b"x")


async def test_a_full_disk_is_told_from_one_on_a_node(folder, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stream = packed(folder, tmp_path / "stream")
    monkeypatch.setattr(folder_travel, "unpack", full)
    with pytest.raises(
        InfrastructureFailure, match="here cannot be written where it has to arrive: No space"
    ) as raised:
        await take_back(tmp_path / "here", stream, reader(tmp_path / "stream"))
    assert raised.value.code == "disk-full"
    assert not (tmp_path / "here").exists()
