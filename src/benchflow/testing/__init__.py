"""Tools for tests: a local model server, sandboxes without a machine, a cluster in one process, conformance checks for
sandbox backends.

The names below are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchflow.testing.backend_conformance import BackendReport, check_backend, check_promise
    from benchflow.testing.cluster_conformance import CONFORMANCE_HOST, check_cluster
    from benchflow.testing.cluster_double import CallFault, InProcessCluster
    from benchflow.testing.memory.memory_backend import InMemoryBackend, SandboxCall
    from benchflow.testing.memory.memory_jobs import Program
    from benchflow.testing.memory.memory_sandbox import InMemorySandbox
    from benchflow.testing.memory.shell import Call
    from benchflow.testing.model_server import ModelServer
    from benchflow.testing.null_sandbox import NullBackend, NullSandbox
    from benchflow.testing.promise_table import PROMISES, BackendFault
    from benchflow.testing.replies import (
        Answer,
        Disconnect,
        Fault,
        Malformed,
        ModelRequest,
        Reply,
        Silence,
        Token,
        ToolCall,
        Usage,
    )
    from benchflow.testing.virtual_time import VirtualTimeLoop

_WHERE: Final = {
    **dict.fromkeys(
        [
            "Answer",
            "Disconnect",
            "Fault",
            "Malformed",
            "ModelRequest",
            "Reply",
            "Silence",
            "Token",
            "ToolCall",
            "Usage",
        ],
        "benchflow.testing.replies",
    ),
    "BackendFault": "benchflow.testing.promise_table",
    "BackendReport": "benchflow.testing.backend_conformance",
    "Call": "benchflow.testing.memory.shell",
    "CONFORMANCE_HOST": "benchflow.testing.cluster_conformance",
    "CallFault": "benchflow.testing.cluster_double",
    "InMemoryBackend": "benchflow.testing.memory.memory_backend",
    "InMemorySandbox": "benchflow.testing.memory.memory_sandbox",
    "InProcessCluster": "benchflow.testing.cluster_double",
    "ModelServer": "benchflow.testing.model_server",
    "NullBackend": "benchflow.testing.null_sandbox",
    "NullSandbox": "benchflow.testing.null_sandbox",
    "PROMISES": "benchflow.testing.backend_conformance",
    "Program": "benchflow.testing.memory.memory_jobs",
    "SandboxCall": "benchflow.testing.memory.memory_backend",
    "VirtualTimeLoop": "benchflow.testing.virtual_time",
    "check_backend": "benchflow.testing.backend_conformance",
    "check_cluster": "benchflow.testing.cluster_conformance",
    "check_promise": "benchflow.testing.backend_conformance",
}

__all__ = [
    "CONFORMANCE_HOST",
    "PROMISES",
    "Answer",
    "BackendFault",
    "BackendReport",
    "Call",
    "CallFault",
    "Disconnect",
    "Fault",
    "InMemoryBackend",
    "InMemorySandbox",
    "InProcessCluster",
    "Malformed",
    "ModelRequest",
    "ModelServer",
    "NullBackend",
    "NullSandbox",
    "Program",
    "Reply",
    "SandboxCall",
    "Silence",
    "Token",
    "ToolCall",
    "Usage",
    "VirtualTimeLoop",
    "check_backend",
    "check_cluster",
    "check_promise",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(where), name)
