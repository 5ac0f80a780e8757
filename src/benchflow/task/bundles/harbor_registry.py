"""Harbor registry files: JSON lists of datasets, whose tasks are given as Git address, commit and path.

`read_registry` parses one; `Dataset tasks` are taken from their commits (`git_commits`), or from folders below the
registry file when they have no address. One task that cannot be used is a problem of that task, not of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from benchflow.errors import PackageError, UsageError
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.task.bundles.bundle_index import MAX_LINK, Member
from benchflow.task.bundles.git_commits import Blob, FetchError, fetch_commit, read_blobs, tree_of
from benchflow.task.bundles.kept_packages import keep
from benchflow.task.bundles.member_paths import clashes, link_problem, path_problem
from benchflow.task.bundles.zip_layout import Kind
from benchflow.task.config.namespace import PROFILE_KEYS
from benchflow.task.document.markdown import MarkdownError, decode, split_frontmatter
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.document.yaml_source import YamlError, YamlSource
from benchflow.task.filemap import MAX_FILE_BYTES, MAX_FILES, MAX_PACKAGE_BYTES, printable
from benchflow.task.package_layout import TASK_TOML

MAX_REGISTRY_BYTES: Final = 64 << 20
_KINDS: Final[dict[str, Kind]] = {"100644": "file", "100664": "file", "100755": "program", "120000": "link"}


class RegistryTask(NamedTuple):
    """One task of a dataset."""

    dataset: str
    """`NAME@VERSION`."""
    name: str
    path: str
    address: str | None
    commit: str | None

    @property
    def inside(self) -> str:
        """How it is named after the file."""
        return f"{self.dataset}/{self.name}"

    @property
    def folder(self) -> str:
        return PurePosixPath(self.path).name or "task"


def looks_like_registry(data: bytes) -> bool:
    return data.lstrip()[:1] == b"["


def read_registry(file: str, data: bytes) -> list[RegistryTask]:
    """The tasks of all datasets, in order; raises `UsageError`."""
    try:
        document = parse_json(data)
    except StrictJSONError as problem:
        raise _refused(file, str(problem)) from problem
    tasks: list[RegistryTask] = []
    for position, dataset in enumerate(document):
        where = f"has a dataset (number {position + 1}) that"
        if not isinstance(dataset, dict) or not isinstance(dataset.get("tasks"), list):
            raise _refused(file, f"{where} lists no tasks")
        name, version = dataset.get("name"), dataset.get("version")
        if not isinstance(name, str) or not name or not isinstance(version, str):
            raise _refused(file, f"{where} has no name or no version")
        tasks += [_task(file, f"{name}@{version}", item) for item in dataset["tasks"]]
    if not tasks:
        raise _refused(file, "has no tasks")
    twice = [task.inside for task in tasks]
    if len(set(twice)) != len(twice):
        again = next(name for position, name in enumerate(twice) if name in twice[:position])
        raise _refused(file, f"has the task '{again}' twice")
    return tasks


def _task(file: str, dataset: str, item: Any) -> RegistryTask:
    given = item if isinstance(item, dict) else {}
    path, address, commit = given.get("path"), given.get("git_url"), given.get("git_commit_id")
    name = given.get("name") or (PurePosixPath(path).name if isinstance(path, str) else None)
    texts = (address, commit)
    if (
        not isinstance(path, str)
        or not isinstance(name, str)
        or not all(isinstance(text, str | None) for text in texts)
    ):
        raise _refused(file, f"has a task of {dataset} without a path, or with a wrong address or commit")
    return RegistryTask(dataset, name, posixpath.normpath(path), address, commit)


def chosen_tasks(file: str, tasks: list[RegistryTask], part: str | None, inside: str | None) -> list[RegistryTask]:
    """Those of a dataset, `NAME` or `NAME@VERSION`; or the one at a path, or those below it."""
    if part is not None:
        names = {task.dataset for task in tasks if part in (task.dataset, task.dataset.rpartition("@")[0])}
        if len(names) != 1:
            known = ", ".join(sorted({task.dataset for task in tasks})[:20])
            which = "several datasets" if names else "no dataset"
            raise UsageError(f"{file}: {which} '{part}'; its datasets: {known}", code="no-such-part")
        return [task for task in tasks if task.dataset in names]
    if inside is None:
        return tasks
    chosen = [task for task in tasks if f"{task.inside}/".startswith(f"{inside}/")]
    if not chosen:
        raise UsageError(f"{file}: no task '{inside}' in it", code="no-packages")
    return chosen


def take_task(file: str, task: RegistryTask) -> Path:
    """The folder of a task; raises `PackageError` with one sentence."""
    if task.address is None:
        return _local(file, task)
    try:
        repository = fetch_commit(task.address, task.commit or "")
    except FetchError as problem:
        raise PackageError(str(problem), code="fetch-failed") from problem
    tree = _tree(repository, task.commit or "")
    members, oids = _members(task, tree)
    blobs = dict(zip(oids, read_blobs(repository, oids), strict=True))
    for written in _beside(task, members, blobs, tree):
        found = tree.entries[posixpath.normpath(f"{task.path}/{written}")]
        members[written] = found
        blobs[found.oid] = next(read_blobs(repository, [found.oid]))
    rows = [(_member(path, blob, blobs[blob.oid]), blobs[blob.oid]) for path, blob in members.items()]
    return keep(task.folder, [row[0] for row in rows], lambda: rows)


class _Tree(NamedTuple):
    """The entries of a commit, and their names in order, so that those below a folder are found at once."""

    entries: Mapping[str, Blob]
    names: Sequence[str]

    def below(self, folder: str) -> dict[str, Blob]:
        """The entries below a folder by their path in it."""
        if folder == ".":
            return dict(self.entries)
        first, last = bisect_left(self.names, f"{folder}/"), bisect_left(self.names, f"{folder}0")
        return {name[len(folder) + 1 :]: self.entries[name] for name in self.names[first:last]}


@cache
def _tree(repository: Path, commit: str) -> _Tree:
    """All tasks of a commit share its listing."""
    entries = tree_of(repository, commit)
    return _Tree(entries, sorted(entries))


def _local(file: str, task: RegistryTask) -> Path:
    """A task without an address is a folder below the registry file."""
    above = os.path.realpath(Path(file).parent)
    folder = os.path.realpath(Path(above, task.path))
    if not folder.startswith(f"{above}/") or not any(
        os.path.lexists(f"{folder}/{name}") for name in (TASK_MD, TASK_TOML)
    ):
        raise PackageError(f"'{task.path}' is not a package below the folder of {file}", code="not-a-package")
    return Path(file).parent / task.path


def _members(task: RegistryTask, tree: _Tree) -> tuple[dict[str, Blob], list[str]]:
    """The entries of a task by their path in it, with the objects to read; only what is safe to write to a folder."""
    own = tree.below(task.path)
    if TASK_MD not in own and TASK_TOML not in own:
        raise PackageError(f"commit {task.commit} has no package at '{task.path}'", code="not-a-package")
    if len(own) > MAX_FILES or sum(blob.size for blob in own.values()) > MAX_PACKAGE_BYTES:
        raise PackageError(f"'{task.path}' is too large", code="too-large")
    problem = clashes(own)
    for path, blob in own.items():
        if problem is None and blob.mode not in _KINDS:
            problem = f"'{printable(path)}' is a submodule, which is not fetched"
        if problem is None and (wrong := path_problem(path)) is not None:
            problem = f"the name '{printable(path)}' {wrong}"
        if problem is None and blob.size > (MAX_LINK if blob.mode == "120000" else MAX_FILE_BYTES):
            problem = f"'{path}' is too large"
    if problem is not None:
        raise PackageError(f"'{task.path}' of commit {task.commit} cannot be used: {problem}", code="unsafe-path")
    return own, list({blob.oid: None for blob in own.values()})


def _member(path: str, blob: Blob, data: bytes) -> Member:
    kind = _KINDS[blob.mode]
    problem = link_problem(path, data.decode("utf-8", "replace")) if kind == "link" else None
    if problem is not None:
        raise PackageError(f"'{printable(path)}' {printable(problem)}", code="link-escape")
    return Member(path, kind, len(data), hashlib.sha256(data).hexdigest())


def _beside(task: RegistryTask, members: Mapping[str, Blob], blobs: Mapping[str, bytes], tree: _Tree) -> Iterator[str]:
    """What a package names beside itself, as far as the commit has it; what is missing the checks report."""
    document = members.get(TASK_MD)
    if document is None:
        return
    try:
        data = YamlSource(split_frontmatter(decode(blobs[document.oid])).yaml, first_line=2).value
    except (MarkdownError, YamlError):
        return
    root = data if isinstance(data, dict) else {}
    namespace = root.get("benchflow")
    environment = namespace.get("environment") if isinstance(namespace, dict) else None
    written = [*(root.get(key) for key in PROFILE_KEYS)]
    written.append(environment.get("manifest") if isinstance(environment, dict) else None)
    above = posixpath.dirname(task.path)
    for path in written:
        if not isinstance(path, str) or not path.startswith("../"):
            continue
        place = posixpath.normpath(f"{task.path}/{path}")
        inside = place.startswith(f"{above}/") if above else not place.startswith("..")
        blob = tree.entries.get(place)
        if (
            inside
            and path_problem(path.removeprefix("../")) is None
            and blob is not None
            and blob.mode in ("100644", "100755")
        ):
            yield path


def render_registry(
    dataset: str, version: str, paths: Sequence[str], *, address: str | None, commit: str | None
) -> str:
    """A registry file with one dataset, whose tasks are at these paths of a commit, or below the file."""
    place = {} if address is None else {"git_url": address, "git_commit_id": commit}
    tasks = [{"name": path, **place, "path": path} for path in sorted(paths)]
    row = {"name": dataset, "version": version, "description": "", "tasks": tasks, "metrics": []}
    return json.dumps([row], indent=2, ensure_ascii=False) + "\n"


def _refused(file: str, reason: str) -> UsageError:
    return UsageError(f"{file} is not a registry file that can be read: it {reason}.", code="registry-invalid")
