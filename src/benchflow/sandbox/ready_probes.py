"""Asks from inside a sandbox whether something answers on a port or an address.

Ports are read from the kernel's own list of listening sockets. For HTTP the first of curl, wget, python3
and bash that the environment has does the asking; where it has none of them that is said.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.protocol import Sandbox

_LISTENING: Final = "0A"
_TIMEOUT: Final = 10.0
_NO_TOOL: Final = 126
_HTTP: Final = r"""
url=$1; host=$2; port=$3; path=$4
if command -v curl >/dev/null 2>&1; then exec curl -fsS -m 8 -o /dev/null "$url"; fi
if command -v wget >/dev/null 2>&1; then exec wget -q -T 8 -O /dev/null "$url"; fi
if command -v python3 >/dev/null 2>&1; then
  exec python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=8)' "$url"
fi
command -v bash >/dev/null 2>&1 || exit 126
exec bash -c '
  exec 3<>"/dev/tcp/$1/$2" || exit 1
  printf "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n" "$3" "$1" >&3
  IFS= read -r status <&3
  case $status in HTTP/*" "[23]*) ;; *) exit 1 ;; esac
' - "$host" "$port" "$path"
"""


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """A port on which something must listen, on any address of the sandbox."""

    port: int

    def __str__(self) -> str:
        return f"port {self.port}"

    async def ready(self, sandbox: Sandbox) -> bool:
        """Whether something listens."""
        command = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"
        result = await sandbox.exec(command, user="root", cwd="/", timeout=_TIMEOUT)
        return self.port in listening_ports(result.stdout.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """An address inside the sandbox that must answer with success."""

    url: str

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def __str__(self) -> str:
        return self.url

    async def ready(self, sandbox: Sandbox) -> bool:
        """Whether it answers; an `EnvironmentFailure` when the environment has nothing to ask with."""
        parts = urlsplit(self.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        arguments = shlex.join([self.url, parts.hostname or "127.0.0.1", str(parts.port or 80), path])
        result = await sandbox.exec(f"set -- {arguments}\n{_HTTP}", user="root", cwd="/", timeout=_TIMEOUT)
        if result.exit_code == _NO_TOOL:
            message = (
                f"{self.url} cannot be checked: the environment has none of curl, wget, python3 and bash. "
                "Install one, or declare readiness by tcp."
            )
            raise EnvironmentFailure(message, code="probe-impossible", path="environment.readiness.http")
        return result.ok


Probe = TcpProbe | HttpProbe


def tcp_probe(target: str | int) -> TcpProbe:
    """A port, or `HOST:PORT` of the sandbox itself; anything else is an `EnvironmentFailure`."""
    port = str(target).rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        message = f"{target!r} has no port."
        raise EnvironmentFailure(message, code="readiness-invalid", path="environment.readiness.tcp")
    return TcpProbe(int(port))


def http_probe(target: str, *, port: int | None = None) -> HttpProbe:
    """An address, or a path on `port`."""
    if re.match(r"https?://", target):
        return HttpProbe(target)
    if target.startswith("/") and port is not None:
        return HttpProbe(f"http://127.0.0.1:{port}{target}")
    if re.match(r":?\d+(/|$)", target):
        return HttpProbe(f"http://127.0.0.1:{target.lstrip(':')}")
    message = f"{target!r} is neither an http address nor a path on a port."
    raise EnvironmentFailure(message, code="readiness-invalid", path="environment.readiness.http")


def listening_ports(table: str) -> frozenset[int]:
    """Ports of the listening sockets in the text of `/proc/net/tcp` and `/proc/net/tcp6`."""
    ports = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENING and ":" in fields[1]:
            ports.add(int(fields[1].rpartition(":")[2], 16))
    return frozenset(ports)
