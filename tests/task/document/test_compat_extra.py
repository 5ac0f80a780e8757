"""What was preserved comes back, and never over a native value."""

from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.config.parsed_record import split_unknown
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.compat_extra import leaf_paths, merge_compat_extra, restore_extra


def test_missing_keys_are_added_and_native_values_win():
    base = {"a": 1, "b": {"c": 2}, "d": [{"e": 1}, {"e": 2}]}
    extra = {
        "a": 9,
        "b": {"c": 9, "x": 3},
        "d": [None, {"y": 4}, {"z": 5}],
        "new": {"k": [1, 2]},
        "none": None,
    }
    merged, restored = restore_extra(base, extra)
    assert merged == {
        "a": 1,
        "b": {"c": 2, "x": 3},
        "d": [{"e": 1}, {"e": 2, "y": 4}],
        "new": {"k": [1, 2]},
    }
    assert restored == ["b.x", "d[1].y", "new.k"]
    assert merge_compat_extra(base, extra) == merged
    assert base["b"] == {"c": 2}


def test_shapes_that_do_not_fit_are_left_alone():
    assert restore_extra({"a": 1, "b": [1]}, {"a": {"x": 1}, "b": {"y": 1}}) == ({"a": 1, "b": [1]}, [])


def test_paths_name_every_preserved_value():
    extra = {"a": {"b": 1, "c": {}}, "s": [None, {"r": [1]}], "l": []}
    assert sorted(leaf_paths(extra)) == ["a.b", "a.c", "l", "s[1].r"]


names = st.sampled_from(["agent", "steps", "name", "timeout_sec", "x", "y"])
trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.one_of(st.dictionaries(names, inner, max_size=3), st.lists(inner, max_size=3)),
)


@given(st.dictionaries(names, trees, max_size=4))
def test_what_is_split_apart_is_joined_again(data):
    known, extra = split_unknown(TaskConfig, data)
    assert merge_compat_extra(known, extra) == data
