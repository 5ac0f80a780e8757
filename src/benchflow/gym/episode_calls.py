"""The calls of models that a package makes itself while its agent is outside: those of its judges and its user.

In a rollout they are recorded beside everything else. An episode of a gym or a server has no folder: with `records`,
each one whose package calls models gets a new one below it, with `model_calls.jsonl`, and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from benchflow.files.redaction import make_redactor
from benchflow.record import CallPlace, ModelCalls, RolloutFolder
from benchflow.rollout.policies import Secrets, judges
from benchflow.task.package import TaskPackage
from benchflow.task.runtime_view import TaskRuntimeView

if TYPE_CHECKING:
    from benchflow.models.gateway import Access, Grant


class EpisodeCalls:
    """The calls of one episode."""

    def __init__(self, grant: Grant | None = None, calls: ModelCalls | None = None) -> None:
        self._grant: Final = grant
        self._calls: Final = calls

    @classmethod
    def open(cls, package: TaskPackage, steps: Sequence[str | None], secrets: Secrets, records: Path | None) -> Self:
        """Call it where an event loop runs."""
        if records is None or not _calls_models(package.view, steps):
            return cls()
        from benchflow.models.gateway import Gateway, GrantRequest

        records.mkdir(parents=True, exist_ok=True)
        name = package.name.replace("/", "-")
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=records))
        calls = ModelCalls(RolloutFolder(folder), make_redactor(secrets.redacted))
        return cls(Gateway(os.environ).open(GrantRequest(calls)), calls)

    def judge(self) -> Access | None:
        """What judges call models with; None if nothing is recorded."""
        return self._grant.seat(CallPlace("judge", "judge")) if self._grant is not None else None

    def user(self, step: str | None) -> Access | None:
        """The same for the simulated user of a step."""
        return self._grant.seat(CallPlace("user", "user", step)) if self._grant is not None else None

    def close(self) -> None:
        """Idempotent."""
        if self._calls is not None:
            self._calls.close()


def _calls_models(view: TaskRuntimeView, steps: Sequence[str | None]) -> bool:
    if view.prompt_plan.user_runtime.runtime_kind == "model-linear":
        return True
    return bool(judges(view, os.environ, steps))
