"""`ors-episode`: the reward of an episode from its recorded events or responses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from benchflow.rewards import EpisodePolicy, RewardError, Scored, parse_records, read_episode, settle_episode
from benchflow.task.verifier.declared_strategies import ORSEpisodeStrategy
from benchflow.verifier.inputs import Input, NotDelivered, Undelivered, gather, is_deliverable
from benchflow.verifier.strategy_run import Run


async def score(run: Run) -> Scored:
    """Read every declared input and score the episode by the declared policy."""
    strategy = run.strategy
    if not isinstance(strategy, ORSEpisodeStrategy):
        raise TypeError(f"{run.name} is not an episode")
    inputs = await gather(run, strategy.inputs)
    try:
        scored, read = _settled(run, strategy, inputs)
    except RewardError as error:
        delivered = [item.path for item in inputs if is_deliverable(item.path)]
        if not delivered:
            raise
        raise NotDelivered([Undelivered(path, f"{path} contains no episode: {error}") for path in delivered]) from error
    details = scored.details if isinstance(scored.details, dict) else {}
    return replace(scored, details=json.loads(json.dumps({**details, "inputs": read})))


def _settled(run: Run, strategy: ORSEpisodeStrategy, inputs: list[Input]) -> tuple[Scored, list[dict[str, Any]]]:
    """The episode's reward, and the number of events read from each input."""
    records: list[Any] = []
    read = []
    for item in inputs:
        found = parse_records(item.data, name=item.path, form=strategy.format)  # type: ignore[arg-type] # a known word
        read.append({"path": item.path, "records": len(found)})
        records += found
    policy = EpisodePolicy(strategy.reward_aggregation, strategy.terminal_policy)  # type: ignore[arg-type] # known words
    episode = read_episode(records, run.scope.reward_range)
    return settle_episode(episode, policy, strategy=run.name, reward_range=run.scope.reward_range), read
