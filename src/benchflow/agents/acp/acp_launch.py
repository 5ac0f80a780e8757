"""How an ACP agent is installed and started in an environment: its command, its installation, its variables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchflow.agents.acp.pointing import Pointed, Pointing, Target, choose
from benchflow.errors import AgentFailure
from benchflow.models.gateway.upstreams import PROVIDERS, Upstreams, find_upstreams
from benchflow.sandbox.network.addresses import VARIABLE
from benchflow.sandbox.protocol import Sandbox

if TYPE_CHECKING:
    from benchflow.models.gateway import Access

_INSTALL_TIMEOUT: Final = 900.0
_OWN_LOG: Final = "complete log of this run"
_REFUSED: Final = "egress to "
"""The beginning of a sandbox's message about a refused connection."""
_FORBIDDEN: Final = re.compile(r"\b403\b")
_PERMIT: Final = f"if its address is not public, permit it with {VARIABLE}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start one agent."""

    command: str
    """Run by the environment's shell."""
    install_script: str | None = None
    """Run by the environment's shell as root; None: the command already exists."""
    one_of: tuple[str, ...] = ()
    """Variables of keys, of which at least one must be set; their values stay with the gateway."""
    optional: tuple[str, ...] = ()
    """Variables that are passed on if they are set."""
    settings: Mapping[str, str] | None = None
    """Variables with fixed values."""
    pointing: Pointing | None = None
    """How it is pointed at the model gateway; None: by the variables of ordinary clients, as far as it reads them."""
    auth_method: str | None = None
    """The authentication method of the protocol, used if the agent requires one."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables of this machine whose values must not be recorded: keys, addresses, configurations."""
        families = self.pointing.families if self.pointing is not None else ()
        known = [provider for provider in PROVIDERS.values() if provider.family in families]
        names = [name for provider in known for name in (*provider.keys, *provider.bases)]
        return tuple(dict.fromkeys((*self.one_of, *self.optional, *names)))

    @property
    def install_key(self) -> str | None:
        if self.install_script is None:
            return None
        return hashlib.sha256(self.install_script.encode()).hexdigest()

    async def install(self, agent: str, sandbox: Sandbox) -> None:
        """Run the installation; if it fails, the end of its output is the reason."""
        if self.install_script is None:
            return
        done = await sandbox.exec(
            self.install_script, user="root", cwd="/", timeout=_INSTALL_TIMEOUT, max_output=1 << 16
        )
        if not done.ok:
            said = _last_words((done.stderr or done.stdout).decode(errors="replace"))
            reason = "time limit exceeded" if done.timed_out else said or f"exit code {done.exit_code}"
            raise AgentFailure(f"The agent '{agent}' could not be installed: {reason}", code="install-failed")

    def check(self, agent: str, declared: Mapping[str, str], machine: Mapping[str, str], model: str | None) -> None:
        """Raise `AgentFailure` or `UsageError` if it is already clear that it cannot be pointed at a model."""
        if self.pointing is not None:
            own = self._own(declared, machine)
            self._pointed(self.pointing, agent, own, find_upstreams(machine), None, model)

    def environment(
        self,
        agent: str,
        declared: Mapping[str, str],
        machine: Mapping[str, str],
        models: Access | None,
        model: str | None,
    ) -> Pointed:
        """The variables of its process, and the model that is chosen through the protocol.

        What points it at the gateway takes precedence over the variables of the phase, which may contain keys.
        """
        own = self._own(declared, machine)
        if self.pointing is None:
            return Pointed({**(models.variables() if models is not None else {}), **own}, model)
        if models is None:
            message = f"The agent '{agent}' calls models through the gateway, which this sandbox cannot reach."
            raise AgentFailure(message, code="gateway-unreachable")
        found = find_upstreams(machine)
        reachable = Upstreams({name: found.by_name[name] for name in found.by_name if name in models.families})
        pointed = self._pointed(self.pointing, agent, own, reachable, models, model)
        return Pointed({**own, **pointed.variables}, pointed.session_model)

    def _own(self, declared: Mapping[str, str], machine: Mapping[str, str]) -> dict[str, str]:
        passed = {name: machine[name] for name in self.optional if machine.get(name)}
        return {**(self.settings or {}), **passed, **declared}

    def _pointed(
        self,
        pointing: Pointing,
        agent: str,
        env: Mapping[str, str],
        upstreams: Upstreams,
        models: Access | None,
        model: str | None,
    ) -> Pointed:
        """With `models`, where the gateway really is; without, only what can be known before the start."""
        if not any(upstream.family in pointing.families for upstream in upstreams.by_name.values()):
            needs = f"one of the variables {', '.join(self.one_of)}; none of them is set"
            raise AgentFailure(f"The agent '{agent}' needs {needs}.", code="variable-missing")
        chosen = choose(agent, pointing, upstreams, model)
        url, token = ("", "") if models is None else (models.url(chosen.upstream), models.token)
        return pointing.point(agent, Target(chosen, url, token), env)


def _last_words(output: str) -> str:
    """The end of an installer's output, without the location of its log."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and _OWN_LOG not in line]
    if lines and lines[-1].startswith(_REFUSED):
        lines = lines[-1:]
    said = " ".join(lines[-4:])[:300]
    unexplained = VARIABLE not in said and (said.startswith(_REFUSED) or _FORBIDDEN.search(said))
    return f"{said} ({_PERMIT})" if unexplained else said
