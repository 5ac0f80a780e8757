"""`Episode`: one task under way, as every wire plays it: a prompt, tools, calls, and one end.

Calls of an episode run one after the other. The first call that ends it decides: later ones are refused, and nothing is
verified twice. An end without a score has no reward: `reward` is None and `metadata` says why (`unscored_metadata`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import anyio

from benchflow.rewards import Attributed, Scored, Unscored, Verdict, attribute
from benchflow.serve.discretion import Discretion
from benchflow.serve.tool_arguments import given_arguments, wrong_arguments

SUBMIT: Final = "submit"
Call = tuple[str, Mapping[str, Any]]
"""The name of a tool, and its arguments."""
Reason = Literal["not_found", "input_validation", "episode_finished", "not_begun"]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a prompt or of a result: text, or an image as base64 with its media type."""

    data: str
    media_type: str | None = None
    """None for text."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its name, what it does, and the JSON schema of its arguments, which is always one of an object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call gave. `reward` is None where there is none, which is never the same as 0."""

    blocks: tuple[Block, ...]
    reward: float | None = None
    finished: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its text blocks."""
        return "\n".join(block.data for block in self.blocks if block.media_type is None)


class CallRefused(Exception):
    """A call that was not carried out and changed nothing; `str()` is a sentence for the caller."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Final[Reason] = reason


def text_blocks(text: str) -> tuple[Block, ...]:
    return (Block(text),)


def unscored_metadata(verdict: Unscored) -> dict[str, Any]:
    """How an end without a score travels on every wire."""
    error = {name: str(getattr(verdict, name)) for name in ("category", "code", "phase", "reason")}
    return {"status": "unscored", "error": error}


def verdict_metadata(verdict: Verdict) -> dict[str, Any]:
    """What is said of an end beside its reward."""
    if isinstance(verdict, Unscored):
        return unscored_metadata(verdict)
    return {"status": "scored", "rewards": {"reward": verdict.reward, **verdict.metrics}}


def ended(verdict: Verdict, text: str, **more: Any) -> CallResult:
    """The result of the call that ends an episode."""
    reward = verdict.reward if isinstance(verdict, Scored) else None
    return CallResult(text_blocks(text), reward, True, {**verdict_metadata(verdict), **more})


@dataclass(slots=True)
class Progress:
    """What an episode has come to."""

    verdict: Verdict | None = None
    """Set when it is over."""
    began: bool = False
    closed: bool = False
    calls: int = 0
    """How many calls were carried out."""
    limits_reached: tuple[str, ...] = ()
    """Limits at which calls of models by its judges or its user were refused."""
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by the call that runs."""


def limits_metadata(progress: Progress) -> dict[str, Any]:
    """Which limits on calls of models were reached, if any."""
    return {"limits_reached": list(progress.limits_reached)} if progress.limits_reached else {}


class Episode(ABC):
    """One task under way. `begin` first, then calls; `close` always, at any time and from any state."""

    def __init__(self, discretion: Discretion | None = None) -> None:
        self.progress: Final = Progress()
        self._discretion: Final = discretion or Discretion()

    @property
    def verdict(self) -> Verdict | None:
        """How it ended, with the whole reason; None while it has not. Clients get what results say."""
        return self.progress.verdict

    @property
    def finished(self) -> bool:
        return self.progress.verdict is not None

    async def begin(self) -> tuple[Block, ...]:
        """Start it and return its prompt. `Attributed` if it cannot start; then it is over, unscored."""
        progress = self.progress
        async with progress.turn:
            try:
                prompt = await self._begin()
            except Exception as error:
                raise await self._broken(error, "environment") from error
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._release()
                raise
            progress.began = True
            return prompt

    @abstractmethod
    def tools(self) -> tuple[ToolSpec, ...]:
        """What can be called now; known before `begin` where it does not depend on the state."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Carry out a call; `CallRefused` if it cannot be made, `Attributed` if the environment broke: that ends it."""
        progress = self.progress
        async with progress.turn:
            arguments = self._required_open(name, arguments)
            progress.calls += 1
            try:
                result = await self._call(name, arguments)
            except CallRefused:
                raise
            except Exception as error:
                raise await self._broken(error, "agent") from error
            if result.finished:
                await self._release()
            return result

    async def finish(self) -> Verdict:
        """End it if it has not ended, and score what is there: the same verdict every time, for clients."""
        progress = self.progress
        async with progress.turn:
            if progress.verdict is None:
                if progress.closed or not progress.began:
                    raise CallRefused("not_begun", "There is no episode to score: it has not begun, or it was closed.")
                try:
                    progress.verdict = await self._finish()
                except Exception as error:  # noqa: BLE001 - whatever fails means that there is no score
                    return (await self._broken(error, "agent")).verdict
                await self._release()
            return self._discretion.told(progress.verdict)

    def _required_open(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call that can be made now; `CallRefused` if it cannot."""
        progress = self.progress
        if progress.verdict is not None or progress.closed:
            raise CallRefused("episode_finished", "The episode is over: no further calls are accepted.")
        if not progress.began:
            raise CallRefused("not_begun", "The episode has not begun.")
        known = {tool.name: tool for tool in self.tools()}
        if name not in known:
            raise CallRefused("not_found", f"Unknown tool '{name[:100]}'; available: {', '.join(known)}.")
        schema = known[name].input_schema
        arguments = given_arguments(schema, arguments)
        wrong = wrong_arguments(schema, arguments)
        if wrong is not None:
            raise CallRefused("input_validation", f"{name}: {wrong}")
        return arguments

    async def _broken(self, error: Exception, phase: Literal["environment", "agent"]) -> Attributed:
        """The environment failed: the episode is over without a score."""
        verdict = attribute(error, "environment" if phase == "environment" else "sandbox", phase)
        self.progress.verdict = verdict
        await self._release()
        return Attributed(self._discretion.told_unscored(verdict))

    async def close(self) -> None:
        """End it with all that runs in it; safe to call again. A call that runs is waited for: cancel it first."""
        progress = self.progress
        progress.closed = True
        with anyio.CancelScope(shield=True):
            async with progress.turn:
                await self._release()

    @property
    def scores_groups(self) -> bool:
        """Whether several ways to go on can be scored without taking one."""
        return False

    async def scored_copy(self, calls: Sequence[Call]) -> Verdict:
        """The verdict on a copy on which these calls were made."""
        del calls
        raise CallRefused("not_found", "This episode does not score groups.")

    @abstractmethod
    async def _begin(self) -> tuple[Block, ...]: ...

    @abstractmethod
    async def _call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """A call of a known tool with valid arguments. One that ends the episode sets `progress.verdict`."""

    @abstractmethod
    async def _finish(self) -> Verdict:
        """The verdict on what is there, whatever the episode would still have asked for."""

    @abstractmethod
    async def _release(self) -> None:
        """Free what it holds; idempotent."""

    def _with_reward(self, result: CallResult, verdict: Verdict) -> CallResult:
        """The result of a call that does not end the episode, with the reward of the state after it."""
        told = self._discretion.told(verdict)
        if isinstance(told, Scored):
            return replace(result, reward=told.reward)
        return replace(result, metadata={**result.metadata, **unscored_metadata(told)})

    def _end(self, verdict: Verdict, text: str, **more: Any) -> CallResult:
        self.progress.verdict = verdict
        return ended(self._discretion.told(verdict), text, **more)


async def score_calls(episode: Episode, candidates: Sequence[Sequence[Call]]) -> list[Verdict]:
    """The verdicts on what each list of calls makes of the current state, which stays as it is.

    `CallRefused` if the episode cannot do that.
    """
    progress = episode.progress
    async with progress.turn:
        if progress.verdict is not None or progress.closed or not progress.began or not episode.scores_groups:
            raise CallRefused("not_found", "This episode does not score groups.")
        return [await episode.scored_copy(calls) for calls in candidates]
