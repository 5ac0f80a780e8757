"""Who broke a verification: the state that the agent left, or the package and the machine.

In: a verification that failed, how to repeat it, and how to run the same verifier on the pristine environment. Out: the
failure as it is, where that one fails too; reward 0, where only the agent's state makes it fail, otherwise breaking
the verifier would be a way out of a bad score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import Category, Issue
from benchflow.rewards import Scored, Unscored, Verdict

if TYPE_CHECKING:
    from benchflow.verifier.verifier import Verification

BROKEN: Final = "agent-broke-verification"
REPEATED: Final = "verification-repeated"
PristineKey = tuple[object, ...]
"""Package, environment, step, strategy and variables of a verification on the pristine environment."""

_OF_THE_STATE: Final[Mapping[Category, frozenset[str]]] = {
    "verifier": frozenset(
        {"crashed", "reward-invalid", "reward-mismatch", "reward-missing", "timeout", "verifier-failed"}
    ),
    "environment": frozenset({"listing-failed", "transfer-failed"}),
    "sandbox": frozenset(
        {
            "cleanup-failed", "disk-full", "exec-failed", "no-such-file", "no-such-folder", "refused",
            "refused-file", "sandbox-exhausted", "sandbox-failed", "timeout", "too-large", "unsafe-path",
        }
    ),
    "infrastructure": frozenset({"os-error"}),
}  # fmt: skip
"""Failures that files of the agent can cause. A box or helper that is gone, a full machine, judges, missing variables
and unsupported features are not among them: these are never the agent's result."""

_known: Final[dict[PristineKey, Verdict]] = {}
_locks: Final[dict[tuple[int, PristineKey], anyio.Lock]] = {}
_SPARE_SEC: Final = 1.0


def may_be_of_the_state(verdict: Verdict) -> bool:
    """Whether the state that was verified can be the cause of a failure."""
    return isinstance(verdict, Unscored) and verdict.code in _OF_THE_STATE.get(verdict.category, frozenset())


async def on_pristine(key: PristineKey, verify: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """The verdict on the pristine environment: computed once per key and process, however many attempts ask.

    A failure that says nothing about the package is not kept.
    """
    place = id(asyncio.get_running_loop()), key
    async with _locks.setdefault(place, anyio.Lock()):
        found = _known.get(key)
        if found is None:
            found = await verify()
            if isinstance(found, Scored) or may_be_of_the_state(found):
                _known[key] = found
    _locks.pop(place, None)
    return found


async def settle(
    failed: Verification,
    again: Callable[[], Awaitable[Verification]],
    pristine: Callable[[], Awaitable[Verdict]],
) -> Verification:
    """The verification that counts in place of a failed one.

    What can flake is not blamed on the agent: the verification is repeated first, unless the deadline is too near for
    that. Where the deadline leaves no time for the pristine environment either, the failure stands.
    """
    first = failed.verdict
    if not isinstance(first, Unscored) or not may_be_of_the_state(first):
        return failed
    deadline = anyio.current_effective_deadline() - _SPARE_SEC
    with anyio.CancelScope(deadline=deadline):
        if not isinstance(await pristine(), Scored):
            return failed
        second = failed
        if deadline - anyio.current_time() > failed.duration_sec:
            second = await again()
            if not may_be_of_the_state(second.verdict):
                message = f"The first verification failed ({first.category}/{first.code}): {first.reason}"
                return _noted(second, Issue(REPEATED, "warning", "", message))
        broken = _broken(first)
        return _noted(replace(second, verdict=broken), *broken.diagnostics)
    return failed


def _broken(first: Unscored) -> Scored:
    reason = (
        "The state that the agent left makes the verification fail, which succeeds on the environment as built: "
        f"{first.category}/{first.code}: {first.reason}"
    )
    failure = {"category": first.category, "code": first.code, "message": first.reason}
    return Scored(
        0.0,
        document={"reward": 0.0, "reason": reason, "metadata": {"source": BROKEN}},
        details={"source": BROKEN, "failure": failure},
        diagnostics=(Issue(BROKEN, "warning", "", reason),),
    )


def _noted(verification: Verification, *notes: Issue) -> Verification:
    return replace(verification, diagnostics=(*verification.diagnostics, *notes))
