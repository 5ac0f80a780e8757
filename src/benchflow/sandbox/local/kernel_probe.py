"""Finds out by trying what the local sandbox can do on this machine, and says how to get what it cannot."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchflow.errors import BenchflowError, InfrastructureFailure
from benchflow.files.atomic import write_atomic
from benchflow.sandbox.granted_ids import granted_range
from benchflow.sandbox.inside import syscalls
from benchflow.sandbox.local.inside.box_plan import Identity
from benchflow.sandbox.local.launcher import Launcher
from benchflow.sandbox.local.layers.sandbox_store import Owner, Store
from benchflow.sandbox.protocol import CAPABILITIES, Limits, Missing, NetworkPolicy, SandboxSpec

if TYPE_CHECKING:
    from benchflow.sandbox.local.local_backend import LocalBackend

_ALWAYS: Final = frozenset({"network.none", "limits.time", "mounts", "fork", "snapshot", "services", "healthcheck"})
_IMAGES: Final = frozenset({"build.dockerfile", "image"})
_EGRESS: Final = frozenset({"network.public", "network.allowlist"})
KNOWN: Final = "machine.json"
"""In the store: what worked when it was tried on this machine."""
_ENGINE: Final = "use the docker or podman sandbox"
_HOW: Final = {
    "compose": _ENGINE,
    "gpu": "use a remote sandbox backend with GPUs",
    "tpu": "use a remote sandbox backend with TPUs",
    "windows": "use a remote sandbox backend that runs Windows",
    "users": "install the package uidmap and grant the user 65536 ids in /etc/subuid and /etc/subgid, or run as root",
    "limits.disk": "as root: provide loop devices and mkfs.ext4 (package e2fsprogs); otherwise use Linux 6.6 or newer",
    "network.public": "load the kernel module veth",
    "network.allowlist": "load the kernel module veth",
}
_SHARED_BY_USER: Final = (
    "All sandboxes of this user share the user's ids, and with them the limits that the kernel keeps per user, such as "
    "inotify instances and descriptors in flight. For root, every sandbox has ids of its own."
)
_SHARED_IDS: Final[dict[Identity, str]] = {
    "identity": "All sandboxes have the same user ids, because the file system of the store cannot shift owners. They "
    "share the limits that the kernel keeps per user, such as inotify instances. Set BENCHCUBE_STORE to a folder on "
    "ext4, XFS or Btrfs.",
    "range": _SHARED_BY_USER,
    "single": _SHARED_BY_USER,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found."""

    capabilities: frozenset[str]
    reason: str | None = None
    """Why no sandbox can be started; None when one was."""
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Every capability that is not there, and how to get it."""
        return tuple(
            Missing(name, _HOW.get(name, "see the reason")) for name in CAPABILITIES if name not in self.capabilities
        )


def open_launcher(
    store: Store, owner: Owner, identity: Identity | None = None, groups: Sequence[Path] = ()
) -> Launcher:
    """A zygote with the best isolation of user ids that this machine lets us have."""
    if sys.platform != "linux" or not syscalls.SUPPORTED:
        raise InfrastructureFailure(
            "The local sandbox needs Linux on x86-64 or AArch64, "
            f"this is {sys.platform} on {platform.machine()}; {_ENGINE}.",
            code="local-unsupported",
        )
    problems = []
    for candidate in [identity] if identity else _identities():
        try:
            return Launcher(store.root, candidate, owner, groups)
        except OSError as error:
            problems.append(f"{error.strerror or error}")
    raise InfrastructureFailure(
        f"The local sandbox needs namespaces, and the kernel refuses them: {problems[-1]}, or {_ENGINE}.",
        code="local-unusable",
    )


def _identities() -> Iterator[Identity]:
    if os.geteuid() == 0:
        yield "idmap"
        yield "identity"
        return
    if shutil.which("newuidmap") and shutil.which("newgidmap") and granted_range("/etc/subuid"):
        yield "range"
    yield "single"


def expected(identity: Identity) -> frozenset[str]:
    """What a sandbox of this kind offers before anything was tried."""
    found = _ALWAYS | _IMAGES | _EGRESS | {"limits.pids", "limits.memory", "limits.cpu", "limits.disk"}
    return found if identity == "single" else found | {"users"}


async def probe(backend: LocalBackend) -> Probe:
    """Start sandboxes that use the available features, and keep what worked.

    If everything has worked since this machine was started, with the same permissions, it is not tested again: three
    sandboxes for every command would cost more than the sandbox it wants. What did not work is always tried again.
    """
    try:
        runtime = await backend.runtime()
        notes = tuple(note for identity, note in _SHARED_IDS.items() if identity == runtime.launcher.identity)
        known, machine = backend.store.root / KNOWN, _machine(runtime.launcher.identity)
        if _worked_before(known, machine):
            return Probe(expected(runtime.launcher.identity), notes=notes)
        async with backend.create(SandboxSpec()) as sandbox:
            result = await sandbox.exec(["true"], timeout=60)
        if not result.ok:
            said = result.stderr.decode(errors="replace").strip()
            return Probe(frozenset(), f"A sandbox starts, but cannot run a command: {said}")
    except BenchflowError as error:
        return Probe(frozenset(), str(error))
    capabilities = expected(runtime.launcher.identity)
    trials = (
        (_EGRESS, SandboxSpec(network=NetworkPolicy("allowlist", ("example.org",)))),
        (frozenset({"limits.disk"}), SandboxSpec(limits=Limits(storage_mb=8, inodes=100))),
    )
    for names, spec in trials:
        if not await _works(backend, spec):
            capabilities -= names
    if capabilities == expected(runtime.launcher.identity):
        with contextlib.suppress(OSError):  # a store that is not writable is reported when something has to be stored
            write_atomic(known, json.dumps({"machine": machine}), sync=False)
    return Probe(capabilities, notes=notes)


def _machine(identity: Identity) -> str:
    """The machine since it was started, as this process sees it: its namespaces, permissions and programs."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "net", "cgroup")]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        rights = [line for line in Path("/proc/self/status").read_text(errors="replace").splitlines() if "Cap" in line]
    except OSError:
        return ""
    parts = [identity, boot, os.geteuid(), spaces, rights, shutil.which("mkfs.ext4"), platform.release()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _worked_before(known: Path, machine: str) -> bool:
    try:
        return bool(machine) and json.loads(known.read_bytes())["machine"] == machine
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def _works(backend: LocalBackend, spec: SandboxSpec) -> bool:
    try:
        async with backend.create(spec) as sandbox:
            return (await sandbox.exec(["true"], timeout=60)).ok
    except BenchflowError:
        return False
