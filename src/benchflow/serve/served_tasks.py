"""What a server offers: environments with splits and tasks, made of the PATHs and cubes that were named.

A folder of packages, a bundle and a cube are one environment each, named after it. The split of a package is
`metadata.split`, `test` without one; the manifest of a bundle has splits of its own. Clients know a task as
`{"id", "digest", "index"}`: where it is on this machine is never said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.errors import UsageError, did_you_mean
from benchflow.evaluation.sources import CUBE_PREFIX
from benchflow.evaluation.work import TaskRef
from benchflow.gym.shared import PACKAGES
from benchflow.record import identify, labels
from benchflow.task.bundles.bundle_reading import is_bundle, open_bundle
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.package import TaskPackage

SplitType = Literal["train", "validation", "test"]
DEFAULT_SPLIT: Final = "test"
SPLIT_TYPES: Final[Mapping[str, SplitType]] = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
    "test": "test", "eval": "test",
}  # fmt: skip
_UNSAFE: Final = re.compile(r"[^a-z0-9._-]+")


class UnknownTask(LookupError):
    """An environment, split, index or task that is not there; `str()` is a sentence for the client."""


@dataclass(frozen=True, slots=True)
class ServedTask:
    """A task of an environment."""

    environment: str
    split: str
    index: int
    """Its position in the split."""
    id: str
    digest: str
    payload: Path | TaskRef = field(repr=False, compare=False)
    """The folder of a package, or the task of a cube."""
    full_digest: str = ""
    """Of every file of a package, by which it is noticed that it has changed."""
    seed: int | None = field(default=None, compare=False)

    def spec(self) -> dict[str, Any]:
        """What clients know of it, and with what they ask for it."""
        return {"id": self.id, "digest": self.digest, "index": self.index}

    def seeded(self, seed: int | None) -> ServedTask:
        """With the seed of an episode: a package finds it in its environment, a cube's task in its config."""
        return self if seed is None else replace(self, seed=seed)


@dataclass(frozen=True, slots=True)
class ServedEnvironment:
    """Tasks under one name, by split."""

    name: str
    splits: Mapping[str, tuple[ServedTask, ...]]
    is_cube: bool = False

    def types(self) -> dict[str, SplitType]:
        """The kind of each split; that of a split with a name of its own is `validation`."""
        return {name: SPLIT_TYPES.get(name, "validation") for name in self.splits}

    def tasks(self, split: str) -> tuple[ServedTask, ...]:
        if split not in self.splits:
            known = ", ".join(self.splits)
            raise UnknownTask(f"The environment '{self.name}' has no split '{split[:100]}'; available: {known}.")
        return self.splits[split]

    def all_tasks(self) -> tuple[ServedTask, ...]:
        """The tasks of all splits; one that is in several is listed once."""
        return tuple({task.id: task for tasks in self.splits.values() for task in tasks}.values())

    def task(self, split: str, index: int) -> ServedTask:
        tasks = self.tasks(split)
        if not 0 <= index < len(tasks):
            raise UnknownTask(f"The split '{split}' has {len(tasks)} tasks; there is no index {index}.")
        return tasks[index]

    def named(self, spec: Mapping[str, Any]) -> ServedTask:
        """The task that a client describes as `ServedTask.spec` did; its digest may be left out."""
        wanted, digest = spec.get("id"), spec.get("digest")
        found = [task for tasks in self.splits.values() for task in tasks if task.id == wanted]
        if not found:
            raise UnknownTask(f"The environment '{self.name}' has no task with the id {str(wanted)[:200]!r}.")
        same = [task for task in found if digest is None or task.digest == digest]
        if not same:
            raise UnknownTask(f"The task '{found[0].id}' has another digest here ({found[0].digest}): it has changed.")
        return next((task for task in same if task.index == spec.get("index")), same[0])


@dataclass(frozen=True, slots=True)
class ServedTasks:
    """All environments of a server; the first is the default."""

    environments: Mapping[str, ServedEnvironment]

    @property
    def default(self) -> ServedEnvironment:
        return next(iter(self.environments.values()))

    def environment(self, name: str | None) -> ServedEnvironment:
        """By its name, as `owner/name` too; None: the default."""
        if name is None:
            return self.default
        wanted = environment_name(name.rpartition("/")[2])
        if wanted not in self.environments:
            known = ", ".join(self.environments)
            near = did_you_mean(wanted, self.environments)
            raise UnknownTask(f"Unknown environment '{name[:100]}'; available: {known}.{near}")
        return self.environments[wanted]


def environment_name(text: str) -> str:
    """A name that can be part of a URL."""
    return _UNSAFE.sub("-", text.lower()).strip("-.") or "packages"


def list_tasks(sources: Sequence[str], cube_tasks: Mapping[str, Sequence[TaskRef]]) -> ServedTasks:
    """The environments of PATHs and `cube:NAME`; `cube_tasks` has the tasks of the cubes.

    Broken packages are listed too: an episode of one ends without a score and says why. Raises `UsageError`.
    """
    environments: dict[str, ServedEnvironment] = {}
    for source in dict.fromkeys(sources):
        cube = source.removeprefix(CUBE_PREFIX) if source.startswith(CUBE_PREFIX) else None
        wanted = environment_name(cube if cube is not None else source_name(source))
        name, number = wanted, 1
        while name in environments:
            number += 1
            name = f"{wanted}-{number}"
        if cube is not None:
            environments[name] = _of_cube(name, cube_tasks[cube])
        else:
            environments[name] = _of_path(name, Path(source))
    if not environments:
        raise UsageError("Name at least one package, folder of packages or cube to serve.", code="no-packages")
    return ServedTasks(environments)


def source_name(source: str) -> str:
    """What a PATH is called: the name of the benchmark in a bundle, else of the folder or the file."""
    from benchflow.task.bundles.package_files import named_file

    path = Path(source)
    if path.is_dir():
        return path.resolve().name
    file = Path(named_file(source).file)
    if file.exists() and is_bundle(file):
        return open_bundle(file).index.benchmark.name or file.stem
    return file.stem


def _of_path(name: str, path: Path) -> ServedEnvironment:
    found = find_packages([path])
    packages = [PACKAGES.load(each.path.absolute()) for each in found]
    identities = list(identify((package.name, package.content_digest) for package in packages))
    label_of = labels(identities)
    splits: dict[str, list[ServedTask]] = {}
    chosen = _bundle_splits(found)
    for each, package, identity in zip(found, packages, identities, strict=True):
        own = chosen.get(each.inside[1]) if each.inside is not None else None
        for split in own or (_declared_split(package),):
            tasks = splits.setdefault(split, [])
            label, digest = label_of[identity], package.content_digest
            folder = each.path.absolute()
            tasks.append(ServedTask(name, split, len(tasks), label, digest, folder, package.digest))
    return ServedEnvironment(name, {split: tuple(tasks) for split, tasks in splits.items()})


def _bundle_splits(found: Sequence[FoundPackage]) -> dict[str, tuple[str, ...]]:
    """The splits of each path in a bundle, as its manifest says."""
    files = {each.inside[0] for each in found if each.inside is not None and each.entry is not None}
    chosen: dict[str, tuple[str, ...]] = {}
    for file in files:
        place = Path(file)
        if not place.exists() or not is_bundle(place):
            continue
        for split, paths in open_bundle(place).index.benchmark.splits.items():
            for path in paths:
                chosen[path] = (*chosen.get(path, ()), split)
    return chosen


def _declared_split(package: TaskPackage) -> str:
    declared = package.config.metadata.get("split") if package.config is not None else None
    if not isinstance(declared, str) or not declared:
        return DEFAULT_SPLIT
    return SPLIT_TYPES.get(declared.lower(), declared)


def _of_cube(name: str, tasks: Sequence[TaskRef]) -> ServedEnvironment:
    splits: dict[str, list[ServedTask]] = {}
    for ref in tasks:
        _, config = ref.payload
        split = SPLIT_TYPES.get(config.metadata.split, DEFAULT_SPLIT)
        mine = splits.setdefault(split, [])
        task_id = ref.name.partition("/")[2]
        mine.append(ServedTask(name, split, len(mine), task_id, str(ref.digest), ref))
    return ServedEnvironment(name, {split: tuple(mine) for split, mine in splits.items()}, is_cube=True)
