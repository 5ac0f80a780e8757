"""The kinds of proxies in the machine's variables through which models are called, and the refusal of all others."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

SOCKS: Final = frozenset({"socks5", "socks5h"})
_KNOWN: Final = frozenset({"http", "https"}) | SOCKS


def unsupported(kind: str) -> str:
    """Why a proxy is not used."""
    return f"proxies of the kind {kind} are not supported; supported: {', '.join(sorted(_KNOWN))}"


def wrong_proxy() -> str | None:
    """What is wrong with the proxies that this machine names; None if they can be used."""
    proxies = getproxies()
    for name in ("https", "http", "all"):
        kind = urlsplit(proxies[name]).scheme if "://" in proxies.get(name, "") else "http"
        if kind not in _KNOWN:
            return f"{name.upper()}_PROXY: {unsupported(kind)}."
    return None
