"""Well-known agents that speak ACP: what is installed for them, how they start, and which variables they need.

Each is installed below a folder of its own, at a version that was tried; `NAME:VERSION` takes another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.agents.acp.agent import EXTRA, AcpAgent
from benchflow.agents.acp.launch import Launch
from benchflow.agents.protocol import Agent, AgentInfo, AgentKind, AgentRequest
from benchflow.errors import UsageError

_NPM: Final = """\
set -e
command -v {program} >/dev/null 2>&1 && exit 0
if ! command -v npm >/dev/null 2>&1; then
  if command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs npm ca-certificates >/dev/null
  elif command -v apk >/dev/null 2>&1; then
    apk add --no-cache nodejs npm >/dev/null
  else
    echo "the environment has no npm, and neither apt-get nor apk to get it" >&2
    exit 1
  fi
fi
node=""
[ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge {node} ] || node="node@{node}"
npm install --global --prefix {prefix} --no-fund --no-audit --loglevel=error {package}@{version} $node
"""
"""A node that is too old stays as it is: a newer one goes beside the agent."""
_GOOSE: Final = """\
set -e
command -v goose >/dev/null 2>&1 && exit 0
command -v curl >/dev/null 2>&1 || { echo "the environment has no curl, which the installation needs" >&2; exit 1; }
curl -fsSL https://github.com/block/goose/releases/download/{version}/download_cli.sh \\
  | CONFIGURE=false GOOSE_BIN_DIR={prefix}/bin GOOSE_VERSION={version} bash
"""


@dataclass(frozen=True, slots=True)
class _Preset:
    """One agent, before its version is chosen."""

    name: str
    title: str
    command: str
    version: str
    one_of: tuple[str, ...]
    package: str | None = None
    """Of npm; None: it has an installation of its own."""
    node: int = 0
    """The oldest major version of node that it runs on; 0: it brings what it needs."""
    optional: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    auth_method: str | None = None
    model_variable: str | None = None
    aliases: tuple[str, ...] = ()

    def kind(self) -> AgentKind:
        source = f"npm package {self.package}" if self.package else "release of its authors"
        info = AgentInfo(
            self.name,
            f"{self.title}, over the Agent Client Protocol.",
            "process",
            argument="VERSION",
            needs=(EXTRA, f"one of the variables {', '.join(self.one_of)}"),
            install=f"{source}, version {self.version}",
            aliases=self.aliases,
        )
        return AgentKind(info, agent=self._agent)

    def _agent(self, request: AgentRequest) -> Agent:
        version = request.argument or self.version
        if not version.replace(".", "").replace("-", "").isalnum():
            raise UsageError(f"'{version}' is no version of the agent '{self.name}'.", code="agent-argument")
        return AcpAgent(request, self._launch(version))

    def _launch(self, version: str) -> Launch:
        prefix = f"/opt/agents/{self.name}"
        program = self.command.split()[0]
        script = _NPM if self.package else _GOOSE
        for field, value in {
            "{program}": program,
            "{prefix}": prefix,
            "{package}": self.package or "",
            "{version}": version,
            "{node}": str(self.node),
        }.items():
            script = script.replace(field, value)
        return Launch(
            command=f'PATH="{prefix}/bin:$PATH" exec {self.command}',
            install_script=script,
            one_of=self.one_of,
            optional=self.optional,
            settings=self.settings,
            auth_method=self.auth_method,
            model_variable=self.model_variable,
        )


CLAUDE: Final = _Preset(
    "claude",
    "Claude Code",
    "claude-agent-acp",
    "0.99.1",
    ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    package="@agentclientprotocol/claude-agent-acp",
    node=22,
    optional=("ANTHROPIC_BASE_URL",),
    model_variable="ANTHROPIC_MODEL",
    aliases=("claude-code", "claude-agent-acp"),
).kind()
CODEX: Final = _Preset(
    "codex",
    "Codex",
    "codex-acp",
    "2.6.0",
    ("OPENAI_API_KEY", "CODEX_API_KEY"),
    package="@agentclientprotocol/codex-acp",
    node=20,
    optional=("OPENAI_BASE_URL",),
    settings={"NO_BROWSER": "1"},
    auth_method="api-key",
    aliases=("codex-acp",),
).kind()
GEMINI: Final = _Preset(
    "gemini",
    "Gemini CLI",
    "gemini --acp",
    "0.61.0",
    ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    package="@google/gemini-cli",
    node=20,
    auth_method="gemini-api-key",
    model_variable="GEMINI_MODEL",
    aliases=("gemini-cli",),
).kind()
OPENCODE: Final = _Preset(
    "opencode",
    "OpenCode",
    "opencode acp",
    "1.18.33",
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    package="opencode-ai",
).kind()
GOOSE: Final = _Preset(
    "goose",
    "Goose",
    "goose acp",
    "stable",
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"),
    optional=("GOOSE_PROVIDER",),
    model_variable="GOOSE_MODEL",
).kind()
