"""What trainers see of an episode: spaces, observations, and what a step returns.

A state without a score has the reward NaN and `info["unscored"]`: it is never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium.spaces import Box, Dict

from benchflow.errors import UsageError
from benchflow.rewards import Attributed, Unscored
from benchflow.serve.episode import SUBMIT, CallRefused, CallResult, Episode
from benchflow.trainers.text_space import AnyText

LONGEST_ACTION: Final = 100_000
"""Characters of a command; the kernel takes 128 KiB."""
LONGEST_TEXT: Final = 1 << 20
"""Characters of an observation. Prompts are never shortened, and the output of a command already is."""
NO_EXIT_CODE: Final = 0

Observation = dict[str, Any]


def observation_space() -> Dict:
    return Dict(text=AnyText(LONGEST_TEXT), exit_code=Box(-255, 255, (), np.int64))


def action_space() -> AnyText:
    return AnyText(LONGEST_ACTION)


def not_an_action(action: object) -> UsageError:
    return UsageError(f"An action is a text of at most {LONGEST_ACTION:,} characters, not {str(action)[:60]!r}.")


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step returns."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    unscored: Unscored | None = None
    """Why the state has no score, if it was to have one."""


async def take_action(episode: Episode, name: str, arguments: Mapping[str, Any]) -> Stepped:
    """Call a tool of an episode; what cannot be called changes nothing and says why."""
    try:
        result = await episode.call(name, arguments)
    except CallRefused as refused:
        return _stepped(str(refused), CallResult((), metadata={"refused": refused.reason}), None)
    except Attributed as error:
        return broken(error.verdict)
    verdict = episode.verdict if isinstance(episode.verdict, Unscored) else None
    return _stepped(result.text, result, verdict)


def broken(verdict: Unscored) -> Stepped:
    """The step in which an environment broke, or could not start again."""
    return _stepped(str(verdict.reason), CallResult((), finished=True), verdict)


def observed(text: str, metadata: Mapping[str, Any] | None = None) -> Observation:
    if len(text) > LONGEST_TEXT:
        raise UsageError(f"A text of {len(text):,} characters exceeds the {LONGEST_TEXT:,} of an observation.")
    code = (metadata or {}).get("exit_code", NO_EXIT_CODE)
    return {"text": text, "exit_code": np.array(code, np.int64)}


def _stepped(text: str, result: CallResult, verdict: Unscored | None) -> Stepped:
    info = _info(result, verdict)
    limited = result.finished and info["ended_by"] != SUBMIT
    unscored = info.get("unscored")
    reward = float("nan") if unscored is not None else result.reward or 0.0
    return Stepped(
        observed(text, result.metadata),
        reward,
        result.finished and not limited,
        limited,
        info,
        verdict or (Unscored(**unscored) if unscored is not None else None),
    )


def _info(result: CallResult, verdict: Unscored | None) -> dict[str, Any]:
    """What is known beside the reward: `scored` where a state was verified, with its metrics or the reason."""
    metadata = dict(result.metadata)
    info = {key: value for key, value in metadata.items() if key not in ("exit_code", "status", "rewards", "error")}
    images = tuple(f"data:{block.media_type};base64,{block.data}" for block in result.blocks if block.media_type)
    if images:
        info["images"] = images
    if result.finished:
        info.setdefault("ended_by", SUBMIT if verdict is None or metadata else "environment")
    if verdict is not None:
        names = ("category", "phase", "code", "reason")
        return {**info, "scored": False, "unscored": {name: str(getattr(verdict, name)) for name in names}}
    if metadata.get("status") == "unscored":  # of a step on the way
        return {**info, "scored": False, "unscored": dict(metadata["error"])}
    if result.reward is not None:
        rewards = metadata.get("rewards") or {"reward": result.reward}
        info |= {"scored": True, "rewards": {name: float(value) for name, value in rewards.items()}}
    return info
