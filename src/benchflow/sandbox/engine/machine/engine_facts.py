"""What an engine says about itself, as far as it matters here. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from benchflow.errors import InfrastructureFailure
from benchflow.sandbox.backends import BUILT_IN
from benchflow.sandbox.protocol import Limits, Missing, SandboxSpec

ALWAYS: Final = BUILT_IN - {"network.allowlist", "forward", "limits.cpu", "limits.memory", "limits.pids", "limits.disk"}
"""What both engines can do wherever they run, of all that they declare."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine on one machine."""

    version: str
    machine: str
    kernel: str
    rootless: bool
    cpu_limit: bool
    memory_limit: bool
    pids_limit: bool
    disk_limit: bool
    same_kernel: bool
    """Its containers run on the kernel that this process runs on, not in a virtual machine."""
    may_enter: bool
    """This process may enter the namespaces of its containers."""
    reads_layers: bool = False
    """What its containers write can be read here, as the kernel's overlay keeps it."""
    exact_diff: bool = False
    """Its list of changed files is what was written, not what differs in size or time, which an agent can put back."""

    @property
    def capabilities(self) -> frozenset[str]:
        found = set(ALWAYS)
        for present, name in (
            (self.cpu_limit, "limits.cpu"),
            (self.memory_limit, "limits.memory"),
            (self.pids_limit, "limits.pids"),
            (self.disk_limit, "limits.disk"),
            (self.may_enter, "network.allowlist"),
            (self.may_enter, "forward"),
        ):
            if present:
                found.add(name)
        return frozenset(found)

    def missing(self) -> tuple[Missing, ...]:
        """What this engine lacks, each with how to get it."""
        controllers = "run the engine as root, or on a machine with cgroup v2 delegated to this user"
        entering = "run as root on the engine's machine, or use the sandbox `local`"
        how = {
            "limits.cpu": controllers,
            "limits.memory": controllers,
            "limits.pids": controllers,
            "limits.disk": "keep the engine's data on XFS mounted with the option pquota, with the overlay2 driver",
            "network.allowlist": entering,
            "forward": entering,
        }
        return tuple(Missing(name, how[name]) for name in sorted(set(how) - self.capabilities))


def read_docker(info: dict[str, Any], *, kernel: str, root: bool, local: bool, mounts: str = "") -> EngineFacts:
    """From the JSON of `docker info`."""
    if info.get("ServerErrors"):
        raise InfrastructureFailure(f"docker does not work: {'; '.join(info['ServerErrors'])}", code="engine-stopped")
    rootless = any("rootless" in option for option in info.get("SecurityOptions") or [])
    same = local and info.get("KernelVersion") == kernel
    data = str(info.get("DockerRootDir", ""))
    native = ["Native Overlay Diff", "true"] in (info.get("DriverStatus") or [])
    return EngineFacts(
        version=str(info.get("ServerVersion", "")),
        machine=str(info.get("Architecture", "")),
        kernel=str(info.get("KernelVersion", "")),
        rootless=rootless,
        cpu_limit=bool(info.get("CpuCfsQuota")),
        memory_limit=bool(info.get("MemoryLimit")),
        pids_limit=bool(info.get("PidsLimit")),
        disk_limit=same and info.get("Driver") == "overlay2" and has_project_quota(mounts, data),
        same_kernel=same,
        may_enter=same and root and not rootless,
        reads_layers=same and root and not rootless and info.get("Driver") == "overlay2" and native,
    )


def read_podman(info: dict[str, Any], *, kernel: str, root: bool, local: bool, mounts: str = "") -> EngineFacts:
    """From the JSON of `podman info`."""
    host = info.get("host", {})
    store = info.get("store", {})
    controllers = set(host.get("cgroupControllers") or [])
    rootless = bool(host.get("security", {}).get("rootless"))
    same = local and host.get("kernel") == kernel and not host.get("serviceIsRemote")
    native = (store.get("graphStatus") or {}).get("Native Overlay Diff") == "true"
    exact = store.get("graphDriverName") == "overlay" and native
    return EngineFacts(
        version=str(info.get("version", {}).get("Version", "")),
        machine=str(host.get("arch", "")),
        kernel=str(host.get("kernel", "")),
        rootless=rootless,
        cpu_limit="cpu" in controllers,
        memory_limit="memory" in controllers,
        pids_limit="pids" in controllers,
        disk_limit=same
        and store.get("graphDriverName") == "overlay"
        and has_project_quota(mounts, str(store.get("graphRoot", ""))),
        same_kernel=same,
        may_enter=same and root and not rootless,
        reads_layers=same and root and not rootless and exact,
        exact_diff=exact,
    )


def parse_info(text: str, engine: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InfrastructureFailure(f"{engine} info returned no usable answer.", code="engine-stopped")
    return found


def needed(spec: SandboxSpec) -> dict[str, str]:
    """The capabilities that a specification asks for, each with the words for it."""
    wanted = {f"network.{spec.network.mode}": f"the network mode '{spec.network.mode}'"}
    limits: Limits = spec.limits
    asked = (
        (limits.cpus, "limits.cpu", "a limit on cpus"),
        (limits.memory_mb, "limits.memory", "a limit on memory"),
        (limits.pids, "limits.pids", "a limit on processes"),
        (limits.storage_mb, "limits.disk", "a limit on storage"),
        (limits.inodes, "limits.inodes", "a limit on the number of files"),
        (limits.gpus, "gpu", "GPUs"),
    )
    return wanted | {name: words for value, name, words in asked if value is not None}


def has_project_quota(mounts: str, folder: str) -> bool:
    """Whether a folder is on XFS with project quotas, from the text of `/proc/mounts`."""
    found, options, kind = "", "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4 and len(fields[1]) >= len(found):
            place = fields[1].rstrip("/")
            if folder == place or folder.startswith(place + "/"):
                found, kind, options = fields[1], fields[2], fields[3]
    return kind == "xfs" and bool({"prjquota", "pquota"} & set(options.split(",")))
