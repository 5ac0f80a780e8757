"""Benchmarks: a set of tasks, described by a config that is sent as JSON, run by a live object with shared state.

A `BenchmarkConfig` subclass declares its metadata (or has it in files beside its module), its `TaskConfig` class and
its `Benchmark` class. Instances are views of the tasks: subsets are new configs, and the original is unchanged.
"""

from __future__ import annotations

import inspect
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Self

from pydantic import Field, PrivateAttr, SerializeAsAny
from typing_extensions import TypeVar

import cube
from cube.container import ContainerBackend
from cube.metadata_files import MetadataFileError, read_many, read_one
from cube.resource import IncompatibleInfraError, InfraConfig, ResourceConfig
from cube.seed import AbstractSeedGenerator
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata, TTMetadata
from cube.tool import ToolConfig
from cube.typed import Derived, TypedBaseModel, trusted

logger = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    if name in ("CompositeBenchmark", "CompositeBenchmarkConfig"):  # by name: composites are built on this module
        return getattr(import_module("cube.composite"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


class ResetIsolation(StrEnum):
    """How a benchmark gives each episode a clean state."""

    SNAPSHOT = "snapshot"
    RESTART = "restart"
    APP_LEVEL = "app_level"
    NEW_INSTANCE = "new_instance"


class BenchmarkMetadata(TypedBaseModel):
    """The description of a benchmark that listings show."""

    name: str
    version: str
    description: str
    authors: list[str] = Field(default_factory=list)
    license: str = ""
    requirements: dict[str, Any] = Field(default_factory=dict)
    num_tasks: int = 0
    """The total number of tasks, regardless of the view. A benchmark that does not give it gets it counted."""
    tags: list[str] = Field(default_factory=list)
    reset_isolation: ResetIsolation | None = None
    named_subsets: dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Name to (field of the task metadata, glob pattern)."""


class BenchmarkConfig(TypedBaseModel, ABC, Generic[TTMetadata]):
    """Which tasks, with which tools and seeds. Subclasses declare the class-level attributes.

    `benchmark_metadata` and `task_metadata` may instead be files beside the module: `benchmark_metadata.json` and
    `task_metadata.json` (or `.csv`).
    """

    benchmark_metadata: ClassVar[BenchmarkMetadata]
    task_metadata: ClassVar[dict[str, Any]]
    task_config_class: ClassVar[type[TaskConfig[Any]]]
    benchmark_class: ClassVar[type[Benchmark[Any]]]

    task_ids: list[str] | None = None
    """The tasks of this view, in order; None: all."""
    resources: list[SerializeAsAny[ResourceConfig]] = Field(default_factory=list)
    """What `make(infra)` provisions; the benchmark's setup, or each task, launches it."""
    container_backend: SerializeAsAny[ContainerBackend] | None = None
    tool_config: SerializeAsAny[ToolConfig] | None = None
    seed_generator: SerializeAsAny[AbstractSeedGenerator] | None = None

    _view: Derived = PrivateAttr(default_factory=Derived)
    """The ids of this view, and its tasks by id."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Complete and check a concrete benchmark, and set the data folder of its task configs."""
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__abstractmethods__ or cls.__pydantic_generic_metadata__["origin"]:
            return
        _require_class(cls, "task_config_class", TaskConfig)
        _require_class(cls, "benchmark_class", Benchmark)
        _complete(cls, "benchmark_metadata", BenchmarkMetadata)
        _complete(cls, "task_metadata", dict)
        _count_tasks(cls)
        _stamp_cache_dir(cls)

    @classmethod
    def is_dynamic(cls) -> bool:
        """Whether metadata and tasks belong to instances instead of the class, as in a composite."""
        return any(_is_property(cls, attribute) for attribute in ("benchmark_metadata", "task_metadata"))

    # -- metadata files -------------------------------------------------------------------------------------------

    @classmethod
    def _task_metadata_class(cls) -> type[TaskMetadata]:
        """The class of rows without `_type`: the metadata class that the task configs are declared with."""
        task_config_class = getattr(cls, "task_config_class", TaskConfig)
        declared = task_config_class.model_fields["metadata"].annotation
        return declared if isinstance(declared, type) and issubclass(declared, TaskMetadata) else TaskMetadata

    @staticmethod
    def benchmark_metadata_from_json(path: str | Path) -> BenchmarkMetadata:
        return read_one(Path(path), BenchmarkMetadata)

    @staticmethod
    def benchmark_metadata_from_csv(path: str | Path) -> BenchmarkMetadata:
        return read_one(Path(path), BenchmarkMetadata)

    @classmethod
    def task_metadata_from_json(cls, path: str | Path) -> dict[str, TaskMetadata]:
        return read_many(Path(path), cls._task_metadata_class(), "id")

    @classmethod
    def task_metadata_from_csv(cls, path: str | Path) -> dict[str, TaskMetadata]:
        return read_many(Path(path), cls._task_metadata_class(), "id")

    # -- views ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.benchmark_metadata.name

    @property
    def num_tasks(self) -> int:
        """Tasks in this view."""
        return len(self.tasks())

    def tasks(self) -> dict[str, TTMetadata]:
        """The tasks of this view by id, in order. Treat it as read-only: it is shared."""
        ids = self.task_ids
        if ids is None:
            return self.task_metadata
        view: tuple[list[str], dict[str, Any]] | None = self._view.value
        if view is None or view[0] is not ids:
            everything = self.task_metadata
            unknown = [task_id for task_id in ids if task_id not in everything]
            if unknown:
                raise KeyError(f"Benchmark '{self.name}' has no tasks {unknown}.")
            view = self._view.value = (ids, {task_id: everything[task_id] for task_id in ids})
        return view[1]

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied._view = Derived()
        return copied

    def get_task_configs(self) -> Iterator[TaskConfig[Any]]:
        """A self-contained config for every task of this view, and for every seed if there are several."""
        make = _config_maker(self.task_config_class, self.tool_config)
        for metadata in self.tasks().values():
            seeds: Sequence[int | None] = (None,) if self.seed_generator is None else self.seed_generator(metadata)
            for seed in seeds:
                yield make(metadata, seed)

    def subset_from_list(self, tasks: Sequence[str | TaskMetadata], benchmark_name_suffix: str = "custom") -> Self:
        """The view with only these tasks, in this order, each once."""
        del benchmark_name_suffix  # a view keeps the benchmark's name
        if isinstance(tasks, str) or not tasks:
            raise ValueError("tasks must be a non-empty sequence of task ids (str) or TaskMetadata objects.")
        wanted = [task_id for task in tasks for task_id in self._ids_of(task)]
        known = self.tasks()
        unknown = [task_id for task_id in wanted if task_id not in known]
        if unknown:
            raise ValueError(f"The following specified tasks do not exist in the benchmark: {unknown}")
        return self.model_copy(update={"task_ids": list(dict.fromkeys(wanted))})

    def _ids_of(self, task: object) -> list[str]:
        if isinstance(task, TaskMetadata):
            return [task.id]
        if isinstance(task, str):
            return [task]
        raise ValueError("tasks must be a non-empty sequence of task ids (str) or TaskMetadata objects.")

    def subset_from_glob(self, key: str, pattern: str) -> Self:
        """The view with the tasks whose metadata field `key`, as text, matches the glob `pattern`."""
        tasks = self.tasks()
        if tasks and not any(hasattr(metadata, key) for metadata in tasks.values()):
            raise ValueError(f"Task metadata of benchmark '{self.name}' has no field '{key}'.")
        found = [task_id for task_id, metadata in tasks.items() if self._matches(task_id, metadata, key, pattern)]
        if not found:
            raise ValueError(f"No tasks found matching glob pattern '{pattern}' on key '{key}'")
        return self.model_copy(update={"task_ids": found})

    def _matches(self, task_id: str, metadata: TaskMetadata, key: str, pattern: str) -> bool:
        del task_id
        return hasattr(metadata, key) and fnmatchcase(str(getattr(metadata, key)), pattern)

    @classmethod
    def named_subsets(cls) -> list[str]:
        """The names that `named_subset` accepts."""
        return list(cls.benchmark_metadata.named_subsets)

    def named_subset(self, name: str) -> Self:
        """A view that the author of the benchmark defined."""
        subsets = self.benchmark_metadata.named_subsets
        if name not in subsets:
            raise KeyError(f"Unknown subset '{name}'. Available: {list(subsets)}")
        return self.subset_from_glob(*subsets[name])

    # -- life -----------------------------------------------------------------------------------------------------

    @classmethod
    def cache_dir(cls) -> Path:
        """Where this benchmark keeps its data on this machine: below its own name, or else that of its package."""
        if _is_property(cls, "benchmark_metadata"):
            return cube.get_cache_dir(cls.__module__.partition(".")[0])
        return cube.get_cache_dir(cls.benchmark_metadata.name)

    @classmethod
    def install(cls) -> None:
        """Fetch and prepare what the tasks need on this machine; safe to repeat.

        Per-task data is written with `cls.task_config_class.save_task_execution_info()`.
        """

    @classmethod
    def uninstall(cls) -> None:
        """Remove the data that `install` created."""

    def make(self, infra: InfraConfig | None = None) -> Benchmark[Any]:
        """The live benchmark, set up. If the setup fails, it is closed before the error is raised.

        With an infrastructure, what the benchmark needs is provisioned first; an `IncompatibleInfraError` says what
        the infrastructure does not have, before anything starts.
        """
        if infra is not None:
            _provision(self.resources, infra)
        elif self.resources:
            names = ", ".join(resource.name for resource in self.resources)
            logger.debug("No infrastructure was given: %s of '%s' are not provisioned.", names, self.name)
        benchmark = self.benchmark_class(config=self) if infra is None else self.benchmark_class(self, infra=infra)
        try:
            benchmark.setup()
        except BaseException:
            close_quietly(benchmark)
            raise
        return benchmark


TBenchConfig = TypeVar("TBenchConfig", bound=BenchmarkConfig[Any], default=BenchmarkConfig[Any])


class Benchmark(ABC, Generic[TBenchConfig]):
    """A live benchmark: shared infrastructure, and tasks spawned with it. `with` closes it."""

    def __init__(self, config: TBenchConfig, infra: InfraConfig | None = None) -> None:
        self.config = config
        self._infra: InfraConfig | None = infra
        self._runtime_context: RuntimeContext = {}

    @abstractmethod
    def _setup(self) -> None:
        """Start what tasks share and put references to it into `self._runtime_context`."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that `_setup` started; also called if `_setup` failed part-way."""

    def setup(self) -> None:
        """Publish the infrastructure to the tasks as `runtime_context["infra"]`, and start what they share."""
        if self._infra is not None:
            self._runtime_context["infra"] = self._infra
        self._setup()

    def spawn(self, task_config: TaskConfig[Any]) -> Task[Any]:
        """A live task of this benchmark's current view."""
        tasks = self.config.tasks()
        if task_config.task_id not in tasks:
            raise ValueError(
                f"Task '{task_config.task_id}' not found in benchmark '{self.config.name}' "
                f"(current view has {len(tasks)} tasks)"
            )
        return make_task(task_config, self._runtime_context, self.config.container_backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def make_task(
    config: TaskConfig[Any], runtime_context: RuntimeContext | None, container_backend: ContainerBackend | None
) -> Task[Any]:
    """The live task. A backend is passed only if there is one: authors may leave the parameter out."""
    if container_backend is None:
        return config.make(runtime_context=runtime_context)
    return config.make(runtime_context=runtime_context, container_backend=container_backend)


def make_benchmark(config: BenchmarkConfig[Any], infra: InfraConfig | None) -> Benchmark[Any]:
    """The live benchmark. An infrastructure is passed only if there is one, as in `make_task`."""
    return config.make() if infra is None else config.make(infra=infra)


def _provision(resources: Sequence[ResourceConfig], infra: InfraConfig) -> None:
    """Bring what the resources are launched from, once all of them can be served."""
    for resource in resources:
        if not infra.can_serve(resource):
            raise IncompatibleInfraError(infra.refusal(resource) or f"Resource '{resource.name}' cannot be served.")
    for resource in resources:
        if infra.provision_status(resource) != "ready":
            infra.provision(resource)


def close_quietly(benchmark: Benchmark[Any]) -> None:
    """Close after a failure, without replacing its error by another one."""
    try:
        benchmark.close()
    except Exception:  # logged; the first failure is the one to report
        logger.exception("Closing benchmark '%s' failed", benchmark.config.name)


def _require_class(cls: type[BenchmarkConfig[Any]], attribute: str, base: type) -> None:
    value = getattr(cls, attribute, None)
    if not (isinstance(value, type) and issubclass(value, base)):
        raise TypeError(f"{cls.__name__}.{attribute} must be a subclass of {base.__name__}, not {value!r}.")


def _is_property(cls: type[BenchmarkConfig[Any]], attribute: str) -> bool:
    return isinstance(inspect.getattr_static(cls, attribute, None), property)


def _complete(cls: type[BenchmarkConfig[Any]], attribute: str, kind: type) -> None:
    """Take the attribute from the class, from a file beside its module, or from a base, in this order."""
    if _is_property(cls, attribute):
        return
    if attribute not in cls.__dict__:
        path = _beside_module(cls, attribute)
        if path is not None:
            setattr(cls, attribute, getattr(cls, f"{attribute}_from_{path.suffix[1:]}")(path))
    value = getattr(cls, attribute, None)
    if not isinstance(value, kind):
        raise TypeError(
            f"{cls.__name__}.{attribute} must be a {kind.__name__}, not {type(value).__name__}: declare it in the "
            f"class, or put {attribute}.json or {attribute}.csv beside its module."
        )
    if isinstance(value, dict) and not all(isinstance(item, TaskMetadata) for item in value.values()):
        raise TypeError(f"{cls.__name__}.{attribute} must map task ids to TaskMetadata.")


def _beside_module(cls: type, stem: str) -> Path | None:
    source = getattr(sys.modules.get(cls.__module__), "__file__", None)
    for suffix in (".json", ".csv") if source else ():
        path = Path(source or "").with_name(f"{stem}{suffix}")
        if path.is_file():
            return path
        if path.is_symlink() or path.exists():
            raise MetadataFileError(f"{path} must be a file; it is a folder, or a link to nothing.")
    return None


def _count_tasks(cls: type[BenchmarkConfig[Any]]) -> None:
    """The number of tasks, where the author does not give it. It still counts as not given, for subclasses."""
    if cls.is_dynamic() or "num_tasks" in cls.benchmark_metadata.model_fields_set:
        return
    counted = cls.benchmark_metadata.model_copy(update={"num_tasks": len(cls.task_metadata)})
    counted.model_fields_set.discard("num_tasks")
    cls.benchmark_metadata = counted


def _stamp_cache_dir(cls: type[BenchmarkConfig[Any]]) -> None:
    """Set the folder in which `install()` stores the data of the task config class, which has one owner."""
    owned = cls.task_config_class
    if owned.__abstractmethods__ or _is_property(cls, "benchmark_metadata"):
        return
    new, old = cls.cache_dir(), owned.__dict__.get("_benchmark_cache_dir")
    if old is not None and old != new:
        raise TypeError(
            f"{owned.__name__} is already owned by benchmark at {old}; cannot reassign to {new}. "
            f"Each BenchmarkConfig must declare its own TaskConfig subclass."
        )
    owned._benchmark_cache_dir = new


def _config_maker(config_class: type[TaskConfig[Any]], tool_config: ToolConfig | None) -> Any:
    """A function (metadata, seed) -> config that validates once per class of metadata and then copies.

    Metadata and tool config are already valid, so for a plain config class a copy equals a new instance. A class with
    its own validators or state is always constructed.
    """

    def construct(metadata: TaskMetadata, seed: int | None) -> TaskConfig[Any]:
        return config_class(metadata=metadata, tool_config=tool_config, seed=seed)

    decorators = config_class.__pydantic_decorators__
    plain = (
        len(decorators.model_validators) == 1  # TypedBaseModel's own
        and not (decorators.field_validators or decorators.validators or decorators.root_validators)
        and config_class.model_post_init is TaskConfig.model_post_init
        and not config_class.__private_attributes__
        and config_class.__init__ is TypedBaseModel.__init__
        and all(not field.default_factory for field in config_class.model_fields.values())
    )
    if not plain:
        return construct
    templates: dict[type, tuple[dict[str, Any], set[str]]] = {}

    def copy(metadata: TaskMetadata, seed: int | None) -> TaskConfig[Any]:
        template = templates.get(type(metadata))
        if template is None:
            valid = construct(metadata, seed)
            template = templates[type(metadata)] = (dict(valid.__dict__), valid.model_fields_set)
        values = template[0].copy()
        values["metadata"] = metadata
        values["seed"] = seed
        return trusted(config_class, values, template[1].copy())

    return copy
