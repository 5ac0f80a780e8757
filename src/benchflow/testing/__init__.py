"""Parts that ship for tests: a local model server with scripted replies."""

from benchflow.testing.model_server import ModelServer
from benchflow.testing.replies import (
    Answer,
    Disconnect,
    Fault,
    Malformed,
    ModelRequest,
    Reply,
    Silence,
    ToolCall,
    Usage,
)

__all__ = [
    "Answer",
    "Disconnect",
    "Fault",
    "Malformed",
    "ModelRequest",
    "ModelServer",
    "Reply",
    "Silence",
    "ToolCall",
    "Usage",
]
