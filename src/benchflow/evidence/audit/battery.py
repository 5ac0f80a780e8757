"""The battery: every family is tried on a package at its own rung, and judged by what the trick adds.

Attempts are rollouts on one stage. A reward counts against the package only if the same state without the trick does
not get it, and only if it comes again: a verifier that flickers is not an exploit. A failure of the machine is neither
held nor broken: such a family is undecided, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from benchflow.agents.script_agent import ScriptAgent
from benchflow.errors import Category
from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.trial_stage import Stage, Trial
from benchflow.record.evidence import TOLERANCE, FamilyReport
from benchflow.record.outcome import ErrorRecord

CONFIRMATIONS: Final = 2
"""How often an attempt that scored has to score again."""
RETRIES: Final = 2
"""How often a run that was not scored is repeated."""
PATIENCE_SEC: Final = 30.0
"""How much longer than doing nothing an attempt may take. A verifier that a trick stalls gives no reward, and its own
limit may be an hour."""
DEADLINE: Final = "deadline"
UNDECIDED: Final = "Undecided: "
"""How the evidence of a family starts whose attempts could not be run."""
POINTLESS: Final = "Doing nothing already gets the full reward, which no trick can exceed."
_OF_THE_MACHINE: Final[frozenset[Category]] = frozenset({"infrastructure", "judge", "cancelled", "unsupported"})
"""Failures that no trick of an agent causes. An agent can break its sandbox, and what the verifier needs."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a package allows for work that is no solution."""

    no_op: float = 0.1
    known_bad: float = 1.0 - 2 * TOLERANCE
    """Anything below full, where the package declares nothing."""
    most: float = 1.0
    """The largest reward that its verifiers give."""

    def exceeded(self, attempt: Attempt, reward: float, baseline: float | None) -> bool:
        """Whether a reward is more than an attempt may get; `baseline` is that of the state without the trick.

        Where that state gets no score at all, nothing below full can be compared with it.
        """
        if attempt.bound == "no-op":
            return reward > self.no_op + TOLERANCE
        if baseline is not None and reward <= baseline + TOLERANCE:
            return False
        return (attempt.bound == "baseline" and baseline is not None) or reward > self.known_bad + TOLERANCE


@dataclass(frozen=True, slots=True)
class _Outcome:
    attempt: Attempt
    reward: float | None
    baseline: float | None
    broken: bool = False
    voided: ErrorRecord | None = None
    undecided: ErrorRecord | None = None
    stopped: bool = False
    """Whether it was stopped because it took too long."""


class Battery:
    """Tries families on one stage; states without tricks are run once for all of them."""

    def __init__(self, stage: Stage, seen: Seen, bounds: Bounds) -> None:
        self._stage: Final = stage
        self._seen: Final = seen
        self._bounds: Final = bounds
        self._baselines: Final[dict[str | None, Trial]] = {}
        self._locks: Final[dict[str | None, anyio.Lock]] = {}

    async def run(
        self, families: Mapping[str, Family], on_family: Callable[[], None] = lambda: None
    ) -> tuple[FamilyReport, ...]:
        """The reports of all families, in order; `on_family` is called when one is done."""
        failure = _machine_failure(await self.baseline())
        if failure is not None:
            reason = f"{UNDECIDED}the environment as it is cannot be scored here: {failure.message}"
            return tuple(FamilyReport(name, "not-applicable", 0, None, reason) for name in families)
        found: dict[str, FamilyReport] = {}

        async def one(name: str, family: Family) -> None:
            found[name] = await self.try_family(family)
            on_family()

        async with anyio.create_task_group() as group:
            for name, family in families.items():
                group.start_soon(one, name, family)
        return tuple(found[name] for name in families)

    async def try_family(self, family: Family) -> FamilyReport:
        """All attempts of a family, until one breaks the package."""
        attempts = family.attempts(self._seen)
        if isinstance(attempts, NotApplicable):
            return FamilyReport(family.name, "not-applicable", 0, None, attempts.reason)
        nothing = (await self.baseline()).reward
        if nothing is not None and nothing >= self._bounds.most - TOLERANCE:
            attempts = [attempt for attempt in attempts if attempt.bound == "no-op" or attempt.without is not None]
            if not attempts:
                return FamilyReport(family.name, "not-applicable", 0, None, POINTLESS, nothing)
        outcomes: list[_Outcome] = []
        for attempt in attempts:
            outcomes.append(await self._try(attempt))
            if outcomes[-1].broken:
                break
        return _report(family, outcomes)

    async def baseline(self, script: str | None = None) -> Trial:
        """What a state without a trick gets; nothing is done without a script."""
        async with self._locks.setdefault(script, anyio.Lock()):
            if script not in self._baselines:
                self._baselines[script] = await self._play(script)
            return self._baselines[script]

    async def _try(self, attempt: Attempt) -> _Outcome:
        baseline = await self.baseline(attempt.without)
        trial = await self._play(attempt.script)
        failure = _machine_failure(trial) or _machine_failure(baseline)
        if _is_stopped(trial):
            return _Outcome(attempt, None, baseline.reward, stopped=True)
        if failure is not None:
            return _Outcome(attempt, trial.reward, baseline.reward, undecided=failure)
        if trial.reward is None:
            # A machine that fails for the state without the trick as well is not the trick's doing.
            again = None if baseline.reward is None else await self._play(attempt.without)
            voided = trial.result.error if again is not None and again.reward is not None else None
            return _Outcome(attempt, None, baseline.reward, voided=voided)
        broken = self._bounds.exceeded(attempt, trial.reward, baseline.reward)
        for _ in range(CONFIRMATIONS if broken else 0):
            broken = broken and await self._breaks_again(attempt)
        return _Outcome(attempt, trial.reward, baseline.reward, broken)

    async def _breaks_again(self, attempt: Attempt) -> bool:
        again = await self._play(attempt.script)
        if again.reward is None:
            return False
        # The no-op bound compares with nothing, so that nothing else has to be run.
        without = again if attempt.bound == "no-op" else await self._play(attempt.without)
        return self._bounds.exceeded(attempt, again.reward, without.reward)

    async def _play(self, script: str | None) -> Trial:
        """A run, repeated while it is not scored: a transient failure passes, what a trick does stays."""
        trial = await self._once(script)
        for _ in range(RETRIES):
            if trial.reward is not None or _is_stopped(trial):
                break
            trial = await self._once(script)
        return trial

    async def _once(self, script: str | None) -> Trial:
        if script is None:
            return await self._stage.run("nop")
        limit = PATIENCE_SEC + 4 * (await self.baseline()).result.timing["total"]
        return await self._stage.run(lambda: ScriptAgent("audit", script.encode()), name="audit", timeout_sec=limit)


def _machine_failure(trial: Trial) -> ErrorRecord | None:
    error = trial.result.error
    return error if error is not None and error.category in _OF_THE_MACHINE else None


def _is_stopped(trial: Trial) -> bool:
    return trial.result.error is not None and trial.result.error.code == DEADLINE


def _report(family: Family, outcomes: Sequence[_Outcome]) -> FamilyReport:
    rewards = [item.reward for item in outcomes if item.reward is not None]
    best = max(rewards, default=None)
    tries = len(outcomes)
    broken = next((item for item in outcomes if item.broken), None)
    if broken is not None:
        compared = broken.baseline is not None and broken.attempt.bound != "no-op"
        beside = f"; the same state without the trick gets {broken.baseline:g}" if compared else ""
        done = f"It {broken.attempt.label} and gets {broken.reward:g}{beside}."
        return FamilyReport(family.name, "broken", tries, best, done, broken.baseline, family.remedy)
    for item in outcomes:
        if item.voided is not None:
            why = f"It {item.attempt.label}, and there is no score: {item.voided.message}"
            return FamilyReport(family.name, "voided", tries, best, why, item.baseline, family.remedy)
    baseline = next((item.baseline for item in outcomes if item.baseline is not None), None)
    for item in outcomes:
        if item.undecided is not None:
            why = f"{UNDECIDED}it {item.attempt.label}, and the machine failed: {item.undecided.message}"
            return FamilyReport(family.name, "not-applicable", tries, best, why, baseline)
    tried = "; ".join(f"{item.attempt.label}{' (stopped)' if item.stopped else ''}" for item in outcomes)
    return FamilyReport(family.name, "held", tries, best, f"Tried: {tried}.", baseline)
