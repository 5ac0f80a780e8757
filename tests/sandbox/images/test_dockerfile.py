"""Dockerfile text becomes instructions with lines, flags, forms and here-documents."""

from contextlib import suppress

import dockerfile as oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchflow.sandbox.images.dockerfile.instructions import (
    INSTRUCTIONS,
    DockerfileError,
    Heredoc,
    Instruction,
    parse_dockerfile,
)


def only(text):
    (instruction,) = parse_dockerfile(text).instructions
    return instruction


def test_an_instruction_knows_keyword_value_and_line():
    parsed = parse_dockerfile("# a comment\n\nfrom  debian:12   AS base\n  RUN   true  \n")
    assert parsed.instructions == (
        Instruction("FROM", "debian:12   AS base", 3),
        Instruction("RUN", "true", 4),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("RUN a \\\n  b", "a   b"),
        ("RUN a \\  \n b", "a  b"),
        ("RUN a \\\n# comment\n\n   # another\n b", "a  b"),
        ("RUN a \\", "a"),
        ("RUN a\\\\\nRUN b", "a\\\\"),
        ("RUN a \\\r\n b\r\n", "a  b"),
    ],
)
def test_continuations_join_and_comments_inside_them_vanish(text, value):
    assert parse_dockerfile(text).instructions[0].value == value


def test_the_escape_directive_changes_the_continuation_character():
    parsed = parse_dockerfile("# syntax=docker/dockerfile:1\n# escape=`\nRUN dir c:\\ `\n  /s\n")
    assert parsed.escape == "`"
    assert parsed.instructions[0].value == "dir c:\\   /s"


def test_a_directive_after_a_comment_is_a_comment():
    assert parse_dockerfile("# hello\n# escape=`\nRUN a").escape == "\\"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('RUN ["a", "b c"]', ("a", "b c")),
        ("RUN ['a']", None),
        ('RUN [ "$a" = b ]', None),
        ("CMD []", ()),
        ('RUN ["a"] && b', None),
    ],
)
def test_the_json_form_is_told_from_the_shell_form(text, words):
    assert only(text).words == words


def test_flags_are_taken_off_in_order():
    instruction = only('COPY --from=build --chown="a b:c" --link --chmod=755 x /y')
    assert instruction.flags == (("from", "build"), ("chown", "a b:c"), ("link", "true"), ("chmod", "755"))
    assert instruction.value == "x /y"


def test_two_dashes_end_the_flags():
    assert only("RUN -- --not-a-flag").value == "--not-a-flag"


def test_heredocs_are_taken_in_order_with_quoting_and_tabs():
    instruction = only("COPY <<one <<-'two' /dst/\na $x\none\n\tb\n\t\tc\n\ttwo\n")
    assert instruction.heredocs == (
        Heredoc("one", "a $x\n", True, "a $x\n"),
        Heredoc("two", "b\nc\n", False, "\tb\n\t\tc\n"),
    )


@pytest.mark.parametrize(
    "text", ['RUN echo "<<EOF"', "RUN cat <<<word", "RUN echo a<<EOF", "ENV a=<<EOF", "RUN echo $((1<<2))"]
)
def test_what_only_looks_like_a_heredoc_is_left_alone(text):
    assert only(text).heredocs == ()


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("", None, "no instruction"),
        ("# only\n", None, "no instruction"),
        ("FROM a\n\nFOO b\n", 3, "FOO"),
        ("FROM a\nRUN\n", 2, "RUN needs"),
        ("FROM a\nRUN <<EOF\nx\n", 2, "EOF"),
        ("# escape=x\nFROM a", 1, "escape"),
        ("# escape=`\n# escape=`\nFROM a", 2, "twice"),
        ("FROM a\nCMD [1]\n", 2, "strings"),
    ],
)
def test_what_cannot_be_parsed_is_refused_with_file_and_line(text, line, part):
    with pytest.raises(DockerfileError, match=part) as caught:
        parse_dockerfile(text, "environment/Dockerfile")
    assert (caught.value.file, caught.value.line) == ("environment/Dockerfile", line)


# Against BuildKit's own parser.

pieces = st.sampled_from(
    [
        "a",
        "b c",
        "\\\n",
        " \\\n  # note\n\n",
        "'q w'",
        '"d"',
        "$x",
        "${y:-z}",
        "&&",
        "# no",
        "\\ ",
        " ",
        "--f=1 ",
        "=",
        " <<E ",
    ]
)
bodies = st.lists(pieces, min_size=1, max_size=6).map("".join)
keywords = st.sampled_from(["RUN", "run", "COPY", "CMD", "ENTRYPOINT", "WORKDIR", "USER", "FROM"])
texts = st.lists(st.tuples(keywords, bodies), min_size=1, max_size=4).map(
    lambda items: "".join(f"{keyword} x{body}\n{'E' if '<<E' in body else ''}\n" for keyword, body in items)
)


@given(texts)
def test_any_text_is_split_into_the_same_instructions_as_buildkit_does(text):
    try:
        expected = oracle.parse_string(text)
    except oracle.GoParseError:
        assume(False)
    assume(all(command.cmd.upper() in INSTRUCTIONS for command in expected))
    found = parse_dockerfile(text).instructions
    assert [(i.keyword, i.line) for i in found] == [(c.cmd.upper(), c.start_line) for c in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert [f"--{name}={value}" for name, value in mine.flags] == list(theirs.flags)
        assert [(h.name, h.raw) for h in mine.heredocs] == [(h.name, h.content) for h in theirs.heredocs]
        if mine.keyword in ("RUN", "CMD", "ENTRYPOINT", "WORKDIR", "USER"):
            assert mine.value == theirs.value[0]


@given(st.text(max_size=60))
def test_any_text_parses_or_gives_one_error_with_its_file(text):
    with suppress(DockerfileError):
        assert parse_dockerfile(text).instructions
