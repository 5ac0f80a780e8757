"""Rewards: reward files, aggregation, rubrics, combined rewards, and the resulting verdict. Pure.

What only some strategies need (gains, hybrids, episodes, rubrics) is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchflow.rewards.aggregate import AggregatePolicy, aggregate, parse_policy
from benchflow.rewards.attribution import Attributed, attribute, attributed
from benchflow.rewards.numbers import UNIT, RewardRange
from benchflow.rewards.reward_errors import RewardError
from benchflow.rewards.reward_files import read_reward, write_reward
from benchflow.rewards.reward_map import settle
from benchflow.rewards.verdict import (
    Factor,
    RewardEvent,
    RewardItem,
    Scored,
    Unscored,
    Verdict,
    verdict_from_dict,
)

if TYPE_CHECKING:
    from benchflow.rewards.gain_reward import Gain, gain, gain_verdict
    from benchflow.rewards.hybrid_reward import FactorSpec, HybridPolicy, parse_hybrid
    from benchflow.rewards.ors import Episode, EpisodePolicy, ors_response, read_episode, settle_episode
    from benchflow.rewards.ors_events import parse_records, render_events, reward_event, tool_output_events
    from benchflow.rewards.rubric import Criterion, JudgeSettings, Rubric
    from benchflow.rewards.rubric_file import load_rubric, parse_rubric

_HOMES = {
    "gain_reward": ("Gain", "gain", "gain_verdict"),
    "hybrid_reward": ("FactorSpec", "HybridPolicy", "parse_hybrid"),
    "ors": ("Episode", "EpisodePolicy", "ors_response", "read_episode", "settle_episode"),
    "ors_events": ("parse_records", "render_events", "reward_event", "tool_output_events"),
    "rubric": ("Criterion", "JudgeSettings", "Rubric"),
    "rubric_file": ("load_rubric", "parse_rubric"),
}

__all__ = [
    "UNIT",
    "AggregatePolicy",
    "Attributed",
    "Criterion",
    "Episode",
    "EpisodePolicy",
    "Factor",
    "FactorSpec",
    "Gain",
    "HybridPolicy",
    "JudgeSettings",
    "RewardError",
    "RewardEvent",
    "RewardItem",
    "RewardRange",
    "Rubric",
    "Scored",
    "Unscored",
    "Verdict",
    "aggregate",
    "attribute",
    "attributed",
    "gain",
    "gain_verdict",
    "load_rubric",
    "ors_response",
    "parse_hybrid",
    "parse_policy",
    "parse_records",
    "parse_rubric",
    "read_episode",
    "read_reward",
    "render_events",
    "reward_event",
    "settle",
    "settle_episode",
    "tool_output_events",
    "verdict_from_dict",
    "write_reward",
]


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
