"""Which addresses a served assessor calls: those of the machines that its owner has named, and no others.

A client names the addresses of its participants. Without a rule, it could make the server call whatever the server
reaches and its client does not. Names are compared as they are written; the server resolves none for the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchflow.errors import UsageError
from cube.access import is_loopback


@dataclass(frozen=True, slots=True)
class Reachable:
    """The machines of participants: loopback, if the server listens there, and those that were named."""

    loopback: bool
    hosts: frozenset[tuple[str, int | None]] = frozenset()
    """A host with a port, or with None for all its ports."""

    def refusal(self, url: str) -> str | None:
        """Why an address is not called; None if it is. The address is a plain one."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower().removesuffix(".")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if self.loopback and (host == "localhost" or is_loopback(host)):
            return None
        if {(host, port), (host, None)} & self.hosts:
            return None
        return f"is on {host[:100]!r}, which this server does not call (bench serve a2a --allow-host)"


def read_hosts(values: Sequence[str]) -> frozenset[tuple[str, int | None]]:
    """Hosts as options name them: `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`. Raises `UsageError`."""
    found = set()
    for value in values:
        try:
            parts = urlsplit(f"//{value}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.path or "@" in value or "*" in value:
            raise UsageError(f"--allow-host takes HOST or HOST:PORT, not {value[:100]!r}.", code="host")
        found.add((host.lower().removesuffix("."), port))
    return frozenset(found)
