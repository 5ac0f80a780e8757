"""Libraries that an agent installed before those of the environment, where its system changes are kept.

Perl, Ruby, R, Lua and compilers of C look in the folders of the site first. What the agent added there stays unless
the environment was built with a library of that name: `candidates` chooses such paths from the list of changes,
`settle` asks the copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Sandbox

_AT_ONCE: Final = 200
_TIMEOUT_SEC: Final = 60.0
_SAFE: Final = re.compile(r"[\w./+-]+")


@dataclass(frozen=True, slots=True)
class _Family:
    """Where a language looks first, and where the environment's own libraries may be; `{}` is the name in both."""

    first: re.Pattern[str]
    then: tuple[str, ...]
    root: int = 0
    """How many parts of the path belong to one library; 0: the file alone."""


_FAMILIES: Final = (
    _Family(
        re.compile(
            r"(?:/etc/perl|/usr/share/perl5|/usr/lib/[^/]+/perl5/[^/]+|/usr/lib/[^/]+/perl-base|/usr/lib/[^/]+/perl/[^/]+|/usr/share/perl/[^/]+|/usr/local/(?:lib|share)(?:/[^/]+)?/perl/[^/]+|/usr/local/lib/site_perl"
            r"|/usr/(?:local/)?lib/perl5/site_perl(?:/[\d.]+)?(?:/[^/]+-linux[^/]*)?)/(.+\.(?:pm|pl|al|so))"
        ),
        (
            "/usr/lib/*/perl/*/{}", "/usr/lib/*/perl-base/{}", "/usr/share/perl/*/{}", "/usr/share/perl5/{}",
            "/usr/lib/*/perl5/*/{}", "/usr/lib/perl5/*/{}", "/usr/local/lib/perl5/[0-9]*/{}",
            "/usr/local/lib/perl5/[0-9]*/*/{}",
        ),
    ),
    _Family(
        re.compile(
            r"/usr/(?:local/)?lib/(?:[^/]+/)?(?:ruby/)?(?:site|vendor)_ruby(?:/[\d.]+)?(?:/[^/]+-linux[^/]*)?"
            r"/(.+\.(?:rb|so))"
        ),
        (
            "/usr/lib/ruby/[0-9]*/{}", "/usr/lib/ruby/[0-9]*/*-linux*/{}", "/usr/lib/*/ruby/[0-9]*/{}",
            "/usr/lib/ruby/vendor_ruby/{}", "/usr/lib/*/ruby/vendor_ruby/[0-9]*/{}", "/usr/local/lib/ruby/[0-9]*/{}",
            "/usr/local/lib/ruby/[0-9]*/*-linux*/{}",
        ),
    ),
    _Family(
        re.compile(r".*/(?:gems/[\d.]+|gem/ruby/[\d.]+|\.gem/ruby/[\d.]+|bundle(?:/ruby/[\d.]+)?)/specifications/(.+)-\d[^-/]*\.gemspec"),
        (
            "/usr/lib/ruby/gems/*/specifications/{}-[0-9]*", "/usr/lib/ruby/gems/*/specifications/default/{}-[0-9]*",
            "/usr/share/rubygems-integration/*/specifications/{}-[0-9]*", "/var/lib/gems/*/specifications/{}-[0-9]*",
            "/usr/lib/*/rubygems-integration/*/specifications/{}-[0-9]*",
            "/usr/local/lib/ruby/gems/*/specifications/{}-[0-9]*",
            "/usr/local/lib/ruby/gems/*/specifications/default/{}-[0-9]*", "/usr/local/bundle/specifications/{}-[0-9]*",
        ),
    ),
    _Family(
        re.compile(r"/usr/(?:local/include|lib/gcc/[^/]+/[^/]+/include(?:-fixed)?|include/[^/]+-linux-[^/]+)/(.+)"),
        (
            "/usr/include/{}", "/usr/include/*-linux-*/{}", "/usr/include/c++/*/{}", "/usr/include/*-linux-*/c++/*/{}",
            "/usr/lib/gcc/*/*/include/{}",
        ),
    ),
    _Family(
        re.compile(r"/usr/local/(?:lib|share)/pkgconfig/(.+\.pc)"),
        ("/usr/lib/pkgconfig/{}", "/usr/share/pkgconfig/{}", "/usr/lib/*/pkgconfig/{}"),
    ),
    _Family(
        re.compile(r"/usr/local/(?:lib|share)/lua/[\d.]+/(.+\.(?:lua|so))"),
        ("/usr/share/lua/*/{}", "/usr/lib/*/lua/*/{}"),
    ),
    _Family(
        re.compile(
            r"(?:/usr/local/lib/R/(?:site-)?library|/usr/lib/R/site-library|/(?:root|home/[^/]+)/R/[^/]+-library/[\d.]+)"
            r"/([^/]+)/DESCRIPTION"
        ),
        (
            "/usr/lib/R/library/{}", "/usr/lib/R/site-library/{}", "/usr/local/lib/R/library/{}",
            "/usr/lib64/R/library/{}",
        ),
        root=1,
    ),
)  # fmt: skip

_LOOK: Final = r"""
while [ $# -gt 1 ]; do
  for place in $2; do [ -e "$place" ] && printf '%s\0%s\0' "$1" "$place"; done
  shift 2
done
true
"""
"""Prints each candidate with the places of the same library."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A library of the agent at `path`, and patterns of the places where the environment could have it."""

    path: str
    places: tuple[str, ...]


def candidates(changes: Iterable[Change], withheld: PathSet) -> list[Candidate]:
    """What the agent added where a language looks first."""
    found = {}
    for change in changes:
        if change.kind != "added" or change.type == "directory" or withheld.covers(change.path):
            continue
        for family in _FAMILIES:
            match = family.first.fullmatch(change.path)
            if match is None or _SAFE.fullmatch(match[1]) is None:
                continue
            path = change.path.rpartition("/")[0] if family.root else change.path
            found[path] = Candidate(path, tuple(place.format(match[1]) for place in family.then))
    return list(found.values())


async def settle(forked: Sandbox, wanted: Sequence[Candidate], added: PathSet) -> list[str]:
    """Remove from a copy what stands before a library of the environment; the paths that were removed."""
    removed: dict[str, None] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        words = [word for item in wanted[start : start + _AT_ONCE] for word in (item.path, " ".join(item.places))]
        result = await forked.exec(["/bin/sh", "-c", _LOOK, "sh", *words], user="root", cwd="/", timeout=_TIMEOUT_SEC)
        if not result.ok or result.dropped_bytes:
            raise SandboxFailure("Libraries of the environment could not be listed.", code="listing-failed")
        parts = result.stdout.decode("utf-8", "surrogateescape").split("\0")
        pairs = zip(parts[::2], parts[1::2], strict=False)
        removed |= {path: None for path, place in pairs if place != path and not added.covers(place)}
    gone = list(removed)
    for start in range(0, len(gone), _AT_ONCE):
        words = ["/bin/rm", "-rf", "--", *gone[start : start + _AT_ONCE]]
        if not (await forked.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC)).ok:
            raise SandboxFailure("Libraries that the agent added could not be removed.", code="cleanup-failed")
    return gone
