"""A virtual machine that QEMU runs as a process of this machine.

What it writes goes into an overlay that has no name any more once the machine runs: when the process ends, however it
ends, nothing is left. The process ends with ours.
"""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from cube import leash
from cube.qemu.image_files import create_overlay
from cube.qemu.machine_command import GUEST_PORT, MachineSettings, machine_command
from cube.qemu.qemu_monitor import Monitor
from cube.vm import VM, VMError, VMLaunchError

_SCREENSHOT: Final = "/screenshot"
_TAIL: Final = 1500
_SCREENSHOT_SEC: Final = 60.0
_PAUSE_SEC: Final = 0.05
_CONTROL: Final = re.compile(r"\x1b(?:\[[0-9;?]*)?[A-Za-z]|[^\x20-\x7e\n\x80-\uffff]")
"""What a console prints for a terminal, not for a message."""


@dataclass(eq=False)
class LocalVM(VM):
    """A running machine. `endpoint` leads to port 5000 inside."""

    _process: subprocess.Popen[bytes] | None = None
    _monitor: Monitor | None = None
    _console: IO[bytes] | None = None
    _errors: IO[bytes] | None = None
    _ended: Callable[[], None] | None = None
    """Called once, when it has ended."""
    _guard: Any = field(default_factory=threading.Lock)

    def start(self, settings: MachineSettings, image: Path, folder: Path) -> None:
        """Start it from an image, with a folder for the time until it runs; after an error nothing is left."""
        folder.mkdir(parents=True)
        try:
            create_overlay(image, folder / "overlay")
            self._run(settings, folder)
        except BaseException:
            self.stop()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, settings: MachineSettings, folder: Path) -> None:
        console, errors = folder / "console", folder / "errors"
        for path in (console, errors):
            path.touch()
        self._console, self._errors = console.open("rb"), errors.open("rb")
        own, theirs = socket.socketpair()
        with theirs, errors.open("ab") as stderr:
            self._monitor = Monitor(own)
            words = machine_command(settings, folder / "overlay", console, theirs.fileno())
            self._process = leash.start(
                words, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        try:
            self._monitor.greet()
            port = self._monitor.forwarded_port()
        except VMError as error:
            raise VMLaunchError(f"QEMU did not start the machine: {_tail(self._errors) or error}") from error
        self.endpoint = f"http://127.0.0.1:{port}"
        self.endpoints = {str(GUEST_PORT): self.endpoint}

    def wait(self, limit_sec: float) -> None:
        """Until the program inside answers; a `VMLaunchError` with the last lines of the console if it does not."""
        deadline, patience = time.monotonic() + limit_sec, 0.5
        while (left := deadline - time.monotonic()) > 0:
            if self._process is None or self._process.poll() is not None:
                said = _tail(self._errors)
                raise VMLaunchError(f"The machine ended while it was starting.{self.last_lines()}{said and f' {said}'}")
            try:
                self._ask(min(patience, left))
            except (OSError, http.client.HTTPException, VMError):
                # A guest without a network yet leaves a request unanswered: short ones first, so that it is seen soon.
                patience = min(patience * 1.25, _SCREENSHOT_SEC)
                time.sleep(_PAUSE_SEC)
            else:
                return
        raise VMLaunchError(
            f"The machine did not answer {_SCREENSHOT} on port {GUEST_PORT} within {limit_sec:g} s.{self.last_lines()}"
        )

    def last_lines(self) -> str:
        said = _tail(self._console)
        return f" Last lines of its console: {said}" if said else " Its console is empty."

    def screenshot(self) -> bytes:
        try:
            return self._ask(_SCREENSHOT_SEC)
        except (OSError, http.client.HTTPException) as error:
            raise VMError(f"The machine did not answer {_SCREENSHOT}: {str(error) or type(error).__name__}.") from error

    def _ask(self, limit_sec: float) -> bytes:
        if self.endpoint is None or self._process is None:
            raise VMError("The machine has ended.")
        address = self.endpoint.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=limit_sec)
        try:
            connection.request("GET", _SCREENSHOT)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise VMError(f"The machine answered {_SCREENSHOT} with {answer.status} {answer.reason}.")
        return content

    def save(self, snapshot: str) -> None:
        """Save its state, memory and disk, for `restore`; it is lost when the machine ends."""
        self._asked().save(snapshot)

    def restore(self, snapshot: str) -> None:
        self._asked().load(snapshot)

    def _asked(self) -> Monitor:
        if self._monitor is None:
            raise VMError("The machine has ended.")
        return self._monitor

    def stop(self) -> None:
        with self._guard:
            process, self._process = self._process, None
            monitor, self._monitor = self._monitor, None
            ended, self._ended = self._ended, None
            if process is not None:
                process.kill()  # its disk is thrown away: there is nothing to shut down for
                process.wait()
            for each in (monitor, self._console, self._errors):
                if each is not None:
                    each.close()
            if ended is not None:
                ended()


def _tail(stream: IO[bytes] | None) -> str:
    """The end of a file that is being written, on one line."""
    if stream is None or stream.closed:
        return ""
    stream.seek(max(0, stream.seek(0, 2) - _TAIL))
    text = _CONTROL.sub("", stream.read().decode(errors="replace"))
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
