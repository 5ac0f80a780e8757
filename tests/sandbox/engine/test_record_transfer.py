"""Records and what is refused of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import SandboxFailure, UsageError
from benchflow.sandbox.engine.box.file_records import Record, RecordReader
from benchflow.sandbox.engine.box.record_transfer import Bounds, Owner, receive_tree, upload_stream

pytestmark = pytest.mark.anyio

PATHS = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=12)
FILES = st.dictionaries(PATHS, st.binary(max_size=200), max_size=5)


async def in_pieces(data, size):
    for start in range(0, len(data), size):
        yield data[start : start + size]


@given(FILES, st.integers(1, 64))
async def test_records_are_read_back_however_they_are_cut(files, size):
    stream = b"".join(Record("f", path, len(data), 0o600, 1, 2, 3).header() + data for path, data in files.items())
    reader = RecordReader(in_pieces(stream, size))
    found = {}
    while (record := await reader.next()) is not None:
        found[record.path] = b"".join([part async for part in reader.data(record.size)])
        assert (record.mode, record.uid, record.gid, record.mtime_ns) == (0o600, 1, 2, 3)
    assert found == files


@given(st.binary(min_size=1, max_size=100))
async def test_garbage_is_refused_and_never_hangs(data):
    reader = RecordReader(in_pieces(data, 7))
    try:
        while (record := await reader.next()) is not None:
            await reader.take(record.size)
    except SandboxFailure:
        pass


async def tree(*records):
    yield Record("d", "").header()
    for record, data in records:
        yield record.header() + data


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", ".", ""])
async def test_paths_that_leave_the_tree_are_refused(tmp_path, path):
    reader = RecordReader(tree((Record("f", path, 1), b"x")))
    with pytest.raises(SandboxFailure):
        await receive_tree(reader, "/src", tmp_path / "out", Bounds(100, 100))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "x").exists()


async def test_two_links_that_only_together_lead_out_are_refused(tmp_path):
    links = ((Record("d", "p"), b""), (Record("l", "p/top", 2), b".."), (Record("l", "out", 8), b"p/top/.."))
    with pytest.raises(SandboxFailure, match="leaves the copied tree"):
        await receive_tree(RecordReader(tree(*links)), "/src", tmp_path / "out", Bounds(100, 100))
    assert not (tmp_path / "out").exists()


async def test_nothing_is_written_through_a_link_of_the_same_stream(tmp_path):
    reader = RecordReader(tree((Record("l", "a", 1), b"b"), (Record("d", "b"), b""), (Record("f", "a/x", 1), b"x")))
    with pytest.raises((SandboxFailure, OSError)):
        await receive_tree(reader, "/src", tmp_path / "out", Bounds(100, 100))


async def test_special_files_are_not_uploaded(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        [part async for part in upload_stream(tmp_path, "/x", Owner())]
