"""A file is replaced whole or not at all."""

import os
import stat
from contextlib import suppress

import pytest

from benchflow.files import write_atomic, write_unseen
from benchflow.files.atomic import growing_file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_and_bytes_arrive_as_they_are(tmp_path):
    write_atomic(tmp_path / "a", "grün\r\n")
    write_atomic(tmp_path / "b", b"\x00\xff", sync=False)
    assert (tmp_path / "a").read_bytes() == "grün\r\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a", "b"]


def test_a_replaced_file_keeps_its_permissions_unless_told(tmp_path):
    target = tmp_path / "run.sh"
    target.write_text("old")
    target.chmod(0o750)
    write_atomic(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    write_atomic(target, "newer", mode=0o600)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_text() == "newer"


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(outside)
    write_atomic(link, "new")
    assert not link.is_symlink()
    assert outside.read_text() == "mine"


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomic(target, "x")
    assert names(tmp_path) == ["folder"]


def test_names_of_the_greatest_length_can_be_written(tmp_path):
    target = tmp_path / ("n" * 255)
    write_atomic(target, "x")
    assert target.read_text() == "x"


@pytest.mark.parametrize("before", [None, "", "a longer text than what comes", "x"])
def test_an_unseen_file_holds_exactly_what_was_written_last(tmp_path, before):
    target = tmp_path / "file"
    if before is not None:
        target.write_text(before)
    write_unseen(target, "grün\r\n")
    assert target.read_bytes() == "grün\r\n".encode()
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("lead", [os.symlink, os.link])
def test_what_an_unseen_file_shares_or_leads_to_stays(tmp_path, lead):
    outside, target = tmp_path / "outside", tmp_path / "file"
    outside.write_text("mine")
    lead(outside, target)
    write_unseen(target, "new")
    assert (target.read_text(), outside.read_text()) == ("new", "mine")
    assert not target.is_symlink()


def test_a_pipe_in_the_place_of_an_unseen_file_is_replaced_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "file")
    write_unseen(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_growing_file_is_there_when_its_block_has_succeeded_and_never_before(tmp_path):
    target = tmp_path / "report"
    with growing_file(target) as stream:
        stream.write("grün\r\n")
        assert not target.exists()
    assert target.read_bytes() == "grün\r\n".encode()
    with suppress(KeyboardInterrupt), growing_file(tmp_path / "other") as stream:
        stream.write("half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
