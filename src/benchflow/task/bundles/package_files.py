"""Files with packages as paths: what `FILE`, `FILE@sha256:DIGEST`, `FILE:PATH` and `FILE#PART` mean.

`listed_packages` lists the packages of a bundle or of a registry file without unpacking them. `pinned_source` is the
text under which a job finds the same packages again, even when the file is gone.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchflow.errors import Issue, PackageError, UsageError
from benchflow.files import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.task.bundles.bundle_index import BadIndexError, BundleIndex, Member, PackageEntry, parse_index
from benchflow.task.bundles.bundle_reading import Bundle, is_bundle, open_bundle
from benchflow.task.bundles.harbor_registry import (
    MAX_REGISTRY_BYTES,
    RegistryTask,
    chosen_tasks,
    looks_like_registry,
    read_registry,
    take_task,
)
from benchflow.task.bundles.kept_packages import hold, keep, kept_place, packages_place
from benchflow.task.filemap import FileMap

_PINNED: Final = re.compile(r"(?P<file>.+?)@(?P<digest>sha256:[0-9a-f]{64})(?P<rest>[#:].+)?", re.DOTALL)
_SUFFIX: Final = re.compile(r"(?:@(?P<digest>[^#:]*(?::[^#:]*)?))?(?P<rest>[#:].+)?", re.DOTALL)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class NamedFile(NamedTuple):
    """A file as a user named it."""

    file: str
    digest: str | None = None
    """The pin."""
    inside: str | None = None
    part: str | None = None
    """A split of a bundle or a dataset of a registry."""


class ListedPackage(NamedTuple):
    """One package of a file."""

    file: str
    inside: str
    named: bool
    take: Callable[[], Path]
    """Puts it into the cache, unless it is there, and returns its folder."""
    entry: PackageEntry | None = None
    """What the index of a bundle says of it, which has been verified."""
    problem: Issue | None = None
    in_memory: Callable[[], FileMap | None] | None = None
    """Its files without taking it out, for readers that need no folder."""


def named_file(text: str) -> NamedFile:
    """What a path that is not a folder names; raises `UsageError` if there is no such file."""
    if os.path.isfile(text):  # noqa: PTH113 - not a path yet
        return NamedFile(text)
    for place in reversed([match.start() for match in re.finditer("[@#:]", text)]):
        if os.path.isfile(text[:place]):  # noqa: PTH113
            return _with_suffix(text[:place], text[place:])
    gone = _PINNED.fullmatch(text)
    if gone is not None:
        return _with_rest(gone["file"], gone["digest"], gone["rest"])
    like = _like(text)
    hint = f". Did you mean '{like}'?" if like is not None else ""
    raise UsageError(f"{text}: no such folder or file{hint}", code="no-such-path")


def _like(text: str) -> Path | None:
    """A path that exists and is spelled almost like this one: the first part that is missing is looked for."""
    from difflib import get_close_matches

    path = Path(text)
    missing = [part for part in (path, *path.parents) if not part.exists()]
    if not missing:
        return None
    first = missing[-1]
    try:
        beside = sorted(entry.name for entry in first.parent.iterdir() if not entry.name.startswith("."))
    except OSError:
        return None
    for close in get_close_matches(first.name, beside):
        found = first.with_name(close)
        whole = found / path.relative_to(first)
        if whole.exists():
            return whole
    return None


def _with_suffix(file: str, suffix: str) -> NamedFile:
    found = _SUFFIX.fullmatch(suffix)
    if found is None:
        raise UsageError(f"{file}{suffix}: write FILE[@sha256:DIGEST][:PATH or #PART]", code="no-such-path")
    digest = found["digest"]
    if digest is not None and _DIGEST.fullmatch(digest) is None:
        message = f"{file}@{digest}: '{digest}' is not a digest, which is 'sha256:' and 64 hexadecimal digits"
        raise UsageError(message, code="digest-invalid")
    return _with_rest(file, digest, found["rest"])


def _with_rest(file: str, digest: str | None, rest: str | None) -> NamedFile:
    if rest is None:
        return NamedFile(file, digest)
    return NamedFile(file, digest, part=rest[1:]) if rest[0] == "#" else NamedFile(file, digest, rest[1:].rstrip("/"))


def listed_packages(path: Path) -> list[ListedPackage]:
    """The packages that a path names, of which all content has been verified; raises `UsageError`."""
    named = named_file(str(path))
    file = Path(named.file)
    hold(packages_place())
    if not file.exists():
        listing = _kept_listing(named)
        if isinstance(listing, bytes):
            return _from_registry(named, listing)
        return [_from_cache(named, listing, entry) for entry in _chosen(named, listing)]
    if is_bundle(file):
        bundle = open_bundle(file)
        _require_pin(named, lambda: bundle.digest)
        chosen = _chosen(named, bundle.index)
        for entry in chosen:
            bundle.verify(entry)
        return [_from_bundle(named, bundle, entry) for entry in chosen]
    data = _registry_data(file)
    if data is not None:
        _require_pin(named, lambda: f"sha256:{hashlib.sha256(data).hexdigest()}")
        return _from_registry(named, data)
    message = f"{path}: not a folder, a bundle or a registry file; name a package or a folder above packages"
    raise UsageError(message, code="not-a-folder")


def open_named(path: Path) -> Bundle | None:
    """The bundle that a path names as a whole, or None if it names anything else."""
    if os.path.isdir(path):  # noqa: PTH112 - no error for any name
        return None
    named = named_file(str(path))
    if named.inside is not None or named.part is not None or not is_bundle(Path(named.file)):
        return None
    bundle = open_bundle(Path(named.file))
    _require_pin(named, lambda: bundle.digest)
    return bundle


def pinned_source(source: str) -> str:
    """The source of a job with the digest of its file, whose list is kept in the cache; folders are unchanged."""
    if Path(source).is_dir():
        return source
    named = named_file(source)
    file = Path(named.file)
    if is_bundle(file):
        bundle = open_bundle(file)
        data, digest = bundle.index.render(), bundle.digest
    else:
        data = _registry_data(file) or b""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    kept = _kept_place(digest, hashlib.sha256(data).hexdigest())
    hold(packages_place())
    if not kept.is_file():
        write_atomic(kept, data)
    rest = f":{named.inside}" if named.inside is not None else f"#{named.part}" if named.part is not None else ""
    return f"{named.file}@{digest}{rest}"


def kept_package(digest: str, inside: str) -> Path | None:
    """A package of a bundle that was used here before, from the cache alone; None if it is not in it any more."""
    named = NamedFile("the bundle", digest, inside)
    hold(packages_place())
    try:
        listing = _kept_listing(named)
        if isinstance(listing, bytes):
            return None  # tasks of a registry are fetched, which only a user asks for
        return next((_from_cache(named, listing, entry).take() for entry in _chosen(named, listing)), None)
    except UsageError:
        return None


def _require_pin(named: NamedFile, actual: Callable[[], str]) -> None:
    if named.digest is not None and actual() != named.digest:
        message = f"{named.file} has the digest {actual()}, but {named.digest} is pinned."
        raise UsageError(message, code="digest-mismatch")


def _chosen(named: NamedFile, index: BundleIndex) -> Sequence[PackageEntry]:
    """The packages of a split, at a path, below a path, or all."""
    if named.part is not None:
        paths = index.benchmark.splits.get(named.part)
        if paths is None:
            known = ", ".join(sorted(index.benchmark.splits)) or "none"
            raise UsageError(f"{named.file}: no split '{named.part}'; its splits: {known}", code="no-such-part")
        return [entry for entry in index.packages if entry.path in paths]
    if named.inside is None:
        return index.packages
    chosen = [entry for entry in index.packages if f"{entry.path}/".startswith(f"{named.inside}/")]
    if not chosen:
        raise UsageError(f"{named.file}: no package '{named.inside}' in it", code="no-packages")
    return chosen


def _listed(named: NamedFile, index: BundleIndex, entry: PackageEntry, take: Callable[[], Path]) -> ListedPackage:
    alone = named.inside == entry.path or (named.inside is None and named.part is None and len(index.packages) == 1)
    return ListedPackage(named.file, entry.path, alone, take, entry)


def _from_bundle(named: NamedFile, bundle: Bundle, entry: PackageEntry) -> ListedPackage:
    def in_memory() -> FileMap | None:
        return bundle.files_in_memory(entry, kept_place(entry.folder, _members(bundle.index, entry)))

    contents = partial(bundle.entries, entry)
    listed = _listed(named, bundle.index, entry, partial(_take, bundle.index, entry, contents))
    return listed._replace(in_memory=in_memory)


def _from_cache(named: NamedFile, index: BundleIndex, entry: PackageEntry) -> ListedPackage:
    def contents() -> Iterator[tuple[Member, bytes]]:
        message = f"{named.file}: no such file, and its package '{entry.path}' is no longer in the cache"
        raise UsageError(message, code="no-such-path")

    return _listed(named, index, entry, partial(_take, index, entry, contents))


def _registry_data(file: Path) -> bytes | None:
    """The text of a registry file, or None if the file is something else."""
    try:
        data = read_regular(file.resolve(), max_bytes=MAX_REGISTRY_BYTES)
    except (OSError, RefusedFileError) as error:
        raise UsageError(f"{file}: cannot be read ({error})", code="unreadable-path") from error
    return data if looks_like_registry(data) else None


def _from_registry(named: NamedFile, data: bytes) -> list[ListedPackage]:
    """The tasks of a registry; all are fetched now, and one that cannot be is listed as a broken package."""
    tasks = read_registry(named.file, data)
    listed = []
    for task in chosen_tasks(named.file, tasks, named.part, named.inside):
        take = partial(_taken, named.file, task)
        problem = None
        try:
            take()
        except PackageError as error:
            problem = error.issue()
        alone = task.inside == named.inside or len(tasks) == 1
        listed.append(ListedPackage(named.file, task.inside, alone, take, problem=problem))
    return listed


def _taken(file: str, task: RegistryTask) -> Path:
    try:
        return take_task(file, task)
    except PackageError as error:
        raise PackageError(f"{task.inside}: {error}", code=error.code) from error


def _take(index: BundleIndex, entry: PackageEntry, contents: Callable[[], Iterator[tuple[Member, bytes]]]) -> Path:
    return keep(entry.folder, _members(index, entry), contents)


def _members(index: BundleIndex, entry: PackageEntry) -> list[Member]:
    """What a package consists of, relative to it."""
    cut = len(entry.path) + 1
    members = [index.members[position] for position in index.span(entry)]
    members = [member._replace(path=member.path[cut:]) for member in members]
    members += [index.members[position]._replace(path=written) for written, position in index.beside(entry).items()]
    return members


def _kept_place(digest: str, index: str) -> Path:
    return packages_place() / f"listing-{digest.removeprefix('sha256:')}-{index}.json"


def _kept_listing(named: NamedFile) -> BundleIndex | bytes:
    """The index of a bundle, or the text of a registry, that is gone but has been used before."""
    for kept in packages_place().glob(_kept_place(named.digest or "", "*").name):
        data = kept.read_bytes()
        if kept.stem.endswith(hashlib.sha256(data).hexdigest()):
            if looks_like_registry(data):
                return data
            try:
                return parse_index(data)
            except BadIndexError:
                continue
    raise UsageError(f"{named.file}: no such file, and {named.digest} is not in the cache", code="no-such-path")
