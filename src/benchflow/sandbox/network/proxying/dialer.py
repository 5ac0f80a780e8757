"""Connections to the outside: the policy's decision on a target, made once, logged, and dialled.

A name is resolved outside the sandbox, what it resolved to is judged, and exactly that address is connected to.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from ipaddress import IPv4Address, ip_address
from typing import Final

from benchflow.sandbox.network.addresses import VARIABLE, refusal
from benchflow.sandbox.network.attempt_log import AuditLog, Channel
from benchflow.sandbox.network.host_rules import Address, HostRules, Network, as_address
from benchflow.sandbox.network.proxying.connection import Stream
from benchflow.sandbox.network.proxying.http1 import Target

Resolver = Callable[[str], Awaitable[Sequence[Address]]]
"""From a name in normal form to its addresses, best first; an OSError when it has none."""

_LOOKUP_THREADS: Final = 32
_LOOKUPS_PER_SANDBOX: Final = 8
_MAX_TRIED: Final = 4


class RefusedError(Exception):
    """The policy forbids it; the text says why."""


class UnreachableError(Exception):
    """Allowed, but the outside world did not answer; the text says why."""


class Dialer:
    """Makes the connections of one sandbox."""

    def __init__(
        self, *, resolver: Resolver | None = None, permitted: Iterable[Network] = (), timeout: float = 15.0
    ) -> None:
        self._resolver = resolver or system_resolver
        self._permitted = tuple(permitted)
        self._timeout = timeout
        self._lookups = asyncio.Semaphore(_LOOKUPS_PER_SANDBOX)

    async def dial(self, target: Target) -> socket.socket:
        """A connected, non-blocking socket; `RefusedError` or `UnreachableError` otherwise."""
        reason = ""
        for address in await self._addresses(target.host):
            try:
                return await self._connect(address, target.port)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else "no answer in time"
        raise UnreachableError(f"{target.host} port {target.port}: {reason}")

    async def _addresses(self, host: str) -> list[Address]:
        found = await self._resolve(host)
        reasons = {address: refusal(address, self._permitted) for address in found}
        fit = [address for address, reason in reasons.items() if reason is None]
        if not fit:
            address, reason = next(iter(reasons.items()))
            raise RefusedError(f"{address} is {reason}; permit it with {VARIABLE}")
        return fit[:_MAX_TRIED]

    async def _resolve(self, host: str) -> Sequence[Address]:
        literal = as_address(host)
        if literal is not None:
            return [literal]
        try:
            async with asyncio.timeout(self._timeout), self._lookups:
                found = await self._resolver(host)
        except TimeoutError:
            raise UnreachableError(f"{host} cannot be resolved in time") from None
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"{host} cannot be resolved: {error.args[-1]}") from None
        if not found:
            raise UnreachableError(f"{host} has no address")
        return found

    async def _connect(self, address: Address, port: int) -> socket.socket:
        family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        except BaseException:
            sock.close()
            raise
        return sock


class _Asked(Stream):
    """A connection to the outside, of which the log knows whether it waits for an answer."""

    def __init__(self, sock: socket.socket, target: Target, audit: AuditLog, *, timeout: float) -> None:
        super().__init__(sock, timeout=timeout)
        self._target = target
        self._audit = audit

    async def write(self, data: bytes) -> None:
        self._audit.asked(self, self._target.host, self._target.port)
        await super().write(data)

    async def _fill(self) -> bool:
        found = await super()._fill()
        self._audit.answered(self)
        return found

    def end_writing(self) -> None:
        self._audit.given_up(self)
        super().end_writing()

    def close(self) -> None:
        self._audit.given_up(self)
        super().close()


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
            raise self.refused(channel, target, "not on the allowlist; `allowed_hosts` of the package permits hosts")
        dialling = object()
        self._audit.asked(dialling, target.host, target.port)
        try:
            sock = await self._dialer.dial(target)
            self._audit.answered(dialling)
        except RefusedError as error:
            raise self.refused(channel, target, str(error)) from None
        except UnreachableError as error:
            self.failed(channel, target, str(error))
            raise
        finally:  # also where the client does not wait for it
            self._audit.given_up(dialling)
        self._audit.record(channel, target.host, target.port, "allowed")
        return _Asked(sock, target, self._audit, timeout=self._timeout)

    def refused(self, channel: Channel, target: Target, reason: str) -> RefusedError:
        """Log a refusal and give the error to raise for it."""
        self._audit.record(channel, target.host, target.port, "refused", reason)
        return RefusedError(f"egress to {target.host} port {target.port} refused: {reason}")

    def failed(self, channel: Channel, target: Target, reason: str) -> None:
        """Log that a target that is admitted did not answer as it should."""
        self._audit.record(channel, target.host, target.port, "failed", reason)

    def malformed(self, channel: Channel, reason: str) -> None:
        """Log a request that is too broken to have a host."""
        self._audit.record(channel, "", None, "refused", reason)


async def system_resolver(host: str) -> Sequence[Address]:
    """The machine's own name service, called in separate threads."""
    found = await asyncio.get_running_loop().run_in_executor(_threads(), _lookup, host)
    return list(dict.fromkeys(found))


def _lookup(host: str) -> list[Address]:
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="egress-lookup")
