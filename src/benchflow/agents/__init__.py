"""Agents: the programs and models that work on a task, named `NAME` or `NAME:ARGUMENT`."""

from benchflow.agents.protocol import (
    Agent,
    AgentContext,
    AgentInfo,
    AgentKind,
    AgentLimits,
    AgentRequest,
    EventSink,
    PermissionHandler,
    PermissionOption,
    PermissionRequest,
    Policy,
    TurnResult,
)
from benchflow.agents.registry import create_agent, create_policy, list_agents

__all__ = [
    "Agent",
    "AgentContext",
    "AgentInfo",
    "AgentKind",
    "AgentLimits",
    "AgentRequest",
    "EventSink",
    "PermissionHandler",
    "PermissionOption",
    "PermissionRequest",
    "Policy",
    "TurnResult",
    "create_agent",
    "create_policy",
    "list_agents",
]
