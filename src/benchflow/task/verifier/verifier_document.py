"""`verifier/verifier.md`: how a result is scored, with which strategies, rubric, outputs and judge roles.

`read_verifier_document` reports every problem; `load_verifier_document` and `VerifierDocument.from_text`
raise. A verifier profile supplies defaults for the `verifier` mapping of the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, IssuesError
from benchflow.task.config import kinds
from benchflow.task.config import parsed_record as rec
from benchflow.task.config.kinds import listing, mapping, number, relative_path, some_text, text
from benchflow.task.config.parsed_record import FrozenMap, IssueLog, Kind, Record, shorten
from benchflow.task.document.markdown import Body, MarkdownError, decode, normalise, split_frontmatter, split_sections
from benchflow.task.document.merging import merge_below
from benchflow.task.document.yaml_source import YamlError, YamlSource
from benchflow.task.verifier.declared_strategies import (
    AgentJudgeStrategy,
    AssessorStrategy,
    GainStrategy,
    HybridStrategy,
    Strategy,
    parse_strategy,
)

VERIFIER_MD: Final = "verifier.md"
AGGREGATIONS: Final = (
    "mean",
    "weighted_mean",
    "weighted_sum",
    "all_pass",
    "any_pass",
    "threshold",
    "min",
    "max",
    "product",
)


class VerifierDocumentParseError(IssuesError, ValueError):
    """A `verifier.md` that is not valid."""

    default_code = "invalid-verifier-document"


def _method(value: Any, path: str, problems: IssueLog) -> str:
    folded = value.replace("-", "_") if isinstance(value, str) else value
    return str(kinds.choice(*AGGREGATIONS).parse(folded, path, problems))


aggregation: Final = Kind(_method)


class Dimension(Record):
    """One dimension of a rubric: its weight and the strategy that scores it."""

    weight: float | None = rec.field(number(least=0), default=None)
    source: str | None = rec.field(some_text, default=None)
    description: str | None = rec.field(text, default=None)


class RubricFiles(Record):
    """The scoring contract for people and for programs."""

    human: str | None = rec.field(relative_path, default=None)
    structured: str | None = rec.field(relative_path, default=None)


class Rubric(Record):
    """`rubric`."""

    combine: str | None = rec.field(aggregation, default=None)
    dimensions: FrozenMap = rec.field(mapping(kinds.record(Dimension)), default=FrozenMap())
    files: RubricFiles = rec.field(kinds.record(RubricFiles), default=RubricFiles())


class AggregatePolicy(Record):
    """How several metrics become one reward."""

    method: str | None = rec.field(aggregation, default=None)
    fallback: str | None = rec.field(aggregation, default=None)
    field_: str = rec.field(kinds.choice("reward"), default="reward", key="field")
    weights: FrozenMap = rec.field(mapping(number()), default=FrozenMap(), aliases=("metrics",))
    threshold: float | None = rec.field(number(least=0, most=1), default=None)
    criteria: tuple[str, ...] = rec.field(listing(some_text, unique=True), default=())


_reward_path: Final = kinds.matching(r"/logs/verifier/(?!.*\.\.)[^\0]+", "a path below /logs/verifier/")


class Outputs(Record):
    """`outputs`: where rewards are written and what else is kept."""

    reward_text: str = rec.field(_reward_path, default="/logs/verifier/reward.txt")
    reward_json: str = rec.field(_reward_path, default="/logs/verifier/reward.json")
    details_json: str | None = rec.field(_reward_path, default=None)
    artifacts: tuple[str, ...] = rec.field(listing(some_text), default=())
    aggregate_policy: AggregatePolicy | None = rec.field(kinds.record(AggregatePolicy), default=None)


class VerifierSpec(Record):
    """The `verifier` mapping of a verifier document."""

    name: str | None = rec.field(some_text, default=None)
    description: str | None = rec.field(text, default=None)
    default_strategy: str | None = rec.field(some_text, default=None)
    strategies: FrozenMap = rec.field(
        Kind(mapping(Kind(parse_strategy), least=1, keys=kinds.name).parse, Strategy, "map")
    )
    rubric: Rubric = rec.field(kinds.record(Rubric), default=Rubric())
    outputs: Outputs = rec.field(kinds.record(Outputs), default=Outputs())

    @classmethod
    def rules(cls, values: dict[str, Any], path: str, problems: IssueLog) -> None:
        strategies: Mapping[str, Strategy] = values["strategies"]
        chosen = values.get("default_strategy")
        if chosen is not None and chosen not in strategies:
            where = f"{path}.default_strategy"
            problems.error(
                "unknown-strategy", where, f"{where} is '{chosen[:60]}', which is not declared in strategies"
            )
        for name, strategy in strategies.items():
            for key, other in _references(strategy):
                if other not in strategies:
                    where = f"{path}.strategies.{name}.{key}"
                    reason = f"{where} is '{other[:60]}', which is not declared in strategies"
                    problems.error("unknown-strategy", where, reason)
        _check_cycles(strategies, path, problems)


def _check_cycles(strategies: Mapping[str, Strategy], path: str, problems: IssueLog) -> None:
    """Strategies must not refer to themselves."""
    for start in strategies:
        pending = [other for _, other in _references(strategies[start])]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name == start:
                where = f"{path}.strategies.{start}"
                problems.error("unknown-strategy", where, f"{where} refers to itself")
                return
            if name not in seen and name in strategies:
                seen.add(name)
                pending += [other for _, other in _references(strategies[name])]


def _references(strategy: Strategy) -> list[tuple[str, str]]:
    if isinstance(strategy, HybridStrategy):
        return [(f"factors.{name}.strategy", factor.strategy) for name, factor in strategy.factors.items()]
    return [("strategy", strategy.strategy)] if isinstance(strategy, GainStrategy) else []


class VerifierRoot(Record):
    """The frontmatter of a verifier document."""

    document_version: str | None = rec.field(text, default=None)
    verifier: VerifierSpec = rec.field(kinds.record(VerifierSpec))


@dataclass(frozen=True, slots=True)
class VerifierDocument:
    """The entry document of a verifier."""

    spec: VerifierSpec
    name: str
    document_version: str | None = None
    role_prompts: Mapping[str, str] = field(default_factory=FrozenMap, repr=False)
    frontmatter: Mapping[str, Any] = field(default_factory=FrozenMap, repr=False)
    body: str = field(default="", repr=False)

    @property
    def strategies(self) -> Mapping[str, Strategy]:
        return self.spec.strategies

    @property
    def default_strategy(self) -> str:
        """The declared default, or the first strategy."""
        return self.spec.default_strategy or next(iter(self.spec.strategies))

    @property
    def selected(self) -> Strategy:
        """The strategy that scores."""
        strategy: Strategy = self.spec.strategies[self.default_strategy]
        return strategy

    @property
    def rubric(self) -> Rubric:
        return self.spec.rubric

    @property
    def outputs(self) -> Outputs:
        return self.spec.outputs

    @classmethod
    def from_text(cls, source: str, *, name: str = "verifier") -> VerifierDocument:
        """Parse a text; raises `VerifierDocumentParseError`."""
        return VerifierDocumentParseError.require(*read_verifier_document(source, name=name))

    def to_dict(self) -> dict[str, Any]:
        """A summary for `TaskPackage.to_dict`."""
        return {
            "name": self.name,
            "default_strategy": self.default_strategy,
            "selected_strategy": {"name": self.default_strategy, "type": self.selected.type},
        }


def load_verifier_document(path: Path | str) -> VerifierDocument:
    """Read a `verifier.md`, or the one in a verifier folder; raises `VerifierDocumentParseError`."""
    from benchflow.task.document.markdown import MAX_TEXT_BYTES
    from benchflow.task.filemap import read_regular

    file = Path(path)
    if file.is_dir():
        file = file / VERIFIER_MD
    try:
        data, _ = read_regular(file, MAX_TEXT_BYTES)
    except OSError as error:
        message = f"{file.name} cannot be read: {error.strerror or error}"
        raise VerifierDocumentParseError((Issue("unreadable", "error", "", message, file.name),)) from None
    return VerifierDocumentParseError.require(
        *read_verifier_document(data, name=file.absolute().parent.name, file=file.name)
    )


def read_verifier_document(
    source: bytes | str, *, name: str = "verifier", file: str = VERIFIER_MD, profile: Mapping[str, Any] | None = None
) -> tuple[VerifierDocument | None, list[Issue]]:
    """Parse a verifier document; `profile` provides defaults for its `verifier` mapping."""
    try:
        raw = decode(source) if isinstance(source, bytes) else normalise(source)
        parts = split_frontmatter(raw)
        yaml = YamlSource(parts.yaml, first_line=2)
    except (MarkdownError, YamlError) as problem:
        return None, [
            Issue(problem.code, "error", shorten(problem.path), shorten(f"{file} {problem}"), file, problem.line)
        ]
    problems = IssueLog(file, yaml.line)
    if not isinstance(yaml.value, dict):
        problems.error("not-a-mapping", "", f"the frontmatter of {file} must be a mapping", line=2)
        return None, problems.issues
    document = _assemble(yaml.value, parts.body, parts.body_line, name, profile or {}, problems)
    return document, problems.issues


def verifier_document_of_profile(
    profile: Mapping[str, Any], *, name: str, file: str
) -> tuple[VerifierDocument | None, list[Issue]]:
    """The document of a package that has only a profile with strategies."""
    problems = IssueLog(file)
    return _assemble({}, "", 1, name, profile, problems), problems.issues


def _assemble(
    frontmatter: dict[str, Any], body: str, body_line: int, name: str, profile: Mapping[str, Any], problems: IssueLog
) -> VerifierDocument | None:
    effective = frontmatter
    own = frontmatter.get("verifier", {})
    if profile and isinstance(own, dict):
        effective = {**frontmatter, "verifier": merge_below(VerifierSpec, profile, own)}
    root = VerifierRoot.parse(effective, "", problems)
    if root is None:
        return None
    roles = _roles(split_sections(body, body_line), problems)
    _check_roles(root.verifier, roles, problems)
    document = VerifierDocument(
        spec=root.verifier,
        name=root.verifier.name or name,
        document_version=root.document_version,
        role_prompts=FrozenMap(roles),
        frontmatter=FrozenMap(frontmatter),
        body=body,
    )
    strategies = root.verifier.strategies
    return document if strategies and document.default_strategy in strategies else None


def _roles(body: Body, problems: IssueLog) -> dict[str, str]:
    roles: dict[str, str] = {}
    for section in body.sections:
        if not section.key.startswith("role:"):
            message = f"the section '## {section.key}' has no meaning in a verifier document"
            problems.warning("unused-prompt", section.key, message, line=section.line)
            continue
        name = section.key.removeprefix("role:")
        if name in roles:
            message = f"the section '## {section.key}' appears twice"
            problems.error("duplicate-section", section.key, message, line=section.line)
        roles.setdefault(name, section.text)
    return roles


def _check_roles(spec: VerifierSpec, roles: Mapping[str, str], problems: IssueLog) -> None:
    for name, strategy in spec.strategies.items():
        if isinstance(strategy, (AgentJudgeStrategy, AssessorStrategy)) and not roles.get(strategy.role):
            where = f"verifier.strategies.{name}.role"
            problems.error(
                "unknown-role",
                where,
                f"{where} is '{strategy.role}', but there is no section '## role:{strategy.role}'",
            )
