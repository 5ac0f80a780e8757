"""`ors-episode`: the reward of an episode from its recorded events or responses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from benchflow.rewards import EpisodePolicy, Scored, parse_records, read_episode, settle_episode
from benchflow.task.strategies import ORSEpisodeStrategy
from benchflow.verifier.inputs import gather
from benchflow.verifier.run import Run


async def score(run: Run) -> Scored:
    """Read every declared input and settle the episode by the declared policy."""
    strategy = run.strategy
    if not isinstance(strategy, ORSEpisodeStrategy):
        raise TypeError(f"{run.name} is no episode")
    records: list[Any] = []
    read = []
    for item in await gather(run, strategy.inputs):
        found = parse_records(item.data, name=item.path, form=strategy.format)  # type: ignore[arg-type] # a known word
        read.append({"path": item.path, "records": len(found)})
        records += found
    policy = EpisodePolicy(strategy.reward_aggregation, strategy.terminal_policy)  # type: ignore[arg-type] # known words
    episode = read_episode(records, run.scope.reward_range)
    scored = settle_episode(episode, policy, strategy=run.name, reward_range=run.scope.reward_range)
    details = scored.details if isinstance(scored.details, dict) else {}
    return replace(scored, details=json.loads(json.dumps({**details, "inputs": read})))
