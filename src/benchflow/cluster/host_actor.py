"""What Ray runs on a node: an actor that makes the host from its import path and passes calls on to it.

Ray pickles only the name of this class; the host and all that it uses are imported from what the node has installed,
which is compared with the driver's first.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from benchflow.cluster.node_link import NodeRefused
from benchflow.cluster.source_digest import Installed, installed


class HostActor:
    """Owns one host for as long as its process lives."""

    def __init__(self, of_driver: Installed, host: str, arguments: Sequence[object]) -> None:
        """`host` is `module:Class`."""
        difference = of_driver.difference(installed())
        if difference is not None:
            raise NodeRefused(f"It {difference}: install the same version on both.")
        module, _, name = host.partition(":")
        self._host: Final[Any] = getattr(importlib.import_module(module), name)(*arguments)

    async def hello(self) -> None:
        """Answered once the host exists."""

    async def call(self, method: str, arguments: Sequence[object]) -> Any:
        """Call a public method of the host."""
        if method.startswith("_"):
            raise AttributeError(f"'{method}' is not a method for others.")
        return await getattr(self._host, method)(*arguments)
