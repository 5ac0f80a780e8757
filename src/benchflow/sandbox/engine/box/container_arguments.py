"""The arguments that start a container. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchflow.sandbox.engine.machine.dialect import Dialect
from benchflow.sandbox.engine.machine.ownership import ANCHOR, INSIDE, LEASE, OWNED, PURPOSE, Owner
from benchflow.sandbox.protocol import Limits, Mount

_NEVER_NEEDED: Final = ("MKNOD", "NET_RAW")


@dataclass(frozen=True, slots=True)
class Launch:
    """One container: what it is made from and what it may do. Without `command` only the anchor runs in it."""

    image: str
    name: str
    network: str
    purpose: str
    limits: Limits = field(default_factory=Limits)
    hostname: str | None = None
    hosts: tuple[str, ...] = ()
    """Names that mean this very machine inside."""
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = "0:0"
    workdir: str = "/"
    extra: tuple[str, ...] = ("--log-driver", "none")
    command: tuple[str, ...] = ()


def run_arguments(
    dialect: Dialect, owner: Owner, launch: Launch, *, lease: bool, ulimits: Sequence[str] = ()
) -> list[str]:
    """Everything after the engine's command: a detached container whose first process is the anchor.

    With `lease` the container ends when its owner does.
    """
    args = ["run", "--detach", "--name", launch.name, "--network", launch.network]
    args += ["--user", launch.user, "--workdir", launch.workdir]
    args += ["--entrypoint", ANCHOR, "--no-healthcheck", "--pull", "never", "--security-opt", "no-new-privileges"]
    args += [part for capability in _NEVER_NEEDED for part in ("--cap-drop", capability)]
    if launch.hostname is not None:
        args += ["--hostname", launch.hostname]
    args += [part for name in launch.hosts for part in ("--add-host", f"{name}:127.0.0.1")]
    ours = {**launch.labels, OWNED: owner.id, PURPOSE: launch.purpose}
    args += [part for name, value in ours.items() for part in ("--label", f"{name}={value}")]
    args += [*ulimits, *limit_arguments(launch.limits)]
    args += mount_arguments(str(owner.folder), INSIDE)
    for mount in launch.mounts:
        args += mount_arguments(str(mount.source.absolute()), mount.target)
    return [*args, *launch.extra, *dialect.extra_run, launch.image, "hold", LEASE if lease else "-", *launch.command]


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
    """A read-only mount, written as CSV, so that paths may contain commas and quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(["type=bind", f"source={source}", f"target={target}", "readonly"])
    return ["--mount", line.getvalue()]
