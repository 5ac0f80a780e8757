"""`check_backend`: does a sandbox backend keep what the protocol promises? For the tests of plugin authors.

from benchflow.testing import check_backend

async def test_my_backend_conforms():
    report = await check_backend(MyBackend())
    assert "a_fork_has_the_files_and_goes_its_own_way" in report.kept
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow.sandbox.protocol import NetworkPolicy, SandboxBackend, SandboxSpec
from benchflow.testing import backend_promises, process_promises  # noqa: F401 - each registers its promises
from benchflow.testing.promise_table import PROMISES, BackendFault, Subject


@dataclass(frozen=True, slots=True)
class BackendReport:
    """Which promises were checked and kept, and which do not apply because a capability is missing."""

    kept: tuple[str, ...]
    left_out: tuple[str, ...]


async def check_backend(backend: SandboxBackend, *, spec: SandboxSpec | None = None) -> BackendReport:
    """Check everything that the protocol promises, in real sandboxes of the backend.

    `spec` is the environment to start from, for a backend that needs an image; it needs `/bin/sh`, the usual file tools
    and a folder `/tmp`. Raises `BackendFault` with every promise that is not kept. The backend stays open.
    """
    status = await backend.status()
    if not status.usable:
        raise BackendFault(f"The sandbox '{backend.name}' is not usable here: {status.reason}")
    kept, left_out, faults = [], [], []
    for name, (_, needed) in PROMISES.items():
        if not needed <= status.capabilities:
            left_out.append(name)
            continue
        try:
            await check_promise(backend, name, spec=spec)
            kept.append(name)
        except Exception as error:  # noqa: BLE001 (boundary: whatever the backend's own code raises)
            faults.append(f"{name.replace('_', ' ')}: {str(error) or type(error).__name__}")
    if faults:
        lines = "\n".join(f"- {fault}" for fault in faults)
        raise BackendFault(f"The sandbox '{backend.name}' fails {len(faults)} of the checks:\n{lines}")
    return BackendReport(tuple(kept), tuple(left_out))


async def check_promise(backend: SandboxBackend, name: str, *, spec: SandboxSpec | None = None) -> None:
    """Check one promise by its name; raises an error if it is not kept."""
    capabilities = (await backend.status()).capabilities
    modes = (mode for mode in ("none", "public", "allowlist") if f"network.{mode}" in capabilities)
    wanted = spec or SandboxSpec()
    if f"network.{wanted.network.mode}" not in capabilities:
        wanted = replace(wanted, network=NetworkPolicy(next(modes)))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="benchflow-check-") as folder:
        Path(folder).chmod(0o755)  # noqa: ASYNC240 - one folder of a test
        await PROMISES[name][0](Subject(backend, wanted, capabilities, Path(folder)))
