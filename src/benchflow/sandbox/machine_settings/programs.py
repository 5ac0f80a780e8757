"""The settings of pip, uv and npm that say where packages come from; everything else about these programs stays out.

Texts and variables of the machine come in, texts and variables for a sandbox go out. `Places` decides where a local
file or folder that a setting names will be inside.
"""

from __future__ import annotations

import configparser
import io
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

FOLDER: Final = "/dev/benchflow/settings"
BUNDLE: Final = f"{FOLDER}/ca-certificates.crt"
_PIP_KEYS: Final = frozenset(
    {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "timeout", "default-timeout", "retries",
     "proxy", "cert", "client-cert"}
)  # fmt: skip
_PIP_PLACES: Final = frozenset({"index-url", "extra-index-url", "find-links"})
_NPM_KEYS: Final = frozenset(
    {"registry", "proxy", "https-proxy", "noproxy", "strict-ssl", "cafile", "ca", "fetch-retries", "fetch-timeout",
     "fetch-retry-mintimeout", "fetch-retry-maxtimeout", "replace-registry-host", "_auth", "always-auth"}
)  # fmt: skip
_NPM_SECRETS: Final = re.compile(r"(^|:)(_authToken|_auth|_password)$")
_UV_VARIABLES: Final = re.compile(
    r"UV_((DEFAULT_|EXTRA_)?INDEX(_URL|_STRATEGY)?|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)|FIND_LINKS|INSECURE_HOST|NATIVE_TLS"
    r"|SYSTEM_CERTS|HTTP_TIMEOUT|PYTHON_INSTALL_MIRROR|PYPY_INSTALL_MIRROR)"
)


@dataclass(slots=True)
class Places:
    """Local files and folders that settings name, by their place inside."""

    files: dict[str, bytes] = field(default_factory=dict)
    """By name in the settings folder."""
    folders: dict[str, Path] = field(default_factory=dict)
    """By absolute path inside."""

    def file(self, path: str, name: str) -> str:
        """The place of a file inside; one that cannot be read keeps its path, which the program will complain about."""
        try:
            self.files[name] = Path(path).expanduser().read_bytes()
        except OSError:
            return path
        return f"{FOLDER}/{name}"

    def package_source(self, word: str) -> str | None:
        """An index or folder of packages as a sandbox sees it; None for one that is on this machine and not there."""
        parts = urlsplit(word)
        if parts.scheme not in ("", "file"):
            return word
        path = Path(unquote(parts.path)).expanduser()
        if not path.is_absolute() or not path.is_dir():
            return None
        # The pages of an index link to files beside it: simple/NAME/index.html to ../../packages/NAME.whl.
        name = f"/{path.name}" if parts.scheme and path.name == "simple" else ""
        root = path.parent if name else path
        inside = next((place for place, source in self.folders.items() if source == root), None)
        inside = inside or f"/dev/benchflow/packages-{len(self.folders)}"
        self.folders[inside] = root
        return f"file://{inside}{name}" if parts.scheme else inside


@dataclass(slots=True)
class Found:
    """What programs are given."""

    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)


def pip_settings(texts: Iterable[str], machine: Mapping[str, str], places: Places) -> Found:
    """One configuration file from those of the machine, later ones first in rank, and the variables that outrank it."""
    merged = configparser.RawConfigParser()
    for text in texts:
        one = configparser.RawConfigParser()
        try:
            one.read_string(text)
        except configparser.Error:
            continue  # pip itself refuses such a file and says so
        for section in one.sections():
            for key, value in one.items(section):
                kept = _pip_value(key.replace("_", "-"), value, places)
                if kept is not None:
                    merged.setdefault(section, {})
                    merged.set(section, key.replace("_", "-"), kept)
    found = Found()
    for name, value in machine.items():
        kept = _pip_value(name[4:].lower().replace("_", "-"), value, places) if name.startswith("PIP_") else None
        if kept is not None:
            found.env[name] = kept
    if merged.sections():
        out = io.StringIO()
        merged.write(out)
        found.files["pip.conf"] = out.getvalue().encode()
        found.env["PIP_CONFIG_FILE"] = f"{FOLDER}/pip.conf"
    chosen = {key: merged.get("global", key, fallback="") for key in ("index-url", "extra-index-url")}
    for key, variable in (("index-url", "UV_INDEX_URL"), ("extra-index-url", "UV_EXTRA_INDEX_URL")):
        value = found.env.get(f"PIP_{key.upper().replace('-', '_')}") or chosen[key]
        if value.strip():
            found.env[variable] = " ".join(value.split())
    return found


def _pip_value(key: str, value: str, places: Places) -> str | None:
    if key not in _PIP_KEYS or not value.strip():
        return None
    if key == "cert":
        return places.file(value, "ca-certificates.crt")
    if key == "client-cert":
        return places.file(value, "pip-client.pem")
    if key not in _PIP_PLACES:
        return value
    kept = [place for word in value.split() if (place := places.package_source(word)) is not None]
    return "\n".join(kept) or None


def uv_settings(texts: Iterable[str], machine: Mapping[str, str], places: Places) -> Found:
    """Variables only: a configuration file that is named to uv would replace those of projects."""
    found = Found()
    for text in texts:
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue  # uv itself refuses such a file and says so
        found.env |= _uv_variables({**_mapping(values.get("pip")), **values}, places)
    found.env |= {name: value for name, value in machine.items() if _UV_VARIABLES.fullmatch(name)}
    found.secrets |= {value for name, value in found.env.items() if name.endswith("_PASSWORD")}
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _uv_variables(values: Mapping[str, Any], places: Places) -> dict[str, str]:
    def words(items: Any) -> str:
        listed = items if isinstance(items, list) else [items] if isinstance(items, str) else []
        return " ".join(word for item in listed if (word := places.package_source(str(item))) is not None)

    indexes = [item for item in values.get("index", []) if isinstance(item, dict) and "url" in item]
    named = {
        "UV_DEFAULT_INDEX": words([item["url"] for item in indexes if item.get("default")][-1:]),
        "UV_INDEX": " ".join(
            f"{item['name']}={item['url']}" if "name" in item else str(item["url"])
            for item in indexes
            if not item.get("default")
        ),
        "UV_INDEX_URL": words(values.get("index-url")),
        "UV_EXTRA_INDEX_URL": words(values.get("extra-index-url")),
        "UV_FIND_LINKS": words(values.get("find-links")).replace(" ", ","),
        "UV_INSECURE_HOST": words(values.get("allow-insecure-host")),
        "UV_PYTHON_INSTALL_MIRROR": words(values.get("python-install-mirror")),
        "UV_NATIVE_TLS": "true" if values.get("native-tls") is True else "",
    }
    return {name: value for name, value in named.items() if value}


def npm_settings(texts: Iterable[str], machine: Mapping[str, str], places: Places) -> Found:
    """One file in the rank of npm's global one, so that projects and users inside can still say otherwise."""
    values: dict[str, str] = {}
    for text in texts:
        for line in text.splitlines():
            key, equals, value = (part.strip() for part in line.partition("="))
            if equals and not key.startswith((";", "#")):
                _add_npm(values, key, value, machine, places)
    for name, value in machine.items():
        if name.lower().startswith("npm_config_"):
            _add_npm(values, name[11:].lower().replace("_", "-"), value, machine, places)
    found = Found(secrets={value.strip("\"'") for key, value in values.items() if _NPM_SECRETS.search(key)})
    if values:
        found.files["npmrc"] = "".join(f"{key}={value}\n" for key, value in values.items()).encode()
        found.env["NPM_CONFIG_GLOBALCONFIG"] = f"{FOLDER}/npmrc"
    return found


def _add_npm(values: dict[str, str], key: str, value: str, machine: Mapping[str, str], places: Places) -> None:
    if key not in _NPM_KEYS and not key.startswith("//") and not (key.startswith("@") and key.endswith(":registry")):
        return
    expanded = re.sub(r"\$\{([^}]+)\}", lambda match: machine.get(match[1], match[0]), value)
    values[key] = places.file(expanded.strip("\"'"), "ca-certificates.crt") if key == "cafile" else expanded
