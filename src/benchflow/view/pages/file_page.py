"""Files of a rollout: images are shown, texts can be read as text, everything else is downloaded.

A file is found name by name below the folder of its rollout, and no link is followed on the way. What a browser could
run (HTML, SVG, scripts) is never served as such.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from benchflow.files.bounded import RefusedFileError, open_below
from benchflow.record.reading.rollout_story import read_output
from benchflow.view.known_jobs import Missing
from benchflow.view.page_addresses import Fields, address
from benchflow.view.viewer import Viewer

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_CHUNK: Final = 1 << 18
_SEALED: Final = {"Content-Security-Policy": "default-src 'none'; sandbox", "Cache-Control": "no-store"}


def file_response(viewer: Viewer, job_name: str, name: str, fields: Fields) -> str | Response:
    """A file: as an image, as a page of text (`view=1`), or as a download."""
    folder = viewer.jobs.get(job_name).rollout(name)
    path = fields.one("path")
    try:
        descriptor = open_below(folder.path, path)
    except (OSError, RefusedFileError) as error:
        raise Missing("There is no such file in this rollout.", "It may have been removed.") from error
    begin = os.pread(descriptor, 16, 0)
    image = image_type(begin)
    if fields.one("view") and image is None:
        os.close(descriptor)
        return _text_page(viewer, job_name, name, path)
    shown = "inline" if image is not None and fields.one("view") else "attachment"
    file_name = quote(path.rpartition("/")[2].encode("utf-8", "surrogateescape"))
    return StreamingResponse(
        _chunks(descriptor),
        media_type=image or "application/octet-stream",
        headers={
            **_SEALED,
            "Content-Disposition": f"{shown}; filename*=UTF-8''{file_name}",
            "Content-Length": str(os.fstat(descriptor).st_size),
        },
    )


def image_type(begin: bytes) -> str | None:
    """The type of an image by its first bytes; its name says nothing."""
    if begin[:4] == b"RIFF" and begin[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if begin.startswith(signature)), None)


def _chunks(descriptor: int) -> Iterator[bytes]:
    """The bytes up to the size that was announced, also of a file that grows."""
    left = os.fstat(descriptor).st_size
    with os.fdopen(descriptor, "rb") as stream:
        while left and (data := stream.read(min(left, _CHUNK))):
            left -= len(data)
            yield data


def _text_page(viewer: Viewer, job_name: str, name: str, path: str) -> str:
    folder = viewer.jobs.get(job_name).rollout(name)
    output = read_output(folder.path / path, folder.path)
    if output is None:
        raise Missing("There is no such file in this rollout.", "It may have been removed.")
    rollout = address("job", job_name, "rollout", name, tab="files")
    return viewer.page(
        "file.html",
        path,
        [("Jobs", "/"), (job_name, address("job", job_name)), (name, rollout), (path, None)],
        output=output,
        binary="\0" in output.text[:8_000],
        download=address("job", job_name, "rollout", name, "file", path=path),
    )
