"""`Course`: the progress of a task as one pure value: which step, what was verified, what comes next, the total.

The driver of a task (agents, gym actions, a replay, a cube) advances the course by one verdict per step and reads
everything else from it. A task without steps is a course of one step without a name. A course never changes: `after`
gives the next one, so a fork of a task shares the course of its original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchflow.record import AgentEnd, Artifact, NoOutcome, StepRecord, StepVerifier, VerifierPart, outcome_of
from benchflow.rewards.verdict import Scored, Unscored, Verdict

if TYPE_CHECKING:
    from benchflow.task.runtime_view import TaskRuntimeView

MinReward = float | Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A step as the package declares it: its name, and the reward without which the task ends there."""

    name: str | None = None
    """None for a task without steps."""
    min_reward: MinReward = None

    def passed(self, verdict: Verdict) -> bool | None:
        """Whether the verdict reaches `min_reward`: a number for the reward, or one per metric; None without either.

        A metric that is missing is not reached.
        """
        if self.min_reward is None or not isinstance(verdict, Scored):
            return None
        rewards = {"reward": verdict.reward, **verdict.metrics}
        least = self.min_reward if isinstance(self.min_reward, Mapping) else {"reward": self.min_reward}
        return all(name in rewards and rewards[name] >= value for name, value in least.items())


@dataclass(frozen=True, slots=True)
class Past:
    """A step that was verified: the verdict, and what the record says beside it."""

    verdict: Verdict
    verifier: VerifierPart | None = None
    """How the verdict was reached; None if the step was not verified."""
    agent: AgentEnd | None = None
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """The steps of a task and the verdicts so far."""

    steps: tuple[Checkpoint, ...] = (Checkpoint(),)
    strategy: str | None = None
    """How rewards of several steps become one: `mean` (also None), or `final`."""
    past: tuple[Past, ...] = ()

    def __post_init__(self) -> None:
        if not self.steps or (len(self.steps) > 1 and any(step.name is None for step in self.steps)):
            raise ValueError("A course has one step without a name, or steps with names.")

    @classmethod
    def of(cls, view: TaskRuntimeView) -> Course:
        """The course of a task that has not begun."""
        steps = tuple(Checkpoint(step.config.name, step.config.min_reward) for step in view.steps)
        return cls(steps or (Checkpoint(),), view.config.multi_step_reward_strategy)

    @property
    def over(self) -> bool:
        """Whether nothing follows: every step was verified, or one was unscored or stayed below its `min_reward`."""
        if not self.past:
            return False
        last = self.past[-1].verdict
        stopped = isinstance(last, Unscored) or self.steps[len(self.past) - 1].passed(last) is False
        return stopped or len(self.past) == len(self.steps)

    @property
    def number(self) -> int:
        """The position of the current step; after the end of the course, of the last step that was reached."""
        return len(self.past) - self.over

    @property
    def under_way(self) -> Checkpoint | None:
        """The current step; None after the end of the course."""
        return None if self.over else self.steps[len(self.past)]

    @property
    def following(self) -> Checkpoint | None:
        """The step after the current one, which comes if that one reaches its minimum."""
        number = len(self.past) + 1
        return self.steps[number] if not self.over and number < len(self.steps) else None

    def after(self, past: Past | Verdict) -> Course:
        """The course after the verdict on the current step."""
        if self.over:
            raise ValueError("The course has ended: there is no current step.")
        done = past if isinstance(past, Past) else Past(past)
        return replace(self, past=(*self.past, done))

    def records(self) -> tuple[StepRecord, ...]:
        """Every declared step with its outcome, even those that were not reached; empty for a task without steps."""
        if self.steps[0].name is None:
            return ()
        missing = self.steps[len(self.past) :]
        done = (_record(step, past) for step, past in zip(self.steps, self.past, strict=False))
        return (*done, *(StepRecord(name=str(step.name), outcome=NoOutcome("not-reached")) for step in missing))

    def ended_by(self, verdict: Unscored) -> Unscored:
        """The verdict on the whole if the current step ends without a score."""
        step = self.steps[len(self.past)].name
        return verdict if step is None else replace(verdict, reason=f"step {step}: {verdict.reason}")

    def total(self) -> Verdict:
        """The current verdict on the whole: an unscored step decides, otherwise `mean` or `final`.

        A step that could not be scored is never hidden: it leaves the whole unscored. Steps that were not reached count
        as 0. A course without any verdict has no total, and asking for one is a `ValueError`.
        """
        if not self.past:
            raise ValueError("No step of the course has a verdict.")
        last = self.past[-1].verdict
        if self.steps[0].name is None:
            return last
        if isinstance(last, Unscored):
            return replace(self, past=self.past[:-1]).ended_by(last)
        scored = [past.verdict for past in self.past if isinstance(past.verdict, Scored)]
        each = {f"steps.{step.name}": verdict.reward for step, verdict in zip(self.steps, scored, strict=False)}
        if self.strategy == "final":
            final = scored[-1] if len(scored) == len(self.steps) else Scored(0.0)
            return Scored(final.reward, metrics={**final.metrics, **each})
        names = dict.fromkeys(name for verdict in scored for name in verdict.metrics)
        means = {name: self._mean([verdict.metrics.get(name, 0.0) for verdict in scored]) for name in names}
        return Scored(self._mean([verdict.reward for verdict in scored]), metrics={**means, **each})

    def _mean(self, values: Sequence[float]) -> float:
        return sum(values) / len(self.steps)


def _record(step: Checkpoint, past: Past) -> StepRecord:
    return StepRecord(
        name=str(step.name),
        outcome=outcome_of(past.verdict),
        passed=step.passed(past.verdict),
        agent=past.agent,
        verifier=_step_verifier(past.verifier) if past.verifier is not None else None,
        artifacts=past.artifacts,
    )


def _step_verifier(part: VerifierPart) -> StepVerifier:
    return StepVerifier(part.strategy, part.exit_code, part.isolation, part.wider)
