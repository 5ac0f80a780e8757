"""The benchmark: repositories written by `install()`, containers from the infrastructure."""

import shutil
from collections.abc import Iterator

from cube import InfraConfig, LocalInfraConfig
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata, ResetIsolation
from cube.container import ContainerConfig
from patch_cube.issues import ISSUES
from patch_cube.task import IssueConfig, IssueMetadata


class PatchBenchmark(Benchmark["PatchBenchmarkConfig"]):
    """Containers belong to tasks; tasks share nothing."""

    def _setup(self) -> None:
        """Remove what a run that was killed may have left."""
        if self._infra is not None:
            self._infra.cleanup_stale()

    def close(self) -> None:
        """Nothing to stop."""


class PatchBenchmarkConfig(BenchmarkConfig[IssueMetadata]):
    """Issues of small programs."""

    benchmark_metadata = BenchmarkMetadata(
        name="patch-cube",
        version="0.1.0",
        description="Repair small programs.",
        authors=["The benchcube authors"],
        license="Apache-2.0",
        num_tasks=len(ISSUES),
        tags=["example", "software-engineering"],
        reset_isolation=ResetIsolation.APP_LEVEL,
    )
    task_metadata = {
        task_id: IssueMetadata(
            id=task_id,
            abstract_description=f"an issue of {task_id.partition('-')[0]}",
            recommended_max_steps=20,
            container_config=ContainerConfig(image="host", ram_gb=0.5, cpu_cores=1, disk_gb=0.5),
            repository=f"example/{task_id.partition('-')[0]}",
        )
        for task_id in ISSUES
    }
    task_config_class = IssueConfig
    benchmark_class = PatchBenchmark

    oracle_mode: bool = False

    @classmethod
    def install(cls) -> None:
        """Write the repositories; quick to repeat."""
        for task_id, issue in ISSUES.items():
            cls.task_config_class.save_task_execution_info(task_id, issue)

    @classmethod
    def uninstall(cls) -> None:
        shutil.rmtree(cls.task_config_class.task_execution_cache_dir(), ignore_errors=True)

    def make(self, infra: InfraConfig | None = None) -> Benchmark["PatchBenchmarkConfig"]:
        """Containers of this machine, unless another infrastructure is given."""
        return super().make(infra=infra or LocalInfraConfig(network="none"))

    def get_task_configs(self) -> Iterator[IssueConfig]:
        for metadata in self.tasks().values():
            yield IssueConfig(metadata=metadata, tool_config=self.tool_config, oracle_mode=self.oracle_mode)
