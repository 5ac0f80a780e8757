"""What an agent adds before the libraries that programs were built with, or changes in them: pure rules on paths.

`is_found_first` is for the system's own folders where its changes are kept, `is_in_go_module` for every place.
Names come case-folded and normalised; `added` are the folders that the agent made, in which everything is its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change

_FILES: Final = re.compile(
    r".*\._pth|pybuilddir\.txt|(python|pypy)\d+t?\.zip"  # where Python takes its library from
    r"|libnss_.*|.*\.gch|specs|real-ld|collect-ld|gnm|gstrip|.*\.bs"  # of the C library, of compilers and of Perl
)
_BINARIES: Final = frozenset({"bin", "sbin"})
_BESIDE_BINARIES: Final = frozenset({"lib", "lib64", "modules"})
_OF_LOADER: Final = frozenset({"glibc-hwcaps", "haswell", "tls", "x86_64", "xeon_phi"})
"""Folders beside libraries in which the loader looks first."""
_LANGUAGES: Final = frozenset({("share", "locale"), ("share", "locale-langpack"), ("lib", "locale")})
_GO_MODULES: Final = ("pkg", "mod")
_HOME_OF_GO: Final = re.compile(r"(root|home/[^/]+)/go")
_COMPARED: Final = ".ziphash"
"""The checksum of a module that was compared before; without it, Go compares."""
_OF_COMPILER: Final = re.compile(r"(?:/usr|/usr/local)/([^/]+-linux-[^/]+)(?:/.*)?")
"""Where gcc looks for its specs, its programs and headers first, if it compiles for that target."""
_RUBY_LIBRARY: Final = re.compile(r"(.*/(?:lib|lib64|[^/]+-linux-[^/]+)/ruby/\d[\d.]*)/.+")
"""Not the folders of gems, which are below `gem/ruby` and `bundle/ruby`."""


def is_found_first(path: str, names: Sequence[str], added: PathSet, programs: frozenset[str]) -> bool:
    """Whether programs as built look for it beside themselves or their libraries before they take their own."""
    if _FILES.fullmatch(names[-1]):
        return True
    if target := _OF_COMPILER.fullmatch(path):  # by its place, for a link there can lead to any folder
        return f"{target[1]}-gcc" in programs
    if library := _RUBY_LIBRARY.fullmatch(path):  # Ruby has several such folders, and loads from them before its hook
        return not added.covers(library[1])
    parts = path.split("/")
    for depth, name in enumerate(names):
        if name in _OF_LOADER and (".so" in names[-1] or names[-1] == name):
            return not added.covers("/".join(parts[: depth + 1]))
        if name in _BINARIES and depth + 1 < len(names) and not added.covers("/".join(parts[: depth + 2])):
            beside = names[depth + 1]
            return depth + 2 < len(names) or beside in _BESIDE_BINARIES or beside[0] == "." or ".so" in beside
    return False


def is_of_language(names: Sequence[str]) -> bool:
    """Whether a path holds rules or messages of a language, by which programs compare, sort and print."""
    return any(pair in _LANGUAGES for pair in pairwise(names))


def is_in_go_module(change: Change, names: Sequence[str], workdir: str) -> bool:
    """Whether it is in a module of Go as unpacked, wherever such modules are kept, or records that one was compared.

    Go compares a module with its checksum when it downloads or unpacks it, and never again. Of what the agent
    downloaded the archives stay: Go unpacks them again, and compares them with the verifier's checksums.
    """
    outside = not change.path.startswith(f"{workdir}/")
    depth = next((depth for depth, pair in enumerate(pairwise(names)) if pair == _GO_MODULES), None)
    if depth is None:
        replaced = change.kind == "changed" and names[-1] in ("go", "pkg")
        redirects = replaced or names[-2:] == ["go", "pkg"] or _HOME_OF_GO.fullmatch("/".join(names))
        return outside and change.type == "symlink" and bool(redirects)
    inner = names[depth + 2 :]
    if change.type == "symlink":  # there are none in modules
        return change.kind != "added" or outside or names[depth - 1 : depth] == ["go"]
    if change.kind != "added":
        return any("@" in name for name in inner) and not is_folder(change)
    if inner[:1] == ["cache"]:
        return inner[-1].endswith(_COMPARED)
    return any("@" in name[1:] for name in inner)


def is_folder(change: Change) -> bool:
    """Whether a folder is there still: only its rights differ, or what is in it."""
    return change.type == "directory" and change.kind != "deleted"
