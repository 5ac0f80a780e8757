"""The arguments that start a container from a sandbox's description. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Final

from benchflow.sandbox.engine.dialect import Dialect
from benchflow.sandbox.engine.ownership import ANCHOR, INSIDE, LEASE, OWNED, PURPOSE, Owner
from benchflow.sandbox.protocol import Limits, Mount

_NEVER_NEEDED: Final = ("MKNOD", "NET_RAW")


def run_arguments(
    dialect: Dialect,
    *,
    image: str,
    name: str,
    network: str,
    owner: Owner,
    lease: bool,
    purpose: str,
    limits: Limits,
    hostname: str | None,
    mounts: Iterable[Mount],
    labels: Mapping[str, str],
) -> list[str]:
    """Everything after the command: a detached container whose first process is the anchor, running as root."""
    args = ["run", "--detach", "--name", name, "--network", network, "--user", "0:0", "--workdir", "/"]
    args += ["--entrypoint", ANCHOR, "--log-driver", "none", "--no-healthcheck", "--pull", "never"]
    args += confinement()
    if hostname is not None:
        args += ["--hostname", hostname]
    args += label_arguments(owner, purpose, labels)
    args += limit_arguments(limits)
    args += mount_arguments(str(owner.folder), INSIDE)
    for mount in mounts:
        args += mount_arguments(str(mount.source), mount.target)
    return [*args, *dialect.extra_run, image, "hold", LEASE if lease else "-"]


def confinement() -> list[str]:
    args = ["--security-opt", "no-new-privileges"]
    for capability in _NEVER_NEEDED:
        args += ["--cap-drop", capability]
    return args


def label_arguments(owner: Owner, purpose: str, labels: Mapping[str, str]) -> list[str]:
    ours = {**labels, OWNED: owner.id, PURPOSE: purpose}
    return [part for name, value in ours.items() for part in ("--label", f"{name}={value}")]


def limit_arguments(limits: Limits) -> list[str]:
    """Memory includes swap, or a limit would only slow a hog down."""
    args: list[str] = []
    if limits.cpus is not None:
        args += ["--cpus", f"{limits.cpus:g}"]
    if limits.memory_mb is not None:
        args += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
    if limits.pids is not None:
        args += ["--pids-limit", str(limits.pids)]
    if limits.storage_mb is not None:
        args += ["--storage-opt", f"size={limits.storage_mb}m"]
    return args


def mount_arguments(source: str, target: str) -> list[str]:
    """A read-only mount; written as CSV, so that commas and quotes in paths are no trouble."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(["type=bind", f"source={source}", f"target={target}", "readonly"])
    return ["--mount", line.getvalue()]
