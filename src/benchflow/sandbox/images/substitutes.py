"""What a substitute does not have of the image it replaces: by the image's name, RUN instructions and the files.

Only what is cheap to find out is compared: nothing is started, and only what is asked for is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from benchflow.sandbox.images.layer_tree import LayerTree

_FOLDERS: Final = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin")
_INSTALLERS: Final = ("apt-get", "apt", "apk", "dnf", "microdnf", "yum", "zypper")
_PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "alpine": ("apk",), "buildpack-deps": ("gcc", "make", "git", "curl"), "eclipse-temurin": ("java", "javac"),
    "gcc": ("gcc", "g++"), "golang": ("go",), "gradle": ("gradle", "java"), "maven": ("mvn", "java"),
    "mysql": ("mysqld",), "nginx": ("nginx",), "node": ("node", "npm"), "openjdk": ("java", "javac"), "perl": ("perl",),
    "php": ("php",), "postgres": ("postgres",), "python": ("python3", "pip"), "redis": ("redis-server",),
    "ruby": ("ruby", "gem"), "rust": ("cargo", "rustc"),
}  # fmt: skip
"""What images of these names are used for."""
_SYSTEMS: Final = ("debian", "ubuntu")
_RELEASES: Final = {
    "bullseye": "11", "bookworm": "12", "trixie": "13", "focal": "20.04", "jammy": "22.04", "noble": "24.04",
}  # fmt: skip
_NUMBER: Final = re.compile(r"\d+(?:[.-]\d+)*")
_COMMAND: Final = re.compile(r"(?:^|&&|\|\||[;|(\n])\s*(?:sudo\s+)?([\w.+-]+)")
_FIELD: Final = re.compile(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', re.MULTILINE)
_NODE_HEADER: Final = re.compile(r"NODE_MAJOR_VERSION (\d+)")
_NODE_PACKAGE: Final = re.compile(r"^Package: nodejs\n(?:.+\n)*?Version: (?:\d+:)?(\d+)", re.MULTILINE)
_STATUS: Final = "/var/lib/dpkg/status"
_LARGEST: Final = 16 << 20


def lacking(image: str, runs: Iterable[str], tree: LayerTree) -> tuple[str, ...]:
    """What a file tree lacks of `image` and of what these shell commands use, one phrase each."""
    kind, asked = _kind_and_version(image)
    found = []
    if kind in _SYSTEMS:
        found += _other_system(kind, asked, tree)
    elif kind in ("python", "node") and asked is not None:
        version = _python_version(tree) if kind == "python" else _node_version(tree)
        if version is not None and not _fits(asked, version):
            found.append(f"{kind} {asked} asked, substitute has {version}")
    installers = [name for text in runs for name in _COMMAND.findall(text) if name in _INSTALLERS]
    wanted = dict.fromkeys([*_PROGRAMS.get(kind, ()), *installers])
    found += [f"{name} is missing" for name in wanted if not _has(name, tree)]
    return tuple(found)


def _has(program: str, tree: LayerTree) -> bool:
    return any(tree.find(f"{folder}/{program}") is not None for folder in _FOLDERS)


def _kind_and_version(image: str) -> tuple[str, str | None]:
    """What an image is, and in which version: of `python:3.12-slim`, `debian:bookworm`, or `x/python-3-13:2025`."""
    name = image.partition("@")[0].rpartition("/")[2]
    repository, _, tag = name.partition(":")
    if repository in _PROGRAMS or repository in _SYSTEMS:
        return repository, _version(tag)
    kind, _, rest = repository.partition("-")
    return kind, _version(rest)


def _version(tag: str) -> str | None:
    if (release := _RELEASES.get(tag.partition("-")[0])) is not None:
        return release
    found = _NUMBER.match(tag)
    return found[0].replace("-", ".") if found else None


def _fits(asked: str, found: str) -> bool:
    """Whether two versions are the same as far as both say."""
    return all(one == other for one, other in zip(asked.split("."), found.split("."), strict=False))


def _other_system(kind: str, asked: str | None, tree: LayerTree) -> list[str]:
    release = dict(_FIELD.findall(tree.read_text("/etc/os-release") or ""))
    name, version = release.get("ID", ""), release.get("VERSION_ID", "")
    if name == kind and (asked is None or _fits(asked, version)):
        return []
    return [f"{' '.join(filter(None, (kind, asked)))} asked, substitute is {f'{name} {version}'.strip() or 'unknown'}"]


def _python_version(tree: LayerTree) -> str | None:
    for path in map(tree.resolve, ("/usr/local/bin/python3", "/usr/bin/python3")):
        found = re.search(r"/python(\d+\.\d+)$", path)
        if found and tree.find(path) is not None:
            return found[1]
    return None


def _node_version(tree: LayerTree) -> str | None:
    for folder in ("/usr/local/include", "/usr/include"):
        found = _NODE_HEADER.search(tree.read_text(f"{folder}/node/node_version.h") or "")
        if found:
            return found[1]
    installed = _NODE_PACKAGE.search(tree.read_text(_STATUS, max_bytes=_LARGEST) or "")
    return installed[1] if installed else None
