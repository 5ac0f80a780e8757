"""Isolation by proof, carried out: the oracle runs, and its state is verified down the ladder.

A proof is looked for in the user's cache first; a lock lets concurrent rollouts and processes share one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import Issue
from benchflow.files.locks import held_lock
from benchflow.files.scratch import scratch
from benchflow.files.user_store import default_store
from benchflow.record import Isolation, Proof, ProofKey, Result, Rung, RungOutcome, StepProof
from benchflow.record.proof import recall_proof, remember_proof, rules
from benchflow.record.trajectory import timestamp
from benchflow.rewards import Scored
from benchflow.rollout.policies import ISOLATION_KEY, Chosen, steps_by_proof, unproven
from benchflow.sandbox.factory import ChosenIsolation, Preparation
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.config.task_config import OPEN
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.verifier import Verification, Verifier
from benchflow.verifier.boxes import stopping
from benchflow.verifier.ladder import MAX_RUNS, SERVICES, SYSTEM, Decision, Try, decide
from benchflow.verifier.scope import scope_of
from benchflow.verifier.separate_box import transfers

MakeVerifier = Callable[..., Verifier]
RunOracle = Callable[[MakeVerifier], Awaitable[Result]]
"""Runs the oracle of the package once, at `open`, with a verifier that is made by the function."""
_STATED: Final = frozenset({"package", "unsupported"})
"""Errors of an oracle run that another one cannot change."""


def default_folder() -> Path:
    """The folder of proofs in the user's cache."""
    return default_store() / "proofs"


async def find_proof(
    preparation: Preparation, sandbox: str, isolation: str | None, proofs: Proofs, run: RunOracle
) -> Chosen:
    """The isolation of verifiers where the package or the user says `auto`; `sandbox` is the name of the backend.

    What cannot be proven is `open` with a note: a rollout never ends because of a proof.
    """
    view = preparation.view
    key = ProofKey(view.content_digest, preparation.digest, sandbox, rules(), steps_by_proof(view, isolation))
    return await proofs.find(key, view, run)


class Proofs:
    """Proofs in a folder, and those of this object's time that may not be kept."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is created when there is something to keep; without one it is in the user's cache."""
        self._folder: Final = folder or default_folder()
        self._found: Final[dict[ProofKey, Chosen]] = {}

    async def find(self, key: ProofKey, view: TaskRuntimeView, run: RunOracle) -> Chosen:
        """What is proven for a key: known, or by running the oracle. Concurrent calls for one key share one proof."""
        async with self._alone(key):
            if key not in self._found:
                kept = await anyio.to_thread.run_sync(recall_proof, self._folder, key)
                holds = kept is not None and all(item.full >= view.required_reward for item in kept.steps)
                self._found[key] = _chosen(kept) if kept and holds else await self._prove(key, view, run)
            return self._found[key]

    @asynccontextmanager
    async def _alone(self, key: ProofKey) -> AsyncIterator[None]:
        """Nobody else looks for this proof; where the folder cannot be written, nobody could share it."""
        place = key.place(self._folder)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = place.with_suffix(".lock")
            lock.touch()
        except OSError:
            yield
            return
        async with held_lock(lock):
            yield

    async def _prove(self, key: ProofKey, view: TaskRuntimeView, run: RunOracle) -> Chosen:
        climbs = [_Climb(view, step) for step in key.steps]
        problem = await _climb(climbs, run)
        decided = {climb: climb.decision() for climb in climbs}
        if any(climb.is_unprepared for climb in climbs):
            decided = await _in_one_box(climbs, run) or decided
        steps = tuple(
            StepProof(climb.step, decision.rung, decision.full, tuple(climb.outcomes))
            for climb, decision in decided.items()
            if decision.full is not None
        )
        proof = Proof(key, steps, timestamp())
        if all(decision.settled for decision in decided.values()):
            with suppress(OSError):  # it is proven all the same, and proven again next time
                await anyio.to_thread.run_sync(remember_proof, self._folder, proof)
        failed = {climb.step: _failed(decision, climb, problem) for climb, decision in decided.items()}
        return {**_chosen(proof), **{step: chosen for step, chosen in failed.items() if chosen is not None}}


def _chosen(proof: Proof) -> Chosen:
    chosen = {}
    for item in proof.steps:
        note = None
        if item.rung == OPEN:
            message = "The package's own oracle scores full at 'open' only, so it is verified there."
            note = Issue("proof-open-only", "warning", ISOLATION_KEY, message)
        chosen[item.step] = ChosenIsolation(Isolation(item.rung, "proof", proof.digest), item.full, note)
    return chosen


def _failed(decision: Decision, climb: _Climb, problem: str | None) -> ChosenIsolation | None:
    """The isolation where nothing was proven, with the reason."""
    if decision.reason == "oracle-fails":
        best = max(item.reward for item in climb.outcomes if item.rung == OPEN and item.reward is not None)
        message = (
            f"The package's own oracle scores {best:g} and not the required {climb.required:g}, so no isolation can be "
            "proven; it is verified at 'open'."
        )
        return unproven("proof-oracle-fails", message)
    if decision.reason == "undecided":
        why = f": {problem}" if problem else "."
        message = f"No isolation could be proven, so it is verified at 'open'; it is tried again next time{why}"
        return unproven("proof-undecided", message)
    return None


async def _climb(climbs: Sequence[_Climb], run: RunOracle) -> str | None:
    """Run the oracle until no further run decides more; the last problem in a sentence, if any."""
    problem = None
    for number in range(1, MAX_RUNS + 1):
        if not _is_undecided(climbs):
            break

        def verifier(environment: Environment, number: int = number, **options: Any) -> Verifier:
            return _ClimbingVerifier(environment, {climb.step: climb for climb in climbs}, number, **options)

        result = await run(verifier)
        for climb in climbs:
            climb.end(number)
        if result.error is not None:
            problem = result.error.message
            if result.error.phase == "plan" or result.error.category in _STATED:
                break
    return problem


def _is_undecided(climbs: Sequence[_Climb]) -> bool:
    """Whether a step is undecided that another run reaches: one after a step that fails may not be."""
    for climb in climbs:
        if isinstance(climb.next(), Try):
            return True
        if climb.is_unprepared:
            return False
    return False


async def _in_one_box(climbs: Sequence[_Climb], run: RunOracle) -> dict[_Climb, Decision] | None:
    """Run the oracle once as Harbor does, where each verifier finds what those of earlier steps left.

    If every step scores, that is proven to need `open`: at a stricter rung, no verifier changes the environment.
    """
    number = max(climb.runs for climb in climbs) + 1
    if number > MAX_RUNS:
        return None
    steps = {climb.step: climb for climb in climbs}
    await run(lambda environment, **options: _StayingVerifier(environment, steps, number, **options))
    decided = {}
    for climb in climbs:
        reward = climb.opened(number)
        if reward is None or reward < climb.required:
            return None
        decided[climb] = Decision(OPEN, "open-only", reward, settled=True)
    return decided


class _Climb:
    """The way down the ladder of one step."""

    def __init__(self, view: TaskRuntimeView, step: str | None) -> None:
        self.step: Final = step
        self.outcomes: Final[list[RungOutcome]] = []
        self.rungs: Final = tuple(_rungs(view, step))
        self.required: Final = view.required_reward
        self.follows: Final = step in [item.config.name for item in view.steps[1:]]
        """Whether another step comes before."""
        self.watched = False
        """Whether it is known what the verifier looks for in the oracle's state."""

    @property
    def is_unprepared(self) -> bool:
        """Whether the step fails at every rung, and the verifier of one before it may have to prepare it."""
        return self.follows and self.decision().reason == "oracle-fails"

    @property
    def runs(self) -> int:
        """How many oracle runs there were."""
        return max((item.run for item in self.outcomes), default=0)

    def note(self, run: int, rung: Rung, found: Verification) -> None:
        """Add the outcome of a verification."""
        reward = found.verdict.reward if isinstance(found.verdict, Scored) else None
        self.outcomes.append(RungOutcome(run, rung, reward))

    def opened(self, run: int) -> float | None:
        """The reward at `open` in a run."""
        found = (item.reward for item in self.outcomes if (item.run, item.rung) == (run, OPEN))
        return next(found, None)

    def next(self) -> Try | Decision:
        return decide(self.outcomes, self.rungs, self.required)

    def decision(self) -> Decision:
        """The decision, or that there is none."""
        found = self.next()
        return found if isinstance(found, Decision) else Decision(OPEN, "undecided")

    def end(self, run: int) -> None:
        """An oracle run is over; one that did not get as far as `open` says nothing."""
        done = any(item.run == run and item.rung == OPEN for item in self.outcomes)
        if not done and isinstance(self.next(), Try):
            self.outcomes.append(RungOutcome(run, OPEN, None))


def _rungs(view: TaskRuntimeView, step: str | None) -> Iterator[Rung]:
    """The rungs to try before `open`. `separate` needs a declaration of what is delivered; services of the environment
    are not in copies of its files."""
    if view.manifest is None:
        scope = scope_of(view, step)
        if scope.config.environment_mode is None and any(item.declared for item in transfers(scope, "/")):
            yield "separate"
        yield "shared"
        yield "system"
    yield SERVICES


class _ClimbingVerifier(Verifier):
    """Verifies the state of a step at the rungs that its climb asks for, and gives the verdict at `open`."""

    def __init__(self, environment: Environment, climbs: Mapping[str | None, _Climb], run: int, **options: Any) -> None:
        super().__init__(environment, **options)
        self._climbs: Final = climbs
        self._run: Final = run

    async def verify(self, output: Path | None, *, step: str | None = None, **options: Any) -> Verification:
        climb = self._climbs.get(step)
        if climb is None:
            declared = scope_of(self.environment.preparation.view, step).isolation
            return await super().verify(output, step=step, isolation=declared, **options)
        if not isinstance(climb.next(), Try):
            return await self._at(OPEN, output, step, None, options)
        if self.environment.services is not None:
            return await self._descend(climb, output, None, options)
        # The running state is for `services` and `open`; a copy of its files for the rungs at which nothing runs.
        stopped = await self.environment.sandbox.fork()
        async with stopping(stopped):
            return await self._descend(climb, output, stopped, options)

    async def _descend(
        self, climb: _Climb, output: Path | None, stopped: Sandbox | None, options: Mapping[str, Any]
    ) -> Verification:
        opened: Verification | None = None
        with scratch("proof-") as folder:
            while isinstance(move := climb.next(), Try) and move.run == self._run:
                running = move.rung in (SERVICES, OPEN)
                if move.rung in (SYSTEM, SERVICES) and stopped is not None and not climb.watched:
                    climb.watched = True
                    await self.learn(stopped, climb.step)
                place = output if move.rung == OPEN else folder / move.rung
                found = await self._at(move.rung, place, climb.step, None if running else stopped, options)
                climb.note(self._run, move.rung, found)
                opened = found if move.rung == OPEN else opened
        return opened or await self._at(OPEN, output, climb.step, None, options)

    async def _at(
        self,
        rung: Rung,
        output: Path | None,
        step: str | None,
        sandbox: Sandbox | None,
        options: Mapping[str, Any],
        *,
        leaves_nothing: bool = True,
    ) -> Verification:
        """Verify at a rung; what the verifier leaves does not stay, because at a stricter rung it would not."""
        rest = {name: value for name, value in options.items() if name in ("rollout", "strategy")}
        rest |= {"isolation": Isolation(rung, "proof", None), "leaves_nothing": leaves_nothing}
        return await Verifier.verify(self, output, step=step, sandbox=sandbox, **rest)


class _StayingVerifier(_ClimbingVerifier):
    """Verifies every step at `open`, where what it leaves stays for the next one."""

    async def verify(self, output: Path | None, *, step: str | None = None, **options: Any) -> Verification:
        climb = self._climbs.get(step)
        if climb is None:
            return await super().verify(output, step=step, **options)
        found = await self._at(OPEN, output, step, None, options, leaves_nothing=False)
        climb.note(self._run, OPEN, found)
        return found
