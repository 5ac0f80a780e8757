"""Every value that is written as YAML is read back equal."""

import datetime as dt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchflow.task.document.yaml_source import YamlSource
from benchflow.task.document.yaml_text import dump_yaml

texts = st.text(st.characters(codec="utf-8"), max_size=30)
moments = st.datetimes(timezones=st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-5, minutes=-30))]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts, st.dates(), moments)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=15,
)


@given(st.dictionaries(texts, values, max_size=5))
@example({"a": "one\ntwo\n"})
@example({"a": "one\n\n  two"})
@example({"a": "\ufeff", "b": "x\x85y", "c": "---", "d": "...", "<<": {"a": 1}, "=": "="})
@example({"a": "yes", "b": "1e3", "c": "0x1F", "d": "1_000", "e": "2020-01-01", "f": "~", "g": "1:30"})
@example({"a": 1e17, "b": float("inf"), "c": -0.0, "d": 10**30})
def test_any_value_is_read_back_equal(value):
    text = dump_yaml(value)
    assert (YamlSource(text).value or {}) == value
    assert not text or text.endswith("\n")


def test_order_is_kept_text_is_readable_and_nothing_is_an_anchor():
    shared = {"k": "v"}
    text = dump_yaml({"z": shared, "a": shared, "note": "eins\nzwei\n", "grün": ["x"]})
    assert text == "z:\n  k: v\na:\n  k: v\nnote: |\n  eins\n  zwei\ngrün:\n  - x\n"


def test_what_yaml_has_no_form_for_is_refused():
    with pytest.raises(ValueError, match="cannot represent"):
        dump_yaml({"at": dt.time(7, 30)})
