"""The model gateway: the only way from a box to a model.

A driver has one `Gateway`. It opens a `Grant` for each rollout and closes it at the end of the agent phase; every role
gets an `Access`, with a token and base URLs that work inside its box only. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.models.gateway.call_failures import CallFailure, Patience
    from benchflow.models.gateway.call_limits import NO_CALL_LIMITS, CallLimits, LimitReached
    from benchflow.models.gateway.grants import HOST, PORT, Access, Grant, GrantRequest
    from benchflow.models.gateway.model_gateway import Gateway
    from benchflow.models.gateway.upstreams import (
        KEY_VARIABLES,
        PROVIDERS,
        Upstream,
        Upstreams,
        find_upstreams,
        without_keys,
    )

__all__ = [
    "HOST",
    "KEY_VARIABLES",
    "NO_CALL_LIMITS",
    "PORT",
    "PROVIDERS",
    "Access",
    "CallFailure",
    "CallLimits",
    "Gateway",
    "Grant",
    "GrantRequest",
    "LimitReached",
    "Patience",
    "Upstream",
    "Upstreams",
    "find_upstreams",
    "without_keys",
]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.models.gateway.call_failures": "CallFailure Patience",
        "benchflow.models.gateway.call_limits": "NO_CALL_LIMITS CallLimits LimitReached",
        "benchflow.models.gateway.grants": "HOST PORT Access Grant GrantRequest",
        "benchflow.models.gateway.model_gateway": "Gateway",
        "benchflow.models.gateway.upstreams": "KEY_VARIABLES PROVIDERS Upstream Upstreams find_upstreams without_keys",
    },
)
