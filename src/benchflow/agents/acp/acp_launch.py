"""How an ACP agent is installed and started in an environment: its command, its installation, its variables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.errors import AgentFailure
from benchflow.sandbox.network.addresses import VARIABLE
from benchflow.sandbox.protocol import Sandbox

_INSTALL_TIMEOUT: Final = 900.0
_OWN_LOG: Final = "complete log of this run"
_REFUSED: Final = "egress to "
"""The beginning of a sandbox's message about a refused connection."""
_FORBIDDEN: Final = re.compile(r"\b403\b")
_PLAIN: Final = ("_MODEL", "_PROVIDER")
_PERMIT: Final = f"if its address is not public, permit it with {VARIABLE}"

Configure = Callable[[Mapping[str, str], str | None], Mapping[str, str]]
"""Derives more variables from those that are set and the model."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start one agent."""

    command: str
    """Run by the environment's shell."""
    install_script: str | None = None
    """Run by the environment's shell as root; None: the command already exists."""
    one_of: tuple[str, ...] = ()
    """Variables of which at least one must be set."""
    optional: tuple[str, ...] = ()
    """Variables that are passed on if they are set."""
    settings: Mapping[str, str] | None = None
    """Variables with fixed values."""
    configure: Configure | None = None
    """Translates other variables into the agent's own settings; raises `AgentFailure` if that is not possible."""
    auth_method: str | None = None
    """The authentication method of the protocol, used if the agent requires one."""
    model_variable: str | None = None
    """How the model is passed to the agent; None: through the protocol."""

    @property
    def variables(self) -> tuple[str, ...]:
        return (*self.one_of, *self.optional)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables whose values must not be recorded; names of models and providers may be."""
        return tuple(name for name in self.variables if not name.endswith(_PLAIN))

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

    def environment(
        self, agent: str, declared: Mapping[str, str], machine: Mapping[str, str], model: str | None
    ) -> dict[str, str]:
        """The variables of its process; those of the phase take precedence over keys from this machine."""
        own = {name: machine[name] for name in self.variables if machine.get(name)}
        env = {**(self.settings or {}), **own, **declared}
        if self.one_of and not any(env.get(name) for name in self.one_of):
            needs = f"the variable {self.one_of[0]}, which is not set"
            if len(self.one_of) > 1:
                needs = f"one of the variables {', '.join(self.one_of)}; none of them is set"
            raise AgentFailure(f"The agent '{agent}' needs {needs}.", code="variable-missing")
        if model and self.model_variable:
            env[self.model_variable] = model
        if self.configure is not None:
            env |= self.configure(env, model)
        return env


def _last_words(output: str) -> str:
    """The end of an installer's output, without the location of its log."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and _OWN_LOG not in line]
    if lines and lines[-1].startswith(_REFUSED):
        lines = lines[-1:]
    said = " ".join(lines[-4:])[:300]
    unexplained = VARIABLE not in said and (said.startswith(_REFUSED) or _FORBIDDEN.search(said))
    return f"{said} ({_PERMIT})" if unexplained else said
