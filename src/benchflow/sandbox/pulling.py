"""How images are pulled: the policy of a command and what a package adds to it. Plain values, for every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from benchflow.errors import UsageError

PullPolicy = Literal["missing", "always", "never"]
ANY_IMAGE: Final = "*"
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


OnPull = Callable[[PullProgress], None]


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How a command pulls images, and for one package: with which credentials and pins."""

    policy: PullPolicy = "missing"
    platform: str | None = None
    """`linux/ARCHITECTURE`; None is this machine's."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Image names with the digest that is required, as the package wrote them."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of secrets by image (`USER:PASSWORD`, the content of a Docker `config.json`, or a token); the name `*` is
    for all others. Where there are none, the user's own are used."""
    unset: tuple[str, ...] = ()
    """Variables of the machine from which the package takes credentials, and which are not set."""
    on_progress: OnPull | None = field(default=None, compare=False)
    ask_again_sec: float | None = field(default=60.0, compare=False)
    """How long a registry that gave no answer, or not the image, is left alone; None: while this process lives, for
    a command. A gym or a server lives longer than an outage."""


def pull_policy(name: str) -> PullPolicy:
    """The policy of that name; any other name is a `UsageError`."""
    for policy in PULL_POLICIES:
        if policy == name:
            return policy
    raise UsageError(f"{name!r} is not a pull policy: {', '.join(PULL_POLICIES)}.", code="pull-policy")
