"""How much room a machine has: processors, memory and disk space, within the limits that control groups set.

A node in a container sees the whole machine in `/proc`; what it may use is in its control group and those above it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchflow.evaluation.scaled.admission import Vitals
from benchflow.sandbox.local.cgroups import OwnGroup, own_groups
from benchflow.task.workers import available_cores

_PROC: Final = Path("/proc")
_MB: Final = 1 << 20
_FILES: Final = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
_CACHED: Final = ("total_inactive_file", "inactive_file")
"""Cached files that the kernel drops when memory is needed; version 1 sums up those of sub-groups under the first."""


def processors(proc: Path = _PROC) -> float:
    """How many processors this process may use: those it may run on, and the quota of its control groups."""
    return min(float(available_cores()), *_quotas(proc), float("inf"))


def memory_mb(proc: Path = _PROC) -> int | None:
    """All memory that this process may use; None where the machine does not tell."""
    total = _meminfo(proc, "MemTotal") or _installed()
    if total is None:
        return None
    return min((total, *(limit for limit, _ in _limits(proc)))) // _MB


def vitals(places: tuple[Path, ...], proc: Path = _PROC) -> Vitals:
    """What is free now; of disk space, in the fullest of the places, each of which may not exist yet."""
    memory = _meminfo(proc, "MemAvailable")
    if memory is not None:
        memory = max(min((memory, *(limit - used for limit, used in _limits(proc)))), 0) // _MB
    disks = [free for place in places if (free := _disk_free(place)) is not None]
    return Vitals(memory, min(disks, default=None))


def _disk_free(place: Path) -> int | None:
    for folder in (place, *place.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free // _MB
    return None


def _meminfo(proc: Path, name: str) -> int | None:
    """A line of `meminfo`, in bytes."""
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return None


def _installed() -> int | None:
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _levels(group: OwnGroup) -> Iterator[Path]:
    """The folders of a group and of those above it, as far as they are mounted."""
    yield group.folder
    if group.folder != group.mounted:
        for folder in group.folder.parents:
            yield folder
            if folder == group.mounted:
                return


def _groups(proc: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Every group that limits this process, with its version."""
    with suppress(OSError, ValueError):
        for group in own_groups(proc):
            if group.version == 2 or controller in group.controllers:
                for folder in _levels(group):
                    yield folder, group.version


def _limits(proc: Path) -> Iterator[tuple[int, int]]:
    """The limits of memory, each with what is in use below it."""
    for folder, version in _groups(proc, "memory"):
        limit, used = (_number(folder / name) for name in _FILES[version])
        if limit is not None and used is not None:
            yield limit, max(used - _cached(folder), 0)


def _cached(folder: Path) -> int:
    with suppress(OSError, ValueError):
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return next((int(stat[name]) for name in _CACHED if name in stat), 0)
    return 0


def _quotas(proc: Path) -> Iterator[float]:
    for folder, version in _groups(proc, "cpu"):
        if version == 2:
            with suppress(OSError, ValueError):
                quota, period = map(int, (folder / "cpu.max").read_text().split())
                yield quota / period
            continue
        quota_us, period_us = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota_us is not None and period_us and quota_us > 0:
            yield quota_us / period_us


def _number(file: Path) -> int | None:
    """None where there is no such file, or no limit."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None
