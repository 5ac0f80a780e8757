"""Sets of paths: what is at or below one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchflow.files.path_set import PathSet

_PATH = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda names: "/" + "/".join(names))


def test_a_path_covers_itself_and_what_is_below_it_but_no_sibling_with_the_same_beginning() -> None:
    paths = PathSet(["/app/src", "/tmp/"])
    assert [paths.covers(path) for path in ("/app/src", "/app/src/a/b", "/tmp/x")] == [True] * 3
    assert [paths.covers(path) for path in ("/app", "/app/src2", "/", "/tmpx")] == [False] * 4


def test_the_root_covers_everything_and_an_empty_set_nothing() -> None:
    assert PathSet(["/"]).covers("/a/b")
    assert not PathSet().covers("/")


@given(st.lists(_PATH, max_size=4), _PATH)
def test_it_agrees_with_a_comparison_with_every_path(places: list[str], path: str) -> None:
    expected = any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)
    assert PathSet(places).covers(path) == expected
