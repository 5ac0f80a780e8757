"""Where a disk image comes from, and its bytes as one local file: a path, or an address that is downloaded.

An interrupted download is resumed if the server can prove that the file is still the same. What was downloaded is
compared with the checksum, if there is one, before anybody uses it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Final, Protocol

from cube.vm import VMError

_ALGORITHMS: Final = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
"""By the length of their hexadecimal form, for checksums that do not name theirs."""
_HASH: Final = re.compile(r"(?:(md5|sha1|sha256|sha512)[:=-])?([0-9a-f]+)", re.IGNORECASE)
_CHUNK: Final = 1 << 20
_SILENCE_SEC: Final = 60.0

logger = logging.getLogger(__name__)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def parsed_hash(text: str) -> tuple[str, str]:
    """Algorithm and digest of `sha256:HEX`, or of hexadecimal digits whose length names the algorithm."""
    found = _HASH.fullmatch(text.strip())
    digest = found[2].lower() if found else ""
    algorithm = _ALGORITHMS.get(len(digest))
    if found is None or algorithm is None or (found[1] or algorithm).lower() != algorithm:
        raise VMError(f"The checksum '{text}' is not sha256:HEX, nor of md5, sha1 or sha512.")
    return algorithm, digest


def local_path(source: str) -> Path | None:
    """The path of a source on this machine; None if it is an address of another one."""
    parts = urllib.parse.urlsplit(source)
    if parts.scheme in ("http", "https"):
        return None
    if parts.scheme == "file":
        return Path(urllib.parse.unquote(parts.path))
    if "://" in source:
        raise VMError(f"The image '{source}' must be a path, or an http, https or file URL.")
    return Path(source).expanduser()


def source_identity(source: str, source_hash: str | None) -> str:
    """Changes if another image is meant: with the address or checksum, and with a local file."""
    path = local_path(source)
    if path is None:
        return f"{source} {source_hash or ''}".strip()
    try:
        about = path.stat()
    except OSError as error:
        raise VMError(f"The image {path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(about.st_mode):
        raise VMError(f"The image {path} is not a file.")
    return f"{path.absolute()} {about.st_size} {about.st_mtime_ns} {source_hash or ''}".strip()


def is_of(identity: str, source: str | None, source_hash: str | None) -> bool:
    """Whether an identity is that of a source; a local file may have been removed after it was provisioned."""
    if source is None:
        return False
    path = local_path(source)
    if path is not None and not path.exists():
        return identity.startswith(f"{path.absolute()} ")
    return identity == source_identity(source, source_hash)


def fetch(source: str, source_hash: str | None, unfinished: Path) -> Path:
    """The file: itself if it is local, else downloaded to `unfinished`; a `VMError` if it is not what was meant."""
    expected = parsed_hash(source_hash) if source_hash else None
    path = local_path(source)
    if path is None:
        path = unfinished
        try:
            _download(source, path, resumable=expected is not None)
        except (OSError, HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise VMError(
                f"The image {source} cannot be downloaded: {reason}. The part that has arrived is kept; "
                "provision again to resume."
            ) from error
    if expected is not None and (found := file_digest(path, expected[0])) != expected[1]:
        if path is unfinished:
            forget(path)
        raise VMError(f"The image {source} has the {expected[0]} {found}, and {expected[1]} was expected.")
    return path


def file_digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def _about(path: Path) -> Path:
    """Where the validator of an unfinished download is noted."""
    return path.with_name(f"{path.name}.json")


def forget(path: Path) -> None:
    """Remove an unfinished download."""
    path.unlink(missing_ok=True)
    _about(path).unlink(missing_ok=True)


def _download(url: str, path: Path, *, resumable: bool) -> None:
    """Append what is missing. Without a validator of the server, only a checksum allows to continue."""
    validator = _validator(path)
    have = path.stat().st_size if path.exists() and (validator or resumable) else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if validator:
            headers["If-Range"] = validator
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # the scheme is http or https
    try:
        with urllib.request.urlopen(request, timeout=_SILENCE_SEC) as answer:  # noqa: S310
            resumed = answer.status == 206 and _starts_at(answer.headers) == have
            if not resumed:
                forget(path)
                _about(path).write_text(json.dumps(answer.headers.get("ETag") or answer.headers.get("Last-Modified")))
            logger.info("Downloading %s%s.", url, f" from byte {have}" if resumed else "")
            _append(answer, path)
            _check_length(answer.headers, path, have if resumed else 0)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:  # 416: nothing is missing
            raise


def _validator(path: Path) -> str | None:
    """A strong entity tag or a date; a weak tag proves nothing about bytes."""
    try:
        noted = json.loads(_about(path).read_text())
    except (OSError, ValueError):
        return None
    return noted if isinstance(noted, str) and not noted.startswith("W/") else None


def _append(answer: _Readable, path: Path) -> None:
    with path.open("ab") as stream:
        while chunk := answer.read(_CHUNK):
            stream.write(chunk)


def _starts_at(headers: Mapping[str, str]) -> int | None:
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def _check_length(headers: Mapping[str, str], path: Path, before: int) -> None:
    """A connection that ends early is not an error of its own for every server."""
    length = headers.get("Content-Length")
    have = path.stat().st_size - before
    if length is not None and have != int(length):
        raise OSError(f"{have} of {length} bytes have arrived")
