"""What counts as a change, on layers as an overlay leaves them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from benchflow.sandbox.local.beside.difference import compare

Tree = dict[str, "str | Tree | None"]


def layer(folder: Path, tree: Tree, *, opaque: tuple[str, ...] = ()) -> str:
    """A layer folder; None is a deletion, text a file."""
    folder.mkdir(exist_ok=True)
    for name, content in tree.items():
        path = folder / name
        if content is None:
            os.mknod(path, stat.S_IFCHR, 0)
        elif isinstance(content, str):
            path.write_text(content)
        else:
            layer(path, content)
    for name in opaque:
        os.setxattr(folder / name, "user.overlay.opaque", b"y")
    return str(folder)


def kinds(written: list[str], environment: list[str]) -> dict[str, str]:
    return {path: kind for path, kind, *_ in compare(written, environment)}


@pytest.fixture
def base(tmp_path: Path) -> str:
    return layer(tmp_path / "base", {"etc": {"a": "1", "b": "2", "sub": {"x": "x", "y": "y"}}, "top": "t"})


def test_additions_changes_and_deletions_are_told_apart(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": {"a": "one", "b": None, "new": "n"}, "more": {"deep": {"file": "f"}}})
    assert kinds([own], [base]) == {
        "/etc/a": "changed",
        "/etc/b": "deleted",
        "/etc/new": "added",
        "/more": "added",
        "/more/deep": "added",
        "/more/deep/file": "added",
    }


def test_a_copy_with_the_same_bytes_is_no_change_and_times_prove_nothing(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": {"a": "1", "b": "3"}})
    before = Path(base, "etc/b").stat()
    os.utime(f"{own}/etc/b", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kinds([own], [base]) == {"/etc/b": "changed"}


def test_a_changed_mode_is_a_change(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"top": "t", "etc": {}})
    Path(own, "top").chmod(0o777)
    Path(own, "etc").chmod(0o700)
    assert kinds([own], [base]) == {"/top": "changed", "/etc": "changed"}


def test_a_directory_that_hides_the_one_below_deletes_what_it_does_not_have(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": {"sub": {"x": "other"}}}, opaque=("etc/sub",))
    assert kinds([own], [base]) == {"/etc/sub/x": "changed", "/etc/sub/y": "deleted"}


def test_what_one_written_layer_adds_and_the_next_deletes_never_was(tmp_path: Path, base: str) -> None:
    first = layer(tmp_path / "first", {"etc": {"new": "n", "a": None}, "gone": {"f": "f"}})
    second = layer(tmp_path / "second", {"etc": {"new": None, "a": "1"}, "gone": None})
    assert kinds([second, first], [base]) == {}


def test_a_file_in_place_of_a_directory_and_the_reverse(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": "now a file", "top": {"in": "side"}})
    assert kinds([own], [base]) == {"/etc": "changed", "/top": "changed", "/top/in": "added"}


def test_links_are_reported_and_never_followed(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {})
    Path(own, "etc").symlink_to("/etc")
    Path(own, "loop").symlink_to(base)
    found = {path: (kind, type_) for path, kind, type_, *_ in compare([own], [base])}
    assert found == {"/etc": ("changed", "symlink"), "/loop": ("added", "symlink")}


def test_several_layers_of_an_environment_are_seen_as_one(tmp_path: Path, base: str) -> None:
    upper = layer(tmp_path / "upper", {"etc": {"a": None, "c": "3"}})
    own = layer(tmp_path / "own", {"etc": {"a": "again", "c": None, "b": "2"}})
    assert kinds([own], [upper, base]) == {"/etc/a": "added", "/etc/c": "deleted"}


def test_names_that_are_no_text_are_kept(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {})
    Path(os.fsdecode(os.fsencode(own) + b"/\xff\xfe")).write_text("")
    assert list(kinds([own], [base])) == ["/" + os.fsdecode(b"\xff\xfe")]
