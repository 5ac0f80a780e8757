"""The gateway that rollouts or episodes share: with the limits of all of them together, and those of each.

It is made when the first of them needs it, in the event loop that they run in, and belongs to this object.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits, Scope

if TYPE_CHECKING:
    from benchflow.models.gateway.model_gateway import Gateway


class SharedGateway:
    """Made without a connection and without a client: those are loaded with the first call."""

    def __init__(
        self,
        machine: Mapping[str, str],
        limits: CallLimits = NO_CALL_LIMITS,
        whole: CallLimits = NO_CALL_LIMITS,
        scope: Scope = "job",
    ) -> None:
        """`machine` holds keys and base URLs, `limits` are those of each, `whole` of all together, called `scope`."""
        self.limits: Final = limits
        self._machine: Final = machine
        self._whole: Final = whole
        self._scope: Final[Scope] = scope

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return {self.limits, self._whole} != {NO_CALL_LIMITS}

    @property
    def counts_all(self) -> bool:
        """Whether there are limits of all together."""
        return self._whole != NO_CALL_LIMITS

    @cached_property
    def gateway(self) -> Gateway:
        """With the limits of all together."""
        from benchflow.models.gateway.model_gateway import Gateway

        return Gateway(self._machine, limits=self._whole, scope=self._scope)

    async def close(self) -> None:
        """Idempotent; what was counted is forgotten."""
        gateway: Gateway | None = self.__dict__.pop("gateway", None)
        if gateway is not None:
            await gateway.close()
