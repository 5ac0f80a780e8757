"""What a resources server of NeMo Gym plays: `Play` is one episode, `Plays` begins them, `CubePlays` those of a cube.

A server of something else than a cube is given other `Plays`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from cube.benchmark import Benchmark, BenchmarkConfig, make_benchmark
from cube.core import Action, ActionSchema, Observation, StructuredContent, TextContent
from cube.resource import InfraConfig
from cube.stage import Stage, over_sentence
from cube.task import STOP_ACTION, TaskConfig

_STOP: Final = Action(name=STOP_ACTION.name)


class Refusal(Exception):
    """A request that was not carried out: the status of the reply, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status: Final = status


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an episode ended: with a reward, or without one and why."""

    reward: float | None
    unscored: Mapping[str, str] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of the score, as JSON."""


class Play(Protocol):
    """One episode under way."""

    @property
    def task_id(self) -> str: ...

    def prompt(self) -> list[dict[str, Any]]:
        """What it begins with, as chat messages."""

    def tools(self) -> Sequence[ActionSchema]:
        """What can be called now."""

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of a tool as text for a model. A `Refusal` if it cannot be called."""

    async def verdict(self) -> Verdict:
        """End the episode if it has not ended, and say how. The same answer every time."""

    async def close(self) -> None:
        """Free what it holds; safe to call again."""


class Plays(Protocol):
    """All episodes of a server."""

    def task_ids(self) -> Sequence[str]: ...

    async def begin(self, task_id: str, seed: int | None) -> Play:
        """A new episode at its first observation; after an error nothing runs."""

    async def close(self) -> None: ...


class CubePlay:
    """An episode of a cube's task, in a thread of its own."""

    def __init__(self, task_id: str, stage: Stage) -> None:
        """`stage` is reset."""
        self.task_id: Final = task_id
        self._stage: Final = stage
        self._verdict: Verdict | None = None
        self._closed = False
        self._turn: Final = anyio.Lock()
        """Held by the call that runs."""

    def prompt(self) -> list[dict[str, Any]]:
        return self._stage.episode.objective.to_llm_messages()

    def tools(self) -> list[ActionSchema]:
        return list(self._stage.task.action_set)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        async with self._turn:
            if self._verdict is not None:
                raise Refusal(409, over_sentence(self._stage.episode.reason or "it has been scored"))
            offered = [action.name for action in await self._run(self.tools)]
            if name not in offered:
                raise Refusal(404, f"Unknown tool '{name[:100]}'; available: {', '.join(offered)}.")
            return await self._step(Action(name=name, arguments=arguments))

    async def verdict(self) -> Verdict:
        async with self._turn:
            if self._verdict is None:
                if self._stage.task.accept_agent_stop:
                    await self._step(_STOP)
                else:
                    self._verdict = await self._run(self._evaluated)
            return self._verdict or Verdict(None, {"reason": "The task did not end."})

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stage.shut_down)

    async def _run(self, function: Callable[[], Any]) -> Any:
        return await self._stage.thread.run(function)

    async def _step(self, action: Action) -> str:
        output, unscored = await self._run(partial(self._stage.step, action))
        text = text_of(output.obs)
        if output.error is not None:
            text = "\n".join(filter(None, (text, f"{output.error.error_type}: {output.error.exception_str}")))
        if output.done:
            details = {key: value for key, value in output.info.items() if key != "profiling"}
            self._verdict = Verdict(None, unscored) if unscored else Verdict(output.reward, None, details)
            text = "\n".join(filter(None, (text, over_sentence(self._stage.episode.reason))))
        return text

    def _evaluated(self) -> Verdict:
        reward, info = self._stage.evaluate(self._stage.episode.latest)
        return Verdict(None, info["unscored"]) if reward is None else Verdict(reward, None, info)


class CubePlays:
    """The episodes of a benchmark, which is made with the first one."""

    def __init__(self, config: BenchmarkConfig[Any], infra: InfraConfig | None = None) -> None:
        self._config: Final = config
        self._infra: Final = infra
        self._known: Final[dict[str, TaskConfig[Any]]] = {each.task_id: each for each in config.get_task_configs()}
        self._benchmark: Benchmark[Any] | None = None
        self._making: Final = anyio.Lock()
        """Held while the benchmark is made."""

    def task_ids(self) -> Sequence[str]:
        return tuple(self._known)

    async def begin(self, task_id: str, seed: int | None) -> CubePlay:
        config = self._known[task_id]
        if seed is not None:
            config = config.model_copy(update={"seed": seed})
        async with self._making:
            if self._benchmark is None:
                self._benchmark = await anyio.to_thread.run_sync(make_benchmark, self._config, self._infra)
        stage = Stage(lambda _: config, self._benchmark.spawn)
        play = CubePlay(task_id, stage)
        try:
            await stage.thread.run(stage.reset, task_id)
        except BaseException:
            await play.close()
            raise
        return play

    async def close(self) -> None:
        benchmark, self._benchmark = self._benchmark, None
        if benchmark is not None:
            await anyio.to_thread.run_sync(benchmark.close)


def text_of(obs: Observation) -> str:
    """An observation as text for a model: the protocol has no place for images, so they are named."""
    parts = []
    for content in obs.contents:
        plain = isinstance(content, TextContent | StructuredContent)
        parts.append(str(content._llm_content()) if plain else f"[{type(content).__name__} is not shown]")
    return "\n".join(parts)
