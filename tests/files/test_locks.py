"""Locks of files: held by whoever lives, free as soon as the last holder is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from benchflow.files.locks import free_lock, held_lock, new_lock, try_lock

HOLDER = "import sys, time; from pathlib import Path; from benchflow.files.locks import new_lock"
HOLDER += "; new_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_lock_is_free_once_its_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert free_lock(path) is None
        holder.send_signal(signal.SIGKILL)
    lock = free_lock(path)
    assert lock is not None
    assert free_lock(path) is None
    os.close(lock)


def test_a_file_that_is_not_there_has_no_free_lock(tmp_path: Path) -> None:
    assert free_lock(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_a_new_lock_is_nobody_elses(tmp_path: Path) -> None:
    lock = new_lock(tmp_path / "lock")
    assert lock is not None
    other = os.open(tmp_path / "lock", os.O_RDWR)
    assert not try_lock(other)
    os.close(lock)
    assert try_lock(other)
    os.close(other)


@pytest.mark.anyio
async def test_tasks_that_want_one_lock_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []
    turns = 0

    async def work(number: int) -> None:
        nonlocal turns
        async with held_lock(tmp_path / "lock"):
            inside.append(number)
            await anyio.sleep(0.01)
            assert inside == [number]
            inside.clear()
            turns += 1

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(work, number)
    assert turns == 5
    lock = free_lock(tmp_path / "lock")
    assert lock is not None, "it is free afterwards"
    os.close(lock)
