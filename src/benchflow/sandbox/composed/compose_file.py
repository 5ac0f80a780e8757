"""Compose files, as far as a sandbox supports them. Pure.

Services of a package share one network, reach each other under their names, and are seen from nowhere else, so `ports`,
`expose` and the names of networks say nothing more. A volume of one service is a folder of that service. Files of the
package that a service mounts are read-only, or a copy where it may write. Services are not restarted. What is not in
the tables below is refused with its path: nothing is left out silently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.errors import PackageError, UnsupportedError
from benchflow.sandbox.protocol import Healthcheck, Limits
from benchflow.task.config.task_config import MAIN_SERVICE
from benchflow.task.document.yaml_source import YamlSource

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
_CONDITIONS: Final = frozenset({"service_started", "service_healthy", "service_completed_successfully"})
_TOP: Final = frozenset({"services", "version", "name", "volumes", "networks"})
_SERVICE: Final = frozenset(
    {
        *("image", "build", "command", "entrypoint", "environment", "working_dir", "user", "depends_on"),
        *("healthcheck", "ports", "expose", "labels", "hostname", "container_name", "mem_limit", "cpus", "pids_limit"),
        *("deploy", "networks", "volumes", "restart", "init", "tty", "stdin_open"),
    }
)
_RESOURCES: Final = frozenset({"cpus", "memory", "pids"})
_NETWORK: Final = frozenset({"driver", "name"})
_MOUNT: Final = frozenset({"type", "source", "target", "read_only", "volume"})
_MOUNT_OPTIONS: Final = frozenset({"ro", "rw", "z", "Z", "cached", "delegated", "consistent"})
"""All but the first two say how an engine shares files with its host."""
LOG_FOLDERS: Final = ("/logs/verifier", "/logs/agent", "/logs/artifacts")
"""Every environment has them; files that mount them from the machine, as Harbor's do, ask for nothing more."""
_BUILD: Final = frozenset({"context", "dockerfile", "args", "target"})
_CHECK: Final = frozenset({"test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"})
_KEEPS_ALIVE: Final = re.compile(
    r"((/bin/)?(ba)?sh -c )?['\"]?(sleep (infinity|inf|\d+)|tail -f /dev/null)['\"]?|(/bin/)?(ba)?sh"
)
_VARIABLE: Final = re.compile(r"\$(?:\$|\{(\w+)(?:(:?-)([^}]*))?\}|(\w+))")
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


@dataclass(frozen=True, slots=True)
class Build:
    """What a service is built from; `context` is absolute."""

    context: Path
    dockerfile: str = "Dockerfile"
    args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the package at a path of a service. What a service writes there is written to a copy."""

    source: Path
    target: str
    read_only: bool
    key: str
    """Where the file declares it."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service. `command` and `entrypoint` None leave it to the image."""

    name: str
    image: str | None = None
    build: Build | None = None
    command: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    """Further names that other services know it by."""
    binds: tuple[Bind, ...] = ()
    listens: bool = False
    """Whether it declares ports."""
    empty_folders: tuple[str, ...] = ()
    """Of `main`: where the file mounts folders from outside the package, which nothing in a sandbox gets to see."""


def read_compose(file: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    """The services of a compose file in an order in which they can be started; `main` is among them or left out."""
    try:
        document = YamlSource(file.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{file.name} cannot be read: {error}", code="compose-invalid", file=file.name) from error
    except PackageError as error:
        error.file = file.name
        raise
    return parse_compose(document, file, variables)


def taken_variables(file: Path) -> frozenset[str]:
    """Every variable of the caller that a compose file uses; none if it cannot be read, which its launch says."""
    try:
        document = YamlSource(file.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError, PackageError):
        return frozenset()
    return frozenset(_named_in(document, inside=""))


def _named_in(value: object, inside: str) -> Iterator[str]:
    """Names in texts, and those that an `environment` lists without a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            if inside == "environment" and item is None:
                yield str(key)
            yield from _named_in(item, str(key))
    elif isinstance(value, list):
        for item in value:
            if inside == "environment" and "=" not in str(item):
                yield str(item)
            yield from _named_in(item, inside)
    elif isinstance(value, str):
        for match in _VARIABLE.finditer(value):
            yield from (name for name in (match.group(1), match.group(4)) if name)


def parse_compose(document: object, file: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    """The services of a loaded compose file; `file` is where it was, for paths and messages."""
    reader = _Reader(file, variables)
    top = reader.mapping(reader.filled(document, ""), "")
    reader.only(top, _TOP, "")
    for name, value in reader.mapping(top.get("networks") or {}, "networks").items():
        reader.only(reader.mapping(value or {}, f"networks.{name}"), _NETWORK, f"networks.{name}")
    for name, value in reader.mapping(top.get("volumes") or {}, "volumes").items():
        reader.only(reader.mapping(value or {}, f"volumes.{name}"), _NETWORK, f"volumes.{name}")
    services = reader.mapping(top.get("services") or {}, "services")
    if not services:
        raise reader.wrong("services", "lists no services")
    found = {name: reader.service(name, value) for name, value in services.items()}
    reader.require_one_network(services)
    return _ordered(found, reader)


def _ordered(services: dict[str, Service], reader: _Reader) -> dict[str, Service]:
    """Those that others depend on first."""
    order: dict[str, Service] = {}
    visiting: set[str] = set()

    def visit(name: str, asked_by: str) -> None:
        if name not in services:
            raise reader.wrong(f"services.{asked_by}.depends_on", f"names '{name}', which is not a service")
        if name in visiting:
            raise reader.wrong(f"services.{asked_by}.depends_on", "is circular")
        if name in order:
            return
        visiting.add(name)
        for needed in services[name].depends_on:
            visit(needed, name)
        visiting.discard(name)
        order[name] = services[name]

    for name in services:
        visit(name, name)
    return order


class _Reader:
    def __init__(self, file: Path, variables: Mapping[str, str]) -> None:
        self._file = file
        self._variables = variables
        self._volumes: dict[str, str] = {}
        """Named volumes, and where the file mounts each."""

    def service(self, name: str, value: object) -> Service:
        path = f"services.{name}"
        data = self.mapping(value or {}, path)
        self.only(data, _SERVICE, path)
        if name != MAIN_SERVICE and not (data.get("image") or data.get("build")):
            raise self.wrong(path, "has neither an image nor a build")
        command = self.words(data.get("command"), f"{path}.command")
        if name == MAIN_SERVICE and (
            data.get("entrypoint") is not None or (command and not _KEEPS_ALIVE.fullmatch(" ".join(command)))
        ):
            raise self.unsupported(
                f"{path}.command",
                "starts its own program, but the main service is where agent and verifier run; "
                "put the program into its own service",
            )
        binds, empty_folders = self.volumes(data.get("volumes"), f"{path}.volumes", name)
        return Service(
            name=name,
            image=self.text(data.get("image"), f"{path}.image"),
            build=self.build(data.get("build"), f"{path}.build"),
            command=command,
            entrypoint=self.words(data.get("entrypoint"), f"{path}.entrypoint"),
            env=self.variables(data.get("environment"), f"{path}.environment"),
            workdir=self.text(data.get("working_dir"), f"{path}.working_dir"),
            user=self.text(data.get("user"), f"{path}.user"),
            depends_on=self.dependencies(data.get("depends_on"), f"{path}.depends_on"),
            healthcheck=self.healthcheck(data.get("healthcheck"), f"{path}.healthcheck"),
            limits=self.limits(data, path),
            binds=binds,
            listens=bool(data.get("ports") or data.get("expose")),
            empty_folders=empty_folders,
            labels=self.pairs(data.get("labels"), f"{path}.labels"),
            aliases=(
                *(str(data[key]) for key in ("hostname", "container_name") if data.get(key)),
                *self.network_aliases(data.get("networks"), f"{path}.networks"),
            ),
        )

    def networks(self, value: object) -> frozenset[str]:
        """The names of the networks that a service is on."""
        names = [str(name) for name in value] if isinstance(value, list | dict) else []
        return frozenset(names or ["default"])

    def require_one_network(self, services: Mapping[str, Any]) -> None:
        """All services share one network here, so each must be meant to be reached by `main`."""
        on = {name: self.networks((value or {}).get("networks")) for name, value in services.items()}
        of_main = on.get(MAIN_SERVICE, frozenset({"default"}))
        for name, networks in on.items():
            if not networks & of_main:
                message = f"is on no network of {MAIN_SERVICE}, and services share one network here"
                raise self.unsupported(f"services.{name}.networks", message)

    def network_aliases(self, value: object, path: str) -> tuple[str, ...]:
        if value is None or isinstance(value, list):
            return ()
        found: list[str] = []
        for name, item in self.mapping(value, path).items():
            data = self.mapping(item or {}, f"{path}.{name}")
            self.only(data, frozenset({"aliases"}), f"{path}.{name}")
            found += map(str, data.get("aliases") or ())
        return tuple(found)

    def volumes(self, value: object, path: str, service: str) -> tuple[tuple[Bind, ...], tuple[str, ...]]:
        """What is mounted from the package, and where `main` mounts folders from outside of it.

        Every other volume has to be a folder of this service alone, for which nothing has to be made.
        """
        if value is not None and not isinstance(value, list):
            raise self.wrong(path, "is not a list")
        binds: list[Bind] = []
        outside: list[str] = []
        for index, item in enumerate(value or ()):
            place = f"{path}[{index}]"
            source, target, read_only = self.volume(item, place)
            if source.startswith((".", "/", "~")) and self._is_inside(source):
                binds.append(self.bind(source, target, place, read_only=read_only, service=service))
            elif source.startswith((".", "/", "~")):
                if service != MAIN_SERVICE:
                    message = "mounts files of the machine from outside the package; copy them in a Dockerfile instead"
                    raise self.unsupported(place, message)
                outside += [target] if target not in LOG_FOLDERS else []
            elif source and self._volumes.setdefault(source, place) != place:
                # A fork copies the files of each service on its own: shared ones would be copied at two moments.
                raise self.unsupported(
                    place,
                    f"mounts the volume '{source}' again, which is mounted at `{self._volumes[source]}`. A volume is a "
                    "folder of one service here: offer its files over the network, or put both programs into one "
                    "service",
                )
        return tuple(binds), tuple(outside)

    def bind(self, source: str, target: str, path: str, *, read_only: bool, service: str) -> Bind:
        """A mount of files of the package."""
        place = (self._file.parent.resolve() / source).resolve()
        if not place.exists():
            raise self.wrong(path, f"mounts '{source}', which is not in the package")
        if not target.startswith("/"):
            raise self.wrong(path, f"mounts '{source}' at '{target}', which is not an absolute path")
        if service == MAIN_SERVICE and not read_only:
            raise self.unsupported(path, "mounts files of the package for writing; append `:ro`, or copy them")
        return Bind(place, target, read_only, path)

    def volume(self, item: object, path: str) -> tuple[str, str, bool]:
        """Source, target and whether it is read-only; an anonymous volume has no source."""
        if isinstance(item, str):
            parts = item.split(":")
            options = frozenset(parts.pop().split(",")) if len(parts) == 3 else frozenset()
            if options - _MOUNT_OPTIONS:
                raise self.unsupported(path, f"has the option '{', '.join(sorted(options - _MOUNT_OPTIONS))}'")
            return (parts[0] if len(parts) > 1 else ""), parts[-1], "ro" in options
        data = self.mapping(item, path)
        self.only(data, _MOUNT, path)
        source = str(data.get("source") or "")
        if data.get("type") == "bind" and not source.startswith((".", "/", "~")):
            source = f"./{source}"
        return source, str(data.get("target") or ""), bool(data.get("read_only"))

    def _is_inside(self, source: str) -> bool:
        """Whether a path is part of the package."""
        home = self._file.parent.resolve()
        return (home / source).resolve().is_relative_to(home)

    def filled(self, value: object, path: str) -> object:
        """The value with `${NAME}` and `${NAME:-default}` filled in; `$$` is a dollar."""
        if isinstance(value, dict):
            return {key: self.filled(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value

        def fill(match: re.Match[str]) -> str:
            if match.group() == "$$":
                return "$"
            name, operator, default = match.group(1) or match.group(4), match.group(2), match.group(3)
            found = self._variables.get(name)
            if found or (found is not None and operator != ":-"):
                return found
            if default is None:
                raise self.wrong(path, f"needs the variable {name}, which is not set")
            return str(default)

        return _VARIABLE.sub(fill, value)

    def build(self, value: object, path: str) -> Build | None:
        if value is None:
            return None
        data = {"context": value} if isinstance(value, str) else self.mapping(value, path)
        self.only(data, _BUILD, path)
        home = self._file.parent.resolve()
        context = (home / (self.text(data.get("context"), f"{path}.context") or ".")).resolve()
        if not context.is_relative_to(home):
            raise self.wrong(f"{path}.context", "is outside the folder of the compose file")
        return Build(
            context,
            self.text(data.get("dockerfile"), f"{path}.dockerfile") or "Dockerfile",
            self.pairs(data.get("args"), f"{path}.args"),
            self.text(data.get("target"), f"{path}.target"),
        )

    def dependencies(self, value: object, path: str) -> dict[str, Condition]:
        if value is None:
            return {}
        if isinstance(value, list):
            return {str(name): "service_started" for name in value}
        found: dict[str, Condition] = {}
        for name, item in self.mapping(value, path).items():
            data = self.mapping(item, f"{path}.{name}")
            self.only(data, frozenset({"condition"}), f"{path}.{name}")
            condition = data.get("condition", "service_started")
            if condition not in _CONDITIONS:
                raise self.wrong(f"{path}.{name}.condition", f"is '{condition}', not one of {sorted(_CONDITIONS)}")
            found[name] = condition
        return found

    def healthcheck(self, value: object, path: str) -> Healthcheck | None:
        if value is None:
            return None
        data = self.mapping(value, path)
        self.only(data, _CHECK, path)
        test = data.get("test")
        if data.get("disable") or test in (["NONE"], "NONE"):
            return None
        command: str | tuple[str, ...]
        if isinstance(test, str):
            command = test
        elif isinstance(test, list) and len(test) > 1 and test[0] in ("CMD", "CMD-SHELL"):
            command = tuple(map(str, test[1:])) if test[0] == "CMD" else str(test[1])
        else:
            raise self.wrong(f"{path}.test", "is neither a string nor a list that begins with CMD or CMD-SHELL")
        return Healthcheck(
            command,
            interval_sec=self.seconds(data.get("interval"), f"{path}.interval", 30.0),
            timeout_sec=self.seconds(data.get("timeout"), f"{path}.timeout", 30.0),
            start_period_sec=self.seconds(data.get("start_period"), f"{path}.start_period", 0.0),
            start_interval_sec=self.seconds(data.get("start_interval"), f"{path}.start_interval", 5.0),
            retries=int(data.get("retries") or 3),
        )

    def limits(self, data: Mapping[str, Any], path: str) -> Limits:
        """The limits of a service, spelled either way; 0 is none."""
        given = self.deployed(data.get("deploy"), f"{path}.deploy")
        for name, key in (("cpus", "cpus"), ("memory", "mem_limit"), ("pids", "pids_limit")):
            if data.get(key) is not None:
                given[name] = (data[key], f"{path}.{key}")
        cpus, pids = (self.number(*given[name]) if name in given else 0.0 for name in ("cpus", "pids"))
        memory = self.size(*given["memory"]) if "memory" in given else 0
        return Limits(cpus=cpus or None, memory_mb=max(memory >> 20, 1) if memory else None, pids=int(pids) or None)

    def deployed(self, value: object, path: str) -> dict[str, tuple[Any, str]]:
        """The limits below `deploy`, each with its path."""
        if value is None:
            return {}
        deploy = self.mapping(value, path)
        self.only(deploy, frozenset({"resources"}), path)
        resources = self.mapping(deploy.get("resources") or {}, f"{path}.resources")
        self.only(resources, frozenset({"limits"}), f"{path}.resources")
        limits = self.mapping(resources.get("limits") or {}, f"{path}.resources.limits")
        self.only(limits, _RESOURCES, f"{path}.resources.limits")
        return {key: (item, f"{path}.resources.limits.{key}") for key, item in limits.items() if item is not None}

    def number(self, value: object, path: str) -> float:
        try:
            return float(str(value))
        except ValueError:
            raise self.wrong(path, f"is '{value}', not a number") from None

    def size(self, value: object, path: str) -> int:
        match = re.fullmatch(r"(\d+)\s*([bkmg]?)b?", str(value).lower())
        if match is None:
            raise self.wrong(path, f"is '{value}', not a size like 512m")
        return int(match[1]) * _UNITS[match[2]]

    def seconds(self, value: object, path: str, default: float) -> float:
        if value is None:
            return default
        match = _DURATION.fullmatch(str(value))
        if match is None or not str(value):
            raise self.wrong(path, f"is '{value}', not a duration like 1m30s")
        hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
        return hours * 3600 + minutes * 60 + seconds + millis / 1000

    def words(self, value: object, path: str) -> tuple[str, ...] | None:
        if value is None:
            return None
        if isinstance(value, str):
            try:
                return tuple(shlex.split(value))
            except ValueError as error:
                raise self.wrong(path, f"cannot be split into words: {error}") from error
        if isinstance(value, list):
            return tuple(str(word) for word in value)
        raise self.wrong(path, "is neither a string nor a list")

    def pairs(self, value: object, path: str) -> dict[str, str]:
        if value is None:
            return {}
        if isinstance(value, list):
            return {name: found for name, _, found in (str(item).partition("=") for item in value)}
        return {name: "" if item is None else _plain(item) for name, item in self.mapping(value, path).items()}

    def variables(self, value: object, path: str) -> dict[str, str]:
        """As `pairs`; a name without a value is the caller's variable, and left out where the caller has none."""
        if isinstance(value, list):
            bare = {str(item) for item in value if "=" not in str(item)}
        else:
            bare = {str(name) for name, item in self.mapping(value or {}, path).items() if item is None}
        found = self.pairs(value, path)
        given = {name: self._variables[name] for name in bare if name in self._variables}
        return {name: given.get(name, text) for name, text in found.items() if name not in bare or name in given}

    def text(self, value: object, path: str) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise self.wrong(path, "is not a string")

    def mapping(self, value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(path, "is not a mapping")
        return {str(key): item for key, item in value.items()}

    def only(self, data: Mapping[str, Any], known: frozenset[str], path: str) -> None:
        for key in data:
            if key not in known and not key.startswith("x-"):
                raise self.unsupported(f"{path}.{key}".lstrip("."), "is not supported in a sandbox")

    def unsupported(self, path: str, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self._file.name}: `{path}` {why}.", path=path, file=self._file.name)

    def wrong(self, path: str, why: str) -> PackageError:
        place = f"`{path}` " if path else "the file "
        return PackageError(
            f"{self._file.name}: {place}{why}.", code="compose-invalid", path=path, file=self._file.name
        )


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
