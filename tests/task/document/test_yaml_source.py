"""YAML is read safely, within bounds, with the meaning PyYAML gives it, and knows its lines."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.document.yaml_source import MAX_DEPTH, YamlError, YamlSource


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1\nb: {c: [1, 2, {d: e}]}\n",
        "x: &a {p: 1, q: 2}\ny: {<<: *a, q: 3}\nz: {<<: [*a, {r: 1, q: 4}]}\n",
        "- 1\n- a\n- [b]\n",
        "a: ~\nb: 2024-01-01\nc: !!str 5\ne: '<<'\nf: 0x1F\ng: 1_000\nh: 12:30:00\ni: .inf\n",
        "a: yes\nb: No\nc: on\nd: 'on'\n",
        "t: |\n  two\n  lines\nf: >\n  folded\n  text\n",
        "a: &x text\nb: *x\n",
    ],
)
def test_values_mean_what_the_safe_loader_says(text: str) -> None:
    assert YamlSource(text).value == yaml.safe_load(text)


def test_dates_stay_dates() -> None:
    assert YamlSource("d: 2024-02-29").value == {"d": dt.date(2024, 2, 29)}


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "duplicate-key", 4),
        ("a: 1\n1: 2\n", "invalid-key", 2),
        ("on: 1\n", "invalid-key", 1),
        ("? [a]\n: 2\n", "invalid-key", 1),
        ("a: *x\n", "invalid-yaml", 1),
        ("a: &x [*x]\n", "too-complex", 1),
        ("a: !!python/object/apply:os.system [x]\n", "invalid-yaml", 1),
        ("a: !thing b\n", "invalid-yaml", 1),
        ("a: !!int many\n", "invalid-yaml", 1),
        ("a: !!timestamp never\n", "invalid-yaml", 1),
        ("a: b\n---\nc: d\n", "invalid-yaml", 2),
        ("a: [\n", "invalid-yaml", 2),
        ("a: 2024-13-45\n", "invalid-yaml", 1),
        ("a: " + "9" * 5000, "invalid-yaml", 1),
        ("a: b\nc: \x00\n", "invalid-yaml", 2),
        ("a: " + "[" * 70 + "]" * 70, "too-complex", 1),
        ("a: " + "[" * 200_000, "too-complex", 1),
        ("{" * 5000, "invalid-key", 1),
        ("<<: 1\n", "invalid-yaml", 1),
        ("- a\n" * 10_001, "too-complex", None),
        ("- []\n" * 10_001, "too-complex", None),
        ("a: {'<<': 1, '<<': 2}\n", "duplicate-key", 1),
        ("a" * ((1 << 20) + 1), "too-large", 1),
    ],
)
def test_refusals_name_code_and_line(text: str, code: str, line: int | None) -> None:
    with pytest.raises(YamlError) as caught:
        YamlSource(text)
    assert caught.value.code == code
    assert line is None or caught.value.line == line


def test_duplicate_key_names_its_path() -> None:
    with pytest.raises(YamlError) as caught:
        YamlSource("a:\n  b:\n    - {c: 1, c: 2}\n")
    assert caught.value.path == "a.b[0].c"


def test_alias_bombs_are_refused_by_what_they_would_expand_to() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 10):
        bomb += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    with pytest.raises(YamlError, match="10000 nodes"):
        YamlSource(bomb)


def test_depth_counts_through_aliases() -> None:
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, MAX_DEPTH + 6))
    with pytest.raises(YamlError, match="levels"):
        YamlSource(text)


def test_merge_bombs_are_counted() -> None:
    wide = "base: &b {" + ", ".join(f"k{i}: 1" for i in range(2000)) + "}\n"
    with pytest.raises(YamlError, match="nodes"):
        YamlSource(wide + "".join(f"m{i}: {{<<: *b}}\n" for i in range(5)))


def test_lines_of_paths_and_of_the_nearest_path_above() -> None:
    source = YamlSource("a: 1\nb:\n  c:\n    - x\n    - y: {z: 1}\n  d: 2\n", first_line=2)
    assert [source.line(path) for path in ("a", "b", "b.c", "b.c[1]", "b.c[1].y.z", "b.d")] == [
        2,
        3,
        4,
        6,
        6,
        7,
    ]
    assert source.line("b.d.deeper[3]") == 7
    assert source.line("nowhere") == 2


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(YamlError):
        assert YamlSource(text).line("a.b[0]") is not None


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=12) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8), _values, max_size=5))
def test_what_is_dumped_reads_back(value: dict[str, object]) -> None:
    text = yaml.safe_dump(value)
    assert YamlSource(text).value == value == yaml.safe_load(text)
