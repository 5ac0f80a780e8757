"""Where packages of some content were last seen on this machine, in the user's cache.

    STORE/places/CONTENT-DIGEST     folders, each ended by a NUL, the latest first

A place is a hint for other processes of the same user: its content is compared before it is used. One that is wrong,
missing or pruned costs nothing but the hint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchflow.files import write_atomic
from benchflow.files.user_store import default_store

MOST_PLACES: Final = 8
"""How many folders with the same content are remembered."""


def note_place(content_digest: str, folder: Path) -> None:
    """Remember where a package is; a cache that cannot be written is not a problem here."""
    known = noted_places(content_digest)
    here = folder.absolute()
    if known[:1] == [here]:
        return
    others = [place for place in known if place != here and place.is_dir()]
    data = b"".join(os.fsencode(place) + b"\0" for place in (here, *others[: MOST_PLACES - 1]))
    file = _file(content_digest)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, data, sync=False)
    except OSError:
        return


def noted_places(content_digest: str) -> list[Path]:
    """Where packages with this content were seen, the latest first."""
    try:
        data = _file(content_digest).read_bytes()
    except OSError:
        return []
    return [Path(os.fsdecode(place)) for place in data.split(b"\0") if place]


def _file(content_digest: str) -> Path:
    return default_store() / "places" / content_digest.removeprefix("sha256:")
