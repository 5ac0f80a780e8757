"""The benchmark; its metadata is beside this file."""

from counter_cube.task import CounterTaskConfig, CounterTaskMetadata
from cube.benchmark import Benchmark, BenchmarkConfig


class CounterBenchmark(Benchmark["CounterBenchmarkConfig"]):
    """Counters share nothing."""

    def _setup(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to stop."""


class CounterBenchmarkConfig(BenchmarkConfig[CounterTaskMetadata]):
    """Counting tasks of rising difficulty."""

    task_config_class = CounterTaskConfig
    benchmark_class = CounterBenchmark
