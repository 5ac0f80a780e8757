"""What infrastructures on other machines need: free ports and tunnels."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import Final

from cube import leash

_READY_SEC: Final = 30.0
_ATTEMPTS: Final = 3


def free_port() -> int:
    """A port of this machine's loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def open_tunnel(
    host: str, user: str, private_key: str, remote_port: int, max_attempts: int = _ATTEMPTS
) -> tuple[subprocess.Popen[bytes], int]:
    """Forward a free port of this machine to one of another machine, by SSH; the process and the port.

    The caller ends the process, which does not outlive this one. It is a `ConnectionError` if the port cannot be
    forwarded.
    """
    ssh = shutil.which("ssh")
    if ssh is None:
        raise ConnectionError("A tunnel needs the command `ssh` (Debian: `apt-get install openssh-client`).")
    said = ""
    for _ in range(max_attempts):
        port = free_port()
        words = [ssh, "-N", "-i", private_key, "-L", f"127.0.0.1:{port}:127.0.0.1:{remote_port}"]
        for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "StrictHostKeyChecking=accept-new"):
            words += ["-o", option]
        process = leash.start([*words, f"{user}@{host}"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if _opens(process, port):
            return process, port
        process.kill()
        said = process.communicate()[1].decode(errors="replace").strip()
    raise ConnectionError(f"No tunnel to port {remote_port} of {host} after {max_attempts} attempts: {said}")


def _opens(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _READY_SEC
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            time.sleep(0.05)
    return False
