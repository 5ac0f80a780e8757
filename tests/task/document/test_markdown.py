"""Frontmatter and sections: fences, escapes, line ends, byte-order marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.document.markdown import (
    MAX_TEXT_BYTES,
    MarkdownError,
    decode,
    escape_headings,
    split_frontmatter,
    split_sections,
)


def test_frontmatter_and_body_are_cut_at_the_closing_line() -> None:
    parts = split_frontmatter("---\na: 1\n---\nbody\n---\nmore\n")
    assert (parts.yaml, parts.body, parts.body_line) == ("a: 1\n", "body\n---\nmore\n", 4)


def test_blanks_around_the_marks_are_tolerated_and_the_body_may_be_missing() -> None:
    assert split_frontmatter("--- \na: 1\n---  ").yaml == "a: 1\n"
    assert split_frontmatter("---\n---").body == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "missing-frontmatter"),
        ("# title\n", "missing-frontmatter"),
        ("---", "missing-frontmatter"),
        ("---\na: 1\n", "unclosed-frontmatter"),
        ("---\na: 1\n----\n", "unclosed-frontmatter"),
    ],
)
def test_missing_marks_are_refused(text: str, code: str) -> None:
    with pytest.raises(MarkdownError) as caught:
        split_frontmatter(text)
    assert caught.value.code == code


def test_bytes_become_text_without_mark_and_carriage_returns() -> None:
    assert decode(b"\xef\xbb\xbf---\r\na: 1\r\n---\rx") == "---\na: 1\n---\nx"


def test_what_is_not_utf8_is_refused_with_its_line() -> None:
    with pytest.raises(MarkdownError) as caught:
        decode(b"ok\nok\n\xff\n")
    assert (caught.value.code, caught.value.line) == ("not-utf8", 3)


def test_oversized_text_is_refused() -> None:
    with pytest.raises(MarkdownError) as caught:
        decode(b"a" * (MAX_TEXT_BYTES + 1))
    assert caught.value.code == "too-large"


def test_a_body_without_reserved_headings_is_one_text() -> None:
    assert split_sections("\n# Title\n\n## Steps\n\ntext\n").preamble == "# Title\n\n## Steps\n\ntext"


def test_sections_keep_ordinary_headings_and_the_case_of_names() -> None:
    body = split_sections("intro\n## Prompt\none\n## Steps\ntwo\n## ROLE:Planner\nthree\n", 10)
    assert body.preamble == "intro"
    assert [(s.key, s.text, s.line) for s in body.sections] == [
        ("prompt", "one\n## Steps\ntwo", 11),
        ("role:Planner", "three", 15),
    ]


@pytest.mark.parametrize("fence", ["```", "~~~~", "   ```sh"])
def test_headings_inside_code_fences_are_text(fence: str) -> None:
    closing = fence.strip().removesuffix("sh")
    text = f"a\n{fence}\n## prompt\n{closing}\n## role:x\nb"
    body = split_sections(text)
    assert [section.key for section in body.sections] == ["role:x"]
    assert "## prompt" in body.preamble


def test_a_shorter_fence_does_not_close_and_inline_code_does_not_open() -> None:
    assert split_sections("````\n```\n## prompt\n````\n").sections == ()
    assert [s.key for s in split_sections("```x``` y\n## prompt\nz").sections] == ["prompt"]


def test_an_escaped_heading_is_text_even_when_it_stands_alone() -> None:
    assert split_sections("\\## prompt\nx").preamble == "## prompt\nx"
    assert split_sections("\\\\## prompt\nx").preamble == "\\## prompt\nx"


_lines = st.sampled_from(
    [
        "## prompt",
        "\\## prompt",
        "\\\\## role:a",
        "## Role:b ",
        "## scene:x y",
        "```",
        "~~~",
        "````",
        "text",
        "",
        "## other",
    ]
)


@given(st.lists(_lines | st.text("#\\` ~ab:\n", max_size=10), max_size=12))
def test_any_text_survives_escaping(lines: list[str]) -> None:
    text = "\n".join(lines)
    body = split_sections(escape_headings(text))
    assert body.sections == ()
    assert body.preamble == text.strip()
