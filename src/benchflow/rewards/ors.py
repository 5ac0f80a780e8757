"""The reward of an ORS episode, from recorded events or whole ORS responses.

`reward_aggregation` says which rewards count and how; `terminal_policy` says what ends the episode. By default the
reward of a response is used, otherwise that of the terminal events, which must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from benchflow.errors import Issue
from benchflow.rewards.aggregate import aggregate
from benchflow.rewards.numbers import UNIT, RewardRange, agree, shown
from benchflow.rewards.ors_events import reward_event
from benchflow.rewards.reward_errors import RewardError
from benchflow.rewards.reward_files import parse_items
from benchflow.rewards.verdict import RewardEvent, RewardItem, Scored, Unscored, Verdict

RewardAggregation = Literal["terminal", "last_non_null", "sum", "mean", "min", "max"]
TerminalPolicy = Literal["declared", "finished_true"]

AGGREGATIONS: Final[tuple[RewardAggregation, ...]] = get_args(RewardAggregation)
TERMINAL_POLICIES: Final[tuple[TerminalPolicy, ...]] = get_args(TerminalPolicy)


@dataclass(frozen=True, slots=True)
class EpisodePolicy:
    """How the reward of an episode is computed from its records."""

    reward_aggregation: RewardAggregation = "terminal"
    """`terminal`: the terminal events, which must agree; `last_non_null`: the last event that has a reward;
    `sum`, `mean`, `min`, `max`: over all events that have one."""
    terminal_policy: TerminalPolicy = "declared"
    """`finished_true`: an event must finish the episode; events after the first such event do not count."""


DEFAULT_POLICY: Final = EpisodePolicy()


@dataclass(frozen=True, slots=True)
class Episode:
    """The content of an episode's records, before its reward is computed."""

    events: tuple[RewardEvent, ...] = ()
    items: tuple[RewardItem, ...] = ()
    headline: float | None = None
    """The reward of the last response, if any."""


def read_episode(records: Sequence[Mapping[str, Any]], reward_range: RewardRange = UNIT) -> Episode:
    """The events, items and headline of all records; raises `RewardError` for the first invalid one."""
    events: list[RewardEvent] = []
    items: list[RewardItem] = []
    headline: float | None = None
    for record in records:
        if _is_response(record) or "events" in record:
            found = _response(record, len(events) + 1, reward_range)
            events.extend(found.events)
            items.extend(found.items)
            headline = headline if found.headline is None else found.headline
        else:
            events.append(reward_event(record, len(events) + 1, reward_range=reward_range))
    return Episode(tuple(events), tuple(items), headline)


def settle_episode(
    episode: Episode,
    policy: EpisodePolicy = DEFAULT_POLICY,
    *,
    strategy: str = "ors-episode",
    reward_range: RewardRange = UNIT,
) -> Scored:
    """The reward of an episode with all its events; raises `RewardError`."""
    counted, late = _counted(episode, policy)
    reward = _aggregated(counted, policy.reward_aggregation, reward_range)
    if episode.headline is not None:
        computed = reward if policy.reward_aggregation != "terminal" else None
        if computed is not None and not agree(computed, episode.headline):
            raise RewardError(
                f"the response states {episode.headline!r}, but its events give {computed!r}"
                f" by {policy.reward_aggregation}",
                code="reward-mismatch",
            )
        reward = episode.headline
    if reward is None:
        raise RewardError("the episode has no reward", code="reward-missing")
    scored = Scored(reward, items=episode.items, events=episode.events, diagnostics=late)
    response = ors_response(scored)
    source = {"source": "ors-episode", "strategy": strategy}
    method = f"ors-{policy.reward_aggregation.replace('_', '-')}"
    return replace(
        scored,
        document={"reward": reward, "metadata": {**source, "ors": response}},
        details={**source, "ors_response": response, "aggregate": {"reward": reward, "method": method}},
    )


def ors_response(verdict: Verdict) -> dict[str, Any]:
    """A verdict as an ORS response. An unscored one is not valid, and its reward is null, not 0."""
    if isinstance(verdict, Unscored):
        metadata: dict[str, Any] = {"items": [], "events": [], "error": verdict.reason}
        return {"reward": None, "is_valid": False, "metadata": metadata}
    items = [asdict(item) for item in verdict.items]
    events = [asdict(event) for event in verdict.events]
    metadata = {"items": items, "events": events, "error": None, "space": "output", "granularity": "terminal"}
    return {"reward": verdict.reward, "is_valid": True, "metadata": metadata}


def _is_response(record: Mapping[str, Any]) -> bool:
    if "reward" not in record:
        return False
    metadata = record.get("metadata")
    return "is_valid" in record or (
        isinstance(metadata, Mapping) and any(key in metadata for key in ("items", "events", "space"))
    )


def _response(record: Mapping[str, Any], start: int, reward_range: RewardRange) -> Episode:
    """The content of a response or of a list of events, which are numbered from `start`."""
    valid = record.get("is_valid", True)
    if valid is not True:
        raise RewardError(f"an ORS response with is_valid {shown(valid)} has no reward", path="is_valid")
    metadata = record.get("metadata")
    extra: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    listed = record.get("events", extra.get("events", []))
    if not isinstance(listed, list):
        raise RewardError(f"events must be a list, not {shown(listed)}", path="events")
    events = (reward_event(event, index, reward_range=reward_range) for index, event in enumerate(listed, start))
    stated = record.get("reward")
    headline = None if stated is None else reward_range.take(stated, "the reward of an ORS response")
    return Episode(tuple(events), _items(record.get("items", extra.get("items"))), headline)


def _items(value: object) -> tuple[RewardItem, ...]:
    """Items given as a list of scored objects or as a mapping from names to scores."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple(RewardItem(str(name), UNIT.take(score, f"items.{name}")) for name, score in value.items())
    return parse_items(value, "items")


def _counted(episode: Episode, policy: EpisodePolicy) -> tuple[tuple[RewardEvent, ...], tuple[Issue, ...]]:
    """The events that count, and a warning about those after the end."""
    if policy.terminal_policy == "declared" or (not episode.events and episode.headline is not None):
        return episode.events, ()
    for index, event in enumerate(episode.events, start=1):
        if event.finished:
            late = len(episode.events) - index
            note = Issue("after-finish", "warning", "", f"{late} events after the end of the episode do not count")
            return episode.events[:index], (note,) if late else ()
    raise RewardError("no event finishes the episode", code="episode-unfinished")


def _aggregated(events: Sequence[RewardEvent], method: RewardAggregation, reward_range: RewardRange) -> float | None:
    if method == "terminal":
        events = [event for event in events if "terminal" in (event.type, event.granularity)]
    rewards = [event.reward for event in events if event.reward is not None]
    if not rewards:
        return None
    if method == "terminal":
        if not all(agree(rewards[0], reward) for reward in rewards):
            raise RewardError("the terminal rewards of the episode disagree", code="reward-mismatch")
        return rewards[-1]
    if method == "last_non_null":
        return rewards[-1]
    named = {str(index): reward for index, reward in enumerate(rewards)}
    if method == "sum":
        total = aggregate("weighted_sum", named, weights=dict.fromkeys(named, 1.0))
        return reward_range.settle(total, "the sum of the rewards")
    return reward_range.settle(aggregate(method, named), f"the {method} of the rewards")
