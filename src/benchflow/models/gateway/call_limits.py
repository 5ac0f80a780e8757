"""Limits on the calls of a rollout, an episode or all of them together, and the meters that hold them.

A meter counts what was used; the meter of a rollout has that of its job above it, that of an episode the one of its
server or benchmark, and a call must be within both. What is not known is never counted as zero: a cost limit needs a
known price. Times are passed in; the only thing that waits is a call for its place among those at once (`place`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import anyio

LimitName = Literal["max_calls", "max_tokens", "max_cost", "max_model_time"]
Scope = Literal["role", "rollout", "job", "episode", "benchmark", "server"]
"""Whose calls a meter counts: `job`, `benchmark` and `server` are all rollouts or episodes of one together."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """None means unlimited."""

    max_calls: int | None = None
    max_tokens: int | None = None
    """Input and output together."""
    max_cost_usd: float | None = None
    max_seconds: float | None = None
    """The time that calls take, added up."""
    concurrent: int | None = None
    """Calls at once; more wait."""

    def __post_init__(self) -> None:
        """Refuse what is not a limit. A limit of 0 is one: no call is made."""
        for name in ("max_calls", "max_tokens", "max_cost_usd", "max_seconds"):
            limit = getattr(self, name)
            if limit is not None and not (limit >= 0 and math.isfinite(limit)):
                raise ValueError(f"{name} must be a number from 0 on, not {limit}.")
        if self.concurrent is not None and self.concurrent < 1:
            raise ValueError(f"concurrent must be at least 1, not {self.concurrent}.")

    @property
    def bounded(self) -> bool:
        """Whether anything is used up."""
        return any(
            limit is not None for limit in (self.max_calls, self.max_tokens, self.max_cost_usd, self.max_seconds)
        )

    def share(self, parts: int) -> CallLimits:
        """One of so many equal parts, so that none of several rivals can use up what another has."""
        return CallLimits(
            None if self.max_calls is None else self.max_calls // parts,
            None if self.max_tokens is None else self.max_tokens // parts,
            None if self.max_cost_usd is None else self.max_cost_usd / parts,
            None if self.max_seconds is None else self.max_seconds / parts,
            None if self.concurrent is None else max(1, self.concurrent // parts),
        )


NO_CALL_LIMITS: Final = CallLimits()


_BYTES_PER_TOKEN: Final = 3
"""Where a server does not count: rather too many tokens than too few, so that limits hold."""

_MICROSECOND: Final = 1e-6


def with_estimates(usage: Mapping[str, float], sizes: Mapping[str, int]) -> tuple[dict[str, float], bool]:
    """What was used, with tokens that nobody counted by the bytes that they take, and whether there are any."""
    unknown = sizes.keys() - usage.keys()
    return {**usage, **{name: -(-sizes[name] // _BYTES_PER_TOKEN) for name in unknown}}, bool(unknown)


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The limit at which a call was refused."""

    name: LimitName
    scope: Scope
    limit: float
    used: float

    @property
    def named(self) -> str:
        """As results name it: that of a job, a benchmark or a server with its scope in front."""
        return f"{self.scope} {self.name}" if self.scope in ("job", "benchmark", "server") else self.name

    def __str__(self) -> str:
        what = {
            "max_calls": f"{self.limit:g} model calls",
            "max_tokens": f"{self.limit:g} tokens",
            "max_cost": f"{self.limit:g} USD",
            "max_model_time": f"{self.limit:g} s of model time",
        }[self.name]
        return f"The {self.scope} reached its limit of {what}."


@dataclass(slots=True)
class Meter:
    """What the calls of a rollout, an episode, or of all of them have used."""

    limits: CallLimits = NO_CALL_LIMITS
    scope: Scope = "rollout"
    above: Meter | None = None
    calls: int = 0
    seconds: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    unpriced: int = 0
    """Calls whose cost is not known."""
    slots: anyio.Semaphore | None = field(init=False, default=None)
    """The calls that may run at once."""

    def __post_init__(self) -> None:
        if self.limits.concurrent is not None:
            self.slots = anyio.Semaphore(self.limits.concurrent)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place among the calls that may run at once, here and above; waits until there is one."""
        async with AsyncExitStack() as stack:
            meter: Meter | None = self
            while meter is not None:
                if meter.slots is not None:
                    await stack.enter_async_context(meter.slots)
                meter = meter.above
            yield

    @property
    def queues(self) -> bool:
        """Whether a call may have to wait for its place."""
        return self.slots is not None or (self.above is not None and self.above.queues)

    def begin(self) -> LimitReached | None:
        """Count a call that begins, unless a limit is reached, which is returned."""
        reached = self.reached()
        if reached is None:
            meter: Meter | None = self
            while meter is not None:
                meter.calls += 1
                meter = meter.above
        return reached

    def end(self, usage: Mapping[str, float], seconds: float) -> None:
        """Count what a call used; `usage` without `cost_usd` has an unknown cost."""
        meter: Meter | None = self
        while meter is not None:
            meter.seconds += seconds
            for name, value in usage.items():
                meter.totals[name] = meter.totals.get(name, 0) + value
            if "cost_usd" not in usage and usage:
                meter.unpriced += 1
            meter = meter.above

    @property
    def tokens(self) -> float:
        return self.totals.get("input_tokens", 0) + self.totals.get("output_tokens", 0)

    def reached(self) -> LimitReached | None:
        """The first limit that is reached, that of all together first."""
        above = self.above.reached() if self.above is not None else None
        if above is not None:
            return above
        table: tuple[tuple[LimitName, float | None, float], ...] = (
            ("max_calls", self.limits.max_calls, self.calls),
            ("max_tokens", self.limits.max_tokens, self.tokens),
            ("max_cost", self.limits.max_cost_usd, self.totals.get("cost_usd", 0.0)),
            ("max_model_time", self.limits.max_seconds, self.seconds),
        )
        for name, limit, used in table:
            if limit is not None and used >= limit:
                return LimitReached(name, self.scope, limit, used)
        return None

    @property
    def bounded(self) -> bool:
        """Whether any limit can be reached."""
        return self.limits.bounded or (self.above is not None and self.above.bounded)

    @property
    def priced(self) -> bool:
        """Whether a cost limit holds, so that every price must be known."""
        return self.limits.max_cost_usd is not None or (self.above is not None and self.above.priced)

    def out_of_time(self, seconds: float) -> LimitReached | None:
        """The limit on time that a call under way for so many seconds has reached, to the microsecond."""
        above = self.above.out_of_time(seconds) if self.above is not None else None
        limit = self.limits.max_seconds
        if above is not None or limit is None or self.seconds + seconds < limit - _MICROSECOND:
            return above
        return LimitReached("max_model_time", self.scope, limit, self.seconds + seconds)

    def seconds_left(self) -> float | None:
        """How long a call may take."""
        own = None if self.limits.max_seconds is None else max(self.limits.max_seconds - self.seconds, 0.0)
        above = self.above.seconds_left() if self.above is not None else None
        known = [left for left in (own, above) if left is not None]
        return min(known, default=None)

    def usage(self) -> dict[str, float]:
        """The totals for a record; a cost that is not known of every call is left out."""
        if not self.calls:
            return {}
        totals = {name: value for name, value in self.totals.items() if name != "cost_usd" or not self.unpriced}
        return {"model_calls": self.calls, **totals, "model_seconds": round(self.seconds, 3)}
