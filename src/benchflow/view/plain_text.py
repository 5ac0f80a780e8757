"""Untrusted text made fit to be shown: control characters visible, colours of terminals removed, lengths bounded.

`markdown` is the only function here that returns HTML. Raw HTML in its input is escaped, images become links, and links
lead to web addresses only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markupsafe import Markup

MOST_SHOWN: Final = 20_000
"""Longer texts are cut in the middle of a page, and whole in their file."""
MOST_MARKDOWN: Final = 200_000
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: object) -> str:
    """The text without sequences of terminals; characters that hide or reorder others are shown as their codes."""
    plain = _SEQUENCE.sub("", str(text)).replace("\r\n", "\n")
    return _HIDDEN.sub(lambda found: f"⟨{ord(found[0]):02X}⟩", plain)


def cut(text: str, most: int = MOST_SHOWN) -> tuple[str, int]:
    """The beginning and the end of a long text, and how many characters between them are left out."""
    if len(text) <= most:
        return text, 0
    half = most // 2
    return f"{text[:half]}\n…\n{text[-half:]}", len(text) - 2 * half


def one_line(text: str, most: int = 160) -> str:
    """The first words of a text, on one line."""
    line = " ".join(visible(text[: 8 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def markdown(text: str) -> Markup:
    """A text as HTML that runs nothing and loads nothing."""
    if len(text) > MOST_MARKDOWN:
        shown, left_out = cut(text)
        return Markup("<pre>{}</pre><p>{:,} characters are left out.</p>").format(visible(shown), left_out)
    return Markup(_renderer().render(visible(text)))  # noqa: S704 - the renderer escapes everything it does not make itself


@cache
def _renderer() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.validateLink = _is_web_address  # type: ignore[method-assign]  # the way to set it
    made.add_render_rule("image", _image)
    made.add_render_rule("link_open", _link)
    return made


def _is_web_address(url: str) -> bool:
    """Links of other kinds, such as `javascript:` and `file:`, stay text."""
    try:
        return urlsplit(url.strip()).scheme.lower() in ("http", "https", "mailto")
    except ValueError:
        return False


def _image(_renderer: Any, tokens: Sequence[Any], index: int, _options: Any, _env: Mapping[str, Any]) -> str:
    token = tokens[index]
    source = str(token.attrs.get("src", ""))
    return f'<span class="image-text">image: {escape(token.content or source)}</span>'


def _link(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Mapping[str, Any]) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    tokens[index].attrSet("target", "_blank")
    return str(renderer.renderToken(tokens, index, options, env))
