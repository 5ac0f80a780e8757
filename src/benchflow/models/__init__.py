"""Language models over the network: one client for agents, judges and simulated users."""

from benchflow.models.chat import ChatModel, Reply, ToolCall
from benchflow.models.failure import ModelFailure

__all__ = ["ChatModel", "ModelFailure", "Reply", "ToolCall"]
