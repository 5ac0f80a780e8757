"""Archives that `bench leaderboard export` did not write are refused in one sentence, and nothing is unpacked."""

import io
import json
import stat
import struct
import warnings
import zipfile

import pytest

from benchflow.cli import main
from benchflow.evidence.leaderboard import board_file
from benchflow.evidence.leaderboard.board_file import open_board, write_board
from benchflow.record.leaderboard_index import ListedFile
from benchflow.task.bundles.canonical_archive import write_members
from benchflow.task.bundles.zip_layout import CENTRAL_SIGNATURE

INVALID = "leaderboard-invalid"
END = b"PK\5\6"


@pytest.fixture
def board(make_finished, exported):
    return exported(make_finished(rewards={"t/a": [1.0]}))


@pytest.fixture
def refused(board, capsys):
    """The one sentence with which `bench leaderboard verify` refuses these bytes; nothing appears beside the file."""

    def refused(data: bytes) -> str:
        board.write_bytes(data)
        before = sorted(path for path in board.parent.rglob("*"))
        assert main(["leaderboard", "verify", str(board), "--json"]) == 1
        [problem] = json.loads(capsys.readouterr().out)["problems"]
        assert sorted(path for path in board.parent.rglob("*")) == before
        assert problem["code"] == INVALID
        assert "\n" not in problem["message"]
        return problem["message"]

    return refused


def rewritten(data: bytes, change) -> bytes:
    """The members in an ordinary archive, after a change of the list of (entry, content)."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(archive.getinfo(name), archive.read(name)) for name in archive.namelist()]
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")
        for entry, content in change(members):
            archive.writestr(entry, content, compress_type=entry.compress_type)
    return stream.getvalue()


def entry(name, mode=0o644, compression=zipfile.ZIP_STORED):
    found = zipfile.ZipInfo(name)
    found.external_attr = mode << 16
    found.create_system = 3
    found.compress_type = compression
    return found


def bomb(members):
    return [*members, (entry("jobs/job/bomb", compression=zipfile.ZIP_DEFLATED), bytes(50 << 20))]


def compressed(members):
    return [(entry(found.filename, compression=zipfile.ZIP_DEFLATED), content) for found, content in members]


def named(name):
    return lambda members: [*members, (entry(name), b"x")]


def doubled(members):
    return [*members, members[1]]


def index_last(members):
    return [*members[1:], members[0]]


def linked(members):
    return [*members, (entry("jobs/link", stat.S_IFLNK | 0o777), b"/etc/passwd")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (bomb, "not as this version writes it"),
        (compressed, "compressed"),
        (named("../../evil"), "not as this version writes it"),
        (named("/etc/evil"), "not as this version writes it"),
        (doubled, "not as this version writes it"),
        (linked, "not as this version writes it"),
        (index_last, "its first member is not leaderboard.json"),
        (lambda members: members[1:], "its first member is not leaderboard.json"),
        (lambda members: [], "its first member is not leaderboard.json"),
    ],
)
def test_ordinary_archives_are_refused_whatever_they_contain(board, refused, change, why):
    assert why in refused(rewritten(board.read_bytes(), change))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../../evil", "leaves the folder"),
        ("jobs/../../evil", "leaves the folder"),
        ("/etc/evil", "absolute path"),
        ("C:/evil", "absolute path"),
        ("jobs//evil", "not a plain path"),
        ("jobs/ev\nil", "character"),
        ("jobs\\..\\evil", "character"),
        ("jobs/JOB/job.json", "differ only in case"),
        ("jobs/job/job.json/x", "both a file and a folder"),
        ("leaderboard.json", "occurs twice"),
        ("jobs/job/job.json", "occurs twice"),
    ],
)
def test_unsafe_names_in_the_index_are_refused(board, refused, name, why):
    file = open_board(board)
    known = [(listed, file.text(path)) for path, (_, listed) in file.places.items()]
    parts = sorted([*known, (listed_file(name), b"x")], key=lambda part: part[0].path)
    index = type(file.board)(file.board.jobs, file.board.comparisons, tuple(listed for listed, _ in parts))
    write_board(board, index, [content for _, content in parts])
    assert why in refused(board.read_bytes())


def listed_file(name, size=1):
    return ListedFile(name, size, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881")


def patched(at, form, value):
    """Overwrites a number at an offset from the first directory entry of a part."""

    def change(data):
        place = data.index(CENTRAL_SIGNATURE, data.index(CENTRAL_SIGNATURE) + 4) + at
        return data[:place] + struct.pack(form, value) + data[place + struct.calcsize(form) :]

    return change


def patched_local(at, form, value):
    """The same in the header before the content of the first part."""

    def change(data):
        place = data.index(b"PK\3\4", 4) + at
        return data[:place] + struct.pack(form, value) + data[place + struct.calcsize(form) :]

    return change


def patched_end(at, form, value):
    def change(data):
        place = data.rindex(END) + at
        return data[:place] + struct.pack(form, value) + data[place + struct.calcsize(form) :]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (patched(8, "<H", 0x801), "encrypted"),
        (patched_local(6, "<H", 0x801), "encrypted"),
        (patched(10, "<H", 8), "compressed"),
        (patched_local(8, "<H", 12), "compressed"),
        (patched(42, "<I", 0), "not as this version writes it"),
        (patched(24, "<I", 0xFFFFFFFF), "another size"),
        (patched_local(22, "<I", 0xFFFFFFF0), "another size"),
        (patched(38, "<I", (stat.S_IFLNK | 0o777) << 16), "link"),
        (patched(38, "<I", (stat.S_IFCHR | 0o666) << 16), "special file"),
        (patched_end(8, "<H", 65535), "its end is not"),
        (patched_end(10, "<H", 1), "its end is not"),
        (patched_end(12, "<I", 0), "its end is not"),
        (patched_end(16, "<I", 0), "its end is not"),
        (lambda data: data + b"PK\5\6" + bytes(18), "bytes after its end"),
        (lambda data: b"#!/bin/sh\n" + data, "first member"),
        (lambda data: data + data, "bytes after its end"),
        (lambda data: data[: data.rindex(END)], "cut short"),
        (lambda data: data[:18] + struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0) + data[26:], "at most"),
        (lambda data: data.replace(b"leaderboard.json", b"Leaderboard.json"), "first member"),
    ],
)
def test_headers_that_lie_are_refused(board, refused, change, why):
    assert why in refused(change(board.read_bytes()))


def test_entries_that_share_their_content_are_refused(board, refused):
    """Two directory entries that point to one content, as archives do that expand to petabytes."""
    data = board.read_bytes()
    first = data.index(CENTRAL_SIGNATURE)
    second = data.index(CENTRAL_SIGNATURE, first + 4)
    offset = data[data.index(CENTRAL_SIGNATURE, second + 4) + 42 :][:4]
    assert "not as this version writes it" in refused(data[: second + 42] + offset + data[second + 46 :])


def test_a_wrong_checksum_is_named_by_its_part(board, capsys):
    data = patched(16, "<I", 1)(patched_local(14, "<I", 1)(board.read_bytes()))
    board.write_bytes(data)
    assert main(["leaderboard", "verify", str(board), "--json"]) == 1
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["file"]) == ("changed", "jobs/job/job.json")


def test_more_parts_and_larger_ones_than_are_allowed_are_refused(board, refused, monkeypatch):
    data = board.read_bytes()
    monkeypatch.setattr(board_file, "MAX_MEMBERS", 3)
    assert "more than 3 parts" in refused(data)
    monkeypatch.setattr(board_file, "MAX_MEMBERS", 1000)
    monkeypatch.setattr(board_file, "MAX_MEMBER_BYTES", 3)
    assert "is not allowed" in refused(data)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 100_000, "nested deeper"),
        (b'{"schema": "benchcube.leaderboard.v1", "schema": "x"}', "twice"),
        (b"{}", "not a document of the schema"),
        (b"\xff", "not UTF-8"),
        (b"", "is empty"),
    ],
)
def test_an_index_that_is_not_one_is_refused(board, refused, text, why):
    stream = io.BytesIO()
    write_members(stream, "leaderboard.json", text, [], [])
    assert why in refused(stream.getvalue())
