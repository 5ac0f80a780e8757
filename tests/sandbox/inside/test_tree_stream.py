"""Trees through a stream: nothing is lost on the way, and nothing hostile gets through."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.inside import tree_stream
from benchflow.sandbox.inside.tree_stream import Intake, Refused

EVERYTHING = Intake(1 << 40, 1 << 20)
names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
trees = st.recursive(
    st.binary(max_size=300), lambda below: st.dictionaries(names, below, max_size=4), max_leaves=12
).filter(lambda tree: isinstance(tree, dict))


def write(folder: Path, tree: dict[str, object]) -> None:
    for name, content in tree.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            (folder / name).mkdir()
            write(folder / name, content)  # type: ignore[arg-type] # the strategy makes nothing else


def read(folder: Path) -> dict[str, object]:
    return {path.name: read(path) if path.is_dir() else path.read_bytes() for path in folder.iterdir()}


def packed(folder: Path) -> bytes:
    with (folder.parent / f"{folder.name}.stream").open("wb+") as file:
        directory = os.open(folder, os.O_RDONLY)
        try:
            tree_stream.pack(directory, file)
        finally:
            os.close(directory)
        file.flush()
        file.seek(0)
        return file.read()


def unpack(data: bytes, folder: Path, intake: Intake = EVERYTHING) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        tree_stream.unpack(directory, io.BytesIO(data), intake)
    finally:
        os.close(directory)


def record(kind: int, name: bytes = b"", mode: int = 0o644, data: bytes = b"", size: int | None = None) -> bytes:
    header = struct.pack("<BHIQq", kind, len(name), mode, len(data) if size is None else size, 0)
    return header + name + data


END = record(0)


@given(tree=trees)
def test_any_tree_arrives_as_it_was(tree: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("trees")
    source, target = base / "source", base / "target"
    source.mkdir()
    target.mkdir()
    write(source, tree)
    unpack(packed(source), target)
    assert read(target) == tree


def test_modes_times_links_and_large_files_are_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "bin").mkdir(parents=True)
    target.mkdir()
    (source / "bin" / "tool").write_bytes(os.urandom(700_000))
    (source / "bin" / "tool").chmod(0o750)
    os.utime(source / "bin" / "tool", ns=(10**18, 10**18))
    (source / "link").symlink_to("bin/tool")
    (source / "bin").chmod(0o711)
    unpack(packed(source), target)
    copied = target / "bin" / "tool"
    assert copied.read_bytes() == (source / "bin" / "tool").read_bytes()
    assert (stat.S_IMODE(copied.stat().st_mode), copied.stat().st_mtime_ns) == (0o750, 10**18)
    assert stat.S_IMODE((target / "bin").stat().st_mode) == 0o711
    assert (target / "link").readlink() == Path("bin/tool")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc", b"../x", b"a\0b"])
def test_a_name_that_is_a_path_is_refused(name: bytes, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        unpack(record(3, name, data=b"x") + END, tmp_path)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../outside", "a/../../outside", "down/..", "a/../b", "../../x", "\0"]
)
def test_a_link_that_may_lead_out_is_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        unpack(record(4, b"link", data=target.encode()) + END, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_links_that_stay_inside_resolve_inside_however_they_are_combined(tmp_path: Path) -> None:
    inner = record(1, b"d", 0o755) + record(4, b"up", data=b"..") + record(4, b"far", data=b"../d/up/d/up") + record(2)
    unpack(inner + record(4, b"top", data=b"d/up/d/far") + END, tmp_path)
    assert (tmp_path / "top").resolve() == tmp_path
    assert (tmp_path / "d" / "far").resolve() == tmp_path


def test_writing_never_goes_through_a_link_that_stands_there(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (outside / "file").write_text("precious")
    (target / "folder").symlink_to(outside)
    (target / "file").symlink_to(outside / "file")
    unpack(
        record(1, b"folder", 0o755)
        + record(3, b"file", data=b"new")
        + record(2)
        + record(3, b"file", data=b"new")
        + END,
        target,
    )
    assert (outside / "file").read_text() == "precious"
    assert [(target / "folder" / "file").read_text(), (target / "file").read_text()] == ["new", "new"]


def test_too_many_bytes_files_and_levels_are_refused_before_they_are_taken(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="more than 10 bytes"):
        unpack(record(3, b"a", size=1 << 60), tmp_path, Intake(10, 10))
    with pytest.raises(Refused, match="more than 3 files"):
        unpack(b"".join(record(3, str(n).encode()) for n in range(5)), tmp_path, Intake(10, 3))
    with pytest.raises(Refused, match="nested"):
        unpack(record(1, b"d") * 400, tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 20, 30])
def test_a_stream_that_ends_early_is_refused(cut: int, tmp_path: Path) -> None:
    data = record(3, b"file", data=b"content") + END
    with pytest.raises(Refused):
        unpack(data[:cut], tmp_path)


@given(data=st.binary(max_size=200))
def test_garbage_never_creates_anything_outside(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("garbage")
    (base / "target").mkdir()
    with contextlib.suppress(Refused, OSError):
        unpack(data, base / "target", Intake(1000, 100))
    assert [path.name for path in base.iterdir()] == ["target"]


def test_special_files_are_not_packed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "pipe")
    with pytest.raises(Refused, match="pipe"):
        packed(source)
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        with pytest.raises(Refused, match="socket"):
            packed(source)


def test_set_user_id_bits_do_not_travel(tmp_path: Path) -> None:
    unpack(record(3, b"tool", mode=0o6755) + END, tmp_path)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o755


def test_other_threads_keep_their_umask_while_a_tree_arrives(tmp_path: Path) -> None:
    class Watching(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            beside.append(os.umask(0o077))  # it can only be read by setting it
            return super().read(size)

    beside: list[int] = []
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "open").write_bytes(b"x")
    (tmp_path / "here" / "open").chmod(0o666)
    stream = io.BytesIO()
    here = os.open(tmp_path / "here", os.O_RDONLY)
    tree_stream.pack(here, stream)
    (tmp_path / "there").mkdir()
    there = os.open(tmp_path / "there", os.O_RDONLY)
    before = os.umask(0o077)
    try:
        tree_stream.unpack(there, Watching(stream.getvalue()), EVERYTHING)
    finally:
        os.umask(before)
        os.close(here)
        os.close(there)
    assert set(beside) == {0o077}
    assert stat.S_IMODE((tmp_path / "there" / "open").stat().st_mode) == 0o666
