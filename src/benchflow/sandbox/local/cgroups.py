"""Limits: what this machine can limit, one control group per sandbox and controller, and what holds without groups.

Version 2 and version 1 hierarchies are found from the mount table. The supervisor stays outside of the groups; its
children join through descriptors that were opened here, with the driver's permissions.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from benchflow.errors import UnsupportedError
from benchflow.sandbox.local.inside.messages import SHM_BYTES, group_prefix
from benchflow.sandbox.protocol import Limits

Controller = Literal["memory", "pids", "cpu", "cpuset"]
CONTROLLERS: Final[tuple[Controller, ...]] = ("memory", "pids", "cpu", "cpuset")
_MEMBERS: Final = {1: "tasks", 2: "cgroup.procs"}
"""A joining process has one thread. Moving only that, as version 1 can, does not make the kernel stop all others."""
_PERIOD: Final = 100_000
_REMOVAL_SECONDS: Final = 2.0
_turn: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A folder in which groups can be created, and its active controllers."""

    folder: Path
    controllers: frozenset[Controller]
    version: Literal[1, 2]


class Shortage(NamedTuple):
    """Counters that never decrease."""

    at_limit: int
    """How often the sandbox reached its own limit."""
    killed: int
    """Processes that the kernel killed because the sandbox or the machine ran out of memory."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one sandbox."""

    folders: tuple[Path, ...] = ()
    members: tuple[int, ...] = ()
    """Descriptors to join through."""
    memory: Path | None = None
    """The one of them that counts memory."""

    def close(self) -> None:
        for fd in self.members:
            os.close(fd)

    def shortage(self) -> Shortage:
        """The memory shortages of the sandbox so far."""
        if self.memory is None:
            return Shortage(0, 0)
        modern = _counters(self.memory / "memory.events")
        if modern:
            return Shortage(modern.get("oom", 0), modern.get("oom_kill", 0))
        killed = _counters(self.memory / "memory.oom_control").get("oom_kill", 0)
        if not killed:
            return Shortage(0, 0)
        most, limit = (_counters(self.memory / f"memory.{name}_in_bytes").get("", 0) for name in ("max_usage", "limit"))
        used_up = most >= limit - limit // 16  # newer kernels count no refusals here
        return Shortage(killed if used_up else 0, killed)

    def forks_refused(self) -> bool:
        """Whether the limit of processes was ever reached."""
        return any(_counters(folder / "pids.events").get("max", 0) > 0 for folder in self.folders)

    def remove(self) -> None:
        """Remove the groups; wait briefly for a group that is not empty yet."""
        for folder in self.folders:
            _remove(folder)


class OwnGroup(NamedTuple):
    """The group of this process in one mounted hierarchy."""

    mounted: Path
    folder: Path
    controllers: frozenset[Controller]
    """Of version 1; those of version 2 are files in the folder."""
    version: Literal[1, 2]


def own_groups(proc: Path = Path("/proc")) -> Iterator[OwnGroup]:
    """The groups of this process, read from the mount table."""
    own = _own_groups((proc / "self/cgroup").read_text())
    for line in (proc / "self/mountinfo").read_text().splitlines():
        fields = line.split()
        separator = fields.index("-")
        kind, options = fields[separator + 1], fields[separator + 3]
        root, mounted = fields[3], Path(fields[4])
        if kind == "cgroup":
            named = frozenset(name for name in CONTROLLERS if name in options.split(","))
            path = next((own[name] for name in named if name in own), None)
            if path is not None and (folder := _below(mounted, root, path)):
                yield OwnGroup(mounted, folder, named, 1)
        elif kind == "cgroup2" and "" in own and (folder := _below(mounted, root, own[""])):
            yield OwnGroup(mounted, folder, frozenset(), 2)


def find_hierarchies(proc: Path = Path("/proc")) -> tuple[Hierarchy, ...]:
    """Where groups can be created: read from the mount table and checked for write permission."""
    found: list[Hierarchy] = []
    for group in own_groups(proc):
        if group.version == 1:
            if os.access(group.folder, os.W_OK):
                found.append(Hierarchy(group.folder, group.controllers, 1))
        elif hierarchy := _version_2(group.mounted, group.folder):
            found.append(hierarchy)
    return tuple(found)


def available(hierarchies: Iterable[Hierarchy]) -> frozenset[Controller]:
    return frozenset(name for hierarchy in hierarchies for name in hierarchy.controllers)


def make_groups(
    hierarchies: Iterable[Hierarchy], owner: str, sandbox: str, limits: Limits, cpus: tuple[int, ...]
) -> Groups:
    """One group per hierarchy that has something to limit; nothing is left after an error.

    There is always one for memory: it counts the processes that the machine killed for lack of memory.
    """
    folders: list[Path] = []
    members: list[int] = []
    memory: Path | None = None
    try:
        for hierarchy in hierarchies:
            settings = _settings(hierarchy, limits, cpus)
            if not settings and "memory" not in hierarchy.controllers:
                continue
            folder = f"{hierarchy.folder}/{group_prefix(owner)}{sandbox}"
            os.mkdir(folder)
            folders.append(Path(folder))
            if "memory" in hierarchy.controllers:
                memory = Path(folder)
            for name, value in settings.items():
                _write(f"{folder}/{name}", value)
            members.append(os.open(f"{folder}/{_MEMBERS[hierarchy.version]}", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        groups = Groups(tuple(folders), tuple(members))
        groups.close()
        groups.remove()
        raise
    return Groups(tuple(folders), tuple(members), memory)


def leftovers(hierarchies: Iterable[Hierarchy], owner: str) -> Groups:
    """The groups that a driver left behind."""
    prefix = group_prefix(owner)
    found: list[Path] = []
    for hierarchy in hierarchies:
        with contextlib.suppress(OSError):  # the parent can be gone as well
            found += [path for path in hierarchy.folder.iterdir() if path.name.startswith(prefix)]
    return Groups(tuple(found))


def _settings(hierarchy: Hierarchy, limits: Limits, cpus: tuple[int, ...]) -> dict[str, str]:
    """Files and values for the controllers of a hierarchy."""
    modern = hierarchy.version == 2
    values: dict[str, str] = {}
    if "memory" in hierarchy.controllers and limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        values["memory.max" if modern else "memory.limit_in_bytes"] = size
        if not modern and _has(hierarchy.folder, "memory.memsw.limit_in_bytes"):
            values["memory.memsw.limit_in_bytes"] = size
    if "pids" in hierarchy.controllers and limits.pids is not None:
        values["pids.max"] = str(limits.pids + 1)  # the one that starts the others is ours
    if "cpu" in hierarchy.controllers and limits.cpus is not None:
        quota = max(1000, int(limits.cpus * _PERIOD))
        values |= {"cpu.max": f"{quota} {_PERIOD}"} if modern else {"cpu.cfs_quota_us": str(quota)}
    if "cpuset" in hierarchy.controllers and cpus:
        if not modern:
            values["cpuset.mems"] = _memory_nodes(hierarchy.folder)
        values["cpuset.cpus"] = ",".join(map(str, cpus))
    return values


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


@functools.cache
def _has(folder: Path, name: str) -> bool:
    return (folder / name).exists()


@functools.cache
def _memory_nodes(folder: Path) -> str:
    return (folder / "cpuset.mems").read_text().strip()


def _own_groups(text: str) -> Mapping[str, str]:
    """Controller -> our group; the empty name is version 2."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    return groups


def _below(mounted: Path, root: str, path: str) -> Path | None:
    """Our group's folder, where its hierarchy is mounted from `root` on."""
    with contextlib.suppress(ValueError):
        return mounted / Path(path).relative_to(root)
    return mounted if mounted.is_dir() else None


def _version_2(mounted: Path, own: Path) -> Hierarchy | None:
    """The nearest folder with active controllers. Not our own group: none has both processes and sub-groups."""
    candidates = [own.parent] if own != mounted else []
    if os.geteuid() == 0 or own == mounted:
        candidates.append(mounted)
    for folder in candidates:
        if not os.access(folder / "cgroup.procs", os.W_OK):
            continue
        acting = _words(folder / "cgroup.subtree_control")
        lacking = set(_words(folder / "cgroup.controllers")) & set(CONTROLLERS) - set(acting)
        if lacking:
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(lacking)))
            acting = _words(folder / "cgroup.subtree_control")
        named = frozenset(name for name in CONTROLLERS if name in acting)
        if named:
            return Hierarchy(folder, named, 2)
    return None


def _counters(path: Path) -> dict[str, int]:
    """The numbers in a file by their names, a number without one by the empty name; empty if there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {"" if len(words) == 1 else words[0]: int(words[-1]) for words in lines if words}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVAL_SECONDS
    pause = 0.001
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause *= 2
        else:
            return


@dataclass(frozen=True, slots=True)
class Machine:
    """Processors and control groups."""

    cpus: tuple[int, ...]
    hierarchies: tuple[Hierarchy, ...]

    @classmethod
    def find(cls) -> Machine:
        return cls(tuple(sorted(os.sched_getaffinity(0))), find_hierarchies())

    @property
    def controllers(self) -> frozenset[Controller]:
        return available(self.hierarchies)


@dataclass(frozen=True, slots=True)
class Restraints:
    """A sandbox's limits as this machine enforces them."""

    cpus: tuple[int, ...] = ()
    pin_cpus: bool = False
    rlimits: tuple[tuple[str, int], ...] = ()
    memory_watch: int = 0
    shm_bytes: int = SHM_BYTES


def restrain(limits: Limits, machine: Machine) -> Restraints:
    """How limits are enforced without control groups; raises `UnsupportedError` if that is not possible."""
    controllers = machine.controllers
    rlimits: dict[str, int] = {"CORE": 0}
    watch = 0
    if limits.gpus:
        raise UnsupportedError("The local sandbox has no GPUs.", path="environment.gpus")
    if limits.pids is not None and "pids" not in controllers:
        rlimits["NPROC"] = limits.pids
    if limits.memory_mb is not None and "memory" not in controllers:
        watch = limits.memory_mb << 20
        rlimits["DATA"] = watch
    chosen: tuple[int, ...] = ()
    if limits.cpus is not None:
        if limits.cpus <= 0:
            raise UnsupportedError(f"A sandbox cannot have {limits.cpus:g} cpus.", path="environment.cpus")
        if "cpu" not in controllers and limits.cpus != int(limits.cpus):
            raise UnsupportedError(
                f"Without control groups only whole numbers of cpus are supported, not {limits.cpus:g}.",
                path="environment.cpus",
            )
        chosen = _choose(machine.cpus, math.ceil(limits.cpus))
    shared = SHM_BYTES
    if limits.memory_mb is not None:  # files there count as memory and outlive their process
        shared = min(shared, limits.memory_mb << 19)
    return Restraints(chosen, bool(chosen) and "cpuset" not in controllers, tuple(rlimits.items()), watch, shared)


def _choose(cpus: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Some processors; each sandbox starts at the next one, to spread the load."""
    if count >= len(cpus):
        return cpus
    start = next(_turn) * count
    return tuple(sorted(cpus[(start + index) % len(cpus)] for index in range(count)))
