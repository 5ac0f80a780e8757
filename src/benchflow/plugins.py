"""The one loader of plugins: what stands behind a name of an entry-point group, built-in or installed.

A group lists its names without importing anything and loads one at a time, so that a plugin that cannot be loaded is
one sentence where it is asked for and never in the way of the others. A built-in name cannot be taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from benchflow.errors import InfrastructureFailure, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_LONGEST_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """One entry-point group."""

    group: str
    what: str
    """What a plugin of it is, in messages."""
    unknown: str
    """The code of the error about an unknown name."""
    built_in: Mapping[str, str]
    """Names that need no plugin, each with its `module:attribute`."""

    def names(self) -> tuple[str, ...]:
        """Every name there is: built-in ones first, then plugins in order."""
        return (*self.built_in, *sorted(self._installed()))

    def plugins(self) -> tuple[str, ...]:
        """The names of installed plugins."""
        return tuple(sorted(self._installed()))

    def load(self, name: str) -> object:
        """What stands behind a name.

        An unknown name is a `UsageError` that lists the known ones, a plugin that cannot be imported an
        `InfrastructureFailure` (`plugin-invalid`).
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            found: object = getattr(import_module(module), attribute)
            return found
        point = self._installed().get(name)
        if point is None:
            known = ", ".join(self.names())
            raise UsageError(f"Unknown {self.what} '{name}'; choose one of {known}.", code=self.unknown)
        rivals = sorted({each.value for each in self._points() if each.name == name})
        if len(rivals) > 1:
            raise self.invalid(name, f"exists more than once: {', '.join(rivals)}; uninstall all but one")
        try:
            found = point.load()
        except (Exception, SystemExit) as error:  # boundary: a plugin's code may raise anything when it is imported
            raise self.invalid(name, f"cannot be loaded: {_reason(error)}") from error
        return found

    def invalid(self, name: str, why: str) -> InfrastructureFailure:
        """The failure of a plugin that cannot be used; `why` completes the sentence."""
        point = self._installed().get(name)
        where = f" ({point.value})" if point is not None else ""
        return InfrastructureFailure(f"The {self.what} plugin '{name}'{where} {why}.", code="plugin-invalid")

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in self._points()}

    def _points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points

        return [point for point in entry_points(group=self.group) if point.name not in self.built_in]


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


AGENTS: Final = PluginGroup(
    "benchflow.agents",
    "agent",
    "unknown-agent",
    {
        "oracle": "benchflow.agents.oracle_agent:KIND",
        "nop": "benchflow.agents.nop_agent:KIND",
        "script": "benchflow.agents.script_agent:KIND",
        "acp": "benchflow.agents.acp.acp_agent:KIND",
        "model": "benchflow.agents.model.model_agent:KIND",
        "claude": "benchflow.agents.acp.known_agents:CLAUDE",
        "codex": "benchflow.agents.acp.known_agents:CODEX",
        "gemini": "benchflow.agents.acp.known_agents:GEMINI",
        "opencode": "benchflow.agents.acp.known_agents:OPENCODE",
        "goose": "benchflow.agents.acp.known_agents:GOOSE",
        "pi": "benchflow.agents.acp.known_agents:PI",
        "deepagents": "benchflow.agents.acp.known_agents:DEEPAGENTS",
    },
)
"""Each is an `AgentKind`."""

SANDBOXES: Final = PluginGroup(
    "benchflow.sandboxes",
    "sandbox",
    "unknown-sandbox",
    {
        "local": "benchflow.sandbox.backends:LOCAL",
        "docker": "benchflow.sandbox.backends:DOCKER",
        "podman": "benchflow.sandbox.backends:PODMAN",
    },
)
"""Each is a subclass of `SandboxBackend` that is made without arguments; a built-in one a `BuiltIn` that makes it."""

STRATEGIES: Final = PluginGroup(
    "benchflow.verifier_strategies",
    "strategy",
    "unknown-strategy",
    {
        "script": "benchflow.verifier.strategies.script:score",
        "reward-kit": "benchflow.verifier.strategies.reward_kit:score",
        "llm-judge": "benchflow.verifier.strategies.llm_judge:score",
        "agent-judge": "benchflow.verifier.strategies.agent_judge:score",
        "ors-episode": "benchflow.verifier.strategies.ors_episode:score",
        "hybrid": "benchflow.verifier.strategies.hybrid:score",
        "gain": "benchflow.verifier.strategies.gain:score",
        "leaderboard-submission": "benchflow.verifier.strategies.leaderboard:score",
        "assessor": "benchflow.verifier.strategies.assessor:score",
    },
)
"""Each is an asynchronous function from a `Run` to a verdict."""
