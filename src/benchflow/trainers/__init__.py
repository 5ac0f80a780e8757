"""Packages for trainers: Gymnasium environments, alone or many at once over machines, and a thin client.

Importing this registers `benchcube/Package-v0` if Gymnasium is installed (extra `gymnasium`); given the name
`benchflow.trainers:benchcube/Package-v0`, `gym.make` imports it. `make_vector` creates a vector of them. `client`, for
served packages, needs only the standard library and httpx, and may be copied into another project.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.trainers.vectors import make_vector

ENVIRONMENT_ID: Final = "benchcube/Package-v0"


def register() -> None:
    """Make the environment known to Gymnasium, once."""
    import gymnasium

    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(ENVIRONMENT_ID, entry_point="benchflow.trainers.package_env:PackageEnv")


if find_spec("gymnasium") is not None:
    register()

__all__ = ["ENVIRONMENT_ID", "make_vector", "register"]

__getattr__ = lazy_names(__name__, {"benchflow.trainers.vectors": "make_vector"})
