"""Benchmarks composed of benchmarks, to any depth.

Task configs remain those of their own benchmark and store the path to it in `sub_bench_name`; ids of a composite are
`name/of/sub/task-id`. Subsets, named subsets, JSON and closing on failure work as for any other benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr, SerializeAsAny, model_validator

import cube
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata, close_quietly, make_benchmark
from cube.resource import InfraConfig
from cube.task import Task, TaskConfig, TaskMetadata
from cube.typed import Derived


class CompositeBenchmark(Benchmark["CompositeBenchmarkConfig"]):
    """Live sub-benchmarks by name; tasks are spawned by the one they come from."""

    def __init__(self, config: CompositeBenchmarkConfig, infra: InfraConfig | None = None) -> None:
        super().__init__(config, infra=infra)
        self.sub_benchmarks: dict[str, Benchmark[Any]] = {}

    def _setup(self) -> None:
        """Make the sub-benchmarks in order."""
        for sub in self.config.sub_bench_configs:
            self.sub_benchmarks[sub.name] = make_benchmark(sub, self._infra)

    def spawn(self, task_config: TaskConfig[Any]) -> Task[Any]:
        """Pass the config on, one component of `sub_bench_name` at a time."""
        route = task_config.sub_bench_name
        if route is None:
            raise ValueError(f"Task '{task_config.task_id}' has no sub_bench_name: a composite cannot route it.")
        hop, _, rest = route.partition("/")
        if hop not in self.sub_benchmarks:
            raise ValueError(
                f"Unknown sub-benchmark '{hop}' (from sub_bench_name='{route}'); known: {list(self.sub_benchmarks)}"
            )
        if task_config.task_id not in self.config.tasks():
            raise ValueError(
                f"Task '{task_config.task_id}' not found in benchmark '{self.config.name}' "
                f"(current view has {self.config.num_tasks} tasks)"
            )
        return self.sub_benchmarks[hop].spawn(task_config.model_copy(update={"sub_bench_name": rest or None}))

    def close(self) -> None:
        """Close all in reverse order; a failure is logged and does not keep the others open."""
        with ExitStack() as stack:
            for benchmark in self.sub_benchmarks.values():
                stack.callback(close_quietly, benchmark)
            self.sub_benchmarks = {}


class _NoTaskConfig(TaskConfig[TaskMetadata]):
    """A composite has no task configs of its own; abstract on purpose."""


class CompositeBenchmarkConfig(BenchmarkConfig[TaskMetadata]):
    """Several benchmark configs as one. Names of the parts are unique."""

    sub_bench_configs: list[SerializeAsAny[BenchmarkConfig[Any]]]
    composite_name: str = "composite"
    composite_version: str = "0.0.0"
    composite_description: str = ""

    task_config_class: ClassVar[type[TaskConfig[Any]]] = _NoTaskConfig  # type: ignore[type-abstract]
    benchmark_class: ClassVar[type[Benchmark[Any]]] = CompositeBenchmark

    _everything: Derived = PrivateAttr(default_factory=Derived)
    """The views of the parts, and all their tasks by prefixed id."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [sub.name for sub in self.sub_bench_configs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"CompositeBenchmarkConfig requires unique sub-benchmark names; found duplicates: {twice}")
        return self

    @model_validator(mode="after")
    def _settings_are_the_parts_own(self) -> Self:
        """Refuse a tool, backend or seeds for all parts at once: they would mean something different in each."""
        for setting in ("container_backend", "resources", "tool_config", "seed_generator"):
            if getattr(self, setting):
                raise ValueError(f"A composite does not have its own {setting}; set it in sub_bench_configs.")
        return self

    @property
    def benchmark_metadata(self) -> BenchmarkMetadata:  # type: ignore[override]  # of the instance, not of the class
        subs = [sub.benchmark_metadata for sub in self.sub_bench_configs]
        return BenchmarkMetadata(
            name=self.composite_name,
            version=self.composite_version,
            description=self.composite_description,
            num_tasks=sum(sub.num_tasks for sub in self.sub_bench_configs),
            tags=sorted({tag for sub in subs for tag in sub.tags}),
        )

    @property
    def task_metadata(self) -> dict[str, TaskMetadata]:  # type: ignore[override]  # of the instance, not of the class
        """Native metadata by prefixed id; rebuilt only if the tasks of a part have changed."""
        views = [sub.tasks() for sub in self.sub_bench_configs]
        known: tuple[list[dict[str, Any]], dict[str, TaskMetadata]] | None = self._everything.value
        if (
            known is None
            or len(known[0]) != len(views)
            or any(a is not b for a, b in zip(known[0], views, strict=True))
        ):
            known = self._everything.value = (
                views,
                {
                    f"{sub.name}/{task_id}": metadata
                    for sub, view in zip(self.sub_bench_configs, views, strict=True)
                    for task_id, metadata in view.items()
                },
            )
        return known[1]

    @property
    def name(self) -> str:
        return self.composite_name

    def get_task_configs(self) -> Iterator[TaskConfig[Any]]:
        """The parts' own configs with the path to their benchmark in `sub_bench_name`, in the order of this view."""
        if self.task_ids is None:
            for sub in self.sub_bench_configs:
                yield from _routed(sub, sub.name)
            return
        by_id: dict[str, list[TaskConfig[Any]]] = {task_id: [] for task_id in self.task_ids}
        for sub in self.sub_bench_configs:
            wanted = [task_id for task_id in sub.tasks() if f"{sub.name}/{task_id}" in by_id]
            if wanted:
                for config in _routed(sub.subset_from_list(wanted), sub.name):
                    by_id[config.task_id].append(config)
        for configs in by_id.values():
            yield from configs

    def _ids_of(self, task: object) -> list[str]:
        if not isinstance(task, TaskMetadata):
            return super()._ids_of(task)
        return [task_id for task_id, metadata in self.tasks().items() if metadata == task] or [task.id]

    def _matches(self, task_id: str, metadata: TaskMetadata, key: str, pattern: str) -> bool:
        """Ids match with and without the prefix of their benchmark."""
        return (key == "id" and fnmatchcase(task_id, pattern)) or super()._matches(task_id, metadata, key, pattern)

    def named_subsets(self) -> list[str]:  # type: ignore[override]  # of the instance, not of the class
        """`sub-benchmark/subset` for every named subset of the parts."""
        return [f"{sub.name}/{name}" for sub in self.sub_bench_configs for name in sub.named_subsets()]

    def named_subset(self, name: str) -> Self:
        hop, _, rest = name.partition("/")
        sub = next((sub for sub in self.sub_bench_configs if sub.name == hop), None)
        if sub is None or rest not in sub.named_subsets():
            raise KeyError(f"Unknown subset '{name}'. Available: {self.named_subsets()}")
        mine = self.tasks()
        chosen = [f"{hop}/{task_id}" for task_id in sub.named_subset(rest).tasks()]
        return self.subset_from_list([task_id for task_id in chosen if task_id in mine])

    def cache_dir(self) -> Path:  # type: ignore[override]  # of the instance, not of the class
        return cube.get_cache_dir(self.composite_name)

    def install(self) -> None:  # type: ignore[override]  # of the instance, not of the class
        """Install every part."""
        for sub in self.sub_bench_configs:
            sub.install()

    def uninstall(self) -> None:  # type: ignore[override]  # of the instance, not of the class
        """Uninstall every part."""
        for sub in self.sub_bench_configs:
            sub.uninstall()


def _routed(sub: BenchmarkConfig[Any], name: str) -> Iterator[TaskConfig[Any]]:
    """The configs of a part, with the name of the part added in front of their path."""
    # Our own generators create every config anew, so it can be changed; others may return objects that they keep.
    ours = type(sub).get_task_configs in (BenchmarkConfig.get_task_configs, CompositeBenchmarkConfig.get_task_configs)
    for config in sub.get_task_configs():
        inner = config.sub_bench_name
        route = name if inner is None else f"{name}/{inner}"
        if ours:
            config.__dict__["sub_bench_name"] = route
            config.__pydantic_fields_set__.add("sub_bench_name")
            yield config
        else:
            yield config.model_copy(update={"sub_bench_name": route})
