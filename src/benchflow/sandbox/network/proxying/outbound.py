"""The policy's decision on one target, made once: judged, dialled and written to the log."""

from __future__ import annotations

from benchflow.sandbox.network.attempt_log import AuditLog, Channel
from benchflow.sandbox.network.host_rules import HostRules
from benchflow.sandbox.network.proxying.connection import Stream
from benchflow.sandbox.network.proxying.dialer import Dialer, RefusedError, UnreachableError
from benchflow.sandbox.network.proxying.http1 import Target


class Outbound:
    """The only place where connections to the outside are made."""

    def __init__(self, rules: HostRules | None, dialer: Dialer, audit: AuditLog, *, timeout: float) -> None:
        """`rules` None is the public policy: every host is admitted, every protocol passes."""
        self._rules = rules
        self._dialer = dialer
        self._audit = audit
        self._timeout = timeout

    @property
    def inspects(self) -> bool:
        """Whether a connection must show by its own words that it is meant for the host it goes to."""
        return self._rules is not None

    def admits(self, host: str) -> bool:
        """Whether the policy lets a host in normal form be reached."""
        return self._rules is None or self._rules.admit(host)

    async def connect(self, channel: Channel, target: Target) -> Stream:
        """A connection to `target`; `RefusedError` or `UnreachableError` otherwise. Logged in every case."""
        if not self.admits(target.host):
            raise self.refused(channel, target, "not on the allowlist")
        try:
            sock = await self._dialer.dial(target)
        except RefusedError as error:
            raise self.refused(channel, target, str(error)) from None
        except UnreachableError as error:
            self._audit.record(channel, target.host, target.port, "failed", str(error))
            raise
        self._audit.record(channel, target.host, target.port, "allowed")
        return Stream(sock, timeout=self._timeout)

    def refused(self, channel: Channel, target: Target, reason: str) -> RefusedError:
        """Log a refusal and give the error to raise for it."""
        self._audit.record(channel, target.host, target.port, "refused", reason)
        return RefusedError(f"egress to {target.host} port {target.port} refused: {reason}")

    def malformed(self, channel: Channel, reason: str) -> None:
        """Log a request that is too broken to have a host."""
        self._audit.record(channel, "", None, "refused", reason)
