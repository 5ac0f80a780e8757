"""Sandboxes in containers of a Docker or Podman engine, driven through its command line."""

from benchflow.sandbox.engine.backend import EngineBackend
from benchflow.sandbox.engine.compose_sandbox import ComposeSandbox
from benchflow.sandbox.engine.sandbox import EngineSandbox

__all__ = ["ComposeSandbox", "EngineBackend", "EngineSandbox"]
