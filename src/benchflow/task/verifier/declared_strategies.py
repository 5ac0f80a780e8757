"""Verifier strategies as declared in `verifier.md`: one record per strategy type.

`config` is free-form in each of them; all other keys are fixed. Files are relative to the verifier folder and must be
inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from benchflow.task.config import kinds
from benchflow.task.config.kinds import listing, mapping, number, relative_path, some_text, text
from benchflow.task.config.parsed_record import (
    FrozenMap,
    InvalidValueError,
    IssueLog,
    Kind,
    Record,
    describe,
    field,
    join,
)

DEFAULT_ORS_INPUT: Final = "trajectory/ors-rewards.jsonl"
GAME_KEYS: Final = frozenset({"roles", "moves", "turns", "payoffs"})
"""Keys by which the `config` of an assessor is known as a game."""


def _evidence_path(value: Any, path: str, problems: IssueLog) -> str:
    """A declared input: relative to the rollout, or absolute inside the sandbox."""
    if ".." in some_text.parse(value, path, problems).split("/") or "\0" in value:
        raise InvalidValueError("must not contain '..'", "unsafe-path")
    return str(value)


inputs: Final = listing(Kind(_evidence_path), least=1)


class Strategy(Record):
    """The keys of every strategy."""

    TYPE: ClassVar[str] = ""

    type: str = field(some_text)
    config: FrozenMap = field(kinds.free_mapping, default=FrozenMap())
    description: str | None = field(text, default=None)


class ScriptStrategy(Strategy):
    """A command run in the verifier folder."""

    TYPE = "script"

    command: str = field(some_text)


class RewardKitStrategy(Strategy):
    """A Python runner with declared criteria."""

    TYPE = "reward-kit"

    root: str = field(relative_path)
    entrypoint: str = field(relative_path, default="reward.py")
    criteria: str | None = field(relative_path, default=None)


class LLMJudgeStrategy(Strategy):
    """A model scores the deliverables by a rubric."""

    TYPE = "llm-judge"

    rubric: str = field(relative_path)
    model: str | None = field(some_text, default=None)
    input_dir: str | None = field(kinds.absolute_path, default=None)
    context: str | None = field(text, default=None)
    context_file: str | None = field(relative_path, default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if "context" in values and "context_file" in values:
            where = join(path, "context_file")
            problems.error("conflicting-keys", where, f"{path} cannot contain both 'context' and 'context_file'")


NO_JUDGES: Final = ("oracle", "nop")
SCRIPT_AGENT: Final = "script:"
VERDICT_FOLDER: Final = "/logs/verifier/"


class AgentJudgeStrategy(Strategy):
    """A judge role examines declared evidence: a model that is asked once, or an agent in a box of its own."""

    TYPE = "agent-judge"

    role: str = field(kinds.name)
    isolation: str = field(kinds.choice("verifier-only"))
    inputs: tuple[str, ...] = field(inputs)
    model: str | None = field(some_text, default=None)
    agent: str | None = field(some_text, default=None)
    """Who judges; None: the model, asked once."""
    verdict_file: str | None = field(kinds.absolute_path, default=None)
    """Where the agent leaves its verdict; None: its last message is the verdict."""

    @property
    def script(self) -> str | None:
        """The file of the verifier that judges, if the agent is a script."""
        is_script = self.agent is not None and self.agent.startswith(SCRIPT_AGENT)
        return (self.agent or "").removeprefix(SCRIPT_AGENT) if is_script else None

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        agent, verdict = values.get("agent"), values.get("verdict_file")
        if agent is None:
            _require_no_agent(values, path, problems)
            return
        where = join(path, "agent")
        if agent.partition(":")[0] in NO_JUDGES:
            problems.error("invalid-value", where, f"{where} is '{agent[:60]}', which judges nothing")
        if agent.partition(":")[0] == "script":
            _require_script(agent, verdict, path, problems)
        name = (verdict or "").removeprefix(VERDICT_FOLDER)
        if verdict is not None and (name == verdict or not name or "/" in name or name.startswith("reward")):
            where = join(path, "verdict_file")
            message = f"{where} must be a file in {VERDICT_FOLDER[:-1]} that is no reward file"
            problems.error("unsafe-path", where, message)


def _require_no_agent(values: dict[str, Any], path: str, problems: IssueLog) -> None:
    """A model that is asked once writes no file, and reads what its prompt quotes."""
    if "verdict_file" in values:
        where = join(path, "verdict_file")
        problems.error("conflicting-keys", where, f"{where} needs an 'agent' that writes it")
    for index, item in enumerate(values["inputs"]):
        if item.endswith("/"):
            where = f"{join(path, 'inputs')}[{index}]"
            problems.error("conflicting-keys", where, f"{where} is a folder, which only an 'agent' can look into")


def _require_script(agent: str, verdict: str | None, path: str, problems: IssueLog) -> None:
    """A script is a file of the verifier, and says nothing: it has to leave a file."""
    where = join(path, "agent")
    try:
        relative_path.parse(agent.partition(":")[2], where, problems)
    except InvalidValueError as problem:
        problems.error(problem.code, where, f"{where}: the script {problem}")
    if verdict is None:
        message = f"{path} needs 'verdict_file': a script gives its verdict in a file"
        problems.error("missing-key", join(path, "verdict_file"), message)


class ORSEpisodeStrategy(Strategy):
    """Reward events of an episode, normalised."""

    TYPE = "ors-episode"

    inputs: tuple[str, ...] = field(inputs, default=(DEFAULT_ORS_INPUT,))
    format: str = field(kinds.choice("json", "jsonl", "auto"), default="auto")
    reward_aggregation: str = field(
        kinds.choice("terminal", "last_non_null", "sum", "mean", "max", "min"), default="terminal"
    )
    terminal_policy: str = field(kinds.choice("declared", "finished_true"), default="declared")


class Factor(Record):
    """One factor of a hybrid reward: another strategy of the same document."""

    strategy: str = field(some_text)
    weight: float | None = field(number(least=0), default=None)

    @classmethod
    def parse(cls, value: Any, path: str, problems: IssueLog) -> Factor | None:
        return super().parse({"strategy": value} if isinstance(value, str) else value, path, problems)


class HybridStrategy(Strategy):
    """A product or weighted sum of other strategies; one unscored factor makes the whole unscored."""

    TYPE = "hybrid"

    combine: str = field(kinds.choice("product", "weighted_sum"), default="product")
    factors: FrozenMap = field(mapping(kinds.record(Factor), least=1, keys=kinds.name))

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        for name, factor in values["factors"].items():
            where = f"{path}.factors.{name}.weight"
            if values.get("combine") == "weighted_sum" and factor.weight is None:
                problems.error("missing-key", where, f"{where} is required for a weighted sum")


class GainStrategy(Strategy):
    """Another strategy's score relative to a live baseline and ceiling."""

    TYPE = "gain"

    strategy: str = field(some_text)
    baseline: str = field(some_text, default="no-op")
    """`no-op`, or the name of a live evidence case."""
    ceiling: str = field(some_text, default="oracle")
    """`oracle`, or the name of a live evidence case."""


class LeaderboardStrategy(Strategy):
    """A sealed bundle is passed to an external scorer; without its answer the result is pending."""

    TYPE = "leaderboard-submission"

    inputs: tuple[str, ...] = field(inputs)
    command: str | None = field(some_text, default=None)
    url: str | None = field(some_text, default=None)
    secret: str | None = field(some_text, default=None)
    """Name of a declared secret that the scorer needs."""
    timeout_sec: float | None = field(number(above=0), default=None)

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        if ("command" in values) == ("url" in values):
            problems.error("conflicting-keys", path, f"{path} needs exactly one of 'command' and 'url'")


class AssessorStrategy(Strategy):
    """An assessor agent that scores over a protocol, as in arenas."""

    TYPE = "assessor"

    role: str = field(kinds.name)
    protocol: str = field(kinds.choice("a2a", "acp"), default="a2a")
    agent: str | None = field(some_text, default=None)
    model: str | None = field(some_text, default=None)
    inputs: tuple[str, ...] = field(inputs, default=())

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        """Without an agent, `config` is the game that the built-in assessor plays.

        One that is nothing like a game belongs to a runtime that we do not know; the gate refuses to run it.
        """
        if "agent" not in values and GAME_KEYS & values.get("config", {}).keys():
            from benchflow.task.verifier.game_protocol import read_game  # few packages have one

            read_game(values["config"], join(path, "config"), problems)


class PluginStrategy(Strategy):
    """A type provided by an installed plugin; all its settings are in `config`."""


STRATEGIES: Final[Mapping[str, type[Strategy]]] = {
    model.TYPE: model
    for model in (
        ScriptStrategy,
        RewardKitStrategy,
        LLMJudgeStrategy,
        AgentJudgeStrategy,
        ORSEpisodeStrategy,
        HybridStrategy,
        GainStrategy,
        LeaderboardStrategy,
        AssessorStrategy,
    )
}
"""Every strategy type with its record."""


def parse_strategy(value: Any, path: str, problems: IssueLog) -> Strategy | None:
    """Read one entry of `strategies` by its `type`."""
    if not isinstance(value, dict):
        raise InvalidValueError(f"must be a mapping, not {describe(value)}", "invalid-type")
    where = join(path, "type")
    kind = value.get("type")
    if kind is None:
        problems.error("missing-key", where, f"{where} is required")
        return None
    model = (STRATEGIES.get(kind) or _plugin(kind)) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(STRATEGIES)
        shown = f"'{kind[:60]}'" if isinstance(kind, str) else describe(kind)
        problems.error("unknown-strategy", where, f"{where} must be one of {known}; it is {shown}")
        return None
    return model.parse(value, path, problems)


def _plugin(kind: str) -> type[Strategy] | None:
    """The record of an unknown type if an installed plugin provides it."""
    from benchflow.plugins import STRATEGIES as GROUP

    return PluginStrategy if kind in GROUP.plugins() else None


def selected_strategies(strategies: Mapping[str, Strategy], name: str) -> Iterator[tuple[str, Strategy]]:
    """The strategy of this name and all that it is made of, each with its name."""
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        strategy = strategies.get(current)
        if strategy is None or current in seen:
            continue
        seen.add(current)
        yield current, strategy
        if isinstance(strategy, HybridStrategy):
            pending += [factor.strategy for factor in strategy.factors.values()]
        elif isinstance(strategy, GainStrategy):
            pending.append(strategy.strategy)
