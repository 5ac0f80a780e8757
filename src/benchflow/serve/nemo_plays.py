"""Served tasks as what a resources server of NeMo Gym plays (`cube.integrations.nemogym`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchflow.rewards import Attributed, Unscored
from benchflow.serve.episode import Block, CallRefused, Episode, unscored_metadata, verdict_metadata
from benchflow.serve.served_tasks import ServedTask, ServedTasks
from cube.core import ActionSchema
from cube.integrations.nemo_episodes import Refusal, Verdict

Open = Callable[[ServedTask, int | None], Episode]
"""A new episode of a task, not begun; the seed goes to cubes."""
_STATUS: Final[Mapping[str, int]] = {"not_found": 404, "input_validation": 422, "forbidden": 403}


class EpisodePlay:
    """One episode, as a resources server plays it."""

    def __init__(self, task_id: str, episode: Episode, prompt: Sequence[Block]) -> None:
        """`episode` has begun."""
        self.task_id: Final = task_id
        self._episode: Final = episode
        self._prompt: Final = tuple(prompt)

    def prompt(self) -> list[dict[str, Any]]:
        if all(block.media_type is None for block in self._prompt):
            return [{"role": "user", "content": "\n".join(block.data for block in self._prompt)}]
        return [{"role": "user", "content": [_part(block) for block in self._prompt]}]

    def tools(self) -> list[ActionSchema]:
        return [
            ActionSchema(name=tool.name, description=tool.description, parameters=dict(tool.input_schema))
            for tool in self._episode.tools()
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            result = await self._episode.call(name, arguments)
        except CallRefused as refusal:
            raise Refusal(_STATUS.get(refusal.reason, 409), str(refusal)) from refusal
        except Attributed as error:
            raise Refusal(500, f"The environment failed: {error.verdict.reason}") from error
        unseen = sum(block.media_type is not None for block in result.blocks)
        return f"{result.text}\n[{unseen} images are not shown]" if unseen else result.text

    async def verdict(self) -> Verdict:
        verdict = await self._episode.finish()
        if isinstance(verdict, Unscored):
            return Verdict(None, unscored_metadata(verdict)["error"])
        return Verdict(verdict.reward, None, verdict_metadata(verdict))

    async def close(self) -> None:
        await self._episode.close()


class EpisodePlays:
    """The episodes of all served tasks. With several environments, an id begins with the name of its environment."""

    def __init__(self, tasks: ServedTasks, open_episode: Open) -> None:
        self._open: Final = open_episode
        environments = tasks.environments.values()
        alone = len(tasks.environments) == 1
        listed = [task for environment in environments for task in environment.all_tasks()]
        self._known: Final = {task.id if alone else f"{task.environment}/{task.id}": task for task in listed}

    def task_ids(self) -> Sequence[str]:
        return tuple(self._known)

    async def begin(self, task_id: str, seed: int | None) -> EpisodePlay:
        episode = self._open(self._known[task_id], seed)
        try:
            return EpisodePlay(task_id, episode, await episode.begin())
        except Attributed as error:
            await episode.close()
            verdict = error.verdict
            sentence = f"The episode did not begin: {verdict.category}/{verdict.code}: {verdict.reason}"
            raise Refusal(500, sentence) from error
        except BaseException:
            await episode.close()
            raise

    async def close(self) -> None:
        """Nothing of its own to close: the episodes share what the server closes."""


def _part(block: Block) -> dict[str, Any]:
    if block.media_type is None:
        return {"type": "text", "text": block.data}
    return {"type": "image_url", "image_url": {"url": f"data:{block.media_type};base64,{block.data}"}}
