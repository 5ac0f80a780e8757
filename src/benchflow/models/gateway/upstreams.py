"""The servers that a gateway calls: by provider from variables of this machine, and by name from a file.

`$BENCHCUBE_MODELS` names a TOML file with more upstreams (own servers, routers) and a map of models:

    [upstreams.lab]
    dialect = "openai"                  # openai, anthropic or gemini
    base_url = "http://10.1.2.3:8000/v1"
    key = "LAB_KEY"                     # the name of the variable with the key; left out: no key

    [models]
    "claude-sonnet-4-5" = "lab:qwen3-coder"     # asked for: upstream:model

A mapped model must be spoken to in the dialect of its upstream; the gateway translates nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast, get_args
from urllib.parse import urlsplit

from benchflow.errors import UsageError
from benchflow.models.gateway.endpoints import Family

VARIABLE: Final = "BENCHCUBE_MODELS"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One server."""

    name: str
    family: Family
    base_url: str
    """Without a slash at its end; of the OpenAI family with its `/v1`, of the others without a version."""
    key: str | None = field(default=None, repr=False)
    bearer: bool = False
    """Whether the key is a bearer token where the family has a header of its own for keys."""

    def headers(self) -> dict[str, str]:
        """The headers that show the key."""
        if self.key is None:
            return {}
        if self.family == "openai" or self.bearer:
            return {"authorization": f"Bearer {self.key}"}
        return {"x-api-key" if self.family == "anthropic" else "x-goog-api-key": self.key}


@dataclass(frozen=True, slots=True)
class Provider:
    """How a known provider is found in the variables of a machine."""

    family: Family
    base_url: str
    keys: tuple[str, ...]
    """Variables of keys; the first that is set counts."""
    bases: tuple[str, ...]
    """Variables of base URLs, the one that agents read first."""
    bearers: tuple[str, ...] = ()
    """Of `keys`: those that hold a bearer token."""


PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": Provider(
        "openai",
        "https://api.openai.com/v1",
        ("OPENAI_API_KEY", "CODEX_API_KEY"),
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    ),
    "anthropic": Provider(
        "anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
        ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    ),
    "gemini": Provider(
        "gemini",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_BASE_URL", "GEMINI_API_BASE"),
    ),
    "openrouter": Provider(
        "openai",
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        ("OPENROUTER_BASE_URL", "OPENROUTER_API_BASE"),
    ),
}
KEY_VARIABLES: Final = frozenset(name for provider in PROVIDERS.values() for name in (*provider.keys, *provider.bases))
"""Variables of providers that never enter a box: the gateway holds them."""


@dataclass(frozen=True, slots=True)
class Upstreams:
    """All servers of a gateway, by name, and the map of models."""

    by_name: Mapping[str, Upstream]
    models: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """A model that is asked for, and the upstream and model that answer."""

    @property
    def families(self) -> dict[str, Family]:
        return {name: upstream.family for name, upstream in self.by_name.items()}

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(upstream.key for upstream in self.by_name.values() if upstream.key)

    def serving(self, name: str, model: str | None) -> tuple[Upstream, str | None]:
        """The upstream that answers for a model, and what it is called there; `UsageError` across dialects."""
        asked = self.by_name[name]
        mapped = self.models.get(model or "")
        if mapped is None:
            return asked, model
        other = self.by_name[mapped[0]]
        if other.family != asked.family:
            message = (
                f"The model '{model}' is mapped to '{other.name}', which speaks {other.family}, not {asked.family}."
            )
            raise UsageError(message, code="dialect-mismatch")
        return other, mapped[1]


_LONG_KEY: Final = 12


def keys_of(environ: Mapping[str, str], upstreams: Upstreams) -> frozenset[str]:
    """Every key of a provider that a machine has: those that are used, and those beside them."""
    beside = (environ.get(name) for provider in PROVIDERS.values() for name in provider.keys)
    return upstreams.keys | frozenset(key for key in beside if key)


def without_keys(env: Mapping[str, str], keys: frozenset[str], instead: str) -> dict[str, str]:
    """Variables for a box, with something else in place of every key."""
    # "test" may be a key, and a part of any path; and one key may be the beginning of another.
    long = sorted((key for key in keys if len(key) >= _LONG_KEY), key=len, reverse=True)

    def replaced(value: str) -> str:
        for key in long:
            value = value.replace(key, instead)
        return instead if value in keys else value

    return {name: replaced(value) for name, value in env.items()}


def find_upstreams(environ: Mapping[str, str]) -> Upstreams:
    """The upstreams of a machine: providers with a key or a base URL, and those of the file."""
    found: dict[str, Upstream] = {}
    for name, provider in PROVIDERS.items():
        variable = next((variable for variable in provider.keys if environ.get(variable)), None)
        base = next((environ[variable] for variable in provider.bases if environ.get(variable)), None)
        if variable is not None or base is not None:
            key = environ[variable] if variable is not None else None
            url = _base_url(base or provider.base_url, provider.family, f"the base URL of {name}")
            found[name] = Upstream(name, provider.family, url, key, variable in provider.bearers)
    file = environ.get(VARIABLE)
    return _of_file(Path(file), environ, found) if file else Upstreams(found)


def _of_file(path: Path, environ: Mapping[str, str], known: dict[str, Upstream]) -> Upstreams:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _wrong(path, f"it cannot be read: {error}") from error
    unknown = next((key for key in document if key not in ("upstreams", "models")), None)
    if unknown is not None:
        raise _wrong(path, f"unknown key '{unknown}'")
    for name, given in _table(path, document, "upstreams").items():
        known[name] = _upstream(path, name, given, environ)
    models: dict[str, tuple[str, str]] = {}
    for model, target in _table(path, document, "models").items():
        upstream, colon, served = str(target).partition(":")
        if not colon or upstream not in known or not served:
            raise _wrong(
                path, f"models.{model}: {target!r} is not UPSTREAM:MODEL with one of {', '.join(sorted(known))}"
            )
        models[model] = (upstream, served)
    return Upstreams(known, models)


def _upstream(path: Path, name: str, given: Any, environ: Mapping[str, str]) -> Upstream:
    where = f"upstreams.{name}"
    if not isinstance(given, dict) or not set(given) <= {"dialect", "base_url", "key"}:
        raise _wrong(path, f"{where}: only dialect, base_url and key are known")
    if not name.replace("-", "").isalnum() or name != name.lower():
        raise _wrong(path, f"{where}: a name has lower-case letters, digits and hyphens")
    dialect = given.get("dialect")
    if dialect not in get_args(Family):
        raise _wrong(path, f"{where}.dialect: {dialect!r} is not one of {', '.join(get_args(Family))}")
    family = cast("Family", dialect)
    variable = given.get("key")
    key = environ.get(str(variable)) if variable is not None else None
    if variable is not None and not key:
        raise _wrong(path, f"{where}.key: the variable {variable} is not set")
    return Upstream(name, family, _base_url(given.get("base_url"), family, f"{path}: {where}.base_url"), key)


def _base_url(text: Any, family: Family, where: str) -> str:
    parts = urlsplit(text) if isinstance(text, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{where}: {text!r} is not the URL of a server.", code="base-url")
    url = str(text).rstrip("/")
    return url if family == "openai" else url.removesuffix("/v1beta").removesuffix("/v1")


def _table(path: Path, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, dict):
        raise _wrong(path, f"{key} is not a table")
    return found


def _wrong(path: Path, what: str) -> UsageError:
    return UsageError(f"{path} ({VARIABLE}): {what}.", code="models-file")
