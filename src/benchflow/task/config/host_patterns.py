"""Host names that a network allow-list may hold: exact names, `*.` wildcards, addresses and networks."""

from __future__ import annotations

import re
from typing import Any, Final

from benchflow.task.config.issues import IssueLog
from benchflow.task.config.kinds import listing, text
from benchflow.task.config.parsed_record import InvalidValueError, Kind

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MAX_HOST: Final = 253


def _parse(value: Any, path: str, problems: IssueLog) -> str:
    host: str = text.parse(value, path, problems).strip().lower().removesuffix(".")
    if not host:
        raise InvalidValueError("must not be empty")
    if "://" in host:
        raise InvalidValueError(f"must be a host name, not a URL; it is '{host[:60]}'")
    if _is_address(host):
        return host
    if "/" in host or ":" in host:
        raise InvalidValueError(f"must be a host name without port or path; it is '{host[:60]}'")
    labels = host.removeprefix("*.").split(".")
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidValueError(f"must be a host name or '*.' and a domain; it is '{host[:60]}'")
    return host


def _is_address(host: str) -> bool:
    if not (host[0].isdigit() or ":" in host):
        return False
    from ipaddress import ip_address, ip_network

    try:
        if "/" in host:
            ip_network(host)
        else:
            ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


hosts: Final = listing(Kind(_parse))
"""A list of hosts, folded to lower case without a trailing dot."""


def check_network(values: dict[str, Any], path: str, problems: IssueLog) -> None:
    """`allowlist` and `allowed_hosts` belong together; foreign imports may allow no host at all."""
    mode, allowed = values.get("network_mode"), values.get("allowed_hosts")
    prefix = f"{path}." if path else ""
    if mode == "allowlist" and not allowed and not problems.foreign:
        problems.error(
            "invalid-value",
            f"{prefix}allowed_hosts",
            f"{prefix}allowed_hosts must name at least one host when network_mode is allowlist",
        )
    if allowed is not None and mode != "allowlist":
        problems.error(
            "conflicting-keys",
            f"{prefix}allowed_hosts",
            f"{prefix}allowed_hosts needs network_mode: allowlist",
        )
