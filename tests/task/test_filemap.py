"""Files are read once and hashed; nothing is followed out of the folder and nothing hangs."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from pathlib import Path

import pytest

from benchflow.task import filemap
from benchflow.task.filemap import digest_of, read_regular, scan
from benchflow.task.package import load_package


def test_every_regular_file_is_listed_in_order(make_files) -> None:
    folder = make_files({"b": "2", "a/z": "1", "a/.hidden": "", "a.txt": "3"})
    found = scan(folder)
    assert list(found.files) == ["a.txt", "a/.hidden", "a/z", "b"]
    assert found.folders == {"a"}
    assert found.below("a") == {".hidden": found.files["a/.hidden"], "z": found.files["a/z"]}
    assert found.hashes("a")["z"] == hashlib.sha256(b"1").hexdigest()
    assert found.read("b") == b"2"
    assert "b" in found
    assert "a" not in found


def test_the_digest_is_over_paths_and_contents(make_files) -> None:
    folder = make_files({"b": "2", "a/z": "1"})
    running = hashlib.sha256()
    for name, content in (("a/z", b"1"), ("b", b"2")):
        running.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    assert scan(folder).digest() == f"sha256:{running.hexdigest()}"


def test_modes_empty_folders_and_links_do_not_count(make_files) -> None:
    folder = make_files({"a": "1"})
    before = scan(folder).digest()
    (folder / "a").chmod(0o700)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("a")
    after = scan(folder)
    assert after.digest() == before
    assert after.links == {"link": "a"}
    assert after.issues == ()


def test_extra_files_from_outside_count() -> None:
    zero = "0" * 64
    assert digest_of({"a": zero}) != digest_of({"a": zero, "../p": zero})


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "..", "sub/../../outside", "nowhere/../../x"])
def test_links_that_leave_are_errors(make_files, target: str) -> None:
    folder = make_files({"sub/a": "1"})
    (folder.parent / "outside").write_text("x")
    (folder / "link").symlink_to(target)
    assert [(issue.code, issue.file) for issue in scan(folder).issues] == [("link-escape", "link")]


def test_links_to_folders_outside_are_not_entered(make_files) -> None:
    folder = make_files({"a": "1"})
    (folder / "etc").symlink_to("/etc")
    assert list(scan(folder).files) == ["a"]


def test_circular_links_end(make_files) -> None:
    folder = make_files({"a": "1"})
    (folder / "x").symlink_to("y")
    (folder / "y").symlink_to("x")
    (folder / "self").symlink_to(".")
    assert list(scan(folder).files) == ["a"]


def test_pipes_sockets_and_devices_are_errors_and_never_opened(make_files, monkeypatch) -> None:
    folder = make_files({"a": "1"})
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        issues = scan(folder).issues
    assert [(issue.code, issue.file) for issue in issues] == [
        ("special-file", "pipe"),
        ("special-file", "socket"),
    ]
    assert "a pipe" in issues[0].message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_device_nodes_are_errors(make_files) -> None:
    folder = make_files({"a": "1"})
    os.mknod(folder / "null", 0o666 | 0o020000, os.makedev(1, 3))
    assert [(issue.code, issue.file) for issue in scan(folder).issues] == [("special-file", "null")]


def test_names_that_are_not_utf8_are_errors_and_can_be_shown(make_files) -> None:
    folder = make_files({"a": "1"})
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff")).write_text("x")
    (issue,) = scan(folder).issues
    assert issue.code == "bad-file-name"
    assert issue.message.encode()
    assert scan(folder).digest().startswith("sha256:")


def test_large_files_are_hashed_but_not_kept(make_files, monkeypatch) -> None:
    content = b"0123456789" * 4000
    folder = make_files({"small": "1", "large": content.decode()})
    monkeypatch.setattr(filemap, "KEEP_BYTES", 30_000)
    found = scan(folder)
    assert found.files["small"].data == b"1"
    assert found.files["large"].data is None
    assert found.files["large"].sha256 == hashlib.sha256(content).hexdigest()
    assert found.read("large") == content


@pytest.mark.parametrize("size", [0, 1, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 100_000])
def test_a_file_of_any_length_is_read_whole(make_files, size: int) -> None:
    content = os.urandom(size)
    folder = make_files({"a": ""})
    (folder / "a").write_bytes(content)
    entry = scan(folder).files["a"]
    assert (entry.data, entry.size) == (content, size)
    assert entry.sha256 == hashlib.sha256(content).hexdigest()


def test_reading_leaves_no_mark_where_that_is_allowed_and_works_where_it_is_not(make_files, monkeypatch) -> None:
    folder = make_files({"mine": "1", "theirs": "2"})
    for path in folder.iterdir():
        os.utime(path, (1, 1_000_000_000))
    assert scan(folder).files.keys() == {"mine", "theirs"}
    assert {path.stat().st_atime for path in folder.iterdir()} == {1}
    plain = os.open

    def of_another_owner(path: str, flags: int) -> int:
        if flags & os.O_NOATIME:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return plain(path, flags)

    monkeypatch.setattr(os, "open", of_another_owner)
    found = scan(folder)
    assert found.read("theirs") == b"2"
    assert not found.issues


def test_what_is_kept_is_bounded_in_total(make_files, monkeypatch) -> None:
    folder = make_files({f"f{i}": "x" * 10 for i in range(10)})
    monkeypatch.setattr(filemap, "KEEP_TOTAL", 45)
    assert sum(entry.data is not None for entry in scan(folder).files.values()) == 4


def test_too_many_files_and_too_deep_folders_are_errors(make_files, monkeypatch) -> None:
    folder = make_files({"a/b/c/d": "1", "x": "", "y": ""})
    monkeypatch.setattr(filemap, "MAX_DEPTH", 2)
    assert "too-deep" in [issue.code for issue in scan(folder).issues]
    monkeypatch.setattr(filemap, "MAX_DEPTH", 99)
    monkeypatch.setattr(filemap, "MAX_FILES", 1)
    assert [issue.code for issue in scan(folder).issues] == ["too-many-files"]


def test_a_missing_folder_and_a_file_are_issues(tmp_path: Path) -> None:
    assert [issue.code for issue in scan(tmp_path / "gone").issues] == ["unreadable"]
    (tmp_path / "file").write_text("x")
    assert [issue.code for issue in scan(tmp_path / "file").issues] == ["unreadable"]


def test_only_regular_files_within_the_limit_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12345")
    assert read_regular(tmp_path / "a", 5)[0] == b"12345"
    with pytest.raises(OSError, match="larger"):
        read_regular(tmp_path / "a", 4)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        read_regular(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="symbolic"):
        read_regular(tmp_path / "link")


@pytest.mark.parametrize("part", ["task.md", "verifier", "oracle", "environment", "verifier/verifier.md"])
def test_parts_of_a_package_may_not_be_links(make_package, part: str) -> None:
    folder = make_package()
    (folder / part).rename(folder / "moved")
    (folder / part).symlink_to(os.path.relpath(folder / "moved", (folder / part).parent))
    package = load_package(folder)
    assert ("linked-part", part) in [(issue.code, issue.path) for issue in package.issues]
    assert not package.valid


def test_an_alias_that_is_a_link_to_the_native_folder_is_fine(make_package) -> None:
    folder = make_package()
    (folder / "tests").symlink_to("verifier")
    (folder / "solution").symlink_to("oracle")
    package = load_package(folder)
    assert package.issues == ()
    assert (package.verifier_dir, package.oracle_dir) == ("verifier", "oracle")


def test_a_file_of_absurd_size_is_reported_and_not_read(make_files) -> None:
    folder = make_files({"a": "1"})
    with (folder / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    found = scan(folder)
    assert [(issue.code, issue.file) for issue in found.issues] == [("too-large", "sparse")]
    assert list(found.files) == ["a"]


def test_a_package_of_absurd_size_is_reported_and_its_rest_not_read(make_files, monkeypatch) -> None:
    monkeypatch.setattr(filemap, "MAX_PACKAGE_BYTES", 10)
    found = scan(make_files(dict.fromkeys("abc", "123456")))
    assert [issue.code for issue in found.issues] == ["too-large", "too-large"]
    assert len(found.files) == 1
