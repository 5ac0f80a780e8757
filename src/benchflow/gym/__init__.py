"""Packages as gym tasks: a folder of packages is a cube benchmark, each package one of its tasks.

`reset()` starts the package's sandbox and returns its instruction; the tool is a terminal in it; `evaluate()` verifies
on a fork and changes nothing, so that every step can have a reward; `fork()` returns an independent copy of a
running task. A verification without a score is an `UnscoredError`, never a number.
"""

from benchflow.gym.benchmark import PackageBenchmark, PackageBenchmarkConfig
from benchflow.gym.task import PackageTask, PackageTaskConfig, PackageTaskMetadata, UnscoredError
from benchflow.gym.tool import PackageTool, PackageToolConfig

__all__ = [
    "PackageBenchmark",
    "PackageBenchmarkConfig",
    "PackageTask",
    "PackageTaskConfig",
    "PackageTaskMetadata",
    "PackageTool",
    "PackageToolConfig",
    "UnscoredError",
]
