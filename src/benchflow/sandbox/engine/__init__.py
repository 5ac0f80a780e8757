"""Sandboxes in containers of a Docker or Podman engine, driven through its command line."""

from benchflow.sandbox.engine.composed.compose_sandbox import ComposeSandbox
from benchflow.sandbox.engine.container_sandbox import EngineSandbox
from benchflow.sandbox.engine.engine_backend import EngineBackend

__all__ = ["ComposeSandbox", "EngineBackend", "EngineSandbox"]
