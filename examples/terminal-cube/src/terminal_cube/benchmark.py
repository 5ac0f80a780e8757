"""The benchmark: three jobs, each in its own container of this machine's userland."""

from cube import InfraConfig, LocalInfraConfig
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata, ResetIsolation
from cube.container import ContainerConfig
from terminal_cube.task import JobConfig, JobMetadata

IMAGE = ContainerConfig(image="host", ram_gb=0.5, cpu_cores=1, disk_gb=0.5)
JOBS = {
    "count-errors": JobMetadata(
        id="count-errors",
        abstract_description="count lines of a log",
        recommended_max_steps=5,
        container_config=IMAGE,
        objective="How many lines of server.log report an ERROR? Write the number to answer.txt.",
        files={"server.log": "INFO start\nERROR disk\nINFO retry\nERROR net\nERROR disk\nINFO end\n"},
        check='test "$(cat answer.txt)" = 3',
        solution="grep -c ERROR server.log > answer.txt",
    ),
    "rename-notes": JobMetadata(
        id="rename-notes",
        abstract_description="rename files",
        recommended_max_steps=5,
        container_config=IMAGE,
        objective="Rename every .txt file in notes to .md. Keep the contents.",
        files={"notes/one.txt": "first\n", "notes/two.txt": "second\n"},
        check='test "$(cat notes/one.md notes/two.md)" = "$(printf "first\\nsecond")" && ! ls notes/*.txt',
        solution='for file in notes/*.txt; do mv "$file" "${file%.txt}.md"; done',
    ),
    "write-greeting": JobMetadata(
        id="write-greeting",
        abstract_description="write a script",
        recommended_max_steps=5,
        container_config=IMAGE,
        objective="Write an executable script greet that prints 'Hello, NAME!' for its argument NAME.",
        files={},
        check='test "$(./greet Ada)" = "Hello, Ada!"',
        solution="printf '#!/bin/sh\\necho \"Hello, $1!\"\\n' > greet && chmod +x greet",
    ),
}


class TerminalBenchmark(Benchmark["TerminalBenchmarkConfig"]):
    """Containers belong to tasks; tasks share nothing."""

    def _setup(self) -> None:
        """Remove what a run that was killed may have left."""
        if self._infra is not None:
            self._infra.cleanup_stale()

    def close(self) -> None:
        """Nothing to stop."""


class TerminalBenchmarkConfig(BenchmarkConfig[JobMetadata]):
    """Jobs in a shell."""

    benchmark_metadata = BenchmarkMetadata(
        name="terminal-cube",
        version="0.1.0",
        description="Jobs in a shell.",
        authors=["The benchcube authors"],
        license="Apache-2.0",
        num_tasks=len(JOBS),
        tags=["example", "terminal"],
        reset_isolation=ResetIsolation.APP_LEVEL,
    )
    task_metadata = JOBS
    task_config_class = JobConfig
    benchmark_class = TerminalBenchmark

    def make(self, infra: InfraConfig | None = None) -> TerminalBenchmark:
        """Containers of this machine, unless another infrastructure is given."""
        benchmark = super().make(infra=infra or LocalInfraConfig(network="none"))
        assert isinstance(benchmark, TerminalBenchmark)
        return benchmark
