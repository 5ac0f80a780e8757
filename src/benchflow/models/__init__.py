"""Language models over the network: one client for agents, judges and simulated users."""

from benchflow.models.chat import ChatModel, ModelFailure, Reply, ToolCall

__all__ = ["ChatModel", "ModelFailure", "Reply", "ToolCall"]
