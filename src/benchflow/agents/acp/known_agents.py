"""Popular agents that speak ACP: what is installed for them, how they start, and which variables they need.

Each is installed into its own folder, at a version that was tested; `NAME:VERSION` selects another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from benchflow.agents.acp.acp_agent import EXTRA, AcpAgent
from benchflow.agents.acp.acp_launch import Configure, Launch
from benchflow.agents.protocol import Agent, AgentInfo, AgentKind, AgentRequest
from benchflow.errors import AgentFailure, UsageError

CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
"""The certificate bundle of Debian, Alpine and similar systems; node and Python do not use it by default."""
_BEGIN: Final = """\
set -e
command -v {program} >/dev/null 2>&1 && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"""
_NPM: Final = (
    _BEGIN
    + """\
if ! command -v npm >/dev/null 2>&1; then
  if command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs npm ca-certificates >/dev/null
  elif command -v apk >/dev/null 2>&1; then
    apk add --no-cache nodejs npm >/dev/null
  else
    echo "the environment has no npm, and neither apt-get nor apk to install it" >&2
    exit 1
  fi
fi
node=""
[ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge {node} ] || node="node@{node}"
[ ! -r {certificates} ] || export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-{certificates}}"
export npm_config_cache="$scratch/cache"
user=$(npm config get userconfig)
global=$(npm config get globalconfig)
registry=$(npm config get registry)
export HOME="$scratch"
npm install --global --prefix {prefix} --userconfig "$user" --globalconfig "$global" \\
  --no-fund --no-audit --no-update-notifier --fetch-retry-maxtimeout=10000 --loglevel=error {packages} $node || {
  [ -z "$HTTP_PROXY" ] || node -e '
    const proxy = new URL(process.env.HTTP_PROXY);
    const host = new URL(process.argv[1]).hostname;
    const asked = { host: proxy.hostname, port: proxy.port, path: `http://${host}/`, headers: { host } };
    const show = (answer) => answer.statusCode === 403 && answer.pipe(process.stderr);
    require("http").get(asked, show).on("error", () => {});
  ' "$registry" || true
  exit 1
}
[ -z "$node" ] || for program in {prefix}/bin/*; do
  file=$(readlink -f "$program")
  [ "$(head -c 19 "$file")" != "#!/usr/bin/env node" ] || sed -i '1s|.*|#!{prefix}/bin/node|' "$file"
done
"""
)
"""An outdated node of the environment is kept: the newer one is used by the agent's own programs only."""
_PYPI: Final = (
    _BEGIN
    + """\
python=""
for version in {pythons}; do
  for name in "python$version" python3; do
    [ -z "$python" ] || continue
    "$name" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null && python=$name
  done
done
if [ -z "$python" ]; then
  echo "the environment has no Python of the versions {pythons}" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "the Python of the environment has no ensurepip" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
fi
"$python" -m venv {prefix}/venv
[ ! -r {certificates} ] || export PIP_CERT="${PIP_CERT:-{certificates}}"
export HOME="$scratch"
{prefix}/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir {packages}
mkdir -p {prefix}/bin
ln -sf {prefix}/venv/bin/{program} {prefix}/bin/{program}
"""
)
_GOOSE: Final = (
    _BEGIN
    + """\
command -v curl >/dev/null 2>&1 || { echo "the environment has no curl, which the installation needs" >&2; exit 1; }
curl -fsSL -o "$scratch/install.sh" https://github.com/block/goose/releases/download/{version}/download_cli.sh
CONFIGURE=false GOOSE_BIN_DIR={prefix}/bin GOOSE_VERSION={version} bash "$scratch/install.sh"
"""
)


class Recipe(Protocol):
    """Where an agent comes from."""

    @property
    def trust(self) -> str | None:
        """The variable that sets the trusted certificates of its programs; None: they find them."""

    def words(self, version: str) -> str:
        """What is installed, as text."""

    def script(self, program: str, prefix: str, version: str) -> str:
        """Installs `program` to `prefix/bin`, unless the environment has it."""


@dataclass(frozen=True, slots=True)
class Npm:
    """A package of npm."""

    package: str
    node: int = 0
    """The oldest supported major version of node; 0: it needs none."""
    beside: tuple[str, ...] = ()
    """Other packages that it needs, with their versions."""
    trust: str | None = "NODE_EXTRA_CA_CERTS"

    def words(self, version: str) -> str:
        return f"{' and '.join([f'{self.package}@{version}', *self.beside])} from npm"

    def script(self, program: str, prefix: str, version: str) -> str:
        packages = " ".join([f"{self.package}@{version}", *self.beside])
        return _filled(_NPM, {"program": program, "prefix": prefix, "packages": packages, "node": str(self.node)})


@dataclass(frozen=True, slots=True)
class PyPI:
    """A package of PyPI, in its own virtual environment."""

    package: str
    pythons: tuple[str, ...]
    """The supported versions of Python, best first; the environment must have one of them."""
    trust: str | None = "SSL_CERT_FILE"

    def words(self, version: str) -> str:
        return f"{self.package}=={version} from PyPI (for Python {' or '.join(self.pythons)} in the environment)"

    def script(self, program: str, prefix: str, version: str) -> str:
        fields = {"program": program, "prefix": prefix, "packages": f"{self.package}=={version}"}
        return _filled(_PYPI, {**fields, "pythons": " ".join(self.pythons)})


@dataclass(frozen=True, slots=True)
class GooseRelease:
    """The release that the authors of Goose publish."""

    trust: str | None = None

    def words(self, version: str) -> str:
        return f"its authors' release {version!r} from github.com"

    def script(self, program: str, prefix: str, version: str) -> str:
        return _filled(_GOOSE, {"program": program, "prefix": prefix, "version": version})


def _filled(script: str, fields: Mapping[str, str]) -> str:
    for name, value in {**fields, "certificates": CERTIFICATES}.items():
        script = script.replace(f"{{{name}}}", value)
    return script


@dataclass(frozen=True, slots=True)
class _Preset:
    """One agent, before its version is chosen."""

    name: str
    title: str
    command: str
    version: str
    recipe: Recipe
    one_of: tuple[str, ...]
    optional: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    configure: Configure | None = None
    auth_method: str | None = None
    model_variable: str | None = None
    aliases: tuple[str, ...] = ()

    def kind(self) -> AgentKind:
        needs = [EXTRA, f"one of the variables {', '.join(self.one_of)}"]
        if len(self.one_of) == 1:
            needs[1] = f"the variable {self.one_of[0]}"
        info = AgentInfo(
            self.name,
            f"{self.title}, over the Agent Client Protocol.",
            "process",
            argument="VERSION",
            needs=tuple(needs),
            takes=self.optional,
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
            command=f'{trusting}PATH="$PATH:{prefix}/bin"; export PATH; exec {self.command}',
            install_script=self.recipe.script(program, prefix, version),
            one_of=self.one_of,
            optional=self.optional,
            settings=self.settings,
            configure=self.configure,
            auth_method=self.auth_method,
            model_variable=self.model_variable,
        )


def _opencode_server(env: Mapping[str, str], model: str | None) -> Mapping[str, str]:
    """OpenCode's configuration for the server of `OPENAI_BASE_URL`, which it does not support by itself."""
    url, wanted = env.get("OPENAI_BASE_URL"), (model or "").removeprefix("openai/")
    if not url or env.get("OPENCODE_CONFIG_CONTENT"):
        return {}
    if not wanted:
        message = (
            "The agent 'opencode' needs --model with the name of a model that the server at OPENAI_BASE_URL offers."
        )
        raise AgentFailure(message, code="model-missing")
    options = {"baseURL": url, "apiKey": "{env:OPENAI_API_KEY}"}
    server = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {wanted: {}}}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": {"server": server}, "enabled_providers": ["server"]})}


def _codex_server(env: Mapping[str, str], model: str | None) -> Mapping[str, str]:
    """Codex's configuration for the server of `OPENAI_BASE_URL`, which it does not support by itself."""
    del model
    url = env.get("OPENAI_BASE_URL")
    if not url or env.get("CODEX_CONFIG"):
        return {}
    key = next(name for name in ("OPENAI_API_KEY", "CODEX_API_KEY") if env.get(name))
    server = {"name": "server", "base_url": url, "env_key": key, "wire_api": "responses"}
    return {"CODEX_CONFIG": json.dumps({"model_provider": "server", "model_providers": {"server": server}})}


CLAUDE: Final = _Preset(
    "claude",
    "Claude Code",
    "claude-agent-acp",
    "0.99.1",
    Npm("@agentclientprotocol/claude-agent-acp", node=22),
    ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    optional=("ANTHROPIC_BASE_URL",),
    model_variable="ANTHROPIC_MODEL",
    aliases=("claude-code", "claude-agent-acp"),
).kind()
CODEX: Final = _Preset(
    "codex",
    "Codex",
    "codex-acp",
    "2.6.0",
    Npm("@agentclientprotocol/codex-acp", node=20),
    ("OPENAI_API_KEY", "CODEX_API_KEY"),
    optional=("OPENAI_BASE_URL", "CODEX_CONFIG"),
    settings={"NO_BROWSER": "1"},
    configure=_codex_server,
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
    optional=("GOOGLE_GEMINI_BASE_URL",),
    auth_method="gemini-api-key",
    model_variable="GEMINI_MODEL",
    aliases=("gemini-cli",),
).kind()
OPENCODE: Final = _Preset(
    "opencode",
    "OpenCode",
    "opencode acp",
    "1.18.33",
    Npm("opencode-ai"),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    optional=("OPENAI_BASE_URL", "OPENCODE_CONFIG_CONTENT"),
    settings={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
    configure=_opencode_server,
).kind()
GOOSE: Final = _Preset(
    "goose",
    "Goose",
    "goose acp",
    "stable",
    GooseRelease(),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"),
    optional=("GOOSE_PROVIDER",),
    model_variable="GOOSE_MODEL",
).kind()
PI: Final = _Preset(
    "pi",
    "Pi",
    "pi-acp",
    "0.0.34",
    Npm("pi-acp", node=24, beside=("@earendil-works/pi-coding-agent@0.87.1",)),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
    settings={"PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
    aliases=("pi-acp",),
).kind()
DEEPAGENTS: Final = _Preset(
    "deepagents",
    "Deep Agents Code",
    "dcode --acp",
    "0.1.57",
    PyPI("deepagents-code", ("3.13", "3.12", "3.11")),
    ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"),
    optional=("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"),
).kind()
