"""A blob is in its file as its digest says, whatever happened on the way."""

import errno
import hashlib
import io
import resource
import signal
import threading

import pytest

from benchflow.sandbox.images.distribution import blobs
from benchflow.sandbox.images.distribution.blobs import download
from benchflow.sandbox.images.distribution.manifests import Descriptor

DATA = bytes(range(256)) * 40


class Answer(io.BytesIO):
    def __init__(self, data, start):
        super().__init__(data)
        self.status = 206 if start else 200
        self.headers = {"Content-Range": f"bytes {start}-"}


class Client:
    """Serves `DATA`, at most `at_most` bytes of it per request; `before` is called before each answer."""

    registry = "r.test"

    def __init__(self, at_most=1 << 20, before=lambda: None):
        self.at_most, self.before = at_most, before
        self.requests = 0

    def open(self, path, headers):
        self.requests += 1
        self.before()
        start = int(headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        return Answer(DATA[start : start + self.at_most], start)


def fetch(client, path):
    blob = Descriptor("", f"sha256:{hashlib.sha256(DATA).hexdigest()}", len(DATA))
    download(client, blob, path, on_bytes=lambda count: None, stop=threading.Event())


def test_bytes_that_a_failed_attempt_left_behind_are_overwritten(tmp_path):
    path = tmp_path / "blob"

    def append_rubbish():
        with path.open("ab") as file:
            file.write(b"rubbish")

    client = Client(at_most=3000, before=append_rubbish)
    fetch(client, path)
    assert path.read_bytes() == DATA
    assert client.requests == 4


def test_a_file_that_cannot_be_written_is_not_taken_for_a_broken_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(blobs, "_CHUNK", 1000)
    client = Client()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, old[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            fetch(client, tmp_path / "blob")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert (caught.value.errno, client.requests) == (errno.EFBIG, 1)
    fetch(client, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
