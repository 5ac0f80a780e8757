"""The settings of a session: tool servers, model and effort, as protocol messages.

A setting that the agent does not support is an `AgentFailure`; nothing is silently dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow.errors import AgentFailure


@dataclass(frozen=True, slots=True)
class Setting:
    """A request that changes a setting of an open session."""

    method: str
    params: Mapping[str, Any]


def mcp_servers(
    agent: str, servers: Sequence[Mapping[str, Any]], capabilities: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Tool servers for `session/new`, from the keys of `environment.mcp_servers`."""
    offered = capabilities.get("mcpCapabilities") or {}
    return [_server(agent, server, offered) for server in servers]


def _server(agent: str, server: Mapping[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    name = str(server.get("name") or "server")
    transport = str(server.get("transport") or server.get("type") or ("stdio" if "command" in server else "sse"))
    if transport == "stdio":
        return {
            "name": name,
            "command": str(server["command"]),
            "args": [str(word) for word in server.get("args") or ()],
            "env": _pairs(server.get("env")),
        }
    kind = "sse" if transport == "sse" else "http"
    if not offered.get(kind):
        raise AgentFailure(
            f"The agent '{agent}' cannot use the tool server '{name}': it does not offer the transport {kind}.",
            code="mcp-unsupported",
        )
    return {"type": kind, "name": name, "url": str(server["url"]), "headers": _pairs(server.get("headers"))}


def _pairs(values: Mapping[str, Any] | Sequence[Mapping[str, str]] | None) -> list[dict[str, str]]:
    """Variables or headers as the protocol has them, from a mapping or from such pairs."""
    if isinstance(values, Sequence):
        return [dict(pair) for pair in values]
    return [{"name": str(name), "value": str(value)} for name, value in (values or {}).items()]


def choose_model(agent: str, session: Mapping[str, Any], model: str) -> Setting | None:
    """How to set the model of a new session; None if it is already set."""
    for option in _selects(session, "model"):
        offered = {str(choice["value"]): str(choice.get("name") or "") for choice in _choices(option)}
        value = _match(agent, "model", model, offered)
        if value == option.get("currentValue"):
            return None
        return _config(session, option, value)
    models = session.get("models")
    if isinstance(models, Mapping) and isinstance(models.get("availableModels"), list):
        offered = {str(item["modelId"]): str(item.get("name") or "") for item in models["availableModels"]}
        value = _match(agent, "model", model, offered)
        if value == models.get("currentModelId"):
            return None
        return Setting("session/set_model", {"sessionId": session["sessionId"], "modelId": value})
    raise AgentFailure(
        f"The agent '{agent}' does not allow choosing a model, so '{model}' cannot be set.", code="model-unsupported"
    )


def choose_effort(agent: str, session: Mapping[str, Any], effort: str) -> Setting | None:
    """How to set the reasoning effort; None if it is already set."""
    for option in _selects(session, "thought_level"):
        offered = {str(choice["value"]): str(choice.get("name") or "") for choice in _choices(option)}
        value = _match(agent, "reasoning effort", effort, offered)
        return None if value == option.get("currentValue") else _config(session, option, value)
    raise AgentFailure(
        f"The agent '{agent}' does not allow choosing a reasoning effort, so '{effort}' cannot be set.",
        code="effort-unsupported",
    )


def _config(session: Mapping[str, Any], option: Mapping[str, Any], value: str) -> Setting:
    params = {"sessionId": session["sessionId"], "configId": option["id"], "value": value}
    return Setting("session/set_config_option", params)


def _selects(session: Mapping[str, Any], category: str) -> Iterator[Mapping[str, Any]]:
    for option in session.get("configOptions") or ():
        if isinstance(option, Mapping) and option.get("type") == "select" and option.get("category") == category:
            yield option


def _choices(option: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for choice in option.get("options") or ():
        if "value" in choice:
            yield choice
        else:
            yield from choice.get("options") or ()


def _match(agent: str, what: str, wanted: str, offered: Mapping[str, str]) -> str:
    """The offered value that matches, with or without the provider's name in front."""
    bare = wanted.rpartition("/")[2].lower()
    for value, name in offered.items():
        if wanted.lower() in (value.lower(), name.lower()):
            return value
    for value in offered:
        if value.rpartition("/")[2].lower() == bare:
            return value
    raise AgentFailure(
        f"The agent '{agent}' offers no {what} '{wanted}'; it offers {', '.join(offered) or 'none'}.",
        code=f"{what.rsplit(maxsplit=1)[-1]}-unknown",
    )
