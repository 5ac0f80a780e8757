"""The life of a rollout, for every driver: phases and their times, the step loop, the deadline, the record at the end.

`Driver` walks a course, one verdict per step. `Draft` collects what is known on the way. `carry_out` turns every
outcome, including failures and cancellation, into one result and its `result.json`. Results are created only here.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from benchflow.errors import UnsupportedError, UsageError
from benchflow.files.redaction import NO_SECRETS, Redactor, redact_folder
from benchflow.record import (
    AgentEnd,
    AgentPart,
    ArenaPart,
    CleanupFailure,
    EarlierScore,
    Notes,
    Phase,
    RescoreNote,
    Result,
    RolloutFolder,
    SandboxPart,
    TaskPart,
    WorkKey,
    outcome_of,
    write_document,
)
from benchflow.record.codec import cleaned
from benchflow.record.trajectory import timestamp
from benchflow.rewards import Attributed, Unscored, Verdict, attribute
from benchflow.rollout.config import RolloutConfig
from benchflow.rollout.course import Checkpoint, Course, Past
from benchflow.task.package import TaskPackage

if TYPE_CHECKING:
    from benchflow.models.gateway import Grant

OnPhase = Callable[[str], None]
Part = TypeVar("Part")
_OF_MODELS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
_HARDLY_ANY: Final = 1 << 20
"""A disk with fewer free bytes is full."""


class Driver(ABC):
    """Takes the steps of a course, each to its verdict."""

    def __init__(self, course: Course) -> None:
        self.course = course

    @abstractmethod
    async def take_step(self, step: Checkpoint) -> Past:
        """The current step, from its beginning to its verdict. A failure is raised as `Attributed`."""

    async def walk(self) -> Verdict:
        """The step loop: until the course has ended. A step that fails ends it, and is raised as the verdict on all."""
        while (step := self.course.under_way) is not None:
            try:
                past = await self.take_step(step)
            except Attributed as error:
                verdict = self.course.ended_by(error.verdict)
                self.course = self.course.after(error.verdict)
                raise Attributed(verdict) from error.__cause__
            self.course = self.course.after(past)
        return self.course.total()


class Draft:
    """An unfinished result: what is known so far, and the current phase."""

    def __init__(
        self,
        task: TaskPart,
        agent: AgentPart,
        sandbox: SandboxPart,
        key: WorkKey,
        attempt: int,
        on_phase: OnPhase | None = None,
    ) -> None:
        """`on_phase` is called when a phase begins."""
        self.task = task
        self.agent = agent
        self.sandbox = sandbox
        self.key = key
        self.notes = Notes()
        self.redactor: Redactor = NO_SECRETS
        self.arena: ArenaPart | None = None
        """Who played whom, once a game has begun."""
        self.driver: Driver | None = None
        """The driver of the course, once there is one."""
        self.phase: Phase = "plan"
        self.started_at: Final = timestamp()
        self._attempt: Final = attempt
        self._usage: Counter[str] = Counter()
        self.seen_usage: Mapping[str, float] = {}
        """What the model gateway saw; where it saw anything, it counts, and not what agents say."""
        self._timing: dict[str, float] = {}
        self._began: Final = time.monotonic()
        self._on_phase: Final = on_phase

    def note(self, **notes: Any) -> None:
        """Set fields of the notes."""
        self.notes = replace(self.notes, **notes)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """The block is (part of) a phase."""
        self.phase = phase
        if self._on_phase is not None:
            self._on_phase(phase)
        began = time.monotonic()
        try:
            yield
        finally:
            self._timing[phase] = self._timing.get(phase, 0.0) + time.monotonic() - began

    def add_agent(self, end: AgentEnd, usage: Mapping[str, float]) -> None:
        """How an agent of this rollout ended, and what it used; the last exit code counts, and any timeout."""
        self.agent = replace(
            self.agent,
            exit_code=end.exit_code,
            timed_out=self.agent.timed_out or end.timed_out,
            stop_reason=end.stop_reason or self.agent.stop_reason,
        )
        for name, value in usage.items():
            self._usage[name] += value  # type: ignore[assignment] # a Counter adds up any number

    def note_calls(self, grant: Grant | None) -> None:
        """What the model gateway saw, and the limit at which it refused."""
        if grant is None:
            return
        self.seen_usage = grant.usage
        if grant.limit is not None:
            self.note(limits_reached=tuple(dict.fromkeys((*self.notes.limits_reached, grant.limit.named))))

    def _counted(self) -> dict[str, float]:
        if not self.seen_usage:
            return dict(self._usage)
        told = {name: value for name, value in self._usage.items() if name not in _OF_MODELS}
        return {**told, **self.seen_usage}

    async def clean_up(self, what: str, end: Callable[[], Awaitable[None]]) -> None:
        """End something; a failure is noted, and neither changes the verdict nor prevents other clean-up."""
        try:
            await end()
        except Exception as error:  # noqa: BLE001  # whatever a backend raises when it ends
            failure = attribute(error, "sandbox", self.phase)
            note = CleanupFailure(what, failure.category, failure.code, failure.reason)
            self.note(cleanup=(*self.notes.cleanup, note))

    def result(self, verdict: Verdict) -> Result:
        """The finished result, without anything secret."""
        redactor = self.redactor
        return Result(
            task=self.task,
            agent=_cleaned(self.agent, redactor),
            sandbox=self.sandbox,
            attempt=self._attempt,
            timing={**self._timing, "total": time.monotonic() - self._began},
            usage=self._counted(),
            arena=_cleaned(self.arena, redactor) if self.arena is not None else None,
            notes=_cleaned(self.notes, redactor),
            key=self.key,
            started_at=self.started_at,
            finished_at=max(self.started_at, timestamp()),  # a clock that was set back must not end it before it began
            **_scoring(self.driver.course if self.driver is not None else Course(), verdict, redactor),
        )


def first_draft(config: RolloutConfig, on_phase: OnPhase | None) -> Draft:
    """What is known of a rollout before its task is looked at."""
    path = config.task_path or str(getattr(config.task, "path", config.task))
    task = TaskPart(Path(path).name or path, path, None, None, config.ordinal)
    if isinstance(config.task, TaskPackage):
        task = task_part_of(config.task, task)
    sandbox = config.sandbox if isinstance(config.sandbox, str) else config.sandbox.name
    return Draft(
        task,
        AgentPart(config.agent, config.model, exit_code=None, timed_out=False),
        SandboxPart(sandbox if sandbox != "auto" else None, None, None),
        config.work_key(task.id),
        config.attempt,
        on_phase,
    )


def task_part_of(package: TaskPackage, known: TaskPart) -> TaskPart:
    return replace(known, name=package.name, digest=package.digest, content_digest=package.content_digest)


def rescored(old: Result, course: Course, verdict: Verdict, note: RescoreNote, redactor: Redactor) -> Result:
    """The result of a rollout whose work was scored again: the old one with the new score, and what it was before."""
    before = EarlierScore("unscored" if old.error is not None else "scored", old.reward)
    scoring = _scoring(course, verdict, redactor)
    if not course.past:
        scoring["steps"] = old.steps
    return replace(old, **scoring, notes=replace(old.notes, rescore=replace(note, at=timestamp(), before=before)))


def _cleaned(record: Part, redactor: Redactor) -> Part:
    return cleaned(record, redactor.text) if redactor.values else record


def _scoring(course: Course, verdict: Verdict, redactor: Redactor) -> dict[str, Any]:
    """The parts of a result that come from its verdicts."""
    verifier = next((past.verifier for past in reversed(course.past) if past.verifier is not None), None)
    return {
        "outcome": outcome_of(verdict, redactor.text),
        "verifier": _cleaned(verifier, redactor) if verifier is not None else None,
        "steps": tuple(_cleaned(step, redactor) for step in course.records()),
    }


async def carry_out(
    draft: Draft,
    folder: RolloutFolder,
    work: Callable[[], Awaitable[Verdict]],
    *,
    timeout_sec: float | None = None,
    durable: bool = True,
    raise_refusals: bool = False,
) -> Result:
    """Do the work and write its record. Raises only when it is cancelled, which is recorded first.

    With `raise_refusals` wrong usage and unsupported features that are found before anything is written are raised
    instead of recorded. `durable` waits until the record has reached the disk.
    """
    try:
        with anyio.move_on_after(timeout_sec) as deadline:
            verdict = await work()
        if deadline.cancelled_caught:
            message = f"The rollout exceeded its limit of {timeout_sec:g} s."
            verdict = Unscored("infrastructure", draft.phase, "deadline", message)
    except Attributed as error:
        refused = isinstance(error.__cause__, UsageError | UnsupportedError) and not folder.config.exists()
        if raise_refusals and refused and error.__cause__ is not None:
            raise error.__cause__ from None
        verdict = error.verdict
    except Exception as error:  # noqa: BLE001  # the boundary: no failure of one rollout ends the others
        verdict = attribute(error, "infrastructure", draft.phase)
    except BaseException as error:
        if folder.path.is_dir():
            _write(draft, folder, attribute(error, "infrastructure", draft.phase), durable=durable)
        raise
    return _write(draft, folder, verdict, durable=durable)


def _write(draft: Draft, folder: RolloutFolder, verdict: Verdict, *, durable: bool) -> Result:
    """Write the record after a last check for secrets; if that fails, the failure is the result."""
    try:
        with draft.timed("record"):
            if draft.redactor.values:
                for output in folder.outputs:
                    redact_folder(draft.redactor, output)
            result = draft.result(_located(verdict, folder))
            write_document(folder.result, result.to_dict(), sync=durable)
            return result
    except OSError as error:
        return draft.result(_located(attribute(error, "infrastructure", "record"), folder))


def _located(verdict: Verdict, folder: RolloutFolder) -> Verdict:
    """A full disk by its place, where it is the one that the records are on."""
    if not isinstance(verdict, Unscored) or verdict.code != "disk-full":
        return verdict
    place = next(parent for parent in folder.path.absolute().parents if parent.is_dir())
    if shutil.disk_usage(place).free > _HARDLY_ANY:
        return verdict
    return replace(verdict, reason=f"No space is left on the disk of {place}.")
