"""`make_vector`: packages and cubes as one vector environment, on this machine or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gymnasium.vector import AutoresetMode

from benchflow.errors import UsageError
from benchflow.sandbox.factory import AUTO
from benchflow.sandbox.pulling import PullPolicy
from benchflow.serve.opening import EpisodeSettings, Opener
from benchflow.serve.package_episode import EpisodeLimits
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.episode_orders import MOST_EPISODES
from benchflow.trainers.vector_env import WAIT_SEC, EpisodeVectorEnv

Engine = Literal["local", "ray"]


def make_vector(
    sources: str | Path | Sequence[str | Path],
    num_envs: int,
    *,
    engine: Engine = "local",
    address: str | None = None,
    sandbox: str = AUTO,
    base_image: str | None = None,
    pull: PullPolicy = "missing",
    isolation: str | None = None,
    max_steps: int | None = None,
    time_limit_sec: float | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    per_node: int = MOST_EPISODES,
    wait_sec: float = WAIT_SEC,
) -> EpisodeVectorEnv:
    """A vector of `num_envs` environments over the tasks of packages, folders of them, bundles and `cube:NAME`.

    `engine="ray"` plays on the nodes of the cluster at `address` (`RAY_ADDRESS`, or the one of this machine), at most
    `per_node` on each; a reset waits up to `wait_sec` for a node. Raises `UsageError` if there are fewer places than
    environments.
    """
    if engine not in ("local", "ray"):
        raise UsageError(f"The engine is 'local' or 'ray', not {engine!r}.")
    if address is not None and engine != "ray":
        raise UsageError("An address belongs to the engine 'ray'.")
    named = [str(each) for each in ([sources] if isinstance(sources, str | Path) else sources)]
    settings = EpisodeSettings(sandbox, base_image, pull, isolation, EpisodeLimits(time_limit_sec, max_steps))
    opener: Opener | ClusterOpener
    if engine == "ray":
        from benchflow.serve.remote.ray_opener import ray_opener

        opener = ray_opener(named, settings, address, most=per_node)
    else:
        opener = Opener(named, settings)
    return EpisodeVectorEnv(opener, num_envs, autoreset_mode=autoreset_mode, wait_sec=wait_sec)
