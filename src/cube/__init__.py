"""The gym layer: tasks, tools and benchmarks that any agent can drive.

    from cube.task import Task, TaskConfig
    from cube.tool import Tool, ToolConfig, tool_action

Data that `install()` writes is stored below the cache root: `CUBE_CACHE_DIR`, or `~/.cube` if it is not set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cube.infra_local import LocalInfraConfig
    from cube.provision_store import ProvisionStore
    from cube.resource import (
        DockerImageConfig,
        DockerServiceConfig,
        InfraConfig,
        ResourceConfig,
        ResourceHandle,
        ResourceNotReadyError,
        UnsupportedResourceType,
        VMResourceConfig,
        VolumeSpec,
    )

__version__: str

__all__ = [
    "DockerImageConfig",
    "DockerServiceConfig",
    "InfraConfig",
    "LocalInfraConfig",
    "ProvisionStore",
    "ResourceConfig",
    "ResourceHandle",
    "ResourceNotReadyError",
    "UnsupportedResourceType",
    "VMResourceConfig",
    "VolumeSpec",
    "__version__",
    "get_cache_dir",
]

_CUBE_CACHE_ROOT: Path = Path(os.environ.get("CUBE_CACHE_DIR") or Path.home() / ".cube")


def _warn_of_other_files() -> None:
    """Another distribution in the same folder has written its modules between ours, or ours over its own."""
    folder = Path(__file__).parent.parent
    if any(folder.glob("cube_standard-*.dist-info")):
        import warnings

        warnings.warn(
            f"cube-standard and benchcube are both installed in {folder}. Both are the package 'cube', and their "
            "modules are mixed. Uninstall both, then install benchcube alone: it runs cubes written for cube-standard.",
            RuntimeWarning,
            stacklevel=3,
        )


_warn_of_other_files()


def get_cache_dir(benchmark_name: str) -> Path:
    """Where a benchmark keeps its data on this machine; the folder need not exist yet."""
    return _CUBE_CACHE_ROOT / benchmark_name


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for: `import cube` stays light."""
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("benchcube")
        except PackageNotFoundError:
            return "unknown"
    if name not in __all__:
        raise AttributeError(f"module 'cube' has no attribute '{name}'")
    module = {"LocalInfraConfig": "cube.infra_local", "ProvisionStore": "cube.provision_store"}.get(
        name, "cube.resource"
    )
    return getattr(import_module(module), name)
