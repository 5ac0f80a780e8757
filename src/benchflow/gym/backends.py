"""The sandbox backends of this process, which all gym tasks share."""

from __future__ import annotations

import atexit
import threading

from benchflow.errors import BenchflowError
from benchflow.gym.sandbox_container import LOOP
from benchflow.sandbox.backends import load_backend
from benchflow.sandbox.factory import AUTO, choose_backend
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.package import TaskPackage


class Backends:
    """Backends by name, made when first asked for: starting one costs more than starting a sandbox."""

    def __init__(self) -> None:
        self._known: dict[str, SandboxBackend] = {}
        self._lock = threading.Lock()
        """Guards the registration of the clean-up."""
        self._registered = False

    async def get(self, package: TaskPackage, sandbox: str, base_image: str | None) -> SandboxBackend:
        name = sandbox
        if sandbox == AUTO:
            chosen = await choose_backend(package, sandbox, base_image=base_image)
            name = chosen.name
            self._known.setdefault(name, chosen)
        if name not in self._known:
            self._known[name] = load_backend(name)
        with self._lock:
            if not self._registered:
                atexit.register(self.close)
                self._registered = True
        return self._known[name]

    def close(self) -> None:
        for backend in self._known.values():
            try:
                LOOP.run(backend.close)
            except (BenchflowError, RuntimeError):  # the interpreter is ending; whatever is left ends with it
                continue
        self._known.clear()


BACKENDS = Backends()
