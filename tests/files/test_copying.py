"""A copy has the content and the permissions of its source, and only regular files are copied."""

import os
import stat

import pytest

from benchflow.files import copy_file


def test_content_and_permissions_are_copied_and_folders_made(tmp_path):
    source = tmp_path / "run.sh"
    source.write_bytes(b"\x00x" * 700_000)
    source.chmod(0o4555)
    target = tmp_path / "a" / "b" / "run.sh"
    copy_file(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o555


def test_links_and_pipes_are_refused_and_nothing_is_overwritten(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            copy_file(tmp_path / name, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_file(tmp_path / "file", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "mine"
