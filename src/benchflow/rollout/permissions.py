"""Who answers when an agent asks before it does something; in doubt nobody, and that is a refusal.

A `Gatekeeper` is what agents are given as their permission handler. It asks the caller's handler, keeps the agent's
option ids and kinds as they are, remembers every request with its answer, and refuses when the handler raises, gives an
id that was not offered, or is missing although the package wants a human to confirm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchflow.agents.permission_requests import refusal
from benchflow.agents.protocol import PermissionHandler, PermissionRequest


def confirms(policy: str | Mapping[str, str] | None) -> bool:
    """Whether a confirmation policy wants a human to be asked; what its keys cover cannot be told, so all is asked."""
    return bool(policy)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its answer: the id of an option, or None when the request was cancelled."""

    request: PermissionRequest
    answer: str | None
    by: Literal["handler", "policy", "branch", "failure"]


@dataclass(slots=True)
class Gatekeeper:
    """The permission handler of one line of work."""

    handler: PermissionHandler | None = None
    needs_human: bool = False
    decisions: list[str] = field(default_factory=list)
    """Answers that a branch has decided on, for the first requests of its first turn."""
    asked: list[Asked] = field(default_factory=list)
    """Requests of the current turn."""

    def active(self) -> bool:
        """Whether agents are made to ask at all."""
        return self.handler is not None or self.needs_human or bool(self.decisions)

    def begin_turn(self) -> None:
        """Forget the requests of the last turn."""
        self.asked = []

    def end_turn(self) -> None:
        """What was decided for the turn and not asked does not count for the next."""
        self.decisions.clear()

    async def __call__(self, request: PermissionRequest) -> str | None:
        asked = await self._answer(request)
        self.asked.append(asked)
        return asked.answer

    async def _answer(self, request: PermissionRequest) -> Asked:
        offered = {option.id for option in request.options}
        refused = refusal(request, "").option_id
        if self.decisions:
            decided = self.decisions.pop(0)
            return Asked(request, decided if decided in offered else refused, "branch")
        if self.handler is None:
            return Asked(request, refused, "policy")
        try:
            answer = await self.handler(request)
        except Exception:  # noqa: BLE001 - a handler of the caller that fails is a refusal, never an approval
            return Asked(request, refused, "failure")
        if answer is not None and answer not in offered:
            return Asked(request, refused, "failure")
        return Asked(request, refused if answer is None else answer, "handler")
