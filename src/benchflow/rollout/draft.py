"""A result in the making: what is known so far, which phase is under way, and the record that comes of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.record import (
    AgentEnd,
    AgentPart,
    Notes,
    Phase,
    Result,
    SandboxPart,
    StepRecord,
    TaskPart,
    VerifierPart,
    outcome_of,
)
from benchflow.record.codec import cleaned
from benchflow.record.trajectory import timestamp
from benchflow.rewards import Verdict
from benchflow.rollout.config import RolloutConfig
from benchflow.task.package import TaskPackage

OnPhase = Callable[[str], None]


class Draft:
    """Collects a result while a rollout runs."""

    def __init__(self, config: RolloutConfig, on_phase: OnPhase | None = None) -> None:
        path = config.task_path or str(getattr(config.task, "path", config.task))
        sandbox = config.sandbox if isinstance(config.sandbox, str) else config.sandbox.name
        self.started_at: Final = timestamp()
        self.phase: Phase = "plan"
        self.task = TaskPart(Path(path).name or path, path, None, None, config.ordinal)
        self.agent = AgentPart(config.agent, config.model, exit_code=None, timed_out=False)
        self.sandbox = SandboxPart(sandbox if sandbox != "auto" else None, None, None)
        self.verifier: VerifierPart | None = None
        self.steps: tuple[StepRecord, ...] = ()
        self.notes = Notes()
        self.usage: Counter[str] = Counter()
        self.redactor: Redactor = NO_SECRETS
        self._config = config
        self._timing: dict[str, float] = {}
        self._began = time.monotonic()
        self._on_phase = on_phase
        if isinstance(config.task, TaskPackage):
            self.name_task(config.task)

    def name_task(self, package: TaskPackage) -> None:
        """The task is this package."""
        self.task = replace(self.task, name=package.name, digest=package.digest, content_digest=package.content_digest)

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
        """What an agent of this rollout came to; the last exit code counts, and any timeout."""
        self.agent = replace(
            self.agent,
            exit_code=end.exit_code,
            timed_out=self.agent.timed_out or end.timed_out,
            stop_reason=end.stop_reason or self.agent.stop_reason,
        )
        for name, value in usage.items():
            self.usage[name] += value  # type: ignore[assignment] # a Counter adds up any number

    def result(self, verdict: Verdict) -> Result:
        """The finished result, without anything secret."""
        clean = self.redactor.text
        return Result(
            task=self.task,
            agent=cleaned(self.agent, clean),
            sandbox=self.sandbox,
            attempt=self._config.attempt,
            outcome=outcome_of(verdict, clean),
            verifier=cleaned(self.verifier, clean) if self.verifier is not None else None,
            timing={**self._timing, "total": time.monotonic() - self._began},
            usage=dict(self.usage),
            steps=tuple(cleaned(step, clean) for step in self.steps),
            notes=cleaned(self.notes, clean),
            key=self._config.work_key(self.task.id),
            started_at=self.started_at,
            finished_at=timestamp(),
        )
