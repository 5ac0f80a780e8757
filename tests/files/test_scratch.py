"""Temporary folders that go with their process, or with the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = """
import sys
from benchflow.files.scratch import scratch_folder
folder = scratch_folder("x-")
(folder / "file").write_text("x")
print(folder, flush=True)
sys.stdin.read()
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKE],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_they_are_gone_when_their_process_ends(tmp_path):
    with start(tmp_path) as process:
        folder = folder_of(process)
        assert (folder / "file").exists()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_others_use_is_not(tmp_path):
    with start(tmp_path) as killed, start(tmp_path) as other:
        left, used = folder_of(killed), folder_of(other)
        killed.kill()
        killed.communicate()
        assert left.exists()
        with start(tmp_path) as later:
            folder_of(later)
            assert not left.exists()
            assert not left.parent.with_suffix(".lock").exists()
            assert used.exists()
            later.communicate()
        other.communicate()


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_place_that_somebody_else_prepared_is_not_used(tmp_path, trap):
    place = tmp_path / f"benchcube-{os.getuid()}"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to("elsewhere")
    else:
        place.mkdir()
        place.chmod(0o777)
    with start(tmp_path) as process:
        folder = folder_of(process)
        assert not folder.is_relative_to(place)
        assert not folder.is_relative_to(tmp_path / "elsewhere")
        process.communicate()
