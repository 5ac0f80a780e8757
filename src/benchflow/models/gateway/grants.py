"""What one rollout or episode may ask of models, what it asked, and how it went: a `Grant`.

A grant is opened for a rollout and closed at the end of its agent phase. Every role that is opened in a box is admitted
(`admit`): it gets an `Access`, a token of its own that counts on its own listening socket only, and ends with it.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.models.gateway.call_failures import CallFailure
from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits, LimitReached, Meter, Scope
from benchflow.models.gateway.endpoints import Family, base_path
from benchflow.models.gateway.upstreams import PROVIDERS, without_keys
from benchflow.record.model_calls import CallPlace, CallSource, ModelCalls

if TYPE_CHECKING:
    from benchflow.models.gateway.gateway_socket import Listening
    from benchflow.models.gateway.model_gateway import Gateway
    from benchflow.models.gateway.replay_book import ReplayBook, Replayed

HOST: Final = "127.0.0.1"
"""Where a box finds the gateway: its own loopback, which every client and every network policy lets it use."""
PORT: Final = 41999
"""The port there, unless another program of the box has it."""
_REFUSALS_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """What a rollout asks for."""

    calls: ModelCalls | None = None
    """Where its calls are recorded."""
    limits: CallLimits = NO_CALL_LIMITS
    forbidden_tools: frozenset[str] = frozenset()
    """Names of tools that the model's provider must not run: those are taken out of requests."""
    replay: ReplayBook | None = None
    """Answers of another rollout; then nothing is sent to any provider."""
    token_ids: bool = False
    """Ask servers of the OpenAI dialects for token ids and log-probabilities."""


class Grant:
    """The calls of one rollout."""

    def __init__(self, gateway: Gateway, request: GrantRequest, above: Meter, scope: Scope = "rollout") -> None:
        """`above` is the meter that counts its calls too: that of the job, of the rollout for one of its roles, of an
        episode for its judges or its user."""
        self.request: Final = request
        self.meter: Final = Meter(request.limits, scope, above)
        self.reached: Final = anyio.Event()
        """Set when a call was refused at a limit."""
        self.limit: LimitReached | None = None
        """That limit."""
        self.suspended = False
        """Whether calls are refused for the moment, because a verifier works."""
        self._gateway: Final = gateway
        self._failures: dict[str, CallFailure] = {}
        self._open: list[Access] = []
        self._refusals = 0
        self._closed = False

    def of_role(self, limits: CallLimits) -> Grant:
        """A grant for one of several rivals: limits and failures of its own, and the same record."""
        return Grant(self._gateway, replace(self.request, limits=limits), self.meter, "role")

    @property
    def usage(self) -> Mapping[str, float]:
        """What the gateway saw: `model_calls`, `input_tokens`, `output_tokens`, `cached_tokens`, `cost_usd`,
        `model_seconds`, as far as known; empty without a call."""
        return self.meter.usage()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def upstreams(self) -> Mapping[str, Family]:
        """Who can be asked."""
        return self._gateway.families

    @property
    def keys(self) -> frozenset[str]:
        """The keys of those who can be asked, and all others of their kind."""
        return self._gateway.keys

    @property
    def bounded(self) -> bool:
        """Whether any limit can be reached."""
        return self.meter.bounded

    def seat(self, place: CallPlace) -> Access:
        """Let in what calls models from this process, such as a model agent: the same limits and records."""
        return Access(self, place, 0, self._gateway.families)

    def admit(self, place: CallPlace, listener: socket.socket) -> Access:
        """Let a role in: serve a listening socket of its box, which belongs to the access from now on."""
        access = replace(self.seat(place), port=listener.getsockname()[1])
        access.listening = self._gateway.listen(listener, access)
        self._open.append(access)
        if self.request.calls is not None:  # an agent that shows its variables to its model shows the token
            self.request.calls.hide(access.token)
        return access

    async def close(self) -> None:
        """End every access; calls under way are aborted and recorded. Idempotent."""
        self._closed = True
        while self._open:
            await self._open.pop().close()

    def reach(self, limit: LimitReached) -> None:
        """Note the limit at which a call was refused."""
        if self.limit is None:
            self.limit = limit
            self.reached.set()

    def ended(self, place: CallPlace, failure: CallFailure | None) -> None:
        """Note how a call of a place ended; the last one of a role counts. Users report their own failures, and so do
        judges that are asked once."""
        if failure is not None:
            self._failures[f"{place.source} {place.role}"] = failure
        else:
            self._failures.pop(f"{place.source} {place.role}", None)

    def failure_of(self, role: str, source: CallSource = "agent") -> CallFailure | None:
        """What failed at last: a call of this role after which none succeeded, whether or not the agent told."""
        return self._failures.get(f"{source} {role}")

    def replayed(self, place: CallPlace, dialect: str, endpoint: str, request: Any) -> Replayed | None:
        """The answer of the rollout that is replayed, found by the request as it would be recorded."""
        book, calls = self.request.replay, self.request.calls
        if book is None:
            return None
        return book.take(place.role, dialect, endpoint, request if calls is None else calls.cleaned(request))

    def record(self, call: Mapping[str, Any]) -> None:
        """Write a call down; of refused ones only the first, so that garbage cannot fill a disk."""
        if call["outcome"] in ("refused", "limited"):
            self._refusals += 1
            if self._refusals > _REFUSALS_KEPT:
                return
        if self.request.calls is not None:
            self.request.calls.append(**call)


@dataclass(slots=True)
class Access:
    """What one role in one box is given."""

    grant: Grant = field(repr=False)
    place: CallPlace
    """Where calls belong now; set by `at`."""
    port: int
    families: Mapping[str, Family]
    """The upstreams that can be asked, by name."""
    token: str = field(default_factory=lambda: f"bench-{secrets.token_urlsafe(24)}", repr=False)
    listening: Listening | None = field(default=None, repr=False)
    held: int = 0
    """Bytes of its requests that are in memory."""

    @property
    def meter(self) -> Meter:
        """What counts its calls: those of judges count above the grant only, so that an agent cannot use up a judge."""
        meter = self.grant.meter
        return meter.above if self.place.source == "judge" and meter.above is not None else meter

    def url(self, upstream: str) -> str:
        """The base URL of an upstream, as clients of its dialect take it; a `KeyError` if there is none."""
        return f"http://{HOST}:{self.port}{base_path(upstream, self.families[upstream])}"

    def variables(self) -> dict[str, str]:
        """The variables that point ordinary clients here: base URL and token of every known provider."""
        found: dict[str, str] = {}
        for name, provider in PROVIDERS.items():
            if name in self.families:
                found[provider.bases[0]] = self.url(name)
                found[provider.keys[0]] = self.token
        return found

    def without_keys(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables for a box, in which the token stands for every key that the gateway has."""
        return without_keys(env, self.grant.keys, self.token)

    def at(self, **where: Any) -> None:
        """Calls belong to this step, turn, scene or branch from now on."""
        self.place = replace(self.place, **where)

    def knows(self, token: str) -> bool:
        """Whether this is the token, which counts as long as the access is open."""
        return self.listening is not None and hmac.compare_digest(token.encode(), self.token.encode())

    async def close(self) -> None:
        """End the token and every connection; idempotent."""
        listening, self.listening = self.listening, None
        if listening is not None:
            await listening.close()
