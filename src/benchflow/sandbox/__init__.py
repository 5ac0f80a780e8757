"""Where agents and verifiers run: one protocol, several backends.

Use the names below to write your own backend; see "Write your own backend" in the page on sandboxes.
They are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchflow.errors import (
        BenchflowError,
        EnvironmentFailure,
        InfrastructureFailure,
        SandboxFailure,
        UnsupportedError,
        UsageError,
    )
    from benchflow.sandbox.bounded_output import BoundedOutput
    from benchflow.sandbox.protocol import (
        CAPABILITIES,
        NO_SUCH_FILE,
        OF_THE_FILE,
        BackendStatus,
        Change,
        Composition,
        ExecResult,
        Healthcheck,
        Image,
        Limits,
        Missing,
        Mount,
        NetworkPolicy,
        OutputSink,
        Revert,
        Rights,
        Sandbox,
        SandboxBackend,
        SandboxProcess,
        SandboxSpec,
        Snapshot,
    )

__all__ = [
    "CAPABILITIES",
    "NO_SUCH_FILE",
    "OF_THE_FILE",
    "BackendStatus",
    "BenchflowError",
    "BoundedOutput",
    "Change",
    "Composition",
    "EnvironmentFailure",
    "ExecResult",
    "Healthcheck",
    "Image",
    "InfrastructureFailure",
    "Limits",
    "Missing",
    "Mount",
    "NetworkPolicy",
    "OutputSink",
    "Revert",
    "Rights",
    "Sandbox",
    "SandboxBackend",
    "SandboxFailure",
    "SandboxProcess",
    "SandboxSpec",
    "Snapshot",
    "UnsupportedError",
    "UsageError",
]

_ELSEWHERE: Final = {
    "BoundedOutput": "benchflow.sandbox.bounded_output",
    **dict.fromkeys(
        (
            "BenchflowError",
            "EnvironmentFailure",
            "InfrastructureFailure",
            "SandboxFailure",
            "UnsupportedError",
            "UsageError",
        ),
        "benchflow.errors",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "benchflow.sandbox.protocol")), name)
