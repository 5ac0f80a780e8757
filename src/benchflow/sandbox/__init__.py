"""Where agents and verifiers run: one protocol, several backends.

Names are loaded when they are used: none of them brings in a backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.sandbox.backends import load_backend
    from benchflow.sandbox.factory import Preparation, choose_backend, prepare
    from benchflow.sandbox.protocol import (
        CAPABILITIES,
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
        Rights,
        Sandbox,
        SandboxBackend,
        SandboxProcess,
        SandboxSpec,
        Snapshot,
    )

__all__ = [
    "CAPABILITIES",
    "BackendStatus",
    "Change",
    "Composition",
    "ExecResult",
    "Healthcheck",
    "Image",
    "Limits",
    "Missing",
    "Mount",
    "NetworkPolicy",
    "Preparation",
    "Rights",
    "Sandbox",
    "SandboxBackend",
    "SandboxProcess",
    "SandboxSpec",
    "Snapshot",
    "choose_backend",
    "load_backend",
    "prepare",
]

__getattr__ = lazy_names(
    __name__,
    {
        "benchflow.sandbox.backends": "load_backend",
        "benchflow.sandbox.factory": "Preparation choose_backend prepare",
        "benchflow.sandbox.protocol": (
            "CAPABILITIES BackendStatus Change Composition ExecResult Healthcheck Image Limits Missing Mount "
            "NetworkPolicy Rights Sandbox SandboxBackend SandboxProcess SandboxSpec Snapshot"
        ),
    },
)
