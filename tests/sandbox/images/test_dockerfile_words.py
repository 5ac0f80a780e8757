"""Quotes, variables and key=value lists of a Dockerfile."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.images.dockerfile.dockerfile_words import WordError, expand, key_values, split_words

VARIABLES = {"a": "1", "empty": "", "path": "/usr/lib/x.tar.gz"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$a", "1"),
        ("${a}b", "1b"),
        ("$ab", ""),
        ("x$a/$a", "x1/1"),
        ("${no:-d}", "d"),
        ("${no-d}", "d"),
        ("${empty:-d}", "d"),
        ("${empty-d}", ""),
        ("${a:-d}", "1"),
        ("${a:+s}", "s"),
        ("${empty:+s}", ""),
        ("${empty+s}", "s"),
        ("${no+s}", ""),
        ("${no:-${a}x}", "1x"),
        ("${no:-'q w'}", "q w"),
        ("${a:?needed}", "1"),
        ("${path#*/}", "usr/lib/x.tar.gz"),
        ("${path##*/}", "x.tar.gz"),
        ("${path%.*}", "/usr/lib/x.tar"),
        ("${path%%.*}", "/usr/lib/x"),
        ("${path/usr/opt}", "/opt/lib/x.tar.gz"),
        ("${path//r/R}", "/usR/lib/x.taR.gz"),
        ("\\$a", "$a"),
        ("'$a'", "$a"),
        ('"$a"', "1"),
        ('"\\$a \\x"', "$a \\x"),
        ("a\\ b", "a b"),
        ("$", "$"),
        ("100%", "100%"),
        ("$$", ""),
    ],
)
def test_a_word_is_expanded_as_the_language_says(text, result):
    assert expand(text, VARIABLES) == result


@pytest.mark.parametrize("text", ["${a", "${", "${a!b}", "'open", '"open', "${no:?}", "${no?why}"])
def test_a_word_that_cannot_be_expanded_is_refused(text):
    with pytest.raises(WordError):
        expand(text, VARIABLES)


def test_heredoc_text_keeps_its_quotes():
    assert expand("say \"$a\" '$a' \\n \\$a", VARIABLES, keep_quotes=True) == "say \"1\" '1' \\n $a"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("x=1", {"x": "1"}),
        ("x=1 y=2", {"x": "1", "y": "2"}),
        ('x="a b" y=c\\ d', {"x": "a b", "y": "c d"}),
        ("x=$a y=$x", {"x": "1", "y": ""}),
        ("x the rest of it", {"x": "the rest of it"}),
        ("x a=b", {"x": "a=b"}),
        ('"k"=v', {"k": "v"}),
        ("x=", {"x": ""}),
    ],
)
def test_key_values_see_the_variables_as_they_were_before(text, pairs):
    assert key_values(text, VARIABLES) == pairs


@pytest.mark.parametrize("text", ["x", "x=1 y", "=1"])
def test_a_key_without_value_is_refused(text):
    with pytest.raises(WordError):
        key_values(text, VARIABLES)


parts = st.sampled_from(
    [
        "a",
        "_",
        "$A",
        "${A}",
        "${B}",
        "${C:-x}",
        "${A:+y}",
        "${B-z}",
        "${A%1*}",
        "${A##*2}",
        "'s $A'",
        '"d $A"',
        "\\$",
        "/",
    ]
)


@given(st.lists(parts, min_size=1, max_size=5).map("".join))
def test_expansion_agrees_with_the_shell(word):
    shell = subprocess.run(
        ["bash", "-c", f"printf %s {word}"],
        env={"A": "112", "B": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    # The shell drops an unquoted empty word and splits nothing here, so the texts are equal.
    assert expand(word, {"A": "112", "B": ""}) == shell.stdout


@given(st.lists(st.text(st.sampled_from("ab\\\"' $"), min_size=1), max_size=4).map(" ".join))
def test_splitting_loses_nothing_but_blanks(text):
    assert "".join("".join(split_words(text)).split()) == "".join(text.split())
