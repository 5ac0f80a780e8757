"""What may stand in a path, a name and a link of a tree that somebody hostile wrote."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.inside.beneath import is_name, is_plain, parts_of, stays_inside

PIECES = st.lists(st.sampled_from(["..", ".", "", "a", "b", "l"]), max_size=6).map("/".join)


@pytest.mark.parametrize(
    ("depth", "value", "inside"),
    [
        (1, "c", True),
        (1, "../c", True),
        (1, "./..//c", True),
        (1, "../../c", False),
        (0, "..", False),
        (0, "/etc", False),
        (0, "", False),
        (0, "a\0b", False),
        (1, "../a/../../c", False),
        (2, "a/../c", False),
    ],
)
def test_links_may_point_inside_the_tree_only(depth, value, inside):
    assert stays_inside(value, depth) is inside


@given(PIECES, PIECES)
def test_no_two_links_that_are_taken_lead_out_together(tmp_path_factory, first, second):
    outside = tmp_path_factory.mktemp("tree")
    top = outside / "top"
    for folder in (top / "a/b", outside / "a/b", outside / "b"):
        folder.mkdir(parents=True)
    links = {top / "a/b/l": (first, 2), top / "l": (second, 0)}
    for path, (value, depth) in links.items():
        if stays_inside(value, depth):
            path.symlink_to(value)
            with contextlib.suppress(OSError, RuntimeError):  # a loop, or nothing there: it leads nowhere
                assert path.resolve(strict=True).is_relative_to(top)


@given(st.text(alphabet="./a\0", max_size=8))
def test_a_plain_path_never_leaves_where_it_starts(text):
    names = text.split("/")
    assert is_plain(text) == (".." not in names and "\0" not in text)
    assert is_name(text) == (text not in ("", ".", "..") and not {"/", "\0"} & set(text))


@pytest.mark.parametrize("path", ["", "a", "./a", "/a/../b", "/..", "/a\0"])
def test_what_is_not_a_plain_absolute_path_is_refused(path):
    with pytest.raises(OSError, match="plain absolute path"):
        parts_of(path)
