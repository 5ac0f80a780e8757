"""Networks that the operator of this machine lets sandboxes reach although they are not public.

Read from `$BENCHCUBE_PERMITTED_NETWORKS`, addresses and CIDR networks separated by commas; nothing is permitted without
it. A machine whose package mirrors have private addresses names them there. Packages have no say in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final

from benchflow.errors import UsageError
from benchflow.sandbox.network.host_rules import Network

VARIABLE: Final = "BENCHCUBE_PERMITTED_NETWORKS"


def permitted_networks(environment: Mapping[str, str] | None = None) -> tuple[Network, ...]:
    """What the operator permits; what is not a network is a `UsageError`."""
    given = os.environ if environment is None else environment
    networks: list[Network] = []
    for item in given.get(VARIABLE, "").split(","):
        if not item.strip():
            continue
        try:
            networks.append(ip_network(item.strip(), strict=False))
        except ValueError:
            message = f"{VARIABLE}: {item.strip()!r} is neither an address nor a network."
            raise UsageError(message, code="permitted-networks") from None
    return tuple(networks)
