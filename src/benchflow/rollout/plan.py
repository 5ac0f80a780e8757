"""The plan of a rollout, pure: which turns in which steps, by whom, with which settings, limits and networks.

`plan_rollout` takes a package and what the caller asks for; unsupported features are refused here, before anything
starts. A task without steps is a plan with one nameless step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from benchflow.errors import PackageError, UnsupportedError, UsageError
from benchflow.record import always_wins
from benchflow.rollout.config import DEFAULT_ROLE, DEFAULT_ROUNDS, Role, RolloutConfig, Scene
from benchflow.rollout.policies import Secrets, forbidden_tools, gather_secrets, require_finished, skills_folder
from benchflow.sandbox.protocol import NetworkPolicy
from benchflow.sandbox.task_policy import Scope, in_step, network_policy
from benchflow.task.config.interaction import ARENA
from benchflow.task.config.task_config import AgentConfig, ArtifactConfig
from benchflow.task.document.prompt_plan import UserContract, compile_task_prompt_plan
from benchflow.task.package import TaskPackage
from benchflow.task.runtime_view import StepView, TaskRuntimeView

if TYPE_CHECKING:
    from benchflow.models.gateway import Access
    from benchflow.rollout.seats import Seat
    from benchflow.rollout.users import BaseUser, Helper

ORACLE: Final = "oracle"
NOP: Final = "nop"
SCRIPT: Final = "script"
MODEL: Final = "model"
RESERVED: Final = 0.25
"""The share of the deadline that is reserved for verification, unless the verifier needs less: an agent that
uses up all the time would otherwise never be scored."""
_VERIFICATIONS: Final = 3
"""One that fails is followed by one of the pristine environment and one more of the agent's state (`blame`)."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One prompt to one role."""

    role: Role
    prompt: str
    scene: str | None = None
    skills_dir: str | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One checkpoint: what the agent does, then what is verified."""

    name: str | None
    """None for a task without steps."""
    index: int
    prompt: str
    turns: tuple[PlannedTurn, ...]
    agent: AgentConfig
    timeout_sec: float | None
    network: NetworkPolicy
    artifacts: tuple[ArtifactConfig, ...]
    view: StepView | None = None


@dataclass(frozen=True, slots=True)
class HandoffPlan:
    """How the roles of a team work together."""

    parallel: bool = False
    """Whether the roles of a scene work at the same time."""
    isolated: bool = False
    """Whether each role has a workspace of its own."""
    trajectory: str = "none"
    """How much a role learns about the others: `none`, `metadata` or `full`."""
    artifacts: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether it is more than one conversation in one workspace."""
        return self.parallel or self.isolated or bool(self.artifacts)

    def record(self) -> dict[str, Any]:
        return {
            "mode": "parallel" if self.parallel else "sequential",
            "workspace_visibility": "isolated" if self.isolated else "shared",
            "trajectory_visibility": self.trajectory,
            "artifacts": list(self.artifacts),
        }


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Everything that is decided before launch."""

    view: TaskRuntimeView
    mode: str
    steps: tuple[StepPlan, ...]
    secrets: Secrets = field(repr=False)
    user: UserContract
    """What the document's user may do; `none` if it is not used."""
    max_rounds: int
    forbidden_tools: frozenset[str]
    handoff: HandoffPlan | None = None
    """How the roles of the team work together; None without a team."""
    branches: bool = False
    seats: tuple[Seat, ...] = ()
    """The participants of an arena; empty for everything else."""

    def record(self) -> dict[str, Any]:
        """The plan for `config.json`: no prompts, no values of variables."""
        return {
            "mode": self.mode,
            "steps": [_step_record(step) for step in self.steps],
            "max_rounds": self.max_rounds,
            "user": self.user.to_dict() if self.user.status != "none" else None,
            "forbidden_tools": sorted(self.forbidden_tools),
            **({"handoff": self.handoff.record()} if self.handoff is not None else {}),
        }


def time_for_agents(whole: float, verifier: float) -> float:
    """When agents have to end before the deadline of the rollout, so that the verifier has enough time."""
    return whole - min(_VERIFICATIONS * verifier, whole * RESERVED)


def plan_rollout(package: TaskPackage, config: RolloutConfig, machine: Mapping[str, str]) -> RolloutPlan:
    """The plan, or the reason why there is none: `PackageError`, `UnsupportedError`, `EnvironmentFailure`."""
    view = package.view
    fixed = always_wins(config.agent)
    if not fixed:
        require_finished(package)
    if view.mode == ARENA:
        return _arena(package, config, machine)
    if config.participants or config.seed is not None:
        given = "--participant" if config.participants else "--seed"
        message = f"{given} is for arenas; the mode of this package is {view.mode}."
        raise UsageError(message, code="not-an-arena")
    declared_user = view.prompt_plan.user_runtime
    plays_user = declared_user.status != "none" and declared_user.runtime_kind != "none"
    if config.agent in (ORACLE, NOP) or config.user is not None or config.prompts is not None:
        plays_user = False
    contract = declared_user if plays_user else UserContract()
    steps = plan_steps(package, config, fixed=fixed)
    if view.mode == "multi-round" and config.user is None and not plays_user and not fixed and _is_one_turn(steps):
        message = (
            "benchflow.interaction.mode: multi-round needs a user or several turns, and the package declares neither; "
            "pass the turns with --prompt, or give RolloutConfig a user."
        )
        raise UnsupportedError(message, code="user-missing", path="benchflow.interaction.mode")
    branches = declared_user.branch_execution == "forked-snapshot" and config.agent not in (ORACLE, NOP)
    if branches and view.manifest is not None:
        message = "benchflow.nudges.branch_execution: services of the environment cannot be forked."
        raise UnsupportedError(message, code="branch-unsupported", path="benchflow.nudges.branch_execution")
    turns = max(len(step.turns) for step in steps)
    return RolloutPlan(
        view=view,
        mode=_mode(view, config, steps, plays_user=plays_user),
        steps=steps,
        secrets=gather_secrets(view, machine, secret_scopes(config.agent)),
        user=contract,
        max_rounds=max(turns, config.max_user_rounds or contract.max_rounds or DEFAULT_ROUNDS),
        forbidden_tools=forbidden_tools(view.namespace.agent_policy),
        handoff=_handoff(view, config, fixed=fixed),
        branches=branches,
    )


def _arena(package: TaskPackage, config: RolloutConfig, machine: Mapping[str, str]) -> RolloutPlan:
    """One step, in which every seat with an agent of ours has a turn; how often it speaks is the assessor's."""
    from benchflow.rollout.seats import GAME, participants_network, plan_seats

    view = package.view
    if config.prompts is not None or config.scenes is not None or config.user is not None:
        message = "The assessor of an arena decides who hears what: prompts, scenes and users have no place in it."
        raise UnsupportedError(message, code="prompts-in-arena", path="benchflow.interaction.mode")
    seats = plan_seats(package, config)
    agents = [seat.role.agent for seat in seats if seat.url is None]
    own = (*(("oracle",) if ORACLE in agents else ()), *(("agent",) if set(agents) - {ORACLE, NOP} else ()))
    skills = skills_folder(view)
    step = StepPlan(
        name=None,
        index=0,
        prompt=view.prompt,
        turns=tuple(
            PlannedTurn(seat.role, seat.instructions, GAME, skills_folder(view, seat.role.skills_dir) or skills)
            for seat in seats
            if seat.url is None
        ),
        agent=view.config.agent,
        timeout_sec=None,
        network=participants_network(view),
        artifacts=view.config.artifacts,
    )
    return RolloutPlan(
        view=view,
        mode=ARENA,
        steps=(step,),
        secrets=gather_secrets(view, machine, ("environment", "verifier", "judge", *own)),
        user=UserContract(),
        max_rounds=1,
        forbidden_tools=forbidden_tools(view.namespace.agent_policy),
        seats=seats,
    )


def _handoff(view: TaskRuntimeView, config: RolloutConfig, *, fixed: bool) -> HandoffPlan | None:
    """How the team works, if there is one; a single agent that replaces it hands nothing over."""
    plan = None if fixed or config.prompts is not None else _declared_handoff(view)
    if plan is None or not plan.apart:
        return plan
    path = f"benchflow.teams.{view.prompt_plan.user_runtime.handoff_team}.handoff"
    if plan.isolated and view.manifest is not None:
        message = f"{path}: services of the environment cannot be forked, so no role can have them to itself."
        raise UnsupportedError(message, code="team-unsupported", path=path)
    if config.user is not None:
        message = f"{path}: a user speaks to a sequential team in one workspace, without handoff artifacts, only."
        raise UnsupportedError(message, code="team-unsupported", path=path)
    return plan


def require_one_actor(view: TaskRuntimeView) -> None:
    """Raise `UnsupportedError` for what one actor, who takes all turns in one workspace, cannot play."""
    if view.mode == ARENA:
        message = "benchflow.interaction.mode: the peers of an arena are live; use bench run, a gym task, or serve a2a."
        raise UnsupportedError(message, code="arena-unsupported", path="benchflow.interaction.mode")
    plan = _declared_handoff(view)
    if plan is not None and plan.apart:
        path = f"benchflow.teams.{view.prompt_plan.user_runtime.handoff_team}.handoff"
        message = f"{path}: the roles of this team work apart, and here one actor takes every turn; use bench run."
        raise UnsupportedError(message, code="team-unsupported", path=path)


def _declared_handoff(view: TaskRuntimeView) -> HandoffPlan | None:
    declared = view.prompt_plan.user_runtime
    if declared.handoff_kind == "none":
        return None
    mode, _, workspace = declared.handoff_kind.partition("-")
    told = declared.handoff_trajectory_visibility or "none"
    return HandoffPlan(mode == "parallel", workspace == "isolated", told, declared.handoff_artifacts)


def make_user(
    package: TaskPackage,
    plan: RolloutPlan,
    config: RolloutConfig,
    machine: Mapping[str, str],
    access: Access | None = None,
    tools: Helper | None = None,
) -> BaseUser | None:
    """The user of one step: the caller's, or a new one of the document's; None if there is no user."""
    return config.user if config.user is not None else document_user(package, plan.user, machine, access, tools)


def document_user(
    package: TaskPackage,
    contract: UserContract,
    machine: Mapping[str, str],
    access: Access | None = None,
    tools: Helper | None = None,
) -> BaseUser | None:
    """A new user as the document declares it; None if the contract has none.

    The calls of one that is played by a model are recorded and counted by `access`; `tools` are its own.
    """
    document = package.document
    if contract.status == "none" or contract.runtime_kind == "none" or document is None:
        return None
    from benchflow.rollout.users import DocumentNudgeUser, ModelDocumentNudgeUser, model_caller

    facts = dict(document.user.private_facts) if document.user is not None else {}
    if contract.runtime_kind == "model-linear" and contract.model is not None:
        ask = model_caller(machine, access, tools)
        return ModelDocumentNudgeUser(contract.model, persona=document.persona, private_facts=facts, call_model=ask)
    return DocumentNudgeUser(facts, persona=document.persona)


def secret_scopes(agent: str) -> tuple[str, ...]:
    """The scopes of secrets that a rollout of this agent enters."""
    own = {ORACLE: ("oracle",), NOP: ()}.get(agent, ("agent",))
    return ("environment", "verifier", "judge", *own)


def _mode(view: TaskRuntimeView, config: RolloutConfig, steps: tuple[StepPlan, ...], *, plays_user: bool) -> str:
    """The mode that runs, which a caller or a fixed agent may have changed from what the document declares."""
    if plays_user:
        return view.mode
    if config.user is not None:
        return "multi-round"
    if any(len({turn.role.name for turn in step.turns}) > 1 for step in steps):
        return "multi-agent-sequential"
    return "single-shot" if _is_one_turn(steps) else "multi-round"


def _is_one_turn(steps: tuple[StepPlan, ...]) -> bool:
    return all(len(step.turns) == 1 for step in steps)


def plan_steps(package: TaskPackage, config: RolloutConfig, *, fixed: bool = False) -> tuple[StepPlan, ...]:
    """The steps in order; `fixed` for an agent that always replaces the roles of the document."""
    view = package.view
    if not view.steps:
        return (_step(package, config, 0, None, fixed=fixed),)
    return tuple(_step(package, config, index, step, fixed=fixed) for index, step in enumerate(view.steps))


def _step(package: TaskPackage, config: RolloutConfig, index: int, step: StepView | None, *, fixed: bool) -> StepPlan:
    view = package.view
    settled = in_step(view, step)
    agent = settled.config.agent
    prompt = (step.instruction if step is not None else None) or view.prompt
    if not prompt and config.agent not in (ORACLE, NOP) and config.prompts is None:
        where = f"steps/{step.config.name}/instruction.md" if step is not None else "the task"
        raise PackageError(f"{where} has no prompt.", code="missing-prompt", path="prompt")
    phase: Scope = "oracle" if config.agent == ORACLE else "agent"
    timeout = config.agent_timeout_sec or agent.timeout_sec
    if config.agent == ORACLE and config.agent_timeout_sec is None:
        timeout = view.config.oracle.timeout_sec or timeout
    return StepPlan(
        name=step.config.name if step is not None else None,
        index=index,
        prompt=prompt,
        turns=_turns(package, config, step, prompt, fixed=fixed),
        agent=agent,
        timeout_sec=timeout,
        network=network_policy(settled, phase),
        artifacts=(*view.config.artifacts, *(step.config.artifacts if step is not None else ())),
        view=step,
    )


def _turns(
    package: TaskPackage, config: RolloutConfig, step: StepView | None, prompt: str, *, fixed: bool
) -> tuple[PlannedTurn, ...]:
    """The turns: the caller's prompts or scenes, or the document's, or one turn with the prompt."""
    view = package.view
    default = Role(DEFAULT_ROLE, config.agent, config.model)
    if config.prompts is not None:
        return tuple(PlannedTurn(default, text, skills_dir=skills_folder(view)) for text in config.prompts)
    if config.scenes is not None:
        return tuple(turn for scene in config.scenes for turn in _scene_turns(view, scene, prompt))
    if fixed or package.document is None or not package.document.scenes:
        return (PlannedTurn(default, prompt, skills_dir=skills_folder(view)),)
    return _document_turns(package, step, prompt)


def _scene_turns(view: TaskRuntimeView, scene: Scene, prompt: str) -> tuple[PlannedTurn, ...]:
    roles = {role.name: role for role in scene.roles}
    return tuple(
        PlannedTurn(
            roles[turn.role],
            turn.prompt or prompt,
            scene.name,
            skills_folder(view, roles[turn.role].skills_dir, scene.skills_dir),
        )
        for turn in scene.turns
    )


def _document_turns(package: TaskPackage, step: StepView | None, prompt: str) -> tuple[PlannedTurn, ...]:
    """The turns of the scenes that belong to a step, the step's instruction in place of the base prompt.

    A scene with the name of a step belongs to that step; the others run in every step.
    """
    view, document = package.view, package.document
    if document is None:
        return ()
    names = {other.config.name for other in view.steps}
    mine = step.config.name if step is not None else None
    scenes = tuple(scene for scene in document.scenes if scene.name not in names or scene.name == mine)
    if not scenes:
        raise PackageError(
            f"No scene belongs to the step '{mine}': every scene has the name of another step.",
            code="step-without-scene",
        )
    from benchflow.rollout.seats import declared_role

    planned = compile_task_prompt_plan(replace(document, instruction=prompt, scenes=scenes)).turns
    folders = {scene.name: scene.skills_dir for scene in scenes}
    turns = []
    for turn in planned:
        role = declared_role(view, turn.role or "")
        skills = skills_folder(view, role.skills_dir, folders.get(turn.scene))
        turns.append(PlannedTurn(role, turn.prompt, turn.scene, skills))
    return tuple(turns)


def _step_record(step: StepPlan) -> dict[str, Any]:
    return {
        "name": step.name,
        "timeout_sec": step.timeout_sec,
        "network": {"mode": step.network.mode, "hosts": list(step.network.hosts)},
        "turns": [
            {"scene": turn.scene, "role": turn.role.name, "agent": turn.role.agent, "model": turn.role.model}
            for turn in step.turns
        ],
    }
