"""Addresses of pages: names of any bytes in paths and queries, made and read here only.

File names on Linux are bytes. What is not UTF-8 is kept as surrogates inside and percent-encoded in addresses, so that
every name that exists can be opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import Request

_ERRORS: Final = "surrogateescape"
_MOST_FIELDS: Final = 200
Values = Mapping[str, str | Sequence[str] | int | None]


def quoted(name: str) -> str:
    """A name as one segment of a path."""
    encoded = quote(name.encode("utf-8", _ERRORS), safe="")
    return encoded.replace(".", "%2E") if not name.strip(".") else encoded  # browsers resolve . and ..


def address(*segments: str, **query: str | Sequence[str] | int | None) -> str:
    """The address of a page: names as segments, then the fields that say something."""
    path = "/" + "/".join(map(quoted, segments))
    return f"{path}?{encoded}" if (encoded := encoded_query(query)) else path


def encoded_query(query: Values) -> str:
    """Fields as a query; those that are None or empty are left out, lists become repeated fields."""
    pairs = [
        f"{quoted(name)}={quoted(str(item))}"
        for name, value in query.items()
        for item in ([value] if isinstance(value, str | int) or value is None else value)
        if item not in (None, "")
    ]
    return "&".join(pairs)


def segments(request: Request) -> tuple[str, ...]:
    """The names in the path of a request, as the file system spells them."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    parts = raw.decode("latin-1").strip("/").split("/")
    return tuple(unquote(part, errors=_ERRORS) for part in parts)


@dataclass(frozen=True, slots=True)
class Fields:
    """The query of a request."""

    values: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, request: Request) -> Fields:
        """The fields of a request; more of them than any page has are left out."""
        text = request.scope["query_string"].decode("latin-1")
        found: dict[str, list[str]] = {}
        for name, value in parse_qsl(text, errors=_ERRORS, separator="&")[:_MOST_FIELDS]:
            found.setdefault(name, []).append(value)
        return cls({name: tuple(values) for name, values in found.items()})

    def one(self, name: str, default: str = "") -> str:
        """The last value of a field."""
        return self.values.get(name, (default,))[-1]

    def all(self, name: str) -> tuple[str, ...]:
        """All values of a field, each once."""
        return tuple(dict.fromkeys(self.values.get(name, ())))

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """The value of a field as a number that is not less than `least`; anything else is the default."""
        text = self.one(name)
        return max(least, int(text)) if text.isascii() and text.isdecimal() and len(text) <= 18 else default
