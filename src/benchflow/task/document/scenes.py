"""Scenes with the roles and turns that apply to them, and the interaction mode that follows."""

from __future__ import annotations

from collections.abc import Mapping

from benchflow.task.config.interaction import Role, Scene, Turn, User
from benchflow.task.config.issues import IssueLog
from benchflow.task.config.namespace import Namespace

SCRIPTED_MODELS = (None, "scripted", "deterministic")


def resolve_scenes(scenes: tuple[Scene, ...], roles: Mapping[str, Role], problems: IssueLog) -> tuple[Scene, ...]:
    """Each scene with a name, its roles and its turns; undeclared roles are reported and left out."""
    resolved: list[Scene] = []
    seen: set[str] = set()
    for index, scene in enumerate(scenes):
        path = f"scenes[{index}]"
        name = scene.name or f"scene-{index}"
        if name in seen:
            problems.error("invalid-value", f"{path}.name", f"{path}.name repeats the scene '{name}'")
        seen.add(name)
        resolved.append(_resolve(scene, name, path, roles, problems))
    return tuple(resolved)


def _resolve(scene: Scene, name: str, path: str, roles: Mapping[str, Role], problems: IssueLog) -> Scene:
    if scene.roles is not None:
        members = [
            role for index, role in enumerate(scene.roles) if _declared(role, f"{path}.roles[{index}]", roles, problems)
        ]
    elif scene.turns:
        members = list(dict.fromkeys(turn.role for turn in scene.turns if turn.role in roles))
    else:
        members = list(roles)
    turns: list[Turn] = []
    for index, turn in enumerate(scene.turns or ()):
        where = f"{path}.turns[{index}]"
        if not _declared(turn.role, where, roles, problems):
            continue
        if turn.role not in members:
            problems.error("unknown-role", where, f"{where} is by '{turn.role}', which is not in the scene's roles")
            continue
        turns.append(turn)
    if scene.turns is None:
        turns = [Turn(role=role) for role in members]
    if not turns:
        problems.error(
            "invalid-value",
            path,
            f"{path} has no turn; declare agents.roles and give the scene roles or turns",
        )
    return scene.replace(name=name, roles=tuple(members), turns=tuple(turns))


def check_roles(namespace: Namespace, roles: Mapping[str, Role], problems: IssueLog) -> None:
    """Teams and live interactions speak of roles that are declared."""
    for name, team in namespace.teams.items():
        for index, role in enumerate(team.roles):
            _declared(role, f"benchflow.teams.{name}.roles[{index}]", roles, problems)
    interaction = namespace.interaction
    if interaction is None:
        return
    if interaction.assessor is not None:
        _declared(interaction.assessor, "benchflow.interaction.assessor", roles, problems)
    for index, role in enumerate(interaction.participants):
        _declared(role, f"benchflow.interaction.participants[{index}]", roles, problems)


def _declared(role: str, where: str, roles: Mapping[str, Role], problems: IssueLog) -> bool:
    if role in roles:
        return True
    problems.error("unknown-role", where, f"{where} names the role '{role[:60]}', which agents.roles does not declare")
    return False


def derive_mode(
    namespace: Namespace,
    scenes: tuple[Scene, ...],
    user: User | None,
    persona: str | None,
    problems: IssueLog,
) -> str:
    """The declared interaction mode, or what the document implies; a contradiction is reported."""
    turns = [turn for scene in scenes for turn in scene.turns or ()]
    roles = {turn.role for turn in turns}
    has_user = user is not None or persona is not None or namespace.nudges is not None
    if has_user:
        derived = "simulated-user"
    elif len(roles) > 1:
        derived = "multi-agent-sequential"
    else:
        derived = "multi-round" if len(turns) > 1 else "single-shot"
    if namespace.interaction is None:
        return derived
    mode = namespace.interaction.mode
    problem = _contradiction(mode, derived, len(roles), user)
    if problem:
        where = "benchflow.interaction.mode"
        problems.error("mode-contradiction", where, f"{where} is {mode}, but {problem}")
    return mode


def _contradiction(mode: str, derived: str, roles: int, user: User | None) -> str | None:
    scripted = user is not None and user.model in SCRIPTED_MODELS
    match mode:
        case "single-shot" if derived != "single-shot":
            return f"the document declares what makes it {derived}"
        case "multi-round" if derived == "multi-agent-sequential":
            return "its turns are by several roles"
        case "multi-round" if derived == "simulated-user" and not scripted:
            return "a model-backed user or a persona makes it simulated-user"
        case "simulated-user" if derived != "simulated-user":
            return "there is no user, persona or nudges"
        case "multi-agent-sequential" if roles < 2:  # several means two
            return "its turns are not by several roles"
    return None
