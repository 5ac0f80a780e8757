"""The benchmark: light metadata in the class, archives written by `install()`."""

import shutil

from archive_cube.records import ANSWERS, PAGES, archive
from archive_cube.task import ArchiveTaskConfig, ArchiveTaskMetadata
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata, ResetIsolation


class ArchiveBenchmark(Benchmark["ArchiveBenchmarkConfig"]):
    """Archives are read-only, so that tasks share nothing."""

    def _setup(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to stop."""


class ArchiveBenchmarkConfig(BenchmarkConfig[ArchiveTaskMetadata]):
    """Questions on log books."""

    benchmark_metadata = BenchmarkMetadata(
        name="archive-cube",
        version="0.1.0",
        description="Find a fact in a large archive.",
        authors=["The benchcube authors"],
        license="Apache-2.0",
        num_tasks=len(ANSWERS),
        tags=["example", "retrieval"],
        reset_isolation=ResetIsolation.NEW_INSTANCE,
        named_subsets={"ships": ("topic", "harbour")},
    )
    task_metadata = {
        task_id: ArchiveTaskMetadata(
            id=task_id,
            abstract_description=f"a name in a {topic} log",
            recommended_max_steps=6,
            topic=topic,
            document_count=PAGES,
        )
        for task_id, (topic, _) in ANSWERS.items()
    }
    task_config_class = ArchiveTaskConfig
    benchmark_class = ArchiveBenchmark

    @classmethod
    def install(cls) -> None:
        """Write the archives; quick to repeat."""
        for task_id in cls.task_metadata:
            cls.task_config_class.save_task_execution_info(task_id, archive(task_id))

    @classmethod
    def uninstall(cls) -> None:
        shutil.rmtree(cls.task_config_class.task_execution_cache_dir(), ignore_errors=True)
