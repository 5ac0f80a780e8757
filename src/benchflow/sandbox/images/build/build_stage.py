"""One stage of a Dockerfile while it is built, and the instructions that change its settings only.

Every change makes a new `Stage`. Instructions that change files (RUN, COPY, ADD, WORKDIR) are the builder's.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from benchflow.record import Fidelity
from benchflow.sandbox.images.dockerfile.dockerfile_words import WordError, expand, key_values, split_words
from benchflow.sandbox.images.dockerfile.instructions import DockerfileError, Instruction, json_words
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.protocol import Healthcheck

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage is made of so far."""

    base: str
    """The image it starts from, as the Dockerfile names it, `scratch`, or `host`."""
    key: str
    """Hash of everything that made its files."""
    config: ImageConfig
    layers: tuple[str, ...] = ()
    """Keys in the layer store, lowest first."""
    on_host: bool = False
    """Whether its layers are on top of this machine's userland."""
    fidelity: Fidelity = "exact"
    instead_of: tuple[str, ...] = ()
    """Images that were replaced, as the Dockerfile names them."""
    lacks: tuple[str, ...] = ()
    """What their substitutes do not have of them."""
    args: Mapping[str, str] = field(default_factory=dict)
    """Build arguments in scope."""
    has_command: bool = False
    """Whether this stage set CMD itself; ENTRYPOINT clears an inherited one."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The current value of `$name`: the environment takes precedence over build arguments."""
        return {**self.args, **self.config.env}

    @property
    def workdir(self) -> str:
        return self.config.workdir or "/"


@dataclass(frozen=True, slots=True)
class Scope:
    """What the whole Dockerfile shares: where it is, its escape character and the arguments given to it."""

    file: str
    escape: str = "\\"
    given: Mapping[str, str] = field(default_factory=dict)
    """Build arguments of the caller."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Arguments declared before the first FROM, and those every build knows."""

    def error(self, instruction: Instruction, message: str) -> DockerfileError:
        text = f"{self.file} line {instruction.line}: {message}"
        return DockerfileError(text, file=self.file, line=instruction.line)

    def expand(self, instruction: Instruction, text: str, variables: Mapping[str, str]) -> str:
        try:
            return expand(text, variables, self.escape)
        except WordError as error:
            raise self.error(instruction, f"{error}.") from error

    def pairs(self, instruction: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
        try:
            return key_values(instruction.value, variables, self.escape)
        except WordError as error:
            raise self.error(instruction, f"{error}.") from error


def declare_arguments(
    instruction: Instruction, scope: Scope, variables: Mapping[str, str], *, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The arguments that an ARG brings into scope; one without any value stays unset."""
    declared: dict[str, str] = {}
    for word in split_words(instruction.value, scope.escape):
        raw, equals, default = word.partition("=")
        name = scope.expand(instruction, raw, variables)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise scope.error(instruction, f"{name!r} is not the name of an argument.")
        if name in scope.given:
            declared[name] = scope.given[name]
        elif equals:
            declared[name] = scope.expand(instruction, default, {**variables, **declared})
        elif name in inherited:
            declared[name] = inherited[name]
    return declared


def _argument(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    declared = declare_arguments(instruction, scope, stage.variables, inherited=scope.known)
    return replace(stage, args={**stage.args, **declared})


def _environment(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    pairs = scope.pairs(instruction, stage.variables)
    return _with(stage, env={**stage.config.env, **pairs})


def _labels(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    return _with(stage, labels={**stage.config.labels, **scope.pairs(instruction, stage.variables)})


def _user(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    return _with(stage, user=scope.expand(instruction, instruction.value, stage.variables))


def _ports(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    words = [scope.expand(instruction, word, stage.variables) for word in instruction.value.split()]
    ports = [word if "/" in word else f"{word}/tcp" for text in words for word in text.split()]
    return _with(stage, ports=tuple(dict.fromkeys((*stage.config.ports, *ports))))


def _volumes(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    words = instruction.words if instruction.words is not None else tuple(instruction.value.split())
    paths = [scope.expand(instruction, word, stage.variables) for word in words]
    return _with(stage, volumes=tuple(dict.fromkeys((*stage.config.volumes, *paths))))


def _stop_signal(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    return _with(stage, stop_signal=scope.expand(instruction, instruction.value, stage.variables))


def _maintainer(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    del scope
    return _with(stage, maintainer=instruction.value)


def _command(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    del scope
    return replace(_with(stage, command=command_words(stage, instruction)), has_command=True)


def _entrypoint(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    del scope
    changed = _with(stage, entrypoint=command_words(stage, instruction))
    return changed if stage.has_command else _with(changed, command=())


def _shell(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    if not instruction.words:
        raise scope.error(instruction, 'SHELL takes the JSON form, as in SHELL ["/bin/bash", "-c"].')
    return _with(stage, shell=instruction.words)


def _healthcheck(stage: Stage, instruction: Instruction, scope: Scope) -> Stage:
    kind, _, rest = instruction.value.partition(" ")
    rest = rest.strip()
    if kind.upper() == "NONE":
        return _with(stage, healthcheck=None)
    if kind.upper() != "CMD" or not rest:
        raise scope.error(instruction, "HEALTHCHECK takes NONE or CMD and a command.")
    words = json_words(rest, file=scope.file, line=instruction.line)
    options = dict(instruction.flags)

    def seconds(name: str, default: float) -> float:
        return _duration(options[name], instruction, scope) or default if name in options else default

    retries = options.get("retries", "3")
    if not retries.isdecimal():
        raise scope.error(instruction, f"--retries takes a number, not {retries}.")
    check = Healthcheck(
        command=words if words is not None else rest,
        interval_sec=seconds("interval", 30.0),
        timeout_sec=seconds("timeout", 30.0),
        start_period_sec=seconds("start-period", 0.0),
        start_interval_sec=seconds("start-interval", 5.0),
        retries=int(retries) or 3,
    )
    return _with(stage, healthcheck=check)


def _duration(text: str, instruction: Instruction, scope: Scope) -> float:
    parts = _DURATION.findall(text)
    if text != "0" and "".join(number + unit for number, unit in parts) != text:
        raise scope.error(instruction, f"{text!r} is not a duration such as 30s or 1m30s.")
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def command_words(stage: Stage, instruction: Instruction) -> tuple[str, ...]:
    """The argument list of a CMD, ENTRYPOINT or RUN: the JSON form as it stands, else through the shell."""
    if instruction.words is not None:
        return instruction.words
    return (*stage.config.shell, instruction.value)


def workdir_after(stage: Stage, instruction: Instruction, scope: Scope) -> str:
    """The absolute folder that a WORKDIR means."""
    wanted = scope.expand(instruction, instruction.value, stage.variables)
    if not wanted or "\0" in wanted:
        raise scope.error(instruction, "WORKDIR names no folder.")
    return posixpath.normpath(posixpath.join("/", stage.workdir, wanted)).replace("//", "/", 1)


def _with(stage: Stage, **changes: object) -> Stage:
    return replace(stage, config=replace(stage.config, **changes))  # type: ignore[arg-type]  # names checked by the tests of each instruction


SETTINGS: Final[Mapping[str, Callable[[Stage, Instruction, Scope], Stage]]] = MappingProxyType(
    {
        "ARG": _argument,
        "CMD": _command,
        "ENTRYPOINT": _entrypoint,
        "ENV": _environment,
        "EXPOSE": _ports,
        "HEALTHCHECK": _healthcheck,
        "LABEL": _labels,
        "MAINTAINER": _maintainer,
        "SHELL": _shell,
        "STOPSIGNAL": _stop_signal,
        "USER": _user,
        "VOLUME": _volumes,
    }
)
"""Instructions that change settings and no files."""
