"""Removes secret values from everything that is about to be written.

Text, JSON-like data and byte streams are returned with a mark in place of each secret value. A value that is split over
two chunks of a stream is found too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

MARK: Final = "[redacted]"
SHORTEST: Final = 4
"""Shorter values are not redacted: removing every `1` would hide nothing and destroy the record."""


class Redactor:
    """Redacts a fixed set of secret values; immutable and safe to share."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values: Final = frozenset(value for value in values if len(value) >= SHORTEST)
        spellings = {spelling for value in self.values for spelling in (value, json.dumps(value)[1:-1])}
        longest_first = sorted(spellings, key=lambda value: (-len(value), value))
        self._text = re.compile("|".join(map(re.escape, longest_first))) if spellings else None
        raw = [re.escape(value.encode("utf-8", "surrogateescape")) for value in longest_first]
        self._bytes = re.compile(b"|".join(raw)) if raw else None
        self._longest = max((len(value.encode("utf-8", "surrogateescape")) for value in spellings), default=0)

    def with_values(self, values: Iterable[str]) -> Redactor:
        """A redactor for these values too."""
        return Redactor((*self.values, *values))

    def text(self, text: str) -> str:
        return text if self._text is None else self._text.sub(MARK, text)

    def data(self, value: Any) -> Any:
        """Strings, lists and mappings (including keys) without secrets; other values unchanged."""
        if self._text is None:
            return value
        if isinstance(value, str):
            return self._text.sub(MARK, value)
        if isinstance(value, Mapping):
            return {self.data(key): self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value

    def raw(self, data: bytes) -> bytes:
        """Bytes without secrets."""
        return data if self._bytes is None else self._bytes.sub(MARK.encode(), data)

    def stream(self) -> StreamRedactor:
        """A redactor for one byte stream."""
        return StreamRedactor(self._bytes, self._longest)


NO_SECRETS: Final = Redactor()
"""Changes nothing."""


class StreamRedactor:
    """Redacts bytes in chunks; holds back only what could be the start of a secret."""

    def __init__(self, pattern: re.Pattern[bytes] | None, longest: int) -> None:
        self._pattern = pattern
        self._hold = longest - 1
        self._held = b""
        self.found = False
        """Whether a secret has been found so far."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can be written now."""
        if self._pattern is None:
            return chunk
        text = self._held + chunk
        out = bytearray()
        position = 0
        safe = len(text) - self._hold  # a match that starts before this cannot become longer
        for match in self._pattern.finditer(text):
            if match.start() >= safe:
                break
            self.found = True
            out += text[position : match.start()] + MARK.encode()
            position = match.end()
        keep = max(safe, position, 0)
        self._held = text[keep:]
        return bytes(out + text[position:keep])

    def finish(self) -> bytes:
        """The remaining bytes, at the end of the stream."""
        held, self._held = self._held, b""
        if self._pattern is None:
            return held
        text, count = self._pattern.subn(MARK.encode(), held)
        self.found = self.found or count > 0
        return text
