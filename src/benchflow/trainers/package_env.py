"""`PackageEnv`: a package as a Gymnasium environment. An action is a shell command, or `submit`.

The episode is the one that servers play: the same course, tools, limits and verdicts. `terminated` means that the work
was submitted, `truncated` that a limit was reached or the environment broke. A state without a score has the reward NaN
and `info["unscored"]`, or is an `UnscoredError` with `strict`: it is never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gymnasium

from benchflow.errors import UsageError
from benchflow.gym import PackageBenchmarkConfig, PackageTaskConfig, UnscoredError
from benchflow.gym.driver import ActionDriver
from benchflow.gym.sandbox_container import LOOP
from benchflow.gym.shared import BACKENDS
from benchflow.gym.task import call_settings, named_package
from benchflow.rewards import Attributed
from benchflow.sandbox.factory import AUTO
from benchflow.sandbox.pulling import PullPolicy, PullSettings
from benchflow.serve.episode import SUBMIT, CallResult
from benchflow.serve.package_episode import EpisodeLimits, PackageEpisode
from benchflow.task.package import TaskPackage
from benchflow.trainers.outcomes import (
    Observation,
    Stepped,
    action_space,
    not_an_action,
    observation_space,
    observed,
    take_action,
)


class PackageEnv(gymnasium.Env[Observation, str]):
    """One package; every `reset` starts a new sandbox of it."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - declared so by Gymnasium

    def __init__(
        self,
        package: str | Path | PackageTaskConfig,
        *,
        sandbox: str = AUTO,
        base_image: str | None = None,
        pull: PullPolicy = "missing",
        max_steps: int | None = None,
        time_limit_sec: float | None = None,
        strict: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """`package` is a path (`FILE:PATH` for one in a bundle), or a config of the gym layer with its own settings.

        `max_steps` and `time_limit_sec` (by default the package's) end an episode with the verdict on what is there.
        With `strict`, a state without a score is raised.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"render_mode is 'ansi' or None, not {render_mode!r}.")
        if isinstance(package, PackageTaskConfig):
            self._config = package
        else:
            self._config = _config(package, sandbox=sandbox, base_image=base_image, pull=pull)
        self._calls: Final = call_settings(self._config)
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = action_space()
        self._limits: Final = EpisodeLimits(time_limit_sec, max_steps)
        self._strict: Final = strict
        self._seeded = self._config.seed is not None
        self._episode: PackageEpisode | None = None
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a new sandbox; the observation is the package's prompt. Raises `UnscoredError` if it cannot start.

        The seed is the package's (`BENCHCUBE_SEED`). Later resets without one draw theirs from it; an environment that
        was never seeded gives the package none.
        """
        if options:
            raise UsageError(f"There are no options of reset; got: {', '.join(map(str, options))}.")
        super().reset(seed=seed)
        drawn = self._drawn_seed(seed)
        self._release()
        config = self._config

        async def start() -> tuple[TaskPackage, ActionDriver]:
            package = named_package(config.metadata)
            backend = await BACKENDS.get(package, config.sandbox, config.base_image)
            backend.pulling = PullSettings(config.pull)
            image = config.base_image
            return package, await ActionDriver.start(package, backend, base_image=image, seed=drawn, calls=self._calls)

        episode = PackageEpisode(start, self._limits)
        try:
            prompt = LOOP.run(episode.begin)
        except Attributed as error:
            raise UnscoredError(error.verdict) from error
        self._episode = episode
        observation = observed(CallResult(prompt).text)
        self._shown = observation["text"]
        return observation, {"seed": drawn}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run a command, or `submit`. Nothing is run after the end of an episode."""
        episode = self._episode
        if episode is None or episode.finished:
            raise gymnasium.error.ResetNeeded("The episode is over or has not begun: call reset() first.")
        if not self.action_space.contains(action):
            raise not_an_action(action)
        name, arguments = (SUBMIT, {}) if action.strip() == SUBMIT else ("bash", {"command": action})
        stepped: Stepped = LOOP.run(take_action, episode, name, arguments)
        if self._strict and stepped.unscored is not None:
            raise UnscoredError(stepped.unscored)
        self._shown = f"$ {action}\n{stepped.observation['text']}"
        return stepped.observation, stepped.reward, stepped.terminated, stepped.truncated, stepped.info

    def render(self) -> str | None:
        """The last command and what it printed; the prompt after a reset."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the sandbox with all that runs in it."""
        self._release()

    def _release(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            LOOP.run(episode.close)

    def _drawn_seed(self, seed: int | None) -> int | None:
        if seed is not None:
            self._seeded = True
            return seed
        if self._config.seed is not None and self._np_random is None:
            return self._config.seed
        return int(self.np_random.integers(1 << 31)) if self._seeded else None


def _config(package: str | Path, **settings: Any) -> PackageTaskConfig:
    found = list(PackageBenchmarkConfig(paths=[str(package)], **settings).get_task_configs())
    if len(found) != 1:
        raise UsageError(f"{package} has {len(found)} packages; an environment plays one: name it.")
    return PackageTaskConfig.model_validate(found[0])
