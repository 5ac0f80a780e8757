from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchflow.files.bounded import RefusedFileError, read_regular


def test_a_regular_file_within_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", max_bytes=5) == b"12345"


def test_a_larger_file_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123456")
    with pytest.raises(RefusedFileError, match="6 bytes; at most 5"):
        read_regular(tmp_path / "a", max_bytes=5)


def test_a_file_without_a_size_is_read_up_to_the_limit() -> None:
    with pytest.raises(RefusedFileError, match="grew beyond"):
        read_regular(Path("/proc/self/status"), max_bytes=10)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "device"])
def test_anything_else_is_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    match kind:
        case "folder":
            path.mkdir()
        case "link":
            (tmp_path / "b").write_bytes(b"")
            path.symlink_to("b")
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
    with pytest.raises(RefusedFileError, match="not a regular file"):
        read_regular(path, max_bytes=5)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "a", max_bytes=5)
