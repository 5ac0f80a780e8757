"""How an ACP agent comes into an environment and starts there: its command, its installation, its variables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchflow.errors import AgentFailure
from benchflow.sandbox.protocol import Sandbox

_INSTALL_TIMEOUT: Final = 900.0
_OWN_LOG: Final = "complete log of this run"
_REFUSED: Final = "egress to "
"""How a sandbox begins to say that it lets nobody go somewhere."""
_FORBIDDEN: Final = re.compile(r"\b403\b")
_PLAIN: Final = ("_MODEL", "_PROVIDER")
_PERMIT: Final = "where its address is not public, BENCHCUBE_PERMITTED_NETWORKS permits it"

Configure = Callable[[Mapping[str, str], str | None], Mapping[str, str]]
"""From the variables that are set and the model to more variables."""


@dataclass(frozen=True, slots=True)
class Launch:
    """All that is known about starting one agent."""

    command: str
    """Run by the environment's shell."""
    install_script: str | None = None
    """Run by the environment's shell as root; None: the command is there already."""
    one_of: tuple[str, ...] = ()
    """Variables of which at least one must be set."""
    optional: tuple[str, ...] = ()
    """Variables that are passed on when they are set."""
    settings: Mapping[str, str] | None = None
    """Variables with fixed values."""
    configure: Configure | None = None
    """Says in the agent's own way what other variables mean to say; raises `AgentFailure` when that makes no sense."""
    auth_method: str | None = None
    """How it is signed in, by the protocol, when it asks for that."""
    model_variable: str | None = None
    """How the agent is told its model; None: by the protocol."""

    @property
    def variables(self) -> tuple[str, ...]:
        return (*self.one_of, *self.optional)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Those of its variables whose values must not be written down; names of models and providers may be."""
        return tuple(name for name in self.variables if not name.endswith(_PLAIN))

    @property
    def install_key(self) -> str | None:
        if self.install_script is None:
            return None
        return hashlib.sha256(self.install_script.encode()).hexdigest()

    async def install(self, agent: str, sandbox: Sandbox) -> None:
        """Run the installation; what it says at its end is the reason when it fails."""
        if self.install_script is None:
            return
        done = await sandbox.exec(
            self.install_script, user="root", cwd="/", timeout=_INSTALL_TIMEOUT, max_output=1 << 16
        )
        if not done.ok:
            said = _last_words((done.stderr or done.stdout).decode(errors="replace"))
            reason = "it took too long" if done.timed_out else said or f"exit code {done.exit_code}"
            raise AgentFailure(f"The agent '{agent}' could not be installed: {reason}", code="install-failed")

    def environment(
        self, agent: str, declared: Mapping[str, str], machine: Mapping[str, str], model: str | None
    ) -> dict[str, str]:
        """The variables of its process: those of the phase, before the machine's own keys for it."""
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
    """The end of what an installer said, without where its own log is."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and _OWN_LOG not in line]
    if lines and lines[-1].startswith(_REFUSED):
        lines = lines[-1:]
    said = " ".join(lines[-4:])[:300]
    return f"{said} ({_PERMIT})" if said.startswith(_REFUSED) or _FORBIDDEN.search(said) else said
