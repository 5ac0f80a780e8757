"""One function over many items on all cores."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchflow.task.workers import MANY, available_cores, ordered_map


def square(number: int) -> int:
    return number * number


def own_process(_number: int) -> int:
    return os.getpid()


def die_once(marker: Path, number: int) -> int:
    if number == 100 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    if number == 70:
        raise ValueError("seventy")
    return number


@pytest.mark.parametrize("count", [0, 1, MANY - 1, MANY, 500])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_come_in_the_order_of_the_items(count, processes):
    assert list(ordered_map(square, range(count), processes=processes)) == [square(n) for n in range(count)]


def test_few_items_stay_in_this_process_and_many_do_not():
    assert set(ordered_map(own_process, range(MANY - 1), processes=2)) == {os.getpid()}
    first, *others = ordered_map(own_process, range(MANY), processes=2)
    assert first == os.getpid(), "what the first item warms up, all processes have"
    assert os.getpid() not in others


def test_a_process_that_dies_loses_nothing(tmp_path):
    work = partial(die_once, tmp_path / "died")
    assert list(ordered_map(work, range(400), processes=2)) == list(range(400))
    assert (tmp_path / "died").exists()


def test_an_exception_reaches_the_caller():
    with pytest.raises(ValueError, match="seventy"):
        list(ordered_map(refuse, range(200), processes=2))


def test_a_caller_may_stop_early():
    results = ordered_map(square, range(10_000), processes=2)
    assert [next(results), next(results)] == [0, 1]
    results.close()


def test_there_is_at_least_one_core():
    assert available_cores() >= 1


def test_no_worker_outlives_a_killed_parent(tmp_path):
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from benchflow.task.workers import ordered_map\n"
        "def work(n):\n"
        f"    n and Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
        "    time.sleep(60 if n else 0)\n"
        "list(ordered_map(work, range(100), processes=2))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    parent.kill()
    parent.wait()
    assert len(workers) == 2
    while any(is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in workers)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
