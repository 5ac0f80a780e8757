"""The prompt of each turn and what the declared user may do: `TaskPromptPlan`.

Base, role, scene and turn texts are combined according to the document's prompt policy. User, nudges and teams are
compiled into a `UserContract` that a rollout honours or refuses. It names private facts by key only; `problems` lists
what is not supported, with paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchflow.task.config.interaction import PROMPT_PARTS, Scene, Team, Turn, User
from benchflow.task.document.task_document import SCRIPTED_MODELS, TaskDocument

DEFAULT_ROUNDS: Final = 5
_STOP_RULE: Final = re.compile(r"(?:.*-)?([0-9]{1,6})-rounds?")
_HANDOFF_TEAMS: Final = 1


@dataclass(frozen=True, slots=True)
class UserContract:
    """How the user loop behaves, without anything private."""

    status: str = "none"
    """`none`, `supported` or `unsupported`."""
    reason: str | None = None
    model: str | None = None
    stop_rule: str | None = None
    max_rounds: int | None = None
    persona_present: bool = False
    private_fact_keys: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Names of the tools of a user that a model plays."""
    nudge_mode: str | None = None
    nudge_budget: int | None = None
    branchable: bool = False
    branch_execution: str = "none"
    """`none`, `option-kinds-preserved` or `forked-snapshot`."""
    confirmation_policy: str | dict[str, str] | None = None
    runtime_kind: str = "none"
    """`none`, `scripted-linear` or `model-linear`."""
    handoff_kind: str = "none"
    """`none`, or the mode and the workspace: `sequential-shared`, `parallel-isolated`, …"""
    handoff_team: str | None = None
    handoff_workspace_visibility: str | None = None
    handoff_trajectory_visibility: str | None = None
    handoff_artifacts: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    """Path and reason of everything that is not supported."""

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        del data["problems"]
        data["private_fact_keys"] = list(self.private_fact_keys)
        data["tools"] = list(self.tools)
        data["handoff_artifacts"] = list(self.handoff_artifacts)
        return data


def compile_user_runtime(document: TaskDocument) -> UserContract:
    """The contract of a document's user; `none` when nothing is declared."""
    user, nudges, teams = document.user, document.namespace.nudges, document.namespace.teams
    has_user = user is not None or document.persona is not None or nudges is not None
    if not has_user and not teams:
        return UserContract()
    problems: list[tuple[str, str]] = []
    team_name, team = _handoff(document, problems)
    rounds = _rounds(document, problems) if has_user else None
    model = user.model if user else None
    scripted = model in SCRIPTED_MODELS
    facts = user.private_facts if user else {}
    if has_user and scripted and not facts:
        problems.append(("user", "a scripted user needs private_facts; a user with only a persona needs a model"))
    if user is not None and user.tools:
        problems += _unsupported_tools(document, user)
    confirmation = nudges.confirmation_policy if nudges else None
    reasons = list(dict.fromkeys(reason for _, reason in problems))
    return UserContract(
        status="unsupported" if problems else "supported",
        reason="; ".join(reasons) or None,
        model=model,
        stop_rule=user.stop_rule if user else None,
        max_rounds=rounds,
        persona_present=document.persona is not None,
        private_fact_keys=tuple(sorted(facts)),
        tools=tuple(tool.name for tool in user.tools) if user else (),
        nudge_mode=nudges.mode if nudges else None,
        nudge_budget=nudges.nudge_budget if nudges else None,
        branchable=nudges.branchable if nudges else False,
        branch_execution=(nudges.branch_execution if nudges else None) or "none",
        confirmation_policy=dict(confirmation) if isinstance(confirmation, dict) else confirmation,
        runtime_kind="none" if not has_user else "scripted-linear" if scripted else "model-linear",
        handoff_kind=f"{team.handoff.mode}-{team.handoff.workspace_visibility}" if team else "none",
        handoff_team=team_name,
        handoff_workspace_visibility=team.handoff.workspace_visibility if team else None,
        handoff_trajectory_visibility=team.handoff.trajectory_visibility if team else None,
        handoff_artifacts=team.handoff.artifacts if team else (),
        problems=tuple(problems),
    )


def _unsupported_tools(document: TaskDocument, user: User) -> list[tuple[str, str]]:
    nudges = document.namespace.nudges
    found: list[tuple[str, str]] = []
    if user.model in SCRIPTED_MODELS:
        found.append(("user.tools", "a scripted user calls no tools; a user with tools needs a model"))
    if nudges is not None and nudges.branch_execution == "forked-snapshot":
        found.append(("user.tools", "the tools of a user act in one environment, and branches have several"))
    agent = document.config.agent.user
    if user.account is not None and agent is not None and str(agent) == user.account:
        found.append(("user.account", "it is the account of the agent (agent.user); a user needs its own"))
    return found


def _handoff(document: TaskDocument, problems: list[tuple[str, str]]) -> tuple[str | None, Team | None]:
    """The one team whose handoff is supported; scenes with several roles need it when there is a user."""
    teams = document.namespace.teams
    multi_role = [scene for scene in document.scenes if len({turn.role for turn in scene.turns or ()}) > 1]
    has_user = document.user is not None or document.persona is not None
    if not teams:
        if multi_role and has_user:
            names = ", ".join(str(scene.name) for scene in multi_role)
            problems.append(
                ("user", f"several roles in one scene ({names}) need benchflow.teams with a sequential handoff")
            )
        return None, None
    if len(teams) > _HANDOFF_TEAMS:
        problems.append(("benchflow.teams", "only one team can be run"))
        return None, None
    name, team = next(iter(teams.items()))
    reasons = _unsupported_handoff(document, name, team)
    problems += reasons
    return (None, None) if reasons else (name, team)


def _unsupported_handoff(document: TaskDocument, name: str, team: Team) -> list[tuple[str, str]]:
    path = f"benchflow.teams.{name}"
    handoff = team.handoff
    found: list[tuple[str, str]] = []
    isolated = handoff.workspace_visibility == "isolated"
    if isolated and not handoff.artifacts:
        reason = "what isolated roles deliver must be declared in artifacts: nothing else leaves their workspaces"
        found.append((f"{path}.handoff.artifacts", reason))
    apart = isolated or handoff.mode == "parallel" or bool(handoff.artifacts)
    if apart and (document.user is not None or document.persona is not None or document.namespace.nudges is not None):
        reason = "a user speaks to a sequential team in a shared workspace without handoff artifacts only"
        found.append((f"{path}.handoff", reason))
    if not document.scenes:
        found.append((path, "a team needs scenes with turns"))
    strangers = {turn.role for scene in document.scenes for turn in scene.turns or ()} - set(team.roles)
    if apart and team.roles and strangers:
        found.append((f"{path}.roles", f"the scenes have turns by others: {', '.join(sorted(strangers))}"))
    return found


def _rounds(document: TaskDocument, problems: list[tuple[str, str]]) -> int | None:
    """How many rounds the user may take: the lower of stop rule and nudge budget."""
    user, nudges = document.user, document.namespace.nudges
    limits: list[int] = []
    if user is not None and user.stop_rule is not None:
        found = _STOP_RULE.fullmatch(user.stop_rule)
        if found is None or int(found[1]) == 0:
            problems.append(
                ("user.stop_rule", "stop_rule must end with '-<n>-rounds', such as 'satisfied-or-3-rounds'")
            )
        else:
            limits.append(int(found[1]))
    if nudges is not None and nudges.nudge_budget is not None:
        limits.append(nudges.nudge_budget)
    turns = sum(len(scene.turns or ()) for scene in document.scenes)
    rounds = min(limits, default=max(DEFAULT_ROUNDS, turns))
    if rounds < turns:
        problems.append(("user", f"the user may take {rounds} rounds, but the scenes have {turns} turns"))
    return rounds


_REPLACE_ORDER: Final = tuple(reversed(PROMPT_PARTS))


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One text and where it comes from: `base`, `role`, `scene` or `turn`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One prompt to one role."""

    scene: str | None
    role: str | None
    prompt: str
    parts: tuple[PromptPart, ...]


@dataclass(frozen=True, slots=True)
class TaskPromptPlan:
    """All prompts of a task, in order."""

    composition: str
    order: tuple[str, ...]
    turns: tuple[PlannedTurn, ...]
    user_runtime: UserContract = field(default_factory=UserContract)

    def to_dict(self) -> dict[str, Any]:
        return {
            "composition": self.composition,
            "order": list(self.order),
            "turns": [
                {
                    "scene": turn.scene,
                    "role": turn.role,
                    "prompt": turn.prompt,
                    "parts": [asdict(part) for part in turn.parts],
                }
                for turn in self.turns
            ],
            "user_runtime": self.user_runtime.to_dict(),
        }


def compile_task_prompt_plan(document: TaskDocument | None, *, fallback_prompt: str = "") -> TaskPromptPlan:
    """The plan of a document; a split package has one turn with its instruction."""
    if document is None:
        prompt = fallback_prompt.strip()
        return TaskPromptPlan("replace", ("base",), (_turn(None, None, {"base": prompt}, ("base",), append=False),))
    policy = document.namespace.prompt
    composition = policy.composition if policy else "replace"
    append = composition == "append"
    order = (policy.order if policy else None) or (PROMPT_PARTS if append else _REPLACE_ORDER)
    turns = [
        _turn(scene.name, turn.role, _texts(document, scene, turn), order, append=append)
        for scene in document.scenes
        for turn in scene.turns or ()
    ]
    if not turns:
        turns = [_turn(None, None, {"base": document.instruction}, ("base",), append=False)]
    return TaskPromptPlan(composition, tuple(order), tuple(turns), compile_user_runtime(document))


def _texts(document: TaskDocument, scene: Scene, turn: Turn) -> dict[str, str]:
    return {
        "base": document.instruction,
        "role": document.role_prompts.get(turn.role, ""),
        "scene": document.scene_prompts.get(scene.name or "", ""),
        "turn": turn.prompt or "",
    }


def _turn(
    scene: str | None, role: str | None, texts: Mapping[str, str], order: tuple[str, ...], *, append: bool
) -> PlannedTurn:
    parts = [PromptPart(kind, texts[kind].strip()) for kind in order if texts.get(kind, "").strip()]
    chosen = tuple(parts if append else parts[:1])
    return PlannedTurn(scene, role, "\n\n".join(part.text for part in chosen), chosen)


def materialize_prompt_plan_scenes(document: TaskDocument) -> tuple[Scene, ...]:
    """The document's scenes, with the planned prompt of each turn."""
    planned = iter(compile_task_prompt_plan(document).turns)
    return tuple(
        scene.replace(turns=tuple(turn.replace(prompt=next(planned).prompt) for turn in scene.turns or ()))
        for scene in document.scenes
    )
