"""A stack of layers looks the same through `LayerTree` as through the kernel's overlay."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.layer_store import OPAQUE
from benchflow.sandbox.images.layer_tree import LayerTree


@pytest.fixture
def layers(tmp_path):
    folders = [tmp_path / "low", tmp_path / "high"]
    for folder in folders:
        folder.mkdir()
    return folders


def whiteout(path):
    os.mknod(path, stat.S_IFCHR, 0)


def test_the_highest_layer_wins_and_folders_merge(layers):
    low, high = layers
    for folder, text in ((low, "low"), (high, "high")):
        (folder / "d").mkdir()
        (folder / "d" / "both").write_text(text)
        (folder / "d" / text).write_text(text)
    tree = LayerTree(layers)
    assert tree.names("/d") == ["both", "high", "low"]
    assert tree.read_text("/d/both") == "high"


def test_whiteouts_and_opaque_folders_hide_what_lies_below(layers):
    low, high = layers
    for name in ("gone", "opaque"):
        (low / name).mkdir()
        (low / name / "x").write_text("x")
    whiteout(high / "gone")
    (high / "opaque").mkdir()
    os.setxattr(high / "opaque", OPAQUE, b"y")
    tree = LayerTree(layers)
    assert tree.lookup("/gone") is None
    assert tree.lookup("/gone/x") is None
    assert tree.names("/opaque") == []
    assert tree.names("/") == ["opaque"]


def test_a_file_hides_the_folder_below_it(layers):
    low, high = layers
    (low / "d").mkdir()
    (low / "d" / "x").write_text("x")
    (high / "d").write_text("file")
    tree = LayerTree(layers)
    assert tree.lookup("/d/x") is None


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/bin/sh", "/usr/bin/sh"),
        ("/abs/x", "/usr/x"),
        ("/up/x", "/x"),
        ("/loopless/../bin", "/usr/bin"),
        ("/missing/../bin/new", "/usr/bin/new"),
        ("/../../bin", "/usr/bin"),
        ("/", "/"),
    ],
)
def test_links_are_followed_inside_the_tree(layers, path, real):
    low, high = layers
    (low / "usr" / "bin").mkdir(parents=True)
    (high / "bin").symlink_to("usr/bin")
    (high / "abs").symlink_to("/usr")
    (high / "up").symlink_to("../../..")
    assert LayerTree(layers).resolve(path) == real


def test_a_loop_of_links_is_refused(layers):
    (layers[0] / "a").symlink_to("b")
    (layers[0] / "b").symlink_to("a")
    with pytest.raises(EnvironmentFailure, match="links"):
        LayerTree(layers).resolve("/a/x")


def test_a_link_in_a_layer_never_leads_to_the_machine(layers, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (layers[1] / "d").symlink_to(tmp_path)
    (layers[1] / "f").symlink_to(tmp_path / "secret")
    tree = LayerTree(layers)
    assert tree.lookup("/d/secret") is None
    assert tree.read_text("/d/secret") is None
    assert tree.read_text("/f") is None


# Against the kernel: the same layers, mounted.

MOUNT = """
import ctypes, json, os, sys
where, layers = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
options = f"lowerdir={layers},userxattr".encode()
assert libc.mount(b"overlay", where.encode(), b"overlay", 0, options) == 0, ctypes.get_errno()
found = {}
for parent, folders, files in os.walk(where):
    for name in folders + files:
        path = os.path.join(parent, name)
        if not os.path.lexists(path):
            continue  # a whiteout with nothing below it is listed, but nothing is there
        content = os.readlink(path) if os.path.islink(path) else os.path.isdir(path) or open(path).read()
        found["/" + os.path.relpath(path, where)] = content
print(json.dumps(found))
"""

NAMES = ["a", "b"]
contents = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["file1", "file2", "whiteout", "link"]),
        st.tuples(st.booleans(), st.dictionaries(st.sampled_from(NAMES), contents, max_size=2)),
    )
)
trees = st.dictionaries(st.sampled_from(NAMES), contents, max_size=2)


def lay(folder, content):
    for name, kind in content.items():
        path = folder / name
        if kind == "whiteout":
            whiteout(path)
        elif kind == "link":
            path.symlink_to("a")
        elif isinstance(kind, str):
            path.write_text(kind)
        else:
            opaque, inner = kind
            path.mkdir()
            if opaque:
                os.setxattr(path, OPAQUE, b"y")
            lay(path, inner)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@given(st.lists(trees, min_size=2, max_size=3))
@settings(max_examples=settings().max_examples // 3)
def test_any_stack_looks_as_the_kernel_shows_it(stack):
    base = Path(tempfile.mkdtemp())
    try:
        folders = [base / str(number) for number in range(len(stack))]
        for folder, content in zip(folders, stack, strict=True):
            folder.mkdir()
            lay(folder, content)
        (base / "mount").mkdir()
        lowers = ":".join(str(folder) for folder in reversed(folders))
        mounted = subprocess.run(
            ["unshare", "-m", sys.executable, "-c", MOUNT, str(base / "mount"), lowers],
            capture_output=True,
            text=True,
            check=True,
        )
        found = {
            f"/{relative}": str(entry.source.readlink())
            if entry.is_link
            else entry.is_directory or entry.source.read_text()
            for relative, entry in LayerTree(folders).walk("/")
        }
        assert found == json.loads(mounted.stdout)
    finally:
        shutil.rmtree(base)
