"""What the gym tasks of this process share: packages, each parsed once, and sandbox backends."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from benchflow.errors import BenchflowError, PackageError
from benchflow.gym.sandbox_container import LOOP
from benchflow.sandbox.backends import load_backend
from benchflow.sandbox.factory import AUTO, choose_backend, task_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage, load_package
from benchflow.task.taken import CHANGED, Stamp, is_settled, stamp_of

MOST_PACKAGES: Final = 512
"""How many packages are kept parsed."""


class Packages:
    """Packages by folder. A folder is read, parsed and hashed again only when something in it has changed.

    What was planned is what runs: a package whose digest has changed since the listing is refused.
    """

    def __init__(self) -> None:
        self._known: Final[OrderedDict[str, tuple[Stamp, TaskPackage]]] = OrderedDict()
        self._guard = threading.Lock()

    def forget(self) -> None:
        """In a process that was forked: another thread of the parent may have held the lock."""
        self._guard = threading.Lock()

    def load(self, folder: Path) -> TaskPackage:
        """The current package of a folder, valid or not."""
        key = str(folder)
        with self._guard:
            stamp, package = self._known.pop(key, ((), None))
            if package is None or not stamp or stamp != _stamp(folder, package):  # empty: unsettled, or gone
                before, began = stamp_of(folder), time.time_ns()  # files may change while they are read
                package = load_package(folder)
                stamp = (*before, *_outside(folder, package))
                if not is_settled(stamp, began):
                    stamp = ()  # read again next time
            self._known[key] = stamp, package
            while len(self._known) > MOST_PACKAGES:
                self._known.popitem(last=False)
            return package

    def get(self, folder: Path, digest: str) -> TaskPackage:
        """The valid package that was listed; `PackageError` (`package-changed`) if the folder has changed."""
        package = task_package(self.load(folder))
        if package.digest != digest:
            raise PackageError(
                f"The package at {folder} has changed since the task was listed; list it again.",
                code=CHANGED,
            )
        return package


def _stamp(folder: Path, package: TaskPackage) -> Stamp:
    return (*stamp_of(folder), *_outside(folder, package))


def _outside(folder: Path, package: TaskPackage) -> Iterator[tuple[str, int, int, int, int]]:
    """Files beside the package that count as part of it."""
    for path in package.shared:
        place = folder / path
        if place.is_file():
            found = place.stat()
            yield str(place), found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


class Backends:
    """Backends by name, created on first use: starting one costs more than starting a sandbox."""

    def __init__(self) -> None:
        self._known: dict[str, SandboxBackend] = {}
        self._guard = threading.Lock()
        """Protects the registration of the clean-up."""
        self._registered = False
        self._of_parent: tuple[dict[str, SandboxBackend], ...] = ()

    def use(self, backend: SandboxBackend) -> None:
        """Make a backend available under its name in this process, as a double for tests and measurements is."""
        self._known[backend.name] = backend
        self._close_at_exit()

    async def get(self, package: TaskPackage, sandbox: str, base_image: str | None) -> SandboxBackend:
        name = sandbox
        if sandbox == AUTO:
            chosen = await choose_backend(package, sandbox, base_image=base_image)
            name = chosen.name
            self._known.setdefault(name, chosen)
        if name not in self._known:
            self._known[name] = load_backend(name)
        self._close_at_exit()
        return self._known[name]

    def _close_at_exit(self) -> None:
        with self._guard:
            if self._registered:
                return
            self._registered = True
        atexit.register(self.close)
        if parent_process() is not None:  # a process of multiprocessing ends without what `atexit` knows
            Finalize(None, self._close_with_loop, exitpriority=0)

    def _close_with_loop(self) -> None:
        self.close()
        LOOP.close()

    def close(self) -> None:
        for backend in self._known.values():
            try:
                LOOP.run(backend.close)
            except (BenchflowError, RuntimeError):  # the interpreter is ending, and everything left ends with it
                continue
        self._known.clear()

    def forget(self) -> None:
        """In a process that was forked: the backends are the parent's, and are neither used nor closed here."""
        self._of_parent = (*self._of_parent, self._known)
        self._known, self._guard, self._registered = {}, threading.Lock(), False


PACKAGES: Final = Packages()
BACKENDS: Final = Backends()
os.register_at_fork(after_in_child=BACKENDS.forget)
os.register_at_fork(after_in_child=PACKAGES.forget)
