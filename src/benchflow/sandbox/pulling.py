"""How images are pulled: the policy of a command and what a package adds to it. Plain values, for every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

PullPolicy = Literal["missing", "always", "never"]
PULL_POLICIES: Final[tuple[PullPolicy, ...]] = ("missing", "always", "never")


@dataclass(frozen=True, slots=True)
class Credentials:
    """How a user identifies to a registry: a name with a password, or a token."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    """Exchanged for an access token at the server that the registry names."""
    registry_token: str = field(default="", repr=False)
    """Sent to the registry as it is."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far the download of one image is."""

    image: str
    done: int
    """Bytes so far, those that were on the machine already included."""
    total: int
    finished: bool = False


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How a command pulls images, and for one package: with which credentials and pins."""

    policy: PullPolicy = "missing"
    platform: str | None = None
    """`linux/ARCHITECTURE`; None is this machine's."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Image names with the digest that is required, as the package wrote them."""
    credentials: Mapping[str, Credentials] = field(default_factory=dict)
    """Of single images; the name `*` is for all others. Without any, the user's own are used."""
    on_progress: Callable[[PullProgress], None] | None = field(default=None, compare=False)
