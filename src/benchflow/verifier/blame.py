"""Who broke a verification: the state that the agent left, or the package and the machine.

In: a verification, how to repeat it, and how to run the same verifier on the pristine environment. Out: the
verification that counts. One that fails there too stays as it is; where only the agent's state makes it fail, the
reward is 0, otherwise breaking the verifier would be a way out of a bad score. A low reward does not count if the
verifier could not reach what it downloads, there either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import Category, Issue
from benchflow.rewards import Scored, Unscored, Verdict
from benchflow.sandbox.protocol import FailedRequest

if TYPE_CHECKING:
    from benchflow.verifier.verifier import Verification

BROKEN: Final = "agent-broke-verification"
REPEATED: Final = "verification-repeated"
UNREACHED: Final = "downloads-failed"
PristineKey = tuple[object, ...]
"""Package, environment, step, strategy and variables of a verification on the pristine environment."""

_OF_THE_STATE: Final[Mapping[Category, frozenset[str]]] = {
    "environment": frozenset({"listing-failed", "transfer-failed"}),
    "sandbox": frozenset(
        {
            "cleanup-failed", "disk-full", "engine-refused", "exec-failed", "no-such-file", "no-such-folder", "refused",
            "refused-file", "listing-failed", "sandbox-exhausted", "sandbox-failed", "services-unknown", "timeout",
            "times-failed", "too-large", "unsafe-path",
        }
    ),
    "infrastructure": frozenset({"os-error"}),
}  # fmt: skip
"""Failures that files of the agent can cause. A box or helper that is gone, a full machine, judges, missing variables
and unsupported features are not among them: these are never the agent's result."""
_NOT_OF_THE_STATE: Final = frozenset({
    "gain-degenerate", "gain-invalid", "input-invalid", "input-missing", "network-failed", "not-reached",
    "oracle-failed", "pending", "scorer-refused", "scorer-unusable", "seal-broken",
})  # fmt: skip
"""Failures of verifiers that cannot be compared, because the pristine environment has none of what failed: cases of the
package, records of the runtime, remote scorers, answers that come later. Every other one, of a plugin too, may be due
to the state, which the verifier reads."""


@dataclass(frozen=True, slots=True)
class Pristine:
    """How the verifier does on the environment as built."""

    verdict: Verdict
    unreached: tuple[FailedRequest, ...] = ()
    """What it asked for outside and did not reach."""


_known: Final[dict[PristineKey, Pristine]] = {}
_locks: Final[dict[tuple[int, PristineKey], anyio.Lock]] = {}
_SPARE_SEC: Final = 1.0
_LISTED: Final = 10


def may_be_of_the_state(verdict: Verdict) -> bool:
    """Whether the state that was verified can be the cause of a failure."""
    if not isinstance(verdict, Unscored):
        return False
    if verdict.category == "verifier":
        return verdict.code not in _NOT_OF_THE_STATE
    return verdict.code in _OF_THE_STATE.get(verdict.category, frozenset())


async def on_pristine(
    key: PristineKey, verify: Callable[[], Awaitable[Pristine]], lacking: Iterable[FailedRequest] = ()
) -> Pristine:
    """The verification of the pristine environment: once per key and process, however many attempts ask.

    A failure that says nothing about the package is not kept. One that reached all of what is `lacking` now is
    repeated: the network may have failed since.
    """
    place = id(asyncio.get_running_loop()), key
    wanted = frozenset(lacking)
    async with _locks.setdefault(place, anyio.Lock()):
        found = _known.get(key)
        if found is None or (wanted and not wanted.intersection(found.unreached)):
            found = await verify()
            if isinstance(found.verdict, Scored) or may_be_of_the_state(found.verdict):
                _known[key] = found
    _locks.pop(place, None)
    return found


async def settle(
    failed: Verification,
    again: Callable[[], Awaitable[Verification]],
    pristine: Callable[[], Awaitable[Pristine]],
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
        known = await pristine()
        if common := _common(failed, known):
            return replace(failed, verdict=_network_failed(common))
        if not isinstance(known.verdict, Scored):
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


async def settle_downloads(
    found: Verification, full: float, pristine: Callable[[], Awaitable[Pristine]], *, required: bool
) -> Verification:
    """A verification in which the verifier did not reach all that it asked for outside, if its reward is below `full`.

    Code of the agent that a test runs can ask for addresses that do not exist. So only what the verifier fails to
    reach on the pristine environment too, where no code of the agent is, leaves the work unscored.
    """
    if not isinstance(found.verdict, Scored) or found.verdict.reward >= full:
        return found
    if required and (common := _common(found, await pristine())):
        return replace(found, verdict=_network_failed(common))
    message = f"Not reached during verification: {_listed(found.unreached)}."
    return _noted(found, Issue(UNREACHED, "warning", "benchflow.verifier.downloads", message))


def _common(found: Verification, known: Pristine) -> list[FailedRequest]:
    return [request for request in found.unreached if request in known.unreached]


def _network_failed(requests: Sequence[FailedRequest]) -> Unscored:
    reason = (
        f"The verifier could not reach {_listed(requests)}, on the environment as built either, so its result says "
        "nothing about the work."
    )
    return Unscored("verifier", "verify", "network-failed", reason)


def _listed(requests: Sequence[FailedRequest]) -> str:
    shown = [f"{item.host}{f':{item.port}' if item.port else ''} ({item.reason})" for item in requests[:_LISTED]]
    return ", ".join([*shown, f"{len(requests) - _LISTED} more"] if len(requests) > _LISTED else shown)


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
