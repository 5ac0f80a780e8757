"""Popular agents that speak ACP: what is installed for them, how they start, and how they are pointed at models.

Each is installed into its own folder, at a version that was tested; `NAME:VERSION` selects another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.agents.acp.acp_agent import EXTRA, GATEWAY_EXTRA, AcpAgent
from benchflow.agents.acp.acp_launch import Launch
from benchflow.agents.acp.agent_recipes import CERTIFICATES, GooseRelease, Npm, PyPI, Recipe
from benchflow.agents.acp.pointing import (
    PI_COMMAND,
    Pointing,
    point_claude,
    point_codex,
    point_deepagents,
    point_gemini,
    point_goose,
    point_opencode,
    point_pi,
)
from benchflow.agents.protocol import Agent, AgentInfo, AgentKind, AgentRequest
from benchflow.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Preset:
    """One agent, before its version is chosen."""

    name: str
    title: str
    command: str
    version: str
    recipe: Recipe
    one_of: tuple[str, ...]
    pointing: Pointing
    optional: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    auth_method: str | None = None
    aliases: tuple[str, ...] = ()
    before: str = ""
    """Commands before its own."""

    def kind(self) -> AgentKind:
        keys = f"one of the variables {', '.join(self.one_of)}"
        info = AgentInfo(
            self.name,
            f"{self.title}, over the Agent Client Protocol.",
            "process",
            argument="VERSION",
            needs=(EXTRA, GATEWAY_EXTRA, keys),
            takes=self.optional,
            models="gateway",
            dialects=self.pointing.families,
            install=self.recipe.words(self.version),
            aliases=self.aliases,
        )
        return AgentKind(info, agent=self._agent)

    def _agent(self, request: AgentRequest) -> Agent:
        version = request.argument or self.version
        if not version.replace(".", "").replace("-", "").isalnum():
            raise UsageError(f"'{version}' is not a version of the agent '{self.name}'.", code="agent-argument")
        return AcpAgent(request, self._launch(version))

    def _launch(self, version: str) -> Launch:
        prefix = f"/opt/agents/{self.name}"
        program = self.command.split()[0]
        trust = self.recipe.trust
        trusting = f'[ ! -r {CERTIFICATES} ] || export {trust}="${{{trust}:-{CERTIFICATES}}}"; ' if trust else ""
        return Launch(
            command=f'{trusting}PATH="$PATH:{prefix}/bin"; export PATH; {self.before}exec {self.command}',
            install_script=self.recipe.script(program, prefix, version),
            one_of=self.one_of,
            optional=self.optional,
            settings=self.settings,
            pointing=self.pointing,
            auth_method=self.auth_method,
        )


CLAUDE: Final = _Preset(
    "claude",
    "Claude Code",
    "claude-agent-acp",
    "0.99.1",
    Npm("@agentclientprotocol/claude-agent-acp", node=22),
    ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    Pointing(("anthropic",), point_claude),
    aliases=("claude-code", "claude-agent-acp"),
).kind()
CODEX: Final = _Preset(
    "codex",
    "Codex",
    "codex-acp",
    "2.6.0",
    Npm("@agentclientprotocol/codex-acp", node=20),
    ("OPENAI_API_KEY", "CODEX_API_KEY"),
    Pointing(("openai",), point_codex),
    optional=("CODEX_CONFIG",),
    # Its own confinement needs namespaces that a sandbox does not grant: without this every command of it fails.
    settings={"NO_BROWSER": "1", "INITIAL_AGENT_MODE": "agent-full-access"},
    auth_method="api-key",
    aliases=("codex-acp",),
).kind()
GEMINI: Final = _Preset(
    "gemini",
    "Gemini CLI",
    "gemini --acp",
    "0.61.0",
    Npm("@google/gemini-cli", node=20),
    ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    Pointing(("gemini",), point_gemini),
    auth_method="gemini-api-key",
    aliases=("gemini-cli",),
).kind()
OPENCODE: Final = _Preset(
    "opencode",
    "OpenCode",
    "opencode acp",
    "1.18.33",
    Npm("opencode-ai"),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    Pointing(("openai", "anthropic", "gemini"), point_opencode),
    optional=("OPENCODE_CONFIG_CONTENT",),
    settings={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
).kind()
GOOSE: Final = _Preset(
    "goose",
    "Goose",
    "goose acp",
    "stable",
    GooseRelease(),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"),
    Pointing(("openai", "anthropic", "gemini"), point_goose),
).kind()
PI: Final = _Preset(
    "pi",
    "Pi",
    "pi-acp",
    "0.0.34",
    Npm("pi-acp", node=24, beside=("@earendil-works/pi-coding-agent@0.87.1",)),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    Pointing(("openai", "anthropic", "gemini"), point_pi),
    settings={"PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
    aliases=("pi-acp",),
    before=PI_COMMAND,
).kind()
DEEPAGENTS: Final = _Preset(
    "deepagents",
    "Deep Agents Code",
    "dcode --acp",
    "0.1.57",
    PyPI("deepagents-code", ("3.13", "3.12", "3.11")),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"),
    Pointing(("openai", "anthropic", "gemini"), point_deepagents),
).kind()
