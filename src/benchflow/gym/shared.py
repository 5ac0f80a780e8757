"""What the gym tasks of this process share: packages, each parsed once, and sandbox backends."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow.errors import BenchflowError, PackageError
from benchflow.gym.sandbox_container import LOOP
from benchflow.sandbox.backends import load_backend
from benchflow.sandbox.factory import AUTO, choose_backend, task_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage, load_package

MOST_PACKAGES: Final = 512
"""How many packages are kept parsed."""
_TICK_NS: Final = 100_000_000
"""File times have the resolution of the kernel's ticks, which are shorter than this."""
_Stamp = tuple[tuple[str, int, int, int, int], ...]


class Packages:
    """Packages by folder. A folder is read, parsed and hashed again only when something in it has changed.

    Change times cannot be set by hand, so comparing them with sizes and inodes finds every change without reading a
    file. What was planned is what runs: a package whose digest has changed since the listing is refused.
    """

    def __init__(self) -> None:
        self._known: Final[OrderedDict[str, tuple[_Stamp, TaskPackage]]] = OrderedDict()
        self._guard: Final = threading.Lock()

    def load(self, folder: Path) -> TaskPackage:
        """The current package of a folder, valid or not."""
        key = str(folder)
        with self._guard:
            stamp, package = self._known.pop(key, ((), None))
            if package is None or stamp != _stamp(folder, package):
                # Files may change while they are read, so the stamp is from before. One that changed just now may
                # change again within the tick, which its time would not show: then the package is read again next time.
                before, began = tuple(_walk(folder)), time.time_ns()
                package = load_package(folder)
                stamp = (*before, *_outside(folder, package))
                if any(changed > began - _TICK_NS for _, changed, *_ in stamp):
                    stamp = ()
            self._known[key] = stamp, package
            while len(self._known) > MOST_PACKAGES:
                self._known.popitem(last=False)
            return package

    def get(self, folder: Path, digest: str) -> TaskPackage:
        """The valid package that was listed; `PackageError` (`digest-changed`) if the folder has changed."""
        package = task_package(self.load(folder))
        if package.digest != digest:
            raise PackageError(
                f"The package at {folder} has changed since the task was listed; list it again.",
                code="digest-changed",
            )
        return package


def _stamp(folder: Path, package: TaskPackage) -> _Stamp:
    return (*_walk(folder), *_outside(folder, package))


def _walk(folder: Path | str) -> Iterator[tuple[str, int, int, int, int]]:
    """Everything below a folder, without following links; what cannot be listed ends the walk there."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        found = entry.stat(follow_symlinks=False)
        yield entry.path, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _outside(folder: Path, package: TaskPackage) -> Iterator[tuple[str, int, int, int, int]]:
    """Profiles beside the package that count as part of it."""
    for profile in package.profiles.values():
        place = folder / profile.path
        if not profile.inside and place.is_file():
            found = place.stat()
            yield str(place), found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


class Backends:
    """Backends by name, created on first use: starting one costs more than starting a sandbox."""

    def __init__(self) -> None:
        self._known: dict[str, SandboxBackend] = {}
        self._guard: Final = threading.Lock()
        """Protects the registration of the clean-up."""
        self._registered = False

    async def get(self, package: TaskPackage, sandbox: str, base_image: str | None) -> SandboxBackend:
        name = sandbox
        if sandbox == AUTO:
            chosen = await choose_backend(package, sandbox, base_image=base_image)
            name = chosen.name
            self._known.setdefault(name, chosen)
        if name not in self._known:
            self._known[name] = load_backend(name)
        with self._guard:
            if not self._registered:
                atexit.register(self.close)
                self._registered = True
        return self._known[name]

    def close(self) -> None:
        for backend in self._known.values():
            try:
                LOOP.run(backend.close)
            except (BenchflowError, RuntimeError):  # the interpreter is ending, and everything left ends with it
                continue
        self._known.clear()


PACKAGES: Final = Packages()
BACKENDS: Final = Backends()
