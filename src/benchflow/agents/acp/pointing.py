"""How popular agents are pointed at the model gateway: a base URL and a token in each agent's own settings.

Pure: a server of the gateway in, the variables of the agent's process out. Keys of providers are never among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.errors import AgentFailure
from benchflow.models.gateway.endpoints import Family
from benchflow.models.gateway.upstreams import PROVIDERS, Upstreams

_NAMES: Final[Mapping[Family, re.Pattern[str]]] = {
    "anthropic": re.compile(r"claude", re.IGNORECASE),
    "gemini": re.compile(r"gemini", re.IGNORECASE),
    "openai": re.compile(r"gpt-|o\d|codex|chatgpt", re.IGNORECASE),
}
"""Beginnings of the names of models that tell their provider."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The upstream that an agent is pointed at, and its model there."""

    upstream: str
    family: Family
    model: str | None
    known: bool
    """Whether it is the provider's own server, whose models agents know by name; False: another server."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server as an agent sees it: one upstream of the gateway."""

    chosen: Chosen
    url: str
    token: str

    @property
    def family(self) -> Family:
        return self.chosen.family

    @property
    def model(self) -> str | None:
        return self.chosen.model


@dataclass(frozen=True, slots=True)
class Pointed:
    """What points an agent at a server."""

    variables: Mapping[str, str]
    session_model: str | None = None
    """The model that is chosen through the protocol; None: the variables name it, or the agent has the choice."""


Point = Callable[[str, Target, Mapping[str, str]], Pointed]
"""Agent, server and the agent's other variables in; raises `AgentFailure` where these contradict the server."""


@dataclass(frozen=True, slots=True)
class Pointing:
    """The dialects that an agent speaks, best first, and how it is pointed at a server that speaks one of them."""

    families: tuple[Family, ...]
    point: Point


def choose(agent: str, pointing: Pointing, upstreams: Upstreams, model: str | None) -> Chosen:
    """The upstream for an agent: the one that the model names (`UPSTREAM/MODEL`), or the first that may have it."""
    named, slash, rest = (model or "").partition("/")
    if slash and rest and named in upstreams.by_name:
        family = upstreams.by_name[named].family
        if family not in pointing.families:
            spoken = " and ".join(pointing.families)
            message = f"The agent '{agent}' speaks {spoken}; the server '{named}' speaks {family}."
            raise AgentFailure(message, code="dialect-mismatch")
        return _chosen(upstreams, named, rest)
    told = [family for family in pointing.families if model and _NAMES[family].match(model.rpartition("/")[2])]
    for family in dict.fromkeys((*told, *pointing.families)):
        for name in sorted(upstreams.by_name, key=lambda name: (name not in PROVIDERS, name == "openrouter", name)):
            if upstreams.by_name[name].family == family:
                return _chosen(upstreams, name, model)
    raise AgentFailure(f"There is no model server for the agent '{agent}'.", code="variable-missing")


def _chosen(upstreams: Upstreams, name: str, model: str | None) -> Chosen:
    upstream = upstreams.by_name[name]
    known = name in PROVIDERS and upstream.base_url == PROVIDERS[name].base_url
    return Chosen(name, upstream.family, model, known)


def point_deepagents(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    """Deep Agents reads the variables of the providers' own clients, and names models with their provider."""
    del agent, env
    variables = _usual(server)
    provider: str = server.family
    if server.family == "gemini":
        provider, variables["GOOGLE_API_KEY"] = "google_genai", server.token
    return Pointed(variables, f"{provider}:{server.model}" if server.model else None)


def point_claude(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    del agent, env
    variables = {**_usual(server), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    if server.model:
        variables["ANTHROPIC_MODEL"] = server.model
        if not server.chosen.known:  # another server has no small model for chores
            variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] = server.model
    return Pointed(variables)


def point_gemini(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    del agent, env
    return Pointed({**_usual(server), **({"GEMINI_MODEL": server.model} if server.model else {})})


def point_codex(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    """Codex reads no variable for its base URL, but a whole configuration from one."""
    own = _config(agent, env, "CODEX_CONFIG", ("model_provider", "model_providers"))
    gateway = {
        "name": "gateway",
        "base_url": server.url,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
        "supports_websockets": False,
    }
    config = {**own, "model_provider": "gateway", "model_providers": {"gateway": gateway}}
    if server.model:
        config["model"] = server.model
    return Pointed({"OPENAI_API_KEY": server.token, "CODEX_CONFIG": json.dumps(config)})


def point_opencode(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    """OpenCode knows the models of providers by name; any other server is a provider of its own."""
    own = _config(agent, env, "OPENCODE_CONFIG_CONTENT", ("provider", "enabled_providers"))
    key = _key(server)
    versions: Mapping[Family, str] = {"openai": "", "anthropic": "/v1", "gemini": "/v1beta"}
    provider: dict[str, Any] = {
        "options": {"baseURL": server.url + versions[server.family], "apiKey": f"{{env:{key}}}"}
    }
    name = _provider_name(agent, server)
    if not server.chosen.known:
        packages: Mapping[Family, str] = {"openai": "openai-compatible", "anthropic": "anthropic", "gemini": "google"}
        provider |= {"npm": f"@ai-sdk/{packages[server.family]}", "models": {server.model: {}}}
    config = {**own, "provider": {name: provider}, "enabled_providers": [name]}
    variables = {key: server.token, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}
    return Pointed(variables, f"{name}/{server.model}" if server.model else None)


def point_pi(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    """Pi reads the addresses of providers from a file, which its command writes from this variable."""
    del env
    key = _key(server)
    provider: dict[str, Any] = {"baseUrl": server.url, "apiKey": f"${key}"}
    name = _provider_name(agent, server)
    if server.family == "gemini":
        provider["baseUrl"] += "/v1beta"
    if not server.chosen.known:
        apis: Mapping[Family, str] = {
            "openai": "openai-completions",
            "anthropic": "anthropic-messages",
            "gemini": "google-generative-ai",
        }
        provider |= {"api": apis[server.family], "models": [{"id": server.model}]}
    variables = {key: server.token, PI_MODELS: json.dumps({"providers": {name: provider}})}
    return Pointed(variables, f"{name}/{server.model}" if server.model else None)


PI_MODELS: Final = "BENCHFLOW_PI_MODELS"
PI_COMMAND: Final = f"""\
folder="${{PI_CODING_AGENT_DIR:-$HOME/.pi/agent}}"; \
[ -z "${PI_MODELS}" ] || {{ mkdir -p "$folder" && printf '%s' "${PI_MODELS}" > "$folder/models.json"; }}; \
unset {PI_MODELS}; """


def point_goose(agent: str, server: Target, env: Mapping[str, str]) -> Pointed:
    """Goose takes a host and a path apart."""
    del agent, env
    provider = "google" if server.family == "gemini" else server.family
    variables = {"GOOSE_PROVIDER": provider, f"{provider.upper()}_API_KEY": server.token}
    variables[f"{provider.upper()}_HOST"] = server.url.removesuffix("/v1")
    if server.family == "openai":
        variables["OPENAI_BASE_PATH"] = "v1/chat/completions"
    return Pointed({**variables, **({"GOOSE_MODEL": server.model} if server.model else {})})


def _usual(server: Target) -> dict[str, str]:
    """The variables of the providers' own clients."""
    provider = PROVIDERS[server.family]
    return {provider.bases[0]: server.url, provider.keys[0]: server.token}


def _key(server: Target) -> str:
    return PROVIDERS[server.family].keys[0]


def _config(agent: str, env: Mapping[str, str], variable: str, taken: tuple[str, ...]) -> dict[str, Any]:
    """The agent's configuration from a variable of the user, which must leave the choice of servers to the gateway."""
    text = env.get(variable)
    if not text:
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise AgentFailure(f"{variable} is not valid JSON: {error}.", code="agent-config") from error
    if not isinstance(config, dict):
        raise AgentFailure(f"{variable} is not a JSON object.", code="agent-config")
    used = next((key for key in taken if key in config), None)
    if used is not None:
        message = (
            f"{variable} sets '{used}', but the agent '{agent}' calls models through the gateway: "
            "describe other servers in the file of BENCHCUBE_MODELS."
        )
        raise AgentFailure(message, code="agent-config")
    return config


def _provider_name(agent: str, server: Target) -> str:
    """What the agent calls the provider; a server that it does not know needs the name of a model."""
    name = server.chosen.upstream
    if server.chosen.known:
        return "google" if name == "gemini" else name
    if not server.model:
        message = f"The agent '{agent}' needs --model with the name of a model that the server '{name}' offers."
        raise AgentFailure(message, code="model-missing")
    return "server"
