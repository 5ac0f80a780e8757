"""The user's credentials for registries, from the files and helper programs of Docker and Podman.

Docker's `config.json` comes first (`credHelpers`, `credsStore`, `auths`), then Podman's `auth.json`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.errors import UsageError
from benchflow.sandbox.images.distribution.reference import DOCKER_HUB, Reference
from benchflow.sandbox.pulling import Credentials

_HUB_KEY: Final = "https://index.docker.io/v1/"
_HUB_HOSTS: Final = ("index.docker.io", "registry-1.docker.io")
_HELPER_TIMEOUT_SEC: Final = 30.0
_TOKEN_USER: Final = "<token>"  # noqa: S105 (the name under which helpers return identity tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """The credentials for a registry, if there are any, and why they could not be had."""

    credentials: Credentials | None = None
    problem: str | None = None


def find_credentials(reference: Reference, registry: str, environment: Mapping[str, str] | None = None) -> Found:
    """What this user has for `registry`, which serves the images of `reference`."""
    given = os.environ if environment is None else environment
    problem = None
    for path in _files(given):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            found = _in_file(values, reference.repository, registry, given) if isinstance(values, dict) else Found()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            found = Found(problem=f"{path} cannot be read ({error})")
        if found.credentials is not None:
            return found
        problem = problem or found.problem
    return Found(problem=problem)


def parse_secret(text: str, reference: Reference, *, name: str) -> Credentials:
    """The value of a package's secret: `USER:PASSWORD`, the content of a Docker `config.json`, or a bearer token."""
    text = text.strip()
    if text.startswith("{"):
        try:
            found = _in_auths(json.loads(text).get("auths") or {}, reference.repository, reference.registry)
        except (ValueError, AttributeError) as error:
            message = f"The secret {name} starts like a Docker configuration, but cannot be read as one."
            raise UsageError(message, code="secret-invalid") from error
        return found or Credentials()
    username, colon, password = text.partition(":")
    return Credentials(username, password) if colon else Credentials(registry_token=text)


def _files(given: Mapping[str, str]) -> Iterator[Path]:
    home = Path(given.get("HOME") or Path.home())
    yield Path(given.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if given.get("REGISTRY_AUTH_FILE"):
        yield Path(given["REGISTRY_AUTH_FILE"])
    if given.get("XDG_RUNTIME_DIR"):
        yield Path(given["XDG_RUNTIME_DIR"]) / "containers" / "auth.json"
    yield Path(given.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"


def _in_file(values: Mapping[str, Any], repository: str, registry: str, given: Mapping[str, str]) -> Found:
    """A helper for the registry comes first, then the one for all, then entries of the file itself."""
    helpers = values.get("credHelpers") or {}
    helper = helpers.get(registry) or (helpers.get(_HUB_HOSTS[0]) if registry == DOCKER_HUB else None)
    asked = Found()
    if helper or values.get("credsStore"):
        asked = _ask(str(helper or values["credsStore"]), _HUB_KEY if registry == DOCKER_HUB else registry, given)
        if asked.credentials is not None:
            return asked
    in_file = _in_auths(values.get("auths") or {}, repository, registry)
    return Found(in_file) if in_file is not None else asked


def _in_auths(auths: Mapping[str, Any], repository: str, registry: str) -> Credentials | None:
    """The most specific entry: Podman also has entries for namespaces and repositories."""
    wanted = f"{registry}/{repository}"
    best: tuple[int, Credentials] | None = None
    for key, entry in auths.items():
        place = _place(str(key))
        if wanted != place and not wanted.startswith(f"{place}/"):
            continue
        found = _entry(entry)
        if found is not None and (best is None or len(place) > best[0]):
            best = (len(place), found)
    return best[1] if best else None


def _place(key: str) -> str:
    """Docker keys may be addresses (`https://host/v1/`); what counts is the host, and in Podman's the path."""
    place = key.partition("://")[2].partition("/")[0] if "://" in key else key.rstrip("/")
    place = place.removesuffix("/v1").removesuffix("/v2")
    host, slash, path = place.partition("/")
    return f"{DOCKER_HUB if host in _HUB_HOSTS else host}{slash}{path}"


def _entry(entry: Any) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            decoded = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        username, _, password = decoded.rstrip("\0").partition(":")
    identity, token = str(entry.get("identitytoken") or ""), str(entry.get("registrytoken") or "")
    if not (username or identity or token):
        return None
    return Credentials(username, password, identity, token)


def _ask(helper: str, server: str, given: Mapping[str, str]) -> Found:
    """Ask a program `docker-credential-NAME`; one without credentials for the server says "not found"."""
    program = f"docker-credential-{helper}"
    if os.sep in helper:
        return Found(problem=f"the credential helper {helper!r} is not a name")
    try:
        done = subprocess.run(
            [program, "get"],
            input=server.encode(),
            capture_output=True,
            timeout=_HELPER_TIMEOUT_SEC,
            check=False,
            env=dict(given),
        )
    except FileNotFoundError:
        return Found(problem=f"the credential helper {program} is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Found(problem=f"the credential helper {program} failed ({error})")
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        return Found() if "not found" in text.lower() else Found(problem=f"{program} failed: {text[:200]}")
    try:
        values = json.loads(text)
        username, secret = str(values["Username"]), str(values["Secret"])
    except (ValueError, KeyError, TypeError):
        return Found(problem=f"{program} answered with something other than credentials")
    if username == _TOKEN_USER:
        return Found(Credentials(identity_token=secret))
    return Found(Credentials(username, secret)) if username or secret else Found()
