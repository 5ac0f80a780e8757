"""Names as addresses: a name gets an address of the benchmarking range, and is found again by it."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address
from typing import Final

from benchflow.sandbox.network.egress_plan import FAKE_NETWORK, LINK_NETWORK

MAX_NAMES: Final = 16_384


class FakeNames:
    """The names of one sandbox. Bounded: the name that was not asked for the longest time makes room.

    Its address is reused only after all others, so a stale one points nowhere instead of to another name.
    """

    def __init__(self, *, keep: int = MAX_NAMES) -> None:
        self._keep = keep
        self._addresses: OrderedDict[str, int] = OrderedDict()
        self._names: dict[int, str] = {}
        self._first = int(FAKE_NETWORK.network_address) + 1
        self._last = int(LINK_NETWORK.network_address) - 1
        self._next = self._first

    def address_of(self, name: str) -> IPv4Address:
        """The address for a name in normal form, the same one as long as it is kept."""
        value = self._addresses.get(name)
        if value is None:
            value = self._free()
            self._addresses[name] = value
            self._names[value] = name
        self._addresses.move_to_end(name)
        return IPv4Address(value)

    def name_of(self, address: str) -> str | None:
        """The name that an address was handed out for."""
        return self._names.get(int(IPv4Address(address)))

    def _free(self) -> int:
        if len(self._addresses) >= self._keep:
            _, oldest = self._addresses.popitem(last=False)
            del self._names[oldest]
        while self._next in self._names:
            self._advance()
        value = self._next
        self._advance()
        return value

    def _advance(self) -> None:
        self._next = self._first if self._next == self._last else self._next + 1
