"""What a command of a build needs from this machine to reach the network: trusted certificates and proxies.

Comes from the environment variables that programs here use themselves. It is visible while a command of the
build runs, is not part of any layer and decides no cache key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow.files import write_atomic
from benchflow.sandbox.protocol import Mount

_TRUST: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_INSIDE: Final = "/dev/benchflow/ca-certificates.crt"
_APT: Final = "/dev/benchflow/apt.conf"
"""In the sandbox's own `/dev`, which is part of no layer."""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Variables and read-only files for the commands of a build."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()


def with_one_user(settings: MachineSettings, folder: Path) -> MachineSettings:
    """`settings` for a sandbox whose users are all the same one: apt must not try to become another.

    The settings for apt are in a file below `folder`.
    """
    file = folder / "apt.conf"
    if not file.exists():
        write_atomic(file, 'APT::Sandbox::User "root";\n')
    env = {**settings.env, "APT_CONFIG": _APT}
    return MachineSettings(env, (*settings.mounts, Mount(file, _APT)))


def machine_settings(environment: Mapping[str, str] | None = None) -> MachineSettings:
    """This machine's certificates and proxies; certificates only where a variable here names a bundle."""
    given = os.environ if environment is None else environment
    env = {name: given[name] for lower in _PROXIES for name in (lower, lower.upper()) if name in given}
    named = [name for name in _TRUST if given.get(name)]
    bundle = next((Path(given[name]) for name in named if Path(given[name]).is_file()), None)
    if bundle is None:
        return MachineSettings(env)
    env |= dict.fromkeys(_TRUST, _INSIDE)
    return MachineSettings(env, (Mount(bundle.resolve(), _INSIDE),))
