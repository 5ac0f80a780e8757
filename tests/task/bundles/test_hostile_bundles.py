"""Archives that were not written by `bench tasks bundle` are refused, each with one sentence."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from benchflow.errors import UsageError
from benchflow.task.bundles import canonical_archive, zip_layout
from benchflow.task.bundles.bundle_index import BadIndexError, Member, parse_index
from benchflow.task.bundles.bundle_writing import Contents
from benchflow.task.bundles.canonical_archive import write_members
from benchflow.task.discovery import find_packages
from benchflow.task.filemap import digest_of


@pytest.fixture
def sound(make, gathered) -> Contents:
    make("tasks/a")
    return gathered()


@pytest.fixture
def packed(tmp_path):
    """Write contents as they are, without the checks of the writer, and apply a change to the bytes."""

    def packed(contents: Contents, change=lambda data: data) -> Path:
        place = tmp_path / "x.zip"
        with place.open("wb+") as stream:
            write_members(stream, "bundle.json", contents.listing.render(), contents.listing.members, contents.sources)
        place.write_bytes(change(place.read_bytes()))
        return place

    return packed


def refusal(place: Path) -> str:
    with pytest.raises(UsageError) as caught:
        [found.path for found in find_packages([place])]
    assert caught.value.code == "bundle-invalid"
    sentence = str(caught.value)
    assert sentence.startswith(str(place))
    assert "\n" not in sentence
    return sentence


def with_member(contents: Contents, path: str, kind: str = "file", data: bytes = b"x", size: int | None = None):
    """Contents with one more member of the package, and digests to fit."""
    member = Member(path, kind, len(data) if size is None else size, sha256(data).hexdigest())
    rows = sorted([*zip(contents.listing.members, contents.sources, strict=True), (member, data)])
    [entry] = contents.listing.packages
    files = {
        row[0].path.removeprefix("a/"): row[0].sha256
        for row in rows
        if row[0].path.startswith("a/") and row[0].kind in ("file", "program")
    }
    entry = entry._replace(digest=digest_of(files), content_digest=digest_of(files))
    listing = replace(contents.listing, packages=(entry,), members=tuple(row[0] for row in rows))
    return Contents(listing, tuple(row[1] for row in rows))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a/../../evil", "leaves the folder"),
        ("/etc/evil", "absolute path"),
        ("C:/evil", "absolute path"),
        ("a/./evil", "not a plain path"),
        ("a//evil", "not a plain path"),
        ("a\\..\\evil", "character"),
        ("a/ev\nil", "character"),
        ("a/ev\0il", "character"),
        ("a/" + "x" * 300, "too long"),
        ("a/TASK.md", "differ only in case"),
        ("a/task.md/x", "both a file and a folder"),
        ("A/other", "differ only in case"),
        ("bundle.json", "occurs twice"),
        ("stray", "belongs to no package"),
    ],
)
def test_unsafe_names_in_the_index_are_refused(sound, packed, path, why):
    assert why in refusal(packed(with_member(sound, path)))


def test_a_name_that_is_listed_twice_is_refused(sound, packed):
    doubled = replace(sound.listing, members=(*sound.listing.members, sound.listing.members[-1]))
    assert "occurs twice" in refusal(packed(Contents(doubled, (*sound.sources, sound.sources[-1]))))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "environment/../../x", "..", "../verifier/.."])
def test_links_that_leave_the_package_are_refused(sound, packed, target):
    assert "is a link to" in refusal(packed(with_member(sound, "a/data", "link", target.encode())))


def test_a_link_that_stays_inside_is_taken(sound, packed):
    [found] = find_packages([packed(with_member(sound, "a/environment/tests", "link", b"../verifier"))])
    assert (found.path / "environment/tests/test.sh").is_file()


@pytest.mark.parametrize(
    ("kind", "size", "why"),
    [("pipe", 1, "neither a file nor a link"), ("file", 2 << 30, "size of"), ("folder", 5, "size of")],
)
def test_other_kinds_and_sizes_in_the_index_are_refused(sound, kind, size, why):
    listing = with_member(sound, "a/data", kind, size=size).listing
    with pytest.raises(BadIndexError, match=why):
        parse_index(listing.render())


def test_digests_of_other_content_are_refused(sound, packed):
    [entry] = sound.listing.packages
    wrong = "sha256:" + "0" * 64
    lying = replace(sound.listing, packages=(entry._replace(digest=wrong),))
    assert "wrong digest for the package 'a'" in refusal(packed(Contents(lying, sound.sources)))
    lying = replace(sound.listing, packages=(entry._replace(content_digest=wrong),))
    assert "wrong content digest for the package 'a'" in refusal(packed(Contents(lying, sound.sources)))


def test_changed_content_is_refused(sound, packed):
    place = packed(sound, lambda data: data.replace(b"Write /app/out.txt.", b"Write /app/OUT.txt.", 1))
    assert "'a/task.md' does not have the checksum in its header" in refusal(place)
    content = b"Write /app/out.txt.\n"

    def change(data):
        start = data.index(b"---\nschema_version")
        old = data[start : data.index(content) + len(content)]
        new = old.replace(b"out", b"OUT")
        crc = zlib.crc32(old).to_bytes(4, "little")
        return data.replace(old, new).replace(crc, zlib.crc32(new).to_bytes(4, "little"))

    assert "'a/task.md' does not have the SHA-256" in refusal(packed(sound, change))


def local_at(data: bytes, name: bytes) -> int:
    """Where the header of a member is; its name is in the index, too."""
    start = 0
    while data[(start := data.index(name, start) + 1) - 1 - zip_layout.LOCAL_BYTES :][:4] != zip_layout.LOCAL_SIGNATURE:
        pass
    return start - 1 - zip_layout.LOCAL_BYTES


def patched(name: bytes, offset: int, value: bytes, *, central: bool = False):
    """A change of one field in the header of a member."""

    def change(data: bytes) -> bytes:
        start = data.rindex(name) - zip_layout.CENTRAL_BYTES if central else local_at(data, name)
        return data[: start + offset] + value + data[start + offset + len(value) :]

    return change


NAME = b"a/verifier/test.sh"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (patched(NAME, 6, struct.pack("<H", 0x801)), "encrypted member"),
        (patched(NAME, 8, struct.pack("<H", 8)), "compressed member"),
        (patched(NAME, 22, struct.pack("<I", 5)), "another size"),
        (patched(NAME, 18, struct.pack("<I", 5)), "not as this version writes it"),
        (patched(NAME, 30, b"a/verifier/evil.sh"), "header that names 'a/verifier/evil.sh'"),
        (patched(NAME, 46, b"a/verifier/evil.sh", central=True), "directory that names 'a/verifier/evil.sh'"),
        (patched(NAME, 8, struct.pack("<H", 0x801), central=True), "encrypted member"),
        (patched(NAME, 38, struct.pack("<I", 0o120777 << 16), central=True), "as a link"),
        (patched(NAME, 38, struct.pack("<I", 0o020666 << 16), central=True), "special file"),
        (patched(NAME, 12, struct.pack("<H", 99)), "not as this version writes it"),
        (lambda data: data + b"x", "1 bytes after its end"),
        (lambda data: b"x" + data, "not a folder"),
        (lambda data: data[:-1], "cut short or damaged"),
        (lambda data: data[:-30], "cut short or damaged"),
        (lambda data: data[:200], "cut short"),
        (lambda data: data[:-22] + data[-22:-2] + b"\1\0" + b"c", "cut short or damaged"),
        (lambda data: data[:18] + struct.pack("<II", 3 << 30, 3 << 30) + data[26:], "index of 3,221,225,472 bytes"),
    ],
)
def test_headers_that_lie_are_refused(sound, packed, change, why):
    place = packed(sound, change)
    if why == "not a folder":
        with pytest.raises(UsageError, match=why):
            find_packages([place])
        return
    assert why in refusal(place)


def test_a_member_that_the_index_does_not_list_is_refused(sound, packed):
    extra = zip_layout.local_header(b"evil", 1, zlib.crc32(b"x")) + b"x"

    def insert(data):
        directory = data.index(zip_layout.CENTRAL_SIGNATURE)
        return data[:directory] + extra + data[directory:]

    assert "has the member 'evil', which its index does not list" in refusal(packed(sound, insert))


def test_a_huge_directory_is_never_read(sound, packed, monkeypatch):
    def insert(data):
        end = data.index(b"PK\5\6")
        return data[:end] + b"\0" * (64 << 20) + data[end:]

    place = packed(sound, insert)
    most = 0
    read = canonical_archive.ArchiveFile.read

    def counted(self, start, size):
        nonlocal most
        most = max(most, size)
        return read(self, start, size)

    monkeypatch.setattr(canonical_archive.ArchiveFile, "read", counted)
    assert "cut short or damaged" in refusal(place)
    assert most < 1 << 20


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda index: {**index, "schema": "benchcube.bundle.v9"}, "newer version"),
        (lambda index: {**index, "more": 1}, "not written as this version writes it"),
        (lambda index: {**index, "packages": []}, "has no packages"),
        (lambda index: {**index, "files": [[1, 2, 3, 4]]}, "damaged index"),
        (lambda index: {**index, "files": {}}, "wrong digest"),
        (lambda index: {**index, "benchmark": {}}, "damaged index"),
        (lambda index: {**index, "benchmark": {**index["benchmark"], "splits": {"x": ["b"]}}}, "split 'x'"),
        (lambda index: {**index, "packages": index["packages"] * 2}, "in order"),
        (lambda index: [index], "another kind"),
    ],
)
def test_an_index_that_is_not_one_is_refused(sound, change, why):
    with pytest.raises(BadIndexError, match=why):
        parse_index(json.dumps(change(json.loads(sound.listing.render()))).encode())


def test_a_zip_archive_of_someone_else_is_refused(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("../evil", "x")
    assert "not a bundle" in refusal(tmp_path / "x.zip")
    assert not (tmp_path.parent / "evil").exists()
