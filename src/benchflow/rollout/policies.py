"""The policies of a package in one rollout: tools, skills, secrets of each scope, and the audit afterwards.

Everything here is decided before launch or judged from the trajectory; networks are `benchflow.sandbox.task_policy`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchflow.errors import AgentFailure, EnvironmentFailure, UnsupportedError
from benchflow.record import ToolAudit
from benchflow.rollout.redaction import SHORTEST_DECLARED, secret_values
from benchflow.sandbox.task_policy import referenced_variables
from benchflow.task.config.namespace import AgentPolicy
from benchflow.task.runtime_view import TaskRuntimeView

SEARCH_TOOLS: Final = frozenset(
    (
        "web_search",
        "websearch",
        "web-search",
        "search_web",
        "google_search",
        "web_fetch",
        "webfetch",
        "fetch",
        "browser",
    )
)
"""Tools that search outside; forbidden if search is disabled."""
_POLICY: Final = "benchflow.agent_policy"


def forbidden_tools(policy: AgentPolicy | None) -> frozenset[str]:
    """Names of the tools that the agent may not call."""
    if policy is None:
        return frozenset()
    search = SEARCH_TOOLS if policy.search == "disabled" else frozenset()
    return frozenset(policy.forbidden_tools) | search


def normal_tool(name: str) -> str:
    """A tool's name as it is compared: `WebSearch` and `web-search` are `web_search`."""
    spaced = "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(name))
    return "_".join(part for part in spaced.lower().replace("-", "_").replace(" ", "_").split("_") if part)


@dataclass(frozen=True, slots=True)
class Audit:
    """What the trajectory proves about the tools that were called."""

    required: bool
    forbidden: Mapping[str, int] = field(default_factory=dict)
    """Forbidden tools that were called, and how often."""

    def record(self) -> ToolAudit:
        return ToolAudit(dict(self.forbidden), passed=not self.forbidden)

    def enforce(self) -> None:
        """Raise an `AgentFailure` if the policy requires proof and the trajectory disproves it."""
        if self.required and self.forbidden:
            calls = ", ".join(f"{name} ({count})" for name, count in sorted(self.forbidden.items()))
            message = f"The agent called tools that {_POLICY} forbids: {calls}. Its work is not scored."
            raise AgentFailure(message, code="forbidden-tool", path=f"{_POLICY}.trajectory_audit")


def audit(policy: AgentPolicy | None, calls: Mapping[frozenset[str], int]) -> Audit | None:
    """The audit of a trajectory by its tool calls; None when the package has no policy."""
    if policy is None:
        return None
    banned = {normal_tool(name) for name in forbidden_tools(policy)}
    called: Counter[str] = Counter()
    for names, count in calls.items():
        hits = sorted(name for name in names if normal_tool(name) in banned)
        called.update(dict.fromkeys(hits[:1], count))
    return Audit(policy.trajectory_audit.require_no_forbidden_tool_calls or policy.search == "disabled", called)


def skills_folder(view: TaskRuntimeView, *declared: str | None) -> str | None:
    """Where the agent finds its skills: the first of `declared`, else the environment's, as the policy allows.

    Raises `UnsupportedError` when the policy allows declared roots only and the folder is not below one.
    """
    chosen = next((folder for folder in declared if folder), view.config.environment.skills_dir)
    policy = view.namespace.agent_policy
    if chosen is None or policy is None or policy.skill_access == "installed":
        return chosen
    if policy.skill_access == "none":
        return None
    roots = [root.rstrip("/") for root in policy.allowed_skill_roots]
    if not any(chosen == root or chosen.startswith(f"{root}/") for root in roots):
        message = f"{_POLICY}.allowed_skill_roots does not include the skills folder {chosen}."
        raise UnsupportedError(message, code="skills-refused", path=f"{_POLICY}.allowed_skill_roots")
    return chosen


def hidden_folders(view: TaskRuntimeView, folders: Iterable[str | None]) -> tuple[str, ...]:
    """Skill folders of the environment that must not be there for the agent."""
    policy = view.namespace.agent_policy
    if policy is None or policy.skill_access != "none":
        return ()
    return tuple(dict.fromkeys(folder for folder in folders if folder))


@dataclass(frozen=True, slots=True)
class Secrets:
    """Declared secrets of a rollout by scope, and all values that must not be recorded."""

    by_scope: Mapping[str, Mapping[str, str]] = field(repr=False)
    redacted: frozenset[str] = field(repr=False)

    def of(self, scope: str) -> Mapping[str, str]:
        """Variables of one scope."""
        return self.by_scope.get(scope, {})


def gather_secrets(view: TaskRuntimeView, machine: Mapping[str, str], scopes: Iterable[str]) -> Secrets:
    """The secrets of the scopes that this rollout enters.

    One that is required and not set, or too short to be kept out of records, is an `EnvironmentFailure`.
    """
    entered = frozenset(scopes)
    by_scope: dict[str, dict[str, str]] = {}
    declared: list[str] = []
    for index, secret in enumerate(view.namespace.secrets):
        name = secret.env or secret.name
        path = f"benchflow.secrets[{index}]"
        declared.append(name)
        if secret.scope not in entered:
            continue
        value = machine.get(name)
        if value:
            if len(value) < SHORTEST_DECLARED:
                message = f"{path}: the value of {name} has fewer than {SHORTEST_DECLARED} characters."
                raise EnvironmentFailure(message, code="secret-too-short", path=path)
            by_scope.setdefault(secret.scope, {})[name] = value
        elif secret.required:
            message = f"{path} needs the variable {name}, which is not set on this machine."
            raise EnvironmentFailure(message, code="variable-missing", path=path)
    return Secrets(by_scope, frozenset(secret_values(machine, declared=declared, taken=_taken(view))))


def _taken(view: TaskRuntimeView) -> frozenset[str]:
    """Variables of the machine that the package takes by `${NAME}`."""
    config = view.config
    tables = [config.environment.env, config.verifier.env, config.oracle.env]
    tables += [role.env for role in view.roles.values()]
    tables += [server.env for server in config.environment.mcp_servers]
    tables += [server.headers for server in config.environment.mcp_servers]
    tables += [step.config.verifier.env for step in view.steps]
    forwarded = view.manifest.forward_env.keys if view.manifest is not None else ()
    return frozenset(forwarded).union(*(referenced_variables(table) for table in tables))
