"""The calls of models that a package makes itself while its agent is outside: those of its judges and its user.

In a rollout they are recorded and counted beside everything else. An episode of a gym or a server has no folder: with
`records`, each one whose package calls models gets a new one below it, with `model_calls.jsonl`, and nothing else. Its
limits hold for its judges and for its user each, so that an agent cannot use up its judge by talking, and for all its
forks together.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from benchflow.files.redaction import make_redactor
from benchflow.models.gateway.shared_gateway import SharedGateway
from benchflow.record import CallPlace, ModelCalls, RolloutFolder
from benchflow.rollout.policies import Secrets, judges
from benchflow.task.package import TaskPackage
from benchflow.task.runtime_view import TaskRuntimeView

if TYPE_CHECKING:
    from benchflow.models.gateway import Access, Grant
    from benchflow.models.gateway.call_limits import Meter


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What holds for the calls of every episode."""

    records: Path | None = None
    """A folder in which they are recorded; None: nowhere."""
    shared: SharedGateway | None = None
    """The limits of each episode, and of all of them; None: no limits."""

    @property
    def used(self) -> bool:
        """Whether anything is to be done about calls."""
        return self.records is not None or (self.shared is not None and self.shared.limited)

    def folder(self, package: TaskPackage) -> Path | None:
        """A new folder for the record of an episode."""
        if self.records is None:
            return None
        self.records.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{package.name.replace('/', '-')}-", dir=self.records))


NO_CALL_SETTINGS: Final = CallSettings()


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an episode and its forks share."""

    package: TaskPackage
    secrets: Secrets
    settings: CallSettings
    shared: SharedGateway
    judges: Meter
    user: Meter


class EpisodeCalls:
    """The calls of one episode, or of one of its forks."""

    def __init__(self, opened: _Opened | None = None) -> None:
        self._opened: Final = opened
        self._calls: ModelCalls | None = None
        self._judges: Grant | None = None
        self._user: Grant | None = None
        if opened is not None:
            self._open(opened)

    @classmethod
    def open(cls, package: TaskPackage, steps: Sequence[str | None], secrets: Secrets, settings: CallSettings) -> Self:
        """Call it where the event loop of the episode runs. `Attributed` if all of them have used up their limit."""
        if not settings.used or not _calls_models(package.view, steps):
            return cls()
        from benchflow.models.gateway.call_limits import Meter

        shared = settings.shared or SharedGateway(os.environ)
        shared.gateway.require_room()
        meters = [Meter(shared.limits, "episode", shared.gateway.meter) for _ in range(2)]
        return cls(_Opened(package, secrets, settings, shared, *meters))

    def _open(self, opened: _Opened) -> None:
        from benchflow.models.gateway import Grant, GrantRequest

        folder = opened.settings.folder(opened.package)
        if folder is not None:
            self._calls = ModelCalls(RolloutFolder(folder), make_redactor(opened.secrets.redacted))
        gateway, request = opened.shared.gateway, GrantRequest(self._calls)
        self._judges, self._user = Grant(gateway, request, opened.judges), Grant(gateway, request, opened.user)

    def fork(self) -> EpisodeCalls:
        """Those of a fork: another record, and the same limits."""
        return EpisodeCalls(self._opened)

    def judge(self) -> Access | None:
        """What judges call models with; None if nothing is recorded or limited."""
        return _judge(self._judges)

    def judge_for_user(self) -> Access | None:
        """The same for rewards that the simulated user looks at between rounds, which count as its own calls."""
        return _judge(self._user)

    def user(self, step: str | None) -> Access | None:
        """The same for the simulated user of a step."""
        return self._user.seat(CallPlace("user", "user", step)) if self._user is not None else None

    @property
    def user_limited(self) -> bool:
        """Whether a call of the user was refused at a limit: then it says nothing more."""
        return self._user is not None and self._user.limit is not None

    @property
    def limits_reached(self) -> tuple[str, ...]:
        """The limits at which calls were refused, as results of rollouts name them."""
        grants = [grant for grant in (self._user, self._judges) if grant is not None]
        return tuple(dict.fromkeys(grant.limit.named for grant in grants if grant.limit is not None))

    def close(self) -> None:
        """Idempotent."""
        if self._calls is not None:
            self._calls.close()


def _judge(grant: Grant | None) -> Access | None:
    return grant.seat(CallPlace("judge", "judge")) if grant is not None else None


def _calls_models(view: TaskRuntimeView, steps: Sequence[str | None]) -> bool:
    if view.prompt_plan.user_runtime.runtime_kind == "model-linear":
        return True
    return bool(judges(view, os.environ, steps))
