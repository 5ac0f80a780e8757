"""Compose files of Terminal-Bench 1 -> the settings of one container, or a compose file with `client` as `main`.

A file that only repeats what the harness prescribes for its `client` container, or sets what `environment` can say too,
is reduced to those settings; any other is kept.
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

    environment: dict[str, Any] = field(default_factory=dict)
    """Settings of the main container: variables and, if the file is not kept, limits and working folder."""
    compose: dict[str, Any] | None = None
    """The file to keep, or None for an ordinary container."""
    unresolved: tuple[str, ...] = ()
    """Variables of the harness that are no longer set."""


def reduce_compose(data: Any) -> ComposeReading:
    """Reduce a parsed compose file; raises `ValueError` if it has no client service."""
    services = data.get("services") if isinstance(data, Mapping) else None
    if not isinstance(services, Mapping) or not services:
        raise ValueError("has no services")
    name = _CLIENT if _CLIENT in services else next(iter(services)) if len(services) == 1 else None
    if name is None or not isinstance(services[name], Mapping):
        raise ValueError("has no service 'client'")
    client = services[name]
    env, rest = _client(client)
    settings, beyond = _as_environment(rest)
    if len(services) == 1 and not beyond and _is_plain_build(client.get("build")):
        settings = {**settings, "env": env} if env else settings
        return ComposeReading(settings, None, _unresolved(settings))
    others = {key: _without_harness(value) for key, value in services.items() if key != name}
    kept = {key: value for key, value in data.items() if key not in {"services", "version"}}
    main = {"build": client.get("build", {"dockerfile": "Dockerfile"}), **rest}
    compose = {**kept, "services": {_MAIN: main, **others}}
    compose = _resolve(_rename(compose, name))
    return ComposeReading({"env": env} if env else {}, compose, _unresolved([env, compose]))


def _client(service: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The variables of the client container, and its settings beyond what the harness prescribes."""
    env = {key: _resolve(value) for key, value in _variables(service)}
    env.pop("TEST_DIR", None)
    rest = {key: value for key, value in service.items() if key not in _PRESCRIBED}
    volumes = [item for item in _items(service, "volumes") if _HARNESS not in str(item)]
    if volumes:
        rest["volumes"] = volumes
    if "image" in service and _HARNESS not in str(service["image"]):
        rest["image"] = service["image"]
    if "container_name" in service and "$" not in str(service["container_name"]):
        rest["container_name"] = service["container_name"]
    command = service.get("command")
    words = command if isinstance(command, list) else [command]
    if command is not None and "sleep infinity" not in " ".join(str(word) for word in words):
        rest["command"] = command
    return env, rest


_INERT: Final = ("tty", "stdin_open")
"""Settings that change nothing for a container whose command only sleeps."""
_MEGABYTES: Final = {"m": 1, "g": 1024}
_SIZE: Final = re.compile(r"(\d+)\s*([mg])i?b?", re.IGNORECASE)


def _as_environment(service: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that `environment` has too, and the rest."""
    settings: dict[str, Any] = {}
    rest = {key: value for key, value in service.items() if key not in _INERT}
    folder = rest.get("working_dir")
    if isinstance(folder, str) and folder.startswith("/") and "$" not in folder and ".." not in folder.split("/"):
        settings["workdir"] = rest.pop("working_dir")
    match rest.get("deploy"):
        case {"resources": {"limits": dict(limits), **others}, **more} if not others and not more:
            found = [_limit(key, value) for key, value in limits.items()]
            known = [pair for pair in found if pair is not None]
            if len(known) == len(found):
                settings.update(known)
                del rest["deploy"]
    return settings, rest


def _limit(key: str, value: Any) -> tuple[str, int | float] | None:
    """A limit of `deploy` as a setting of `environment`, or None if it has no equivalent."""
    text = str(value).strip()
    if key == "cpus" and re.fullmatch(r"\d+(\.\d+)?", text) and float(text) > 0:
        return "cpus", int(text) if text.isdigit() else float(text)
    size = _SIZE.fullmatch(text)
    if key == "memory" and size and int(size[1]):
        return "memory_mb", int(size[1]) * _MEGABYTES[size[2].lower()]
    return None


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
    """Make other services wait for the client under its new name."""
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
