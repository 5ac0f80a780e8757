"""Files beside a package that belong to it: profiles, and a manifest of services that several packages share.

`read_beside` takes a path as the package states it. The file must be in the folder that contains the package, so that
a benchmark can be moved as a whole; it counts in the digests of every package that names it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from benchflow.task.filemap import read_regular


class BesideError(Exception):
    """Why a file cannot be used; the message continues a sentence that starts with the key and its value."""


class OutsideError(BesideError):
    """The path leaves the folder that contains the package."""


class BesideFile(NamedTuple):
    """One file as it was read."""

    path: str
    """Relative to the package."""
    data: bytes
    inside: bool
    """Whether it is inside the package, and so counted with its files."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def read_beside(package: Path, written: str, limit: int) -> BesideFile:
    """A file that a package names by a path relative to itself; raises `BesideError`."""
    if "\0" in written:
        raise OutsideError("is not a path")
    root = os.path.realpath(package)
    resolved = os.path.realpath(package / written)
    if not resolved.startswith(f"{root.rpartition('/')[0]}/"):
        raise OutsideError("is outside the folder that contains the package")
    try:
        data, _ = read_regular(resolved, limit)
    except OSError as error:
        raise BesideError(f"cannot be read: {error.strerror or error}") from error
    path = os.path.relpath(resolved, root) if written.startswith("/") else written
    return BesideFile(path, data, resolved.startswith(f"{root}/"))
