"""Removes secret values from everything that is about to be written, and from files that are already there.

Text, JSON-like data and byte streams are returned with a mark in place of each secret value. A value that is split over
two chunks of a stream is found too. `secret_values` collects the values of declared secrets, of variables that look
like secrets, and of what a package takes from the machine; `make_redactor` knows every spelling they may appear in.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import urllib.parse
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from benchflow.files.atomic import temporary_sibling

MARK: Final = "[redacted]"
SHORTEST: Final = 4
"""Shorter values are not redacted: removing every `1` would hide nothing and destroy the record."""
SHORTEST_DECLARED: Final = 4
"""A shorter value cannot be distinguished from ordinary text, so a declared secret must be at least this long."""
SHORTEST_GUESSED: Final = 8
"""The same for values that are only assumed to be secret."""
_BLOCK: Final = 1 << 20
_SECRET_NAME: Final = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE|AUTHORIZATION|AUTH|BEARER"
    r"|PAT|CONNECTION_STRING|DSN)(_|$|[0-9])",
    re.IGNORECASE,
)
_PLAIN_NAMES: Final = frozenset(
    {
        "HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "EDITOR",
        "HOSTNAME", "TMPDIR", "SSH_AUTH_SOCK", "XAUTHORITY", "OPENAI_BASE_URL", "OPENAI_API_BASE",
        "ANTHROPIC_BASE_URL",
    }
)  # fmt: skip


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


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return name not in _PLAIN_NAMES and _SECRET_NAME.search(name) is not None


def secret_values(machine: Mapping[str, str], *, declared: Iterable[str] = (), taken: Iterable[str] = ()) -> set[str]:
    """Values that must not be recorded.

    `declared` are variables that hold declared secrets, `taken` those that a package or an agent takes from the
    machine. All other variables of the machine count when they look like secrets.
    """
    guessed = [value for name, value in machine.items() if looks_secret(name)]
    guessed += [machine[name] for name in taken if name in machine and name not in _PLAIN_NAMES]
    found = {value for value in guessed if len(value) >= SHORTEST_GUESSED}
    return found | {machine[name] for name in declared if len(machine.get(name, "")) >= SHORTEST_DECLARED}


def make_redactor(values: Iterable[str]) -> Redactor:
    """A redactor that also knows how the values look inside a URL and in base64."""
    spellings = set()
    for value in values:
        encoded = base64.b64encode(value.encode(errors="surrogateescape")).decode().rstrip("=")
        quoted = urllib.parse.quote(value, safe="", errors="surrogateescape")
        spellings |= {value, quoted, quoted.replace("%20", "+"), encoded, encoded.translate(_URL_SAFE)}
    return Redactor(spellings)


_URL_SAFE: Final = str.maketrans("+/", "-_")


def redact_folder(redactor: Redactor, root: Path) -> list[str]:
    """Remove secrets from the regular files below a folder, in place; return the changed paths.

    Names that hold a secret are changed too, links that do are removed. Links are not followed.
    """
    if not redactor.values:
        return []
    changed: list[str] = []
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            touched = _redact_entry(redactor, path)
            if redactor.text(name) != name and os.path.lexists(path):
                path = path.rename(Path(folder, redactor.text(name)))
                touched = True
            if touched:
                changed.append(path.relative_to(root).as_posix())
    return changed


def _redact_entry(redactor: Redactor, path: Path) -> bool:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        target = str(path.readlink())
        if redactor.text(target) == target:
            return False
        path.unlink()
        return True
    if not stat.S_ISREG(found.st_mode) or not found.st_size or not _holds_secret(redactor, path):
        return False
    _redact_file(redactor, path, stat.S_IMODE(found.st_mode))
    return True


def _holds_secret(redactor: Redactor, path: Path) -> bool:
    """Most files contain none: they are read once and not changed."""
    stream = redactor.stream()
    with path.open("rb") as source:
        while not stream.found and (block := source.read(_BLOCK)):
            stream.feed(block)
    stream.finish()
    return stream.found


def _redact_file(redactor: Redactor, path: Path, mode: int) -> None:
    """Rewrite a file block by block; it is replaced as a whole."""
    stream = redactor.stream()
    copy = temporary_sibling(path)
    try:
        with path.open("rb") as source, copy.open("xb") as target:
            while block := source.read(_BLOCK):
                target.write(stream.feed(block))
            target.write(stream.finish())
        copy.chmod(mode)
        copy.replace(path)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
