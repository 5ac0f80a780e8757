"""Agent cards: ours, which peers of A2A 1.x and 0.3 both read, and how to reach the owner of somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from benchflow.arena.a2a_types import Version

CARD_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""The path of 0.3 and later, and the older one that some clients still ask for."""
Binding = Literal["JSONRPC", "HTTP+JSON"]
_MODES: Final = ["text/plain", "application/json"]


@dataclass(frozen=True, slots=True)
class Card:
    """What a peer of ours says about itself."""

    name: str
    description: str
    url: str
    """Where it answers JSON-RPC; REST is below the same address."""
    version: str = "1"
    skill: str = "talk"
    tags: tuple[str, ...] = ("benchmark",)

    def to_dict(self) -> dict[str, Any]:
        """The fields of 1.0 and 0.3 in one card."""
        url = self.url.rstrip("/") + "/"
        return {
            "name": self.name,
            "description": self.description,
            "version": self.version,
            "url": url,
            "preferredTransport": "JSONRPC",
            "protocolVersion": "0.3.0",
            "supportedInterfaces": [
                {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
                {"url": url.rstrip("/"), "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
                {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
            ],
            "capabilities": {"streaming": True, "pushNotifications": False},
            "defaultInputModes": _MODES,
            "defaultOutputModes": _MODES,
            "skills": [
                {"id": self.skill, "name": self.skill, "description": self.description, "tags": list(self.tags)}
            ],
        }


@dataclass(frozen=True, slots=True)
class Route:
    """How a peer is called."""

    url: str
    binding: Binding
    version: Version
    streaming: bool
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def plain_url(text: str) -> str | None:
    """Why a text is not the address of a peer; None if it is one."""
    try:
        parts = urlsplit(text)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        # What is read differently by different parsers is refused: they drop tabs, and map letters to others.
        bad = bad or not text.isascii() or not text.isprintable() or " " in text or "\\" in text
    except ValueError:
        bad = True
    if bad:
        return "is not an http or https URL"
    if "@" in parts.netloc:
        return "must not contain a user or a password"
    return "must not have a query or a fragment" if parts.query or parts.fragment else None


def _interfaces(card: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    listed: list[tuple[str, str, str]] = []
    supported = card.get("supportedInterfaces")
    for each in supported if isinstance(supported, list) else []:
        if isinstance(each, dict):
            version = str(each.get("protocolVersion") or "1.0")
            listed.append((str(each.get("protocolBinding")).upper(), version, str(each.get("url") or "")))
    if isinstance(card.get("url"), str):
        first = str(card.get("preferredTransport") or "JSONRPC").upper()
        version = str(card.get("protocolVersion") or "0.3")
        more = card.get("additionalInterfaces")
        also = [each for each in more if isinstance(each, dict)] if isinstance(more, list) else []
        listed.append((first, version, str(card["url"])))
        listed += [(str(each.get("transport")).upper(), version, str(each.get("url") or "")) for each in also]
    return listed


def choose_route(card: Mapping[str, Any], asked: str) -> Route | str:
    """How to call the owner of a card that was read at `asked`, or why it cannot be called.

    Scheme, host and port are always those of `asked`; only the path of an interface counts. A card can send its reader
    to no other machine, and an agent that does not know its outer address can still be called.
    """
    capabilities = card.get("capabilities")
    streaming = isinstance(capabilities, dict) and capabilities.get("streaming") is True
    listed = _interfaces(card)
    known: tuple[tuple[Binding, str], ...] = (("JSONRPC", "1"), ("JSONRPC", "0"), ("HTTP+JSON", "1"))
    for binding, major in known:
        for offered, version, url in listed:
            if offered == binding and version.partition(".")[0] == major:
                return Route(_at(asked, url), binding, "1.0" if major == "1" else "0.3", streaming, card)
    offers = ", ".join(sorted({f"{binding} {version}"[:40] for binding, version, _ in listed})) or "nothing"
    return f"its card offers {offers}, and not JSON-RPC or HTTP+JSON of A2A 1.x, or JSON-RPC of 0.3"


def _at(asked: str, url: str) -> str:
    here = urlsplit(asked)
    try:
        path = urlsplit(url).path
    except ValueError:
        path = ""
    return urlunsplit((here.scheme, here.netloc, path or here.path or "/", "", ""))
