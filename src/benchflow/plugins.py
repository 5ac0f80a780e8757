"""The one loader of plugins: the object behind a name of an entry-point group, built-in or installed.

A group lists its names without importing anything and loads one at a time, so that a broken plugin is reported where
it is asked for, in the same words by every command, and does not affect the others. A built-in name cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from benchflow.errors import PluginError, UsageError, did_you_mean

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
            known = self.names()
            message = f"Unknown {self.what} '{name}'; available: {', '.join(known)}.{did_you_mean(name, known)}"
            raise UsageError(message, code=self.unknown)
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


@cache
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
        "a2a": "benchflow.arena.peers.participant_program:KIND",
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

FAMILIES: Final = PluginGroup(
    "benchflow.exploit_families",
    "exploit family",
    "unknown-family",
    {
        "do-nothing": "benchflow.evidence.audit.families.outputs:DO_NOTHING",
        "empty-output": "benchflow.evidence.audit.families.outputs:EMPTY_OUTPUT",
        "empty-structure": "benchflow.evidence.audit.families.outputs:EMPTY_STRUCTURE",
        "header-only": "benchflow.evidence.audit.families.outputs:HEADER_ONLY",
        "default-values": "benchflow.evidence.audit.families.outputs:DEFAULT_VALUES",
        "example-output": "benchflow.evidence.audit.families.outputs:EXAMPLE_OUTPUT",
        "prompt-echo": "benchflow.evidence.audit.families.outputs:PROMPT_ECHO",
        "shotgun-output": "benchflow.evidence.audit.families.outputs:SHOTGUN_OUTPUT",
        "copied-input": "benchflow.evidence.audit.families.outputs:COPIED_INPUT",
        "huge-output": "benchflow.evidence.audit.families.outputs:HUGE_OUTPUT",
        "deleted-inputs": "benchflow.evidence.audit.families.outputs:DELETED_INPUTS",
        "forged-reward-text": "benchflow.evidence.audit.families.rewards:FORGED_REWARD_TEXT",
        "forged-reward-json": "benchflow.evidence.audit.families.rewards:FORGED_REWARD_JSON",
        "forged-reports": "benchflow.evidence.audit.families.rewards:FORGED_REPORTS",
        "locked-reward": "benchflow.evidence.audit.families.rewards:LOCKED_REWARD",
        "linked-reward": "benchflow.evidence.audit.families.rewards:LINKED_REWARD",
        "blocked-reward": "benchflow.evidence.audit.families.rewards:BLOCKED_REWARD",
        "reward-variables": "benchflow.evidence.audit.families.rewards:REWARD_VARIABLES",
        "copied-solution": "benchflow.evidence.audit.families.keys:COPIED_SOLUTION",
        "copied-results": "benchflow.evidence.audit.families.keys:COPIED_RESULTS",
        "copied-expectations": "benchflow.evidence.audit.families.keys:COPIED_EXPECTATIONS",
        "mounted-solution": "benchflow.evidence.audit.families.keys:MOUNTED_SOLUTION",
        "git-history": "benchflow.evidence.audit.families.keys:GIT_HISTORY",
        "environment-secrets": "benchflow.evidence.audit.families.keys:ENVIRONMENT_SECRETS",
        "build-leftovers": "benchflow.evidence.audit.families.keys:BUILD_LEFTOVERS",
        "tampered-reference": "benchflow.evidence.audit.families.tampering:TAMPERED_REFERENCE",
        "tampered-checksums": "benchflow.evidence.audit.families.tampering:TAMPERED_CHECKSUMS",
        "tampered-programs": "benchflow.evidence.audit.families.tampering:TAMPERED_PROGRAMS",
        "tampered-database": "benchflow.evidence.audit.families.tampering:TAMPERED_DATABASE",
        "rigged-tests": "benchflow.evidence.audit.families.rigging:RIGGED_TESTS",
        "rigged-build-files": "benchflow.evidence.audit.families.rigging:RIGGED_BUILD_FILES",
        "verdict-in-output": "benchflow.evidence.audit.families.injection:VERDICT_IN_OUTPUT",
        "wildcard-answer": "benchflow.evidence.audit.families.injection:WILDCARD_ANSWER",
        "code-answer": "benchflow.evidence.audit.families.injection:CODE_ANSWER",
        "strange-numbers": "benchflow.evidence.audit.families.injection:STRANGE_NUMBERS",
        "hostile-names": "benchflow.evidence.audit.families.injection:HOSTILE_NAMES",
        "forged-times": "benchflow.evidence.audit.families.clock:FORGED_TIMES",
        "stalled-program": "benchflow.evidence.audit.families.clock:STALLED_PROGRAM",
        "unreadable-output": "benchflow.evidence.audit.families.breaking:UNREADABLE_OUTPUT",
        "bottomless-output": "benchflow.evidence.audit.families.breaking:BOTTOMLESS_OUTPUT",
        "judge-instructions": "benchflow.evidence.audit.families.judges:JUDGE_INSTRUCTIONS",
        "judge-answer": "benchflow.evidence.audit.families.judges:JUDGE_ANSWER",
        "published-solution": "benchflow.evidence.audit.families.network:PUBLISHED_SOLUTION",
        "fed-services": "benchflow.evidence.audit.families.network:FED_SERVICES",
        "becoming-root": "benchflow.evidence.audit.families.privileges:BECOMING_ROOT",
        "pytest-conftest": "benchflow.evidence.audit.families.hooks:CONFTEST",
        "pytest-plugin": "benchflow.evidence.audit.families.hooks:PYTEST_PLUGIN",
        "python-startup": "benchflow.evidence.audit.families.hooks:PYTHON_STARTUP",
        "node-startup": "benchflow.evidence.audit.families.hooks:NODE_STARTUP",
        "git-hooks": "benchflow.evidence.audit.families.hooks:GIT_HOOKS",
        "shell-startup": "benchflow.evidence.audit.families.hooks:SHELL_STARTUP",
        "makefiles": "benchflow.evidence.audit.families.hooks:MAKEFILES",
        "tool-settings": "benchflow.evidence.audit.families.hooks:TOOL_SETTINGS",
        "path-wrappers": "benchflow.evidence.audit.families.replaced_programs:PATH_WRAPPERS",
        "replaced-programs": "benchflow.evidence.audit.families.replaced_programs:REPLACED_PROGRAMS",
        "environment-tools": "benchflow.evidence.audit.families.replaced_programs:ENVIRONMENT_TOOLS",
        "preloaded-library": "benchflow.evidence.audit.families.replaced_programs:PRELOADED_LIBRARY",
        "settings-above": "benchflow.evidence.audit.families.replaced_programs:SETTINGS_ABOVE",
        "shadowed-standard-library": "benchflow.evidence.audit.families.shadowing:STANDARD_LIBRARY",
        "shadowed-libraries": "benchflow.evidence.audit.families.shadowing:SHADOWED_LIBRARIES",
        "shadowed-helpers": "benchflow.evidence.audit.families.shadowing:SHADOWED_HELPERS",
        "shadowed-node-packages": "benchflow.evidence.audit.families.shadowing:SHADOWED_NODE_PACKAGES",
        "forged-metadata": "benchflow.evidence.audit.families.shadowing:FORGED_METADATA",
        "daemon-writes-reward": "benchflow.evidence.audit.families.daemons:DAEMON_REWARD",
        "daemon-rewrites-tests": "benchflow.evidence.audit.families.daemons:DAEMON_TESTS",
        "daemon-copies-answers": "benchflow.evidence.audit.families.daemons:DAEMON_ANSWERS",
        "swapped-files": "benchflow.evidence.audit.families.daemons:SWAPPED_FILES",
        "scheduled-jobs": "benchflow.evidence.audit.families.daemons:SCHEDULED_JOBS",
        "links-to-hidden-files": "benchflow.evidence.audit.families.links:HIDDEN_LINKS",
        "links-to-open-files": "benchflow.evidence.audit.families.links:PROCESS_LINKS",
        "links-to-rewards": "benchflow.evidence.audit.families.links:REWARD_LINKS",
        "links-to-references": "benchflow.evidence.audit.families.links:REFERENCE_LINKS",
        "linked-folders": "benchflow.evidence.audit.families.links:FOLDER_LINKS",
        "early-exit": "benchflow.evidence.audit.families.inside_tests:EARLY_EXIT",
        "skipped-tests": "benchflow.evidence.audit.families.inside_tests:SKIPPED_TESTS",
        "exit-handler": "benchflow.evidence.audit.families.inside_tests:EXIT_HANDLER",
        "patched-assertions": "benchflow.evidence.audit.families.inside_tests:PATCHED_ASSERTIONS",
        "equal-to-everything": "benchflow.evidence.audit.families.inside_tests:EQUAL_TO_EVERYTHING",
        "printed-success": "benchflow.evidence.audit.families.inside_tests:PRINTED_SUCCESS",
        "verdict-from-inside": "benchflow.evidence.audit.families.inside_tests:VERDICT_FROM_INSIDE",
    },
    "benchflow.evidence.audit.exploit_family:wrong_with",
)
"""Each is a `Family`."""
