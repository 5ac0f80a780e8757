"""Which hosts a package asks for, decided from its files alone, before anything runs.

A file that runs names a host by its address, or it uses a client: a library or a command that always fetches from one
fixed host. `clients.toml` declares them, with their hosts. A client in a comment of its own line does not count; in a
branch that is never taken it does, because nothing is executed to decide.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).with_name("clients.toml")
RUN_FILES = re.compile(
    r"(?i)(^|/)(dockerfile[^/]*|[^/]*compose[^/]*\.ya?ml|makefile|gemfile|go\.mod|package(-lock)?\.json|pom\.xml"
    r"|composer\.json|requirements[^/]*\.txt|environment\.ya?ml"
    r"|[^/]*\.(sh|bash|py|js|mjs|cjs|ts|rb|pl|r|jl|toml|cfg|properties|gradle|kts|sbt|csproj))$"
)
"""Scripts, build files and requirements; a file without an ending is a script if it starts with `#!`."""
LARGEST = 1_000_000
URL_HOST = re.compile(r"(?i)\b(?:https?|git|ssh|ftp)\\?://(?:[^/@\s\"']*@)?([a-z0-9.-]+)|\bgit@([a-z0-9.-]+):")
BARE_HOST = re.compile(
    r"(?im)\b(?:curl|wget)(?:\s+(?:-[fgiklnqsSvL]+|--[a-z-]+))*\s+[\"']?((?:[a-z0-9-]+\.)+[a-z]{2,})(?=[/\s\"'?:]|$)"
)
"""curl and wget take an address without its scheme."""
INDEXES = re.compile(r"(?i)(^|\.)(pypi|pythonhosted|debian|npmjs)\.(org|com)$")
"""Of pip, apt and npm."""
RESERVED = (
    ".example",
    ".test",
    ".invalid",
    ".local",
    ".localhost",
    ".internal",
    "example.com",
    "example.org",
    "example.net",
)
_COMMENT = re.compile(r"(?m)^\s*(?:#(?!!)|//).*$")
_PATH = r"""\s*[rf]?["'](?:\.{0,2}/|~)"""
_BEFORE = (
    r"(?m)(?:^|[;&|(`{\"']|\$\(|(?<!\S)(?:RUN|CMD|\[|sudo|then|do|else|if|exec|time|xargs|!|-m|-c|npx|uvx))\s*"
    r"(?:\w+=\S*\s+)*(?:[\w.~$/-]+/)?"
)
"""What stands before the name of a command that is run, in scripts, Dockerfiles and strings of programs."""


@dataclass(frozen=True, slots=True)
class Client:
    """What fetches from one host, and how a file shows that it is used."""

    name: str
    host: str
    use: re.Pattern[str]
    file: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """The hosts of a package: those that its files name, and those of the clients that they use."""

    named: frozenset[str] = frozenset()
    clients: dict[str, str] = field(default_factory=dict)
    """The names of clients, by their hosts."""

    def __bool__(self) -> bool:
        return bool(self.named or self.clients)

    def __str__(self) -> str:
        unnamed = [f"{host} ({name})" for host, name in sorted(self.clients.items()) if host not in self.named]
        return ", ".join([*sorted(self.named), *unnamed][:3])


@functools.cache
def clients() -> tuple[Client, ...]:
    """The declared clients."""
    table = tomllib.loads(TABLE.read_text("utf-8"))
    return (
        *(_client(name, host, rf"(?<![\w.-]){_spelled(name)}(?![\w-])") for name, host in table["libraries"].items()),
        *(_client(name, host, use.replace("PATH", _PATH)) for name, (host, use) in table["calls"].items()),
        *(_client(name, host, _command(name, words)) for name, (host, *words) in table["commands"].items()),
        *(_client(f, host, use, rf"(?i)(^|/){f}$") for f, (host, use) in table["manifests"].items()),
    )


def _client(name: str, host: str, use: str, file: str = "") -> Client:
    return Client(name, host, re.compile(use), re.compile(file))


def _spelled(name: str) -> str:
    return re.sub("[-_]", "[-_]", name)


def _command(name: str, words: Sequence[str]) -> str:
    first = "|".join(word if "\\" in word or ":" in word else rf"{word}\b" for word in words)
    if not words:
        return rf"{_BEFORE}(?:{name})(?=\s+[^\s=]|[\"']\s*,|\s*$)"
    return rf"{_BEFORE}(?:{name})(?:(?:\s+[-+]\S+)*\s+|[\"']\s*,\s*[\"'])(?:{first})"


def asked_hosts(package: Path) -> Asked:
    """The hosts beside the indexes of pip, apt and npm that the files of a package ask for."""
    named = set[str]()
    used = dict[str, str]()
    for path, text in _running(package):
        named |= {host for host in _addresses(text) if not INDEXES.search(host) and not _is_reserved(host)}
        code = _COMMENT.sub("", text)
        for client in clients():
            if client.host not in used and client.file.search(path.as_posix()) and client.use.search(code):
                used[client.host] = client.name
    return Asked(frozenset(named), used)


def _running(package: Path) -> Iterator[tuple[Path, str]]:
    """The files that run, with their texts."""
    for path in sorted(package.rglob("*")):
        if not path.is_file() or path.stat().st_size >= LARGEST:
            continue
        if RUN_FILES.search(path.as_posix()) or (not path.suffix and _is_script(path)):
            yield path.relative_to(package), path.read_text("utf-8", "replace")


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _addresses(text: str) -> Iterator[str]:
    for match in URL_HOST.finditer(text):
        yield (match[1] or match[2]).lower().rstrip(".")
    for match in BARE_HOST.finditer(text):
        yield match[1].lower()


def _is_reserved(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith(RESERVED)
