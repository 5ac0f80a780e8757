"""The monitor of a running machine: commands and answers as lines of JSON over a socket (QMP)."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from typing import Any, Final
from uuid import uuid4

from cube.qemu.machine_command import DISK, GUEST_PORT
from cube.vm import VMError

_ANSWER_SEC: Final = 60.0
_JOB_SEC: Final = 600.0
_FORWARD: Final = re.compile(rf"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)\s+\S+\s+{GUEST_PORT}\b")


class Monitor:
    """One machine's monitor; one command at a time. What fails is a `VMError`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_SEC)
        self._connection: Final = connection
        self._lines: Final = connection.makefile("rb")
        self._guard: Final = threading.Lock()

    def greet(self) -> None:
        """Wait until the machine exists; its disk is open from then on."""
        self._read()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: Any) -> Any:
        """The answer to a command."""
        request = {"execute": command, "arguments": {name.replace("_", "-"): each for name, each in arguments.items()}}
        with self._guard:
            try:
                self._connection.sendall(json.dumps(request).encode() + b"\n")
            except OSError as error:
                raise VMError(f"{command} cannot be sent to the machine: {error}.") from error
            while True:
                answer = self._read()
                if "error" in answer:
                    raise VMError(f"The machine refused {command}: {answer['error'].get('desc')}.")
                if "return" in answer:
                    return answer["return"]

    def forwarded_port(self) -> int:
        """The port of this machine that leads to the program inside."""
        listed = str(self.ask("human-monitor-command", command_line="info usernet"))
        found = _FORWARD.search(listed)
        if found is None:
            raise VMError(f"The machine has no forwarded port: {listed.strip()}.")
        return int(found[1])

    def save(self, name: str) -> None:
        """Save memory and disk under a name, in place of what had it."""
        if not name.strip():
            raise VMError("A snapshot needs a name.")
        self._finish("snapshot-delete", name, devices=[DISK])
        self._finish("snapshot-save", name, vmstate=DISK, devices=[DISK])

    def load(self, name: str) -> None:
        """Return to what was saved under a name."""
        try:
            self._finish("snapshot-load", name, vmstate=DISK, devices=[DISK])
        finally:
            self.ask("cont")  # a load stops the machine, also if there is nothing to load

    def _finish(self, command: str, name: str, **arguments: Any) -> None:
        """Run a job to its end."""
        job = uuid4().hex
        self.ask(command, job_id=f"job-{job}", tag=name, **arguments)
        deadline = time.monotonic() + _JOB_SEC
        while time.monotonic() < deadline:
            (found,) = (each for each in self.ask("query-jobs") if each["id"] == f"job-{job}")
            if found["status"] == "concluded":
                self.ask("job-dismiss", id=found["id"])
                if "error" in found:
                    raise VMError(f"{command} of '{name}' failed: {found['error']}.")
                return
            time.sleep(0.02)
        raise VMError(f"{command} of '{name}' exceeded its limit of {_JOB_SEC:g} s.")

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            raise VMError("The machine has ended." if not isinstance(error, TimeoutError) else "No answer.") from error
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        self._lines.close()
        self._connection.close()
