"""Where the images of a registry are served: the registry itself, its mirrors, and whom to trust.

Read from one TOML file, `$BENCHCUBE_REGISTRIES` or else `~/.config/benchcube/registries.toml`:

    [registry."docker.io"]
    mirrors = ["https://mirror.example.org"]
    ca = "company.pem"
    plain_http = true
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchflow.errors import UsageError
from benchflow.sandbox.images.distribution.reference import DOCKER_HUB

VARIABLE: Final = "BENCHCUBE_REGISTRIES"
_HUB_HOST: Final = "registry-1.docker.io"
_CERTIFICATES: Final = ("/etc/docker/certs.d", "/etc/containers/certs.d")
"""Folders in which Docker and Podman look for the certificates of single registries."""
_KEYS: Final = ("mirrors", "ca", "plain_http")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server that may have the image."""

    registry: str
    """Host and port, the key of its credentials."""
    urls: tuple[str, ...]
    """Without `/v2/`; the second one is tried where the first does not speak TLS."""
    certificates: tuple[Path, ...] = ()
    """Trusted beside those of the machine."""


@dataclass(frozen=True, slots=True)
class _Entry:
    mirrors: tuple[str, ...] = ()
    ca: Path | None = None
    plain_http: bool = False


@dataclass(frozen=True, slots=True)
class Registries:
    """The settings of all registries."""

    entries: Mapping[str, _Entry] = field(default_factory=dict)

    def endpoints(self, registry: str) -> list[Endpoint]:
        """Where to ask for images of `registry`, in order: its mirrors, then itself."""
        entry = self.entries.get(registry, _Entry())
        return [*(self._mirror(url) for url in entry.mirrors), self._own(registry, entry)]

    def _own(self, registry: str, entry: _Entry) -> Endpoint:
        host = _HUB_HOST if registry == DOCKER_HUB else registry
        secure, plain = f"https://{host}", f"http://{host}"
        if entry.plain_http:
            urls: tuple[str, ...] = (plain,)
        else:
            urls = (secure, plain) if is_loopback(urlsplit(secure).hostname) else (secure,)
        return Endpoint(registry, urls, tuple(_certificates(registry, entry)))

    def _mirror(self, url: str) -> Endpoint:
        host = urlsplit(url).netloc
        return Endpoint(host, (url.rstrip("/"),), tuple(_certificates(host, self.entries.get(host, _Entry()))))


def read_registries(environment: Mapping[str, str] | None = None) -> Registries:
    """The settings of this user; a file that cannot be read as such is a `UsageError`."""
    given = os.environ if environment is None else environment
    named = given.get(VARIABLE)
    home = Path(given.get("XDG_CONFIG_HOME") or Path(given.get("HOME", "/")) / ".config")
    path = Path(named) if named else home / "benchcube" / "registries.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise UsageError(f"{VARIABLE} names {path}, which does not exist.", code="registries-invalid") from None
        return Registries()
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from error
    tables = values.pop("registry", {})
    if values or not isinstance(tables, dict):
        raise _wrong(path, 'it may only have tables of the form [registry."HOST"]')
    return Registries({name: _entry(path, name, table) for name, table in tables.items()})


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _entry(path: Path, name: str, table: Any) -> _Entry:
    where = f'registry."{name}"'
    if not isinstance(table, dict):
        raise _wrong(path, f"{where} is not a table")
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise _wrong(path, f"{where} has the unknown key {unknown[0]}; the keys are {', '.join(_KEYS)}")
    mirrors, plain, ca = table.get("mirrors", []), table.get("plain_http", False), table.get("ca")
    if not isinstance(mirrors, list) or not all(_is_url(mirror) for mirror in mirrors):
        raise _wrong(path, f"{where}.mirrors must be a list of https:// or http:// addresses")
    if not isinstance(plain, bool):
        raise _wrong(path, f"{where}.plain_http must be true or false")
    if ca is not None and not (isinstance(ca, str) and (path.parent / ca).is_file()):
        raise _wrong(path, f"{where}.ca must be the path of a file with certificates")
    return _Entry(tuple(mirrors), path.parent / ca if ca else None, plain)


def _is_url(value: object) -> bool:
    if not isinstance(value, str):
        return False
    parts = urlsplit(value)
    return parts.scheme in ("https", "http") and bool(parts.hostname) and "@" not in parts.netloc


def _certificates(registry: str, entry: _Entry) -> Iterable[Path]:
    if entry.ca is not None:
        yield entry.ca
    for folder in _CERTIFICATES:
        yield from sorted(Path(folder, registry).glob("*.crt"))


def _wrong(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} cannot be used: {reason}.", code="registries-invalid", file=str(path))
