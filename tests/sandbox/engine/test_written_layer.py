"""What a container wrote, on layers as an overlay leaves them."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from benchflow.sandbox.engine.machine.written_layer import Layers, written_changes

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
        os.setxattr(folder / name, "trusted.overlay.opaque", b"y")
    return str(folder)


def kinds(*layers: str) -> dict[str, tuple[str, str]]:
    return {change.path: (change.kind, change.type) for change in written_changes(Layers(layers[0], layers[1:]))}


@pytest.fixture
def base(tmp_path: Path) -> str:
    return layer(tmp_path / "base", {"etc": {"a": "1", "b": "2", "sub": {"x": "x", "y": {"z": "z"}}}, "top": "t"})


def test_additions_changes_and_deletions_are_told_apart(tmp_path: Path, base: str) -> None:
    own = layer(
        tmp_path / "own", {"etc": {"a": "one", "b": None, "new": "n", "none": None}, "more": {"deep": {"f": "f"}}}
    )
    assert kinds(own, base) == {
        "/etc/a": ("changed", "file"),
        "/etc/b": ("deleted", "file"),
        "/etc/new": ("added", "file"),
        "/more": ("added", "directory"),
        "/more/deep": ("added", "directory"),
        "/more/deep/f": ("added", "file"),
    }


def test_what_was_written_counts_also_if_it_is_again_what_it_was(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": {"a": "1"}, "top": "t"})
    for name in ("etc/a", "top"):
        before = Path(base, name).stat()
        os.utime(f"{own}/{name}", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kinds(own, base) == {"/etc/a": ("changed", "file"), "/top": ("changed", "file")}


def test_a_folder_that_was_made_anew_hides_all_that_was_in_it(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": {"sub": {"x": "mine", "y": {}}}}, opaque=("etc",))
    assert kinds(own, base) == {
        "/etc/a": ("deleted", "file"),
        "/etc/b": ("deleted", "file"),
        "/etc/sub/x": ("changed", "file"),
        "/etc/sub/y/z": ("deleted", "file"),
    }


def test_an_attribute_that_anybody_may_set_hides_nothing(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"etc": {"new": "n"}})
    os.setxattr(f"{own}/etc", "user.overlay.opaque", b"y")
    assert kinds(own, base) == {"/etc/new": ("added", "file")}


def test_files_links_and_folders_in_each_others_places_are_changes(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"top": {"in": "i"}, "etc": {"a": "", "sub": "file"}})
    Path(own, "etc/a").unlink()
    Path(own, "etc/a").symlink_to("/etc/shadow")
    os.mkfifo(f"{own}/pipe")
    assert kinds(own, base) == {
        "/etc/a": ("changed", "symlink"),
        "/etc/sub": ("changed", "file"),
        "/pipe": ("added", "special"),
        "/top": ("changed", "directory"),
        "/top/in": ("added", "file"),
    }
    targets = [change.target for change in written_changes(Layers(own, (base,))) if change.type == "symlink"]
    assert targets == ["/etc/shadow"]


def test_layers_in_between_decide_what_was_there(tmp_path: Path, base: str) -> None:
    middle = layer(tmp_path / "middle", {"etc": {"a": None, "sub": {"new": "n"}}, "link": ""}, opaque=("etc/sub",))
    Path(middle, "link").unlink()
    Path(middle, "link").symlink_to("/etc")
    own = layer(tmp_path / "own", {"etc": {"a": "1", "b": "2", "sub": {"new": None, "x": "x"}}, "link": {"passwd": ""}})
    assert kinds(own, middle, base) == {
        "/etc/a": ("added", "file"),
        "/etc/b": ("changed", "file"),
        "/etc/sub/new": ("deleted", "file"),
        "/etc/sub/x": ("added", "file"),
        "/link": ("changed", "directory"),
        "/link/passwd": ("added", "file"),
    }


def test_names_are_bytes_and_times_whole_seconds_unless_they_are_to_come(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {})
    name = os.fsdecode(b"odd \xff\n")
    Path(own, name).write_text("12345")
    Path(own, name).chmod(0o640)
    os.utime(f"{own}/{name}", ns=(0, 7_900_000_000))
    [change] = written_changes(Layers(own, (base,)))
    assert (change.path, change.size) == (f"/{name}", 5)
    assert change.rights is not None
    assert (change.rights.mode, change.rights.uid, change.rights.time) == (0o640, os.getuid(), 7)
    ahead = time.time_ns() + 100_900_000_000
    os.utime(f"{own}/{name}", ns=(0, ahead))
    [change] = written_changes(Layers(own, (base,)))
    assert change.rights is not None
    assert change.rights.time == ahead / 1_000_000_000


def test_a_folder_too_deep_to_be_listed_is_not_shown_as_one(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {})
    Path(own, *["d"] * 250).mkdir(parents=True)
    found = written_changes(Layers(own, (base,)))
    assert {change.type for change in found[:-1]} == {"directory"}
    assert found[-1].type == "special"


def test_a_layer_that_cannot_be_read_is_an_error_and_not_empty(tmp_path: Path, base: str) -> None:
    own = layer(tmp_path / "own", {"new": "n"})
    with pytest.raises(FileNotFoundError):
        written_changes(Layers(own, (base, str(tmp_path / "absent"))))
