"""Served tasks as what a resources server of NeMo Gym plays (`cube.integrations.nemogym`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio

from benchflow.rewards import Attributed, Unscored
from benchflow.serve.episode import Block, limits_metadata, unscored_metadata, verdict_metadata
from benchflow.serve.served_tasks import ServedTasks
from benchflow.serve.sessions import NoRoom, Session, Sessions, UnknownSession
from cube.core import ActionSchema
from cube.integrations.nemo_episodes import Refusal, Verdict
from cube.integrations.nemogym import CubeResourcesServer

_STATUS: Final[Mapping[str, int]] = {"not_found": 404, "input_validation": 422, "forbidden": 403}


class EpisodePlay:
    """One session, as a resources server plays it."""

    def __init__(self, task_id: str, sessions: Sessions, session: Session) -> None:
        """`session` is ready."""
        self.task_id: Final = task_id
        self._sessions: Final = sessions
        self._session: Final = session

    def prompt(self) -> list[dict[str, Any]]:
        blocks = self._session.prompt
        if all(block.media_type is None for block in blocks):
            return [{"role": "user", "content": "\n".join(block.data for block in blocks)}]
        return [{"role": "user", "content": [_part(block) for block in blocks]}]

    def tools(self) -> list[ActionSchema]:
        return [
            ActionSchema(name=tool.name, description=tool.description, parameters=dict(tool.input_schema))
            for tool in self._session.begun.tools()
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            pending = self._sessions.call(self._session, name, arguments)
        except NoRoom as error:
            raise Refusal(503, str(error)) from error
        with self._session.in_use():
            await pending.done.wait()
        if pending.refused is not None:
            raise Refusal(_STATUS.get(pending.refused.reason, 409), str(pending.refused))
        if pending.result is None:
            reason = pending.failed.verdict.reason if pending.failed is not None else "the session has ended"
            raise Refusal(500, f"The environment failed: {reason}")
        result = pending.result
        unseen = sum(block.media_type is not None for block in result.blocks)
        return f"{result.text}\n[{unseen} images are not shown]" if unseen else result.text

    async def verdict(self) -> Verdict:
        try:
            verdict = await self._sessions.finish(self._session)
        except UnknownSession as error:
            raise Refusal(404, str(error)) from error
        limits = limits_metadata(self._session.begun.progress)
        if isinstance(verdict, Unscored):
            return Verdict(None, unscored_metadata(verdict)["error"], limits)
        return Verdict(verdict.reward, None, {**verdict_metadata(verdict), **limits})

    async def close(self) -> None:
        with suppress(UnknownSession), anyio.CancelScope(shield=True):
            await self._sessions.end(self._session.id)


class EpisodePlays:
    """The episodes of all served tasks. With several environments, an id begins with the name of its environment."""

    def __init__(self, tasks: ServedTasks, sessions: Sessions) -> None:
        self._sessions: Final = sessions
        alone = len(tasks.environments) == 1
        listed = [task for environment in tasks.environments.values() for task in environment.all_tasks()]
        self._known: Final = {task.id if alone else f"{task.environment}/{task.id}": task for task in listed}

    def task_ids(self) -> Sequence[str]:
        return tuple(self._known)

    async def begin(self, task_id: str, seed: int | None) -> EpisodePlay:
        try:
            session = self._sessions.begin(self._known[task_id].seeded(seed))
        except NoRoom as error:
            raise Refusal(503, str(error)) from error
        play = EpisodePlay(task_id, self._sessions, session)
        try:
            await session.wait_ready()
        except Attributed as error:
            await play.close()
            verdict = error.verdict
            sentence = f"The episode did not begin: {verdict.category}/{verdict.code}: {verdict.reason}"
            raise Refusal(500, sentence) from error
        except BaseException:
            await play.close()
            raise
        return play

    async def close(self) -> None:
        """Nothing of its own to close: the server closes its sessions."""


def _part(block: Block) -> dict[str, Any]:
    if block.media_type is None:
        return {"type": "text", "text": block.data}
    return {"type": "image_url", "image_url": {"url": f"data:{block.media_type};base64,{block.data}"}}


def nemo_gym_server(
    tasks: ServedTasks, sessions: Sessions, *, reap_sec: float, mask_unscored: bool
) -> CubeResourcesServer:
    """The resources server of served tasks; how many episodes there may be is for `sessions` to say."""
    plays = EpisodePlays(tasks, sessions)
    return CubeResourcesServer(plays, max_sessions=sys.maxsize, idle_sec=reap_sec, mask_unscored=mask_unscored)
