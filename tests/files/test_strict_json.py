from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.files.strict_json import StrictJSONError, parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_sound_json_means_the_same(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\u0d8 1eN', max_size=40).map(str.encode))
def test_any_bytes_are_json_or_one_error(data: bytes) -> None:
    try:
        value = parse_json(data)
    except StrictJSONError:
        return
    assert json.loads(data) == value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf \n", "empty"),
        (b"\xff", "UTF-8"),
        (b"{", "JSON: [^(]*$"),
        (b"{\n 1}", r"\(line 2\)"),
        (b'{"a": 1}\n}', "line 2"),
        (b'{"a": 1, "b": 2, "a": 1}', "'a' twice"),
        (b"[NaN]", "NaN"),
        (b"-Infinity", "Infinity"),
        (b"-1e400", "too large"),
        (b"1" * 5000, "digits"),
        (b'"\\udc00"', "surrogate"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
        (b"[" * 500_000, "deeper than 64"),
    ],
)
def test_what_only_python_would_take_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(StrictJSONError, match=words):
        parse_json(data)


def test_nesting_is_counted_from_the_outermost_value() -> None:
    assert parse_json(b"[" * 64 + b"]" * 64)
    assert parse_json(b"[[1]]", max_depth=2) == [[1]]
    with pytest.raises(StrictJSONError):
        parse_json(b"[[1]]", max_depth=1)
