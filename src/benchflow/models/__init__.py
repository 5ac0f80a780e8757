"""Language models over the network: one client for agents, judges and simulated users, and the gateway for sandboxes.

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow.models.chat import ChatModel, ModelFailure, Reply, ToolCall

__all__ = ["ChatModel", "ModelFailure", "Reply", "ToolCall"]

__getattr__ = lazy_names(__name__, {"benchflow.models.chat": "ChatModel ModelFailure Reply ToolCall"})
