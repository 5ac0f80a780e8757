"""Who talks to whom: roles, scenes, turns, the user, and their settings in the `benchflow:` namespace."""

from __future__ import annotations

from typing import Any, Final, Self

from benchflow.task.config import kinds
from benchflow.task.config.kinds import env, flag, integer, listing, name, some_text, text
from benchflow.task.config.parsed_record import (
    FrozenMap,
    InvalidValueError,
    IssueLog,
    Kind,
    Record,
    Secret,
    describe,
    field,
)

ARENA: Final = "arena-concurrent"
INTERACTION_MODES: Final = (
    "single-shot",
    "multi-round",
    "simulated-user",
    "multi-agent-sequential",
    ARENA,
)
PROMPT_PARTS: Final = ("base", "role", "scene", "turn")


class Role(Record):
    """One agent of a task: `agents.roles.<name>`."""

    agent: str = field(some_text)
    model: str | None = field(some_text, default=None)
    reasoning_effort: str | None = field(some_text, default=None)
    env: FrozenMap = field(env, default=FrozenMap())
    timeout_sec: float | None = field(kinds.number(above=0), default=None)
    idle_timeout_sec: float | None = field(kinds.number(above=0), default=None)
    skills_dir: str | None = field(some_text, default=None)
    capabilities: tuple[str, ...] | None = field(listing(some_text), default=None)


class Agents(Record):
    """The root key `agents`."""

    roles: FrozenMap = field(kinds.mapping(kinds.record(Role), keys=name), default=FrozenMap())


class Turn(Record):
    """One prompt to one role; a plain string names the role."""

    role: str = field(some_text)
    prompt: str | None = field(text, default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        return super().parse({"role": value} if isinstance(value, str) else value, path, problems)


class Scene(Record):
    """An interaction checkpoint: its participants and their order."""

    name: str | None = field(name, default=None)
    """None until the document gives it `scene-<index>`."""
    roles: tuple[str, ...] | None = field(listing(some_text, unique=True), default=None)
    turns: tuple[Turn, ...] | None = field(listing(kinds.record(Turn)), default=None)
    skills_dir: str | None = field(some_text, default=None)


class User(Record):
    """The other side of the conversation: `user`."""

    model: str | None = field(some_text, default=None)
    stop_rule: str | None = field(some_text, default=None)
    private_facts: Secret = field(kinds.secret_texts, default=Secret())
    tools: tuple[str, ...] = field(listing(some_text), default=())
    persona: str | None = field(text, default=None)


class PromptPolicy(Record):
    """`benchflow.prompt`: how the texts of a turn are combined."""

    composition: str = field(kinds.choice("replace", "append"), default="replace")
    order: tuple[str, ...] | None = field(listing(kinds.choice(*PROMPT_PARTS), least=1, unique=True), default=None)


class Handoff(Record):
    """How work passes between the roles of a team."""

    mode: str = field(kinds.choice("sequential", "parallel"))
    workspace_visibility: str = field(kinds.choice("shared", "isolated"), default="shared")
    trajectory_visibility: str = field(kinds.choice("none", "metadata", "full"), default="none")
    artifacts: tuple[str, ...] = field(listing(some_text), default=())


class Team(Record):
    """`benchflow.teams.<name>`."""

    handoff: Handoff = field(kinds.record(Handoff))
    roles: tuple[str, ...] = field(listing(some_text, unique=True), default=())


_teams: Final = kinds.mapping(kinds.record(Team), keys=name)


def _by_name(value: Any, path: str, problems: IssueLog) -> FrozenMap:
    """Teams by name; in a list each item gives its own, `name`."""
    if not isinstance(value, list):
        teams: FrozenMap = _teams.parse(value, path, problems)
        return teams
    parsed: dict[str, Team] = {}
    for index, item in enumerate(value):
        where = f"{path}[{index}]"
        rest = dict(item) if isinstance(item, dict) else item
        own = rest.pop("name", f"team-{index}") if isinstance(rest, dict) else ""
        team = Team.parse(rest, where, problems)
        try:
            key = name.parse(own, f"{where}.name", problems) if team is not None else ""
        except InvalidValueError as problem:
            problems.error(problem.code, f"{where}.name", f"{where}.name {problem}")
            continue
        if key in parsed:
            problems.error("conflicting-keys", f"{where}.name", f"{where}.name repeats the name of an earlier team")
        elif team is not None:
            parsed[key] = team
    return FrozenMap(parsed)


teams: Final = Kind(_by_name, Team, "map")


def _confirmation(value: Any, path: str, problems: IssueLog) -> Any:
    if isinstance(value, str):
        return kinds.choice("human").parse(value, path, problems)
    if isinstance(value, dict):
        return kinds.mapping(kinds.choice("human"), least=1).parse(value, path, problems)
    raise InvalidValueError(f"must be 'human' or a mapping to 'human', not {describe(value)}", "invalid-type")


class Nudges(Record):
    """`benchflow.nudges`: what a simulated user may do."""

    mode: str | None = field(kinds.choice("simulated-user"), default=None)
    nudge_budget: int | None = field(integer(least=1), default=None)
    branchable: bool = field(flag, default=False)
    branch_execution: str | None = field(kinds.choice("option-kinds-preserved", "forked-snapshot"), default=None)
    confirmation_policy: str | FrozenMap | None = field(Kind(_confirmation), default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if values.get("branch_execution") and not values.get("branchable"):
            where = f"{path}.branch_execution"
            problems.error("conflicting-keys", where, f"{where} needs branchable: true")


class Interaction(Record):
    """`benchflow.interaction`: the declared mode."""

    mode: str = field(kinds.choice(*INTERACTION_MODES))
    assessor: str | None = field(some_text, default=None)
    """The role of the verifier's strategy that scores an `arena-concurrent` interaction while it lasts."""
    participants: tuple[str, ...] = field(listing(some_text, unique=True), default=())
