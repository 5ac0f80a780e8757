"""Every key of a TOML file is found again on its line."""

import tomllib

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.task.document.toml_source import key_lines, line_of, parse_toml

SAMPLE = '''\
version = "1.0"  # [not.a.table]
text = """
[fake]
key = 1
"""
list = [
  1,  # ]
  "]",
]

[agent]
timeout_sec = 5
"quoted key" . sub = 'x = 1'

[[steps]]
name = "a"
[steps.agent]
user = 1
[[steps]]
name = "b"
env = { A = "}", B = "b" }
[[steps.artifacts]]
source = "x"
[[steps.artifacts]]
source = "y"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("version", 1),
        ("text", 2),
        ("list", 6),
        ("agent", 11),
        ("agent.timeout_sec", 12),
        ("agent.quoted key.sub", 13),
        ("steps[0]", 15),
        ("steps[0].name", 16),
        ("steps[0].agent.user", 18),
        ("steps[1].name", 20),
        ("steps[1].env.A", 21),
        ("steps[1].artifacts[1].source", 25),
        ("steps[1].artifacts[1].exclude", 24),
        ("agent.nothing.deeper", 11),
        ("list[1]", 6),
    ],
)
def test_a_key_is_found_on_its_line_or_on_that_of_what_holds_it(path, line):
    tomllib.loads(SAMPLE)
    assert line_of(path, key_lines(SAMPLE)) == line
    assert line_of(path, key_lines(SAMPLE.replace("\n", "\r\n"))) == line


def test_text_that_is_inside_a_value_is_no_key():
    assert not {"fake", "key", "fake.key"} & key_lines(SAMPLE).keys()
    assert line_of("absent", key_lines(SAMPLE)) is None


keys = st.text(st.characters(codec="utf-8", exclude_characters=".[]"), min_size=1, max_size=8)
scalars = st.one_of(st.integers(-5, 5), st.booleans(), st.text(st.characters(codec="utf-8"), max_size=12))
documents = st.dictionaries(
    keys,
    st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    ),
    max_size=4,
)


@given(documents, st.booleans())
@example({"a": {"b": [{"c": '"""'}]}}, True)
def test_every_top_key_of_any_document_has_a_line(document, multiline):
    text = tomli_w.dumps(document, multiline_strings=multiline)
    lines = key_lines(text)
    for key, value in document.items():
        if isinstance(value, dict) and any(isinstance(inner, dict | list) for inner in value.values()):
            continue  # a table that only holds tables has no line of its own
        if isinstance(value, list):
            assert key in lines or f"{key}[0]" in lines
        else:
            assert key in lines
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


def refusal(text):
    try:
        parse_toml(text)
    except PackageError as error:
        return error
    return None


@given(st.one_of(st.text(max_size=60), st.text("[]{}=\"\n\\'a.#1-:T", max_size=60)))
@example("a = " + "[" * 5000)
@example("a = 1" + "0" * 5000)
@example("a = 2020-02-30")
@example("[a]\n[a]")
def test_any_text_is_a_mapping_or_one_clear_error(text):
    error = refusal(text)
    if error is None:
        key_lines(text)
    else:
        assert error.file == "task.toml"
        assert error.code in {"invalid-toml", "too-complex", "too-large"}


@pytest.mark.parametrize(
    "text",
    [
        "a = [" + "1," * 60_000 + "]",
        "a" + ".a" * 400_000 + " = 1",
        "x = {" + "a." * 300_000 + "b = 1}",
        "[" + ".".join("ab" * 100_000) + "]",
        "a = " + "[" * 65 + "]" * 65,
        "a = " + "{b = " * 70 + "1" + "}" * 70,
        '"a"' + ' . "b"' * 100_000 + " = 1",
    ],
    ids=["many", "dotted", "inline", "header", "arrays", "tables", "quoted"],
)
def test_size_and_nesting_beyond_any_use_are_refused_at_once(text):
    assert refusal(text).code == "too-complex"


def test_many_dots_that_are_no_key_are_fine():
    assert parse_toml("a = [" + "1.5, " * 200 + "]\nb = '" + "x." * 200 + "'")["a"][0] == 1.5


def test_an_error_names_its_line_and_a_mark_at_the_start_is_no_error():
    with pytest.raises(PackageError) as caught:
        parse_toml("a = 1\nb = \n")
    assert (caught.value.line, caught.value.code) == (2, "invalid-toml")
    assert "line" not in str(caught.value)
    assert parse_toml("\ufeffa = 1") == {"a": 1}
    with pytest.raises(PackageError) as caught:
        parse_toml("a = '" + "x" * 1_000_000 + "'")
    assert caught.value.code == "too-large"
