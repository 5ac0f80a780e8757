"""The words after `docker`, as far as they can be done without a container engine. Pure.

Everything else is refused by name: a script must not run on something that was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_SIZES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_VALUED: Final = {
    "-e": "--env", "-p": "--publish", "-v": "--volume", "-m": "--memory", "-w": "--workdir", "-u": "--user",
    "-l": "--label", "-h": "--hostname", "-f": "--filter",
}  # fmt: skip
_RUN: Final = frozenset(
    {"--name", "--env", "--publish", "--volume", "--memory", "--cpus", "--workdir", "--user", "--label",
     "--entrypoint", "--hostname", "--network", "--net", "--restart", "--pull"}
)  # fmt: skip
_EXEC: Final = frozenset({"--env", "--workdir"})


class Refused(Exception):
    """Something that needs a container engine, or that is no command of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """A container to start."""

    image: str
    words: tuple[str, ...]
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[int, int] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Name of the volume to the folder inside."""
    labels: Mapping[str, str] = field(default_factory=dict)
    memory_gb: float | None = None
    cpus: float | None = None
    workdir: str | None = None
    user: str | None = None
    entrypoint: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Options and the words that follow them."""

    flags: frozenset[str]
    values: Mapping[str, tuple[str, ...]]
    words: tuple[str, ...]

    def last(self, name: str) -> str | None:
        found = self.values.get(name)
        return found[-1] if found else None


def options(verb: str, words: Sequence[str], *, valued: frozenset[str], flags: frozenset[str]) -> Options:
    """Options up to the first other word; an unknown one is refused by name."""
    rest, found, given = list(words), dict[str, list[str]](), set[str]()
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, glued, value = word.partition("=")
        name = _VALUED.get(name, name)
        if name in flags or (word[1] != "-" and {f"-{letter}" for letter in word[1:]} <= flags):
            given |= {name} if name in flags else {f"-{letter}" for letter in word[1:]}
        elif name in valued:
            if not glued and not rest:
                raise Refused(f"docker {verb}: {word} needs a value.")
            found.setdefault(name, []).append(value if glued else rest.pop(0))
        else:
            raise Refused(f"`docker {verb} {word}` is not supported without a container engine.")
    return Options(frozenset(given), {name: tuple(each) for name, each in found.items()}, tuple(rest))


def parse_run(words: Sequence[str], environment: Mapping[str, str]) -> Run:
    """`docker run …`; `environment` is that of the script."""
    found = options("run", words, valued=_RUN, flags=frozenset({"-d", "--detach", "--rm", "--init"}))
    if not found.flags & {"-d", "--detach"}:
        raise Refused("`docker run` without -d is not supported without a container engine.")
    _require(found, "--network", ("bridge", "default"), "--net")
    _require(found, "--restart", ("no",))
    _require(found, "--pull", ("missing",))
    if not found.words:
        raise Refused("docker run: the image is missing.")
    memory, cpus = found.last("--memory"), found.last("--cpus")
    return Run(
        image=found.words[0],
        words=found.words[1:],
        name=found.last("--name"),
        env=variables(found, environment),
        published=dict(_published(text) for text in found.values.get("--publish", ())),
        volumes=dict(_volume(text) for text in found.values.get("--volume", ())),
        labels=dict(text.partition("=")[::2] for text in found.values.get("--label", ())),
        memory_gb=_gigabytes(memory) if memory is not None else None,
        cpus=_number(cpus, "--cpus") if cpus is not None else None,
        workdir=found.last("--workdir"),
        user=found.last("--user"),
        entrypoint=found.last("--entrypoint"),
    )


def parse_exec(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, tuple[str, ...], Options]:
    """`docker exec …`: the container, the words of the command, and the options."""
    found = options("exec", words, valued=_EXEC, flags=frozenset({"-i", "--interactive"}))
    if len(found.words) < 2:
        raise Refused("docker exec: the container or the command is missing.")
    del environment
    return found.words[0], found.words[1:], found


def variables(found: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `--env`: NAME=VALUE, or NAME with the value that the script has."""
    pairs = (text.partition("=") for text in found.values.get("--env", ()))
    return {name: value if glued else environment[name] for name, glued, value in pairs if glued or name in environment}


def _require(found: Options, name: str, allowed: tuple[str, ...], other: str | None = None) -> None:
    value = found.last(name) or (found.last(other) if other else None)
    if value is not None and value not in allowed:
        raise Refused(f"`docker run {name} {value}` is not supported without a container engine.")


def _published(text: str) -> tuple[int, int]:
    """The port of this machine and the one inside, from `[ADDRESS:]PORT:PORT[/tcp]`."""
    plain, _, protocol = text.partition("/")
    parts = plain.split(":")
    if protocol not in ("", "tcp") or len(parts) not in (2, 3) or not all(part.isdecimal() for part in parts[-2:]):
        raise Refused(f"`docker run -p {text}` is not supported without a container engine; use PORT:PORT.")
    return int(parts[-2]), int(parts[-1])


def _volume(text: str) -> tuple[str, str]:
    name, _, folder = text.partition(":")
    if "/" in name or not folder.startswith("/") or ":" in folder:
        raise Refused(f"`docker run -v {text}` is not supported without a container engine; use NAME:/folder.")
    return name, folder


def _gigabytes(text: str) -> float:
    unit = text[-1:].lower()
    number = text[:-1] if unit in _SIZES else text
    return _number(number, "--memory") * _SIZES.get(unit, 1) / _SIZES["g"]


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"docker run: {option} {text} is not a number.") from None
