"""The one loader of plugins: the object behind a name of an entry-point group, built-in or installed.

A group lists its names without importing anything and loads one at a time, so that a broken plugin is reported where
it is asked for, in the same words by every command, and does not affect the others. A built-in name cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from benchflow.errors import PluginError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_LONGEST_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """One entry-point group."""

    group: str
    what: str
    """What its plugins provide, for messages."""
    unknown: str
    """The code of the error about an unknown name."""
    built_in: Mapping[str, str]
    """Names that need no plugin, each with its `module:attribute`."""
    check: str
    """`module:attribute` of a function that takes the name and the object of a plugin. It returns what is wrong with
    the object, to complete a sentence, or None."""

    def names(self) -> tuple[str, ...]:
        """Every name there is: built-in ones first, then plugins in order."""
        return (*self.built_in, *sorted(self._installed()))

    def plugins(self) -> tuple[str, ...]:
        """The names of installed plugins."""
        return tuple(sorted(self._installed()))

    def ignored(self) -> tuple[str, ...]:
        """A sentence for each plugin that has a built-in name."""
        return tuple(
            f"The {self.what} plugin '{point.name}' ({point.value}) is ignored: the name is built in. "
            "Rename its entry point."
            for point in self._points()
            if point.name in self.built_in
        )

    def load(self, name: str) -> object:
        """The object behind a name, checked.

        An unknown name is a `UsageError` that lists the known ones, a plugin that cannot be used a `PluginError`.
        """
        if name in self.built_in:
            return _imported(self.built_in[name])
        point = self._installed().get(name)
        if point is None:
            known = ", ".join(self.names())
            raise UsageError(f"Unknown {self.what} '{name}'; choose one of {known}.", code=self.unknown)
        rivals = sorted({each.value for each in self._points() if each.name == name})
        if len(rivals) > 1:
            raise self.invalid(name, f"exists more than once: {', '.join(rivals)}; uninstall all but one")
        try:
            found: object = point.load()
        except (Exception, SystemExit) as error:  # boundary: a plugin's code may raise anything when it is imported
            raise self.invalid(name, f"cannot be loaded: {reason(error)}") from error
        wrong = cast("Callable[[str, object], str | None]", _imported(self.check))(name, found)
        if wrong is not None:
            raise self.invalid(name, wrong)
        return found

    def invalid(self, name: str, why: str) -> PluginError:
        """The error about a plugin that cannot be used; `why` completes the sentence."""
        point = self._installed().get(name)
        where = f" ({point.value})" if point is not None else ""
        return PluginError(f"The {self.what} plugin '{name}'{where} {why}.")

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in self._points() if point.name not in self.built_in}

    def _points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points

        return list(entry_points(group=self.group))


def reason(error: BaseException) -> str:
    """What a plugin's code raised, in one line."""
    text = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _imported(target: str) -> object:
    module, _, attribute = target.partition(":")
    found: object = getattr(import_module(module), attribute)
    return found


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
    "benchflow.agents.registry:wrong_with",
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
    "benchflow.sandbox.backends:wrong_with",
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
    "benchflow.verifier.strategy_run:wrong_with",
)
"""Each is an asynchronous function from a `Run` to a verdict."""
