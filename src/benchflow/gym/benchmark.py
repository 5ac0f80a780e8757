"""Folders of packages as benchmarks of the gym layer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

import cube
from benchflow.gym.located import PLACES
from benchflow.gym.sandbox_container import LOOP
from benchflow.gym.shared import PACKAGES
from benchflow.gym.task import MODELS, PackageTaskConfig, PackageTaskMetadata
from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits
from benchflow.models.gateway.shared_gateway import SharedGateway
from benchflow.record import identify, labels
from benchflow.sandbox.factory import AUTO, task_package
from benchflow.sandbox.pulling import PullPolicy
from benchflow.task.bundles.package_files import named_file, pinned_source
from benchflow.task.config.interaction import ARENA
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.package import TaskPackage
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.task import TaskConfig


class PackageBenchmark(Benchmark["PackageBenchmarkConfig"]):
    """Packages share the backend of this process, and limits on calls of models if there are any for all of them."""

    _shared: SharedGateway | None = None

    def _setup(self) -> None:
        """Nothing is started before the first reset."""
        whole = self.config.benchmark_limits
        if whole is not None:
            each = self.config.call_limits or NO_CALL_LIMITS
            self._shared = SharedGateway(os.environ, each, whole, "benchmark")
            self._runtime_context[MODELS] = self._shared

    def close(self) -> None:
        """Tasks end their own sandboxes."""
        if self._shared is not None:
            LOOP.run(self._shared.close)


class PackageBenchmarkConfig(BenchmarkConfig[PackageTaskMetadata]):
    """Folders of packages as one benchmark. An invalid package is an error, unless `skip_invalid`."""

    paths: list[str]
    benchmark_name: str = "packages"
    sandbox: str = AUTO
    base_image: str | None = None
    pull: PullPolicy = "missing"
    participants: dict[str, str] = Field(default_factory=dict)
    """Who plays the other roles of arenas."""
    validate_per_step: bool = False
    skip_invalid: bool = False
    records: str | None = None
    """A folder in which calls of models by judges are recorded; None: nowhere."""
    call_limits: CallLimits | None = None
    """Limits on those calls, for each episode with its forks."""
    benchmark_limits: CallLimits | None = None
    """Limits for all episodes of a live benchmark together."""

    task_config_class: ClassVar[type[TaskConfig[Any]]] = PackageTaskConfig
    benchmark_class: ClassVar[type[Benchmark[Any]]] = PackageBenchmark

    _listed: dict[str, PackageTaskMetadata] | None = PrivateAttr(default=None)

    @property
    def benchmark_metadata(self) -> BenchmarkMetadata:  # type: ignore[override]  # of the instance, not of the class
        return BenchmarkMetadata(
            name=self.benchmark_name,
            version="0",
            description=f"Task packages in {', '.join(self.paths)}",
            num_tasks=len(self.task_metadata),
        )

    @property
    def task_metadata(self) -> dict[str, PackageTaskMetadata]:  # type: ignore[override]  # of the instance
        """The packages by id, discovered on first use; the id is the name, unless several have the same."""
        if self._listed is None:
            self._listed = _list_packages(self.paths, skip_invalid=self.skip_invalid)
        return self._listed

    def get_task_configs(self) -> Iterator[TaskConfig[Any]]:
        """A config for every package of this view, with this benchmark's sandbox settings."""
        settings = {
            "sandbox": self.sandbox,
            "base_image": self.base_image,
            "pull": self.pull,
            "participants": self.participants,
            "validate_per_step": self.validate_per_step,
            "records": self.records,
            "call_limits": self.call_limits,
            "benchmark_limits": self.benchmark_limits,
        }
        for config in super().get_task_configs():
            yield config.model_copy(update=settings)

    def named_subsets(self) -> list[str]:  # type: ignore[override]  # of the instance, not of the class
        return []

    def cache_dir(self) -> Path:  # type: ignore[override]  # of the instance, not of the class
        return cube.get_cache_dir(self.benchmark_name)


def _list_packages(paths: list[str], *, skip_invalid: bool) -> dict[str, PackageTaskMetadata]:
    """The packages by the labels they would have in a job: names, and what tells packages of one name apart."""
    listed = [(found, PACKAGES.load(found.path.absolute())) for found in find_packages([Path(path) for path in paths])]
    if skip_invalid:
        listed = [(found, package) for found, package in listed if package.valid]
    identities = list(identify((package.name, package.content_digest) for _, package in listed))
    label_of = labels(identities)
    bundles = {Path(path): _file_digest(path) for path in paths}
    metadata = {}
    for identity, (found, package) in zip(identities, listed, strict=True):
        label = label_of[identity]
        metadata[label] = _metadata(label, task_package(package), _inside(found), bundles[found.root])
        PLACES.note(package.content_digest, found.path.absolute())
    return metadata


def _file_digest(path: str) -> str | None:
    """The digest of a file with packages, whose list is kept in the cache from now on; None for a folder."""
    return None if Path(path).is_dir() else named_file(pinned_source(path)).digest


def _inside(found: FoundPackage) -> str:
    """The path of a package in its file, or below the folder that was named, of which it may be the only one."""
    if found.inside is not None:
        return found.inside[1]
    below = found.path.relative_to(found.root)
    return below.as_posix() if below.parts else found.path.absolute().name


def _metadata(label: str, package: TaskPackage, inside: str, bundle: str | None) -> PackageTaskMetadata:
    config = package.view.config
    return PackageTaskMetadata(
        id=label,
        abstract_description=config.task.description if config.task else "",
        bundle=bundle,
        inside=inside,
        digest=package.digest,
        content_digest=package.content_digest,
        steps=tuple(step.config.name for step in package.view.steps),
        arena=package.view.mode == ARENA,
    )
