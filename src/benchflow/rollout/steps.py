"""Multi-step packages: what each step came to, whether the next one may begin, and the reward of the whole.

A step that fails is never hidden: a step that could not be scored leaves the whole unscored, and steps that were not
reached because an earlier one stayed below its `min_reward` count as 0 in the mean and as the final step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchflow.record import AgentEnd, Artifact, ErrorRecord, NoOutcome, StepRecord, StepVerifier, outcome_of
from benchflow.rewards import Scored, Unscored, Verdict
from benchflow.verifier import Verification

NOT_REACHED: Final = NoOutcome("not-reached")


def step_record(
    name: str,
    checked: Verification,
    min_reward: float | Mapping[str, float] | None,
    *,
    agent: AgentEnd | None = None,
    artifacts: Sequence[Artifact] = (),
) -> StepRecord:
    """What a verification says of a step."""
    verdict = checked.verdict
    return StepRecord(
        name=name,
        outcome=outcome_of(verdict),
        passed=passes(min_reward, verdict) if isinstance(verdict, Scored) else None,
        agent=agent,
        verifier=StepVerifier(checked.strategy, checked.exit_code),
        artifacts=tuple(artifacts),
    )


def ends_task(step: StepRecord) -> bool:
    """Whether no step after this one is reached: it was not scored, or stayed below what it must reach."""
    return step.error is not None or step.passed is False


def passes(min_reward: float | Mapping[str, float] | None, scored: Scored) -> bool | None:
    """Whether a step reached what it must: one number for the reward, or one per metric; a missing metric fails."""
    if min_reward is None:
        return None
    rewards = {"reward": scored.reward, **scored.metrics}
    least = dict(min_reward) if isinstance(min_reward, Mapping) else {"reward": min_reward}
    return all(name in rewards and rewards[name] >= value for name, value in least.items())


def total(steps: Sequence[StepRecord], strategy: str | None) -> Verdict:
    """The verdict on all declared steps: the first that could not be scored decides, else `mean` or `final`."""
    failed = next((step for step in steps if step.error is not None), None)
    if failed is not None and failed.error is not None:
        return _unscored(failed.name, failed.error)
    if strategy == "final":
        last = steps[-1]
        return Scored(last.reward or 0.0, metrics={**_metrics(last), **_by_step(steps)})
    names = list(dict.fromkeys(name for step in steps for name in _metrics(step)))
    means = {name: _mean([_metrics(step).get(name, 0.0) for step in steps]) for name in names}
    return Scored(_mean([step.reward or 0.0 for step in steps]), metrics={**means, **_by_step(steps)})


def _unscored(step: str, error: ErrorRecord) -> Unscored:
    return Unscored(error.category, error.phase, error.code, f"step {step}: {error.message}")


def _metrics(step: StepRecord) -> dict[str, float]:
    return {name: value for name, value in step.rewards.items() if name != "reward"}


def _by_step(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Each step's own reward, beside the total."""
    return {f"steps.{step.name}": step.reward for step in steps if step.reward is not None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
