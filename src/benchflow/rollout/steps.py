"""Multi-step packages: what each step came to, whether the next one may begin, and the reward of the whole.

A step that fails is never hidden: a step that could not be scored leaves the whole unscored, and steps that were not
reached because an earlier one stayed below its `min_reward` count as 0 in the mean and as the final step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchflow.rewards import Scored, Unscored, Verdict
from benchflow.verifier import Verification

StepStatus = Literal["scored", "unscored", "not-reached"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step in the record of a rollout."""

    name: str
    status: StepStatus
    reward: float | None = None
    rewards: Mapping[str, float] | None = None
    passed: bool | None = None
    """Whether `min_reward` was reached; None without one."""
    agent: Mapping[str, Any] | None = None
    verifier: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    artifacts: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(
        cls, name: str, checked: Verification, min_reward: float | Mapping[str, float] | None, **more: Any
    ) -> StepRecord:
        """What a verification says of a step; `more` are other fields."""
        verdict = checked.verdict
        record = verdict.record()
        return cls(
            name=name,
            status="scored" if isinstance(verdict, Scored) else "unscored",
            reward=record["reward"],
            rewards=record["rewards"],
            passed=passes(min_reward, verdict) if isinstance(verdict, Scored) else None,
            verifier={"strategy": checked.strategy, "exit_code": checked.exit_code},
            error=record["error"],
            **more,
        )

    def record(self) -> dict[str, Any]:
        optional = {
            "passed": self.passed,
            "agent": self.agent,
            "verifier": self.verifier,
            "error": self.error,
            "artifacts": list(self.artifacts) or None,
        }
        return {
            "name": self.name,
            "status": self.status,
            "reward": self.reward,
            "rewards": dict(self.rewards or {}),
            **{key: value for key, value in optional.items() if value is not None},
        }


def passes(min_reward: float | Mapping[str, float] | None, scored: Scored) -> bool | None:
    """Whether a step reached what it must: one number for the reward, or one per metric; a missing metric fails."""
    if min_reward is None:
        return None
    rewards = {"reward": scored.reward, **scored.metrics}
    least = dict(min_reward) if isinstance(min_reward, Mapping) else {"reward": min_reward}
    return all(name in rewards and rewards[name] >= value for name, value in least.items())


def total(steps: Sequence[StepRecord], strategy: str | None) -> Verdict:
    """The verdict on all declared steps: the first that could not be scored decides, else `mean` or `final`."""
    failed = next((step for step in steps if step.status == "unscored"), None)
    if failed is not None:
        return _unscored(failed)
    if strategy == "final":
        last = steps[-1]
        return Scored(last.reward or 0.0, metrics={**_metrics(last), **_by_step(steps)})
    names = list(dict.fromkeys(name for step in steps for name in _metrics(step)))
    means = {name: _mean([_metrics(step).get(name, 0.0) for step in steps]) for name in names}
    return Scored(_mean([step.reward or 0.0 for step in steps]), metrics={**means, **_by_step(steps)})


def _unscored(step: StepRecord) -> Unscored:
    error = step.error or {}
    return Unscored(
        error.get("category", "verifier"),
        error.get("phase", "verify"),
        error.get("code", "step-unscored"),
        f"step {step.name}: {error.get('message', 'it could not be scored')}",
    )


def _metrics(step: StepRecord) -> dict[str, float]:
    return {name: value for name, value in (step.rewards or {}).items() if name != "reward"}


def _by_step(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Each step's own reward, beside the total."""
    return {f"steps.{step.name}": step.reward for step in steps if step.reward is not None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
