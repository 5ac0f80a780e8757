"""The processes of a sandbox as its first process sees them: found by what they cannot shed, ended for certain.

Each command runs in its own UTS namespace. It cannot leave it, and all it ever starts inherits it, so the namespace's
number is a tag that survives daemonising.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final

from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.local.inside import kill_watch

_ROUNDS: Final = 50
_PATIENT_ROUNDS: Final = 2500
"""Of `_PAUSE_SEC` each: on a busy machine a killed process may have to wait for a processor before it can end."""
_PAUSE_SEC: Final = 0.002
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def new_tag() -> int:
    """Enter a fresh tag; children forked from now on carry it."""
    sc.unshare(sc.CLONE_NEWUTS)
    return os.stat("/proc/self/ns/uts").st_ino


def others() -> Iterator[int]:
    """Every process of the sandbox but this one."""
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            yield int(name)


def alive() -> list[int]:
    """The others that have not ended yet."""
    return [pid for pid in others() if _state(pid) not in ("", "Z", "X")]


def kill_tagged(tag: int, children: Mapping[int, int]) -> None:
    """End every process that carries the tag. Returns when none is left.

    `children` are the tags of our own children, which cannot be read before they run their program.
    """
    hidden: dict[int, int] = {}
    for round_number in range(_ROUNDS + _PATIENT_ROUNDS):
        if round_number == _ROUNDS:  # forks faster than it is found: nothing moves while we look
            _signal_all(signal.SIGSTOP)
        elif round_number > _ROUNDS:
            time.sleep(_PAUSE_SEC)
        found = False
        for pid in others():
            carried = children.get(pid)
            if not (_carries(pid, tag, hidden) if carried is None else carried == tag) or _state(pid) in ("", "Z", "X"):
                continue
            found = True
            with contextlib.suppress(ProcessLookupError):
                kill_watch.kill(pid)
        if not found:
            break
    if round_number >= _ROUNDS:
        _signal_all(signal.SIGCONT)
    for _ in range(_ROUNDS):
        if not any(_is_ending(pid) for pid in others()):
            break
        time.sleep(_PAUSE_SEC)


def kill_all() -> None:
    """End every other process; the caller collects them."""
    with contextlib.suppress(ProcessLookupError):
        kill_watch.kill(-1)


def pause() -> None:
    """Stop every other process at once."""
    _signal_all(signal.SIGSTOP)


def resume() -> None:
    _signal_all(signal.SIGCONT)


def too_large(most: int) -> int | None:
    """The largest process when all together use more than `most` bytes."""
    sizes = {pid: _resident(pid) for pid in others()}
    return max(sizes, key=sizes.__getitem__) if sum(sizes.values()) > most else None


def _signal_all(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def _carries(pid: int, tag: int, hidden: dict[int, int]) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/uts").st_ino == tag
    except PermissionError:  # about to run a program; one that stays so is hiding
        hidden[pid] = hidden.get(pid, 0) + 1
        return hidden[pid] > 5
    except OSError:
        return False


def _is_ending(pid: int) -> bool:
    """Whether a process has given up its namespaces but is not a zombie yet: a kill has nothing more to do there."""
    try:
        os.stat(f"/proc/{pid}/ns/uts")
    except FileNotFoundError:
        return _state(pid) not in ("", "Z", "X")
    except OSError:
        return False
    return False


def _state(pid: int) -> str:
    return _fields(pid, "stat").rpartition(")")[2].strip()[:1]


def _resident(pid: int) -> int:
    fields = _fields(pid, "statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _fields(pid: int, name: str) -> str:
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
