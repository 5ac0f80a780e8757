"""Permission requests: ids and kinds as the agent sent them, and a refusal in case of doubt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchflow.agents.protocol import PermissionHandler, PermissionOption, PermissionRequest

_REFUSING: Final = re.compile(r"reject|deny|cancel|disallow|block")
_ALLOWING: Final = ("allow_once", "allow_always")


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer: the id of an option, or None to cancel."""

    option_id: str | None
    granted: bool
    reason: str


async def deny(request: PermissionRequest) -> None:
    """Refuses everything: for a policy that requires a person when nobody is present."""
    del request


async def decide(request: PermissionRequest, ask: PermissionHandler | None, *, forbidden: bool) -> Decision:
    """Decide on a request. A forbidden tool is refused, and so is anything a handler does not clearly allow."""
    if forbidden:
        return refusal(request, "the tool is forbidden")
    if ask is None:
        allowed = approval(request.options)
        if allowed is None:
            return refusal(request, "no option allows it")
        return Decision(allowed, granted=True, reason="no confirmation is required")
    try:
        answer = await ask(request)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in a handler is a refusal
        return refusal(request, f"the handler failed: {type(error).__name__}: {error}")
    if answer is None:
        return refusal(request, "the handler refused")
    chosen = next((option for option in request.options if option.id == answer), None)
    if chosen is None:
        return refusal(request, f"the handler chose {answer!r}, which was not offered")
    return Decision(chosen.id, granted=not _refuses(chosen), reason="the handler chose")


def approval(options: Sequence[PermissionOption]) -> str | None:
    """The narrowest option that allows the request."""
    for kind in _ALLOWING:
        for option in options:
            if option.kind == kind:
                return option.id
    return next((option.id for option in options if option.kind.startswith("allow")), None)


def refusal(request: PermissionRequest, reason: str) -> Decision:
    """An option that refuses, preferably once; if none is offered, the request is cancelled."""
    refusing = [option for option in request.options if _refuses(option)]
    refusing.sort(key=lambda option: option.kind != "reject_once")
    return Decision(refusing[0].id if refusing else None, granted=False, reason=reason)


def _refuses(option: PermissionOption) -> bool:
    return bool(_REFUSING.search(option.kind.lower()))
