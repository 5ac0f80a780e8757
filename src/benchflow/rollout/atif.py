"""A rollout's folder as an ATIF 1.x trajectory, rewards included.

Prompts become user steps; what the agent thought, said and called between two prompts becomes agent steps, each tool
call with its result in the same step; rewards become system steps that carry the event in `extra`. A call of a model
counts for the agent step that it led to; the calls themselves are in `extra` of the document, as they were recorded.

Of an arena, the steps of each role are its own (`extra.role`), and what peers sent each other ends a step; the game,
its messages and its tool calls are in `extra` of the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from benchflow.errors import UsageError
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.models.gateway.wire_answers import read_tokens
from benchflow.record import (
    ArenaPart,
    CallParts,
    Event,
    ModelCall,
    Result,
    RewardLine,
    RolloutFolder,
    read_messages,
    read_model_calls,
    read_rewards,
    read_tool_calls,
    read_trajectory,
)
from benchflow.record.codec import plain
from benchflow.record.reading.atif_steps import KNOWN_USAGE, VERSION, atif_steps, with_values


def export_atif(folder: Path) -> dict[str, Any]:
    """The ATIF document of a rollout's folder with its newest verdict; a folder without a result is a `UsageError`."""
    places = RolloutFolder(folder)
    newest = places.newest()
    try:
        result = Result.from_dict(parse_json(newest.result.read_bytes()))
    except StrictJSONError as error:
        raise UsageError(f"{newest.result} {error}.", code="not-a-rollout") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} has no result of a rollout: {error}", code="not-a-rollout") from error
    document = to_atif(
        result,
        read_trajectory(places.trajectory),
        read_rewards(newest.rewards),
        name=folder.name,
        calls=read_model_calls(places.model_calls),
        parts=CallParts(places),
    )
    if "model_calls" in document["extra"]:
        files = sorted(places.model_call_parts.glob("[0-9a-f]*"))
        document["extra"]["model_call_parts"] = {
            f"sha256:{file.name}": file.read_text(encoding="utf-8", errors="replace") for file in files
        }
    if result.arena is not None:
        document["extra"] |= _exchange(places, result.arena)
    return document


def _exchange(places: RolloutFolder, arena: ArenaPart) -> dict[str, Any]:
    """What an arena leaves, with the large parts of its messages by digest."""
    return {
        "arena": plain(arena),
        "a2a_messages": [plain(message) for message in read_messages(places.a2a_messages)],
        **with_values(
            a2a_tool_calls=[plain(call) for call in read_tool_calls(places.a2a_tool_calls)],
            a2a_message_parts=dict(_message_parts(places)),
        ),
    }


def _message_parts(places: RolloutFolder) -> Iterator[tuple[str, Any]]:
    """The large parts of messages; damaged ones are left out."""
    for file in sorted(places.a2a_parts.glob("[0-9a-f]*")):
        with suppress(OSError, ValueError, RecursionError):
            yield f"sha256:{file.name}", json.loads(file.read_bytes())


def to_atif(
    result: Result,
    events: Iterable[Event],
    rewards: Iterable[RewardLine] = (),
    *,
    name: str | None = None,
    calls: Iterable[ModelCall] = (),
    parts: CallParts | None = None,
) -> dict[str, Any]:
    """The ATIF document of a result, its events, its reward events and its calls of models."""
    agent = result.agent
    made = list(calls)
    acted = list(atif_steps(events, agent.model, result.arena))
    _count_calls([step for step in acted if step["source"] == "agent"], made, parts)
    steps = [*acted, *(_reward_step(reward) for reward in rewards)]
    if not steps:
        steps = [{"source": "system", "message": "Nothing happened."}]
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": name or result.key,
        "agent": {"name": agent.name, "version": "unknown", **with_values(model_name=agent.model)},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": _final_metrics(result.usage, len(steps)),
        "extra": {
            "task": plain(result.task),
            **plain(result.outcome),
            **({"model_calls": [plain(call) for call in made]} if made else {}),
        },
    }
    return document


def _count_calls(steps: list[dict[str, Any]], calls: Iterable[ModelCall], parts: CallParts | None) -> None:
    """Give every answered call of the agent to the first step after its answer, or to the last one."""
    if not steps:
        return
    by_step: dict[int, list[ModelCall]] = {}
    for call in calls:
        if call.outcome != "answered" or call.place.source != "agent" or not call.usage:
            continue
        ended = _moment(call.time) + call.timing.get("total", 0.0)
        own = [at for at, step in enumerate(steps) if step.get("extra", {}).get("role") in (None, call.place.role)]
        places = own or list(range(len(steps)))
        at = next((at for at in places if _moment(steps[at].get("timestamp")) >= ended), places[-1])
        by_step.setdefault(at, []).append(call)
    for at, given in by_step.items():
        step = steps[at]
        totals = {
            KNOWN_USAGE[name]: sum(call.usage.get(name, 0) for call in given)
            for name in KNOWN_USAGE
            if any(name in call.usage for call in given)
        }
        tokens = _tokens(given[0], parts) if len(given) == 1 else {}
        step["metrics"] = {**step.get("metrics", {}), **totals, **tokens}
        step["llm_call_count"] = len(given)
        step["extra"] = {**step.get("extra", {}), "model_calls": [call.seq for call in given]}


def _tokens(call: ModelCall, parts: CallParts | None) -> dict[str, Any]:
    try:
        body = parts.answer(call) if parts is not None else b""
    except ValueError:
        return {}
    found = read_tokens(call.dialect, body, stream=call.stream)
    return with_values(
        prompt_token_ids=list(found.prompt_ids), completion_token_ids=list(found.ids), logprobs=list(found.logprobs)
    )


def _moment(text: str | None) -> float:
    """Seconds of a time stamp; 0 for none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def _reward_step(reward: RewardLine) -> dict[str, Any]:
    return {
        "source": "system",
        "message": f"Reward {reward.tag or reward.source}: {reward.value}",
        **with_values(timestamp=reward.ts),
        "extra": {"reward": plain(reward)},
    }


def _final_metrics(usage: Mapping[str, float], steps: int) -> dict[str, Any]:
    totals = {
        "total_prompt_tokens": usage.get("input_tokens"),
        "total_completion_tokens": usage.get("output_tokens"),
        "total_cached_tokens": usage.get("cached_tokens"),
        "total_cost_usd": usage.get("cost_usd"),
    }
    return {**with_values(**totals), "total_steps": steps}
