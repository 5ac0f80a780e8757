"""Rewards: reward files, aggregation, rubrics, combined rewards, and the resulting verdict. Pure.

What only some strategies need (gains, hybrids, episodes, rubrics) is imported on first use.
"""

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names
from benchflow.rewards.aggregate import AggregatePolicy, aggregate, parse_policy
from benchflow.rewards.numbers import UNIT, RewardRange
from benchflow.rewards.reward_errors import RewardError
from benchflow.rewards.reward_files import read_reward, settle, write_reward
from benchflow.rewards.verdict import (
    Attributed,
    Factor,
    RewardEvent,
    RewardItem,
    Scored,
    Unscored,
    Verdict,
    attribute,
    attributed,
    verdict_from_dict,
)

if TYPE_CHECKING:
    from benchflow.rewards.gain_reward import Gain, gain, gain_verdict
    from benchflow.rewards.hybrid_reward import FactorSpec, HybridPolicy, parse_hybrid
    from benchflow.rewards.ors import Episode, EpisodePolicy, ors_response, read_episode, settle_episode
    from benchflow.rewards.ors_events import parse_records, render_events, reward_event, tool_output_events
    from benchflow.rewards.rubric import Criterion, JudgeSettings, Rubric
    from benchflow.rewards.rubric_file import load_rubric, parse_rubric

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

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.rewards.gain_reward": "Gain gain gain_verdict",
        "benchflow.rewards.hybrid_reward": "FactorSpec HybridPolicy parse_hybrid",
        "benchflow.rewards.ors": "Episode EpisodePolicy ors_response read_episode settle_episode",
        "benchflow.rewards.ors_events": "parse_records render_events reward_event tool_output_events",
        "benchflow.rewards.rubric": "Criterion JudgeSettings Rubric",
        "benchflow.rewards.rubric_file": "load_rubric parse_rubric",
    },
)
