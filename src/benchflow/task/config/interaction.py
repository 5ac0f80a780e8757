"""Who talks to whom: roles, scenes, turns, the user, and their settings in the `benchflow:` namespace."""

from __future__ import annotations

import re
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


USER_TOOLS: Final = ("bash", "read_file", "write_file", "edit_file")
"""Tools of a user that need no command."""
_ARGUMENT: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def _argument(value: Any, path: str, problems: IssueLog) -> str:
    said = str(some_text.parse(value, path, problems))
    if not _ARGUMENT.fullmatch(said):
        raise InvalidValueError("must be a lower-case name, which becomes a variable of the command", "invalid-value")
    return said


class UserTool(Record):
    """Something a simulated user can do in the environment; a plain string names a known one."""

    name: str = field(name)
    description: str | None = field(text, default=None)
    command: str | None = field(some_text, default=None)
    """Run by the environment's shell; None for a known tool."""
    arguments: FrozenMap = field(kinds.mapping(text, keys=Kind(_argument)), default=FrozenMap())
    """What the command takes, each as a variable of that name in capitals: name to description."""
    timeout_sec: float = field(kinds.number(above=0), default=60.0)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Self | None:
        return super().parse({"name": value} if isinstance(value, str) else value, path, problems)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        own, known = values.get("command") is not None, values["name"] in USER_TOOLS
        if not own and not known:
            known_ones = ", ".join(USER_TOOLS)
            message = f"{path} names the tool '{values['name'][:60]}', which is none of {known_ones} and has no command"
            problems.error("unknown-tool", path, message)
        elif own and known:
            problems.error("conflicting-keys", path, f"{path} gives a command to '{values['name']}', which has its own")
        elif not own and values.get("arguments"):
            problems.error("conflicting-keys", path, f"{path} gives arguments to '{values['name']}', which has its own")


class User(Record):
    """The other side of the conversation: `user`."""

    model: str | None = field(some_text, default=None)
    stop_rule: str | None = field(some_text, default=None)
    private_facts: Secret = field(kinds.secret_texts, default=Secret())
    tools: tuple[UserTool, ...] = field(listing(kinds.record(UserTool)), default=())
    account: str | None = field(some_text, default=None)
    """Who the user is in the environment: the account its tools run as."""
    persona: str | None = field(text, default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        tools = values.get("tools", ())
        seen: set[str] = set()
        for index, tool in enumerate(tools):
            if tool.name in seen:
                where = f"{path}.tools[{index}]"
                problems.error("conflicting-keys", where, f"{where} repeats the tool '{tool.name}'")
            seen.add(tool.name)
        if tools and values.get("account") is None:
            where = f"{path}.account"
            problems.error("missing-key", where, f"{where} is required: the account that the user's tools run as")


class PromptPolicy(Record):
    """`benchflow.prompt`: how the texts of a turn are combined."""

    composition: str = field(kinds.choice("replace", "append"), default="replace")
    order: tuple[str, ...] | None = field(listing(kinds.choice(*PROMPT_PARTS), least=1, unique=True), default=None)


_NOT_HANDED: Final = ("/verifier", "/tests", "/oracle", "/solution", "/logs/verifier", "/run", "/proc", "/sys", "/dev")


def _handed(value: Any, path: str, problems: IssueLog) -> str:
    """A file or folder that is handed over: absolute, or relative to the working folder."""
    said = str(some_text.parse(value, path, problems)).rstrip("/")
    parts = said.split("/")
    if not said.strip("/.") or ".." in parts or "." in parts or "\0" in said or "" in parts[1:]:
        raise InvalidValueError("must be a plain path of a file or folder below the root, without '..'", "unsafe-path")
    if any(said == place or said.startswith(f"{place}/") for place in _NOT_HANDED):
        raise InvalidValueError("belongs to the verifier, the oracle or the system", "unsafe-path")
    return said


class Handoff(Record):
    """How work passes between the roles of a team."""

    mode: str = field(kinds.choice("sequential", "parallel"))
    workspace_visibility: str = field(kinds.choice("shared", "isolated"), default="shared")
    trajectory_visibility: str = field(kinds.choice("none", "metadata", "full"), default="none")
    artifacts: tuple[str, ...] = field(listing(Kind(_handed), unique=True), default=())


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
