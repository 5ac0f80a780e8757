"""Whose text a file is: the verifier's, the environment's or neither, in which case the agent may have supplied it.

Where a file lies and when it was written do not tell: a verifier unpacks and copies what an agent left. Its bytes do.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

GROUND = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERIFIER = "/verifier"
_LARGEST_TEXT = 1 << 20
_LARGEST_ARCHIVE = 1 << 26


def is_copy(path: str) -> bool:
    """Whether a file has the bytes of one of the verifier's, wherever it is and over whatever file it was made."""
    try:
        size = os.path.getsize(path)
    except OSError:
        return False
    return size > 0 and any(is_same(path, other) for other in _files().get(size, ()))


def is_same(path: str, other: str) -> bool:
    """Whether two files have the same bytes."""
    try:
        if os.path.getsize(path) != os.path.getsize(other):
            return False
        with open(path, "rb") as one, open(other, "rb") as two:
            return one.read() == two.read()
    except OSError:
        return False


def is_known(path: str) -> bool:
    """Whether a file has the bytes of a file of the verifier, of a text in one, or of a setting as built."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return False
    if not data.strip():
        return True
    return is_copy(path) or _is_built(data) or any(_writes(text, data) for text in _texts())


def is_packed(path: str) -> bool:
    """Whether a file of Python has the bytes of one in an archive of the verifier."""
    if not _PACKED:
        _PACKED.add(b"")
        for archive in [place for places in _files().values() for place in places]:
            _PACKED.update(_members(archive))
    with open(path, "rb") as file:
        return file.read(_LARGEST_TEXT) in _PACKED


_PACKED: "set[bytes]" = set()


def _members(path: str) -> "Iterator[bytes]":
    """The files of Python in an archive; nothing of another file."""
    import tarfile
    import zipfile
    import zlib

    try:
        if os.path.getsize(path) > _LARGEST_ARCHIVE:
            return
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if member.filename.endswith(".py") and member.file_size < _LARGEST_TEXT:
                        yield archive.read(member)
            return
        with tarfile.open(path) as tar:
            for item in tar:
                content = tar.extractfile(item) if item.name.endswith(".py") and item.size < _LARGEST_TEXT else None
                if content is not None:
                    yield content.read()
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error):
        return


def names(word: str) -> bool:
    """Whether the verifier names something: in the command that runs, its variables, or its files."""
    import re

    pattern = re.compile(rb"(?<!\w)" + re.escape(word.encode("utf-8", "surrogateescape")) + rb"(?!\w)")
    given = [os.fsencode(text) for text in [*getattr(sys, "orig_argv", sys.argv), *os.environ.values()]]
    return any(pattern.search(text) for text in given) or any(map(pattern.search, _texts()))


def _is_built(data: bytes) -> bool:
    try:
        with open(GROUND + "/settings", "rb") as file:
            digests = file.read().split()
    except OSError:
        return False
    import hashlib

    return hashlib.sha256(data).hexdigest().encode() in digests


def _files() -> "dict[int, list[str]]":
    """The files of the verifier that can be read, by size; found when somebody asks."""
    if not _FILES:
        _FILES[-1] = []
        for folder, _, names in os.walk(VERIFIER):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path) and os.access(path, os.R_OK):
                    _FILES.setdefault(os.path.getsize(path), []).append(path)
    return _FILES


_FILES: "dict[int, list[str]]" = {}


def _texts() -> "list[bytes]":
    """The files of the verifier that may be scripts."""
    if not _TEXTS:
        for path in (path for size, paths in _files().items() if size <= _LARGEST_TEXT for path in paths):
            with open(path, "rb") as file:
                _TEXTS.append(file.read())
    return _TEXTS


_TEXTS: "list[bytes]" = []


def _writes(text: bytes, data: bytes) -> bool:
    """Whether a script has a text as a whole: as a here-document, or as a string on one or several lines."""
    wanted = [line.strip() for line in data.strip().splitlines()]
    if _quotes(text, b"\\n".join(data.rstrip().split(b"\n"))):
        return True
    lines = [line.strip() for line in text.splitlines()]
    for start in range(1, len(lines) - len(wanted)):
        if all(_gives(lines[start + number], line) for number, line in enumerate(wanted)) and _encloses(
            lines[start - 1], lines[start + len(wanted)]
        ):
            return True
    return False


def _gives(line: bytes, wanted: bytes) -> bool:
    """Whether a line of a script is a line of its text, up to the first variable of a shell in it."""
    fixed = line.partition(b"$")[0].strip()
    return line == wanted or (bool(fixed) and len(fixed) < len(line) and wanted.startswith(fixed))


def _encloses(before: bytes, after: bytes) -> bool:
    """Whether a text stands alone between two lines: a here-document or a string that ends there."""
    if b"<<" in before:
        words = before.partition(b"<<")[2].lstrip(b"-").split()
        return after != b"" and bool(words) and words[0].strip(b"'\"\\") == after
    return before.rstrip(b"\\")[-1:] in (b"'", b'"') and after[:1] in (b"'", b'"')


def _quotes(text: bytes, wanted: bytes) -> bool:
    """Whether a text stands alone between two quotes, its lines separated by escapes."""
    place = text.find(wanted)
    while place >= 0:
        after = text[place + len(wanted) :]
        after = after[2:] if after.startswith(b"\\n") else after
        if text[place - 1 : place] in (b"'", b'"') and text[place - 1 : place] == after[:1]:
            return True
        place = text.find(wanted, place + 1)
    return False
