"""Packages for trainers: a Gymnasium environment in this process, and a thin client for packages that are served.

Importing this registers `benchcube/Package-v0` where Gymnasium is installed (extra `gymnasium`); given the name
`benchflow.trainers:benchcube/Package-v0`, `gym.make` imports it. `client` needs nothing but the standard library and
httpx, and may be copied into another project as it is.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

ENVIRONMENT_ID: Final = "benchcube/Package-v0"


def register() -> None:
    """Make the environment known to Gymnasium, once."""
    import gymnasium

    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(ENVIRONMENT_ID, entry_point="benchflow.trainers.package_env:PackageEnv")


if find_spec("gymnasium") is not None:
    register()

__all__ = ["ENVIRONMENT_ID", "register"]
