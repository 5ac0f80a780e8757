"""The compose file of a Terminal-Bench task, reduced to what a package needs of it.

Most of these files only repeat what the harness prescribes for its `client` container; then nothing is left
but environment variables. Otherwise the file is kept, with `client` as the `main` service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_CLIENT: Final = "client"
_MAIN: Final = "main"
_HARNESS: Final = "T_BENCH_"
_PRESCRIBED: Final = ("image", "container_name", "command", "volumes", "environment", "build")
_HARNESS_VALUES: Final = {
    "T_BENCH_TEST_DIR": "/tests",
    "T_BENCH_CONTAINER_LOGS_PATH": "/logs",
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/logs/agent",
}
_VARIABLE: Final = re.compile(r"\$\{?(T_BENCH_[A-Z_]+)\}?")


@dataclass(slots=True)
class ComposeReading:
    """What is left of a compose file."""

    env: dict[str, str] = field(default_factory=dict)
    """Variables of the main container."""
    compose: dict[str, Any] | None = None
    """The file to keep, or None when the container is an ordinary one."""
    unresolved: tuple[str, ...] = ()
    """Variables of the harness that nothing provides any more."""


def reduce_compose(data: Any) -> ComposeReading:
    """Reduce a parsed compose file; raises `ValueError` with half a sentence when it has no client."""
    services = data.get("services") if isinstance(data, Mapping) else None
    if not isinstance(services, Mapping) or not services:
        raise ValueError("has no services")
    name = _CLIENT if _CLIENT in services else next(iter(services)) if len(services) == 1 else None
    if name is None or not isinstance(services[name], Mapping):
        raise ValueError("has no service 'client'")
    env, main = _client(services[name])
    if len(services) == 1 and not main and _is_plain_build(services[name].get("build")):
        return ComposeReading(env, None, _unresolved(env))
    others = {key: _without_harness(value) for key, value in services.items() if key != name}
    kept = {key: value for key, value in data.items() if key not in {"services", "version"}}
    main = {"build": services[name].get("build", {"dockerfile": "Dockerfile"}), **main}
    compose = {**kept, "services": {_MAIN: main, **others}}
    compose = _resolve(_rename(compose, name))
    return ComposeReading(env, compose, _unresolved([env, compose]))


def _client(service: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The variables of the client container, and its settings beyond what the harness prescribes."""
    env = {key: _resolve(value) for key, value in _variables(service)}
    env.pop("TEST_DIR", None)
    rest = {key: value for key, value in service.items() if key not in _PRESCRIBED}
    volumes = [item for item in _items(service, "volumes") if _HARNESS not in str(item)]
    if volumes:
        rest["volumes"] = volumes
    for key in ("image", "container_name"):
        if key in service and _HARNESS not in str(service[key]):
            rest[key] = service[key]
    command = service.get("command")
    words = command if isinstance(command, list) else [command]
    if command is not None and "sleep infinity" not in " ".join(str(word) for word in words):
        rest["command"] = command
    return env, rest


def _variables(service: Mapping[str, Any]) -> list[tuple[str, str]]:
    value = service.get("environment")
    if isinstance(value, Mapping):
        return [(str(key), "" if item is None else str(item)) for key, item in value.items()]
    pairs = [str(item).partition("=") for item in _items(service, "environment")]
    return [(key, item) for key, _, item in pairs]


def _items(service: Mapping[str, Any], key: str) -> list[Any]:
    value = service.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"has a service whose {key} is not a list")
    return value


def _is_plain_build(build: Any) -> bool:
    if build is None or isinstance(build, str):
        return build in {None, ".", "./"}
    plain = {"dockerfile": {"Dockerfile", "./Dockerfile"}, "context": {".", "./"}}
    return isinstance(build, Mapping) and all(
        isinstance(value, str) and value in plain.get(key, ()) for key, value in build.items()
    )


def _without_harness(service: Any) -> Any:
    if not isinstance(service, Mapping):
        return service
    kept = {key: value for key, value in service.items() if key != "container_name" or _HARNESS not in str(value)}
    volumes = kept.get("volumes")
    if isinstance(volumes, list):
        kept["volumes"] = [item for item in volumes if _HARNESS not in str(item)]
    return kept


def _rename(compose: dict[str, Any], old: str) -> dict[str, Any]:
    """Other services wait for the client under its new name."""
    for service in compose["services"].values():
        waits = service.get("depends_on") if isinstance(service, dict) else None
        if isinstance(waits, list):
            service["depends_on"] = [_MAIN if item == old else item for item in waits]
        elif isinstance(waits, Mapping):
            service["depends_on"] = {_MAIN if key == old else key: value for key, value in waits.items()}
    return compose


def _resolve(value: Any) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _HARNESS_VALUES.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: _resolve(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item) for item in value]
    return value


def _unresolved(value: Any) -> tuple[str, ...]:
    return tuple(sorted(set(_VARIABLE.findall(str(value)))))
