"""The fail-closed gate: what a sandbox cannot honour of a task, before anything starts.

Static and pure: it looks at the declaration and the table of fields, never at a running engine. Every
declared field that needs more than the sandbox has, and every value that nothing honours, is one
`UnsupportedTaskFeature`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, UnsupportedError, UsageError
from benchflow.plugins import SANDBOXES
from benchflow.task.capability_table import TABLE, Refused
from benchflow.task.config.interaction import ARENA
from benchflow.task.config.namespace import DocumentRoot
from benchflow.task.config.parsed_record import IssueLog, Record, join
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.prompt_plan import compile_user_runtime
from benchflow.task.document.task_document import TaskDocument
from benchflow.task.package import TaskPackage, load_package
from benchflow.task.package_layout import ALIASES, select
from benchflow.task.verifier.declared_strategies import AssessorStrategy, selected_strategies
from benchflow.task.verifier.verifier_document import VERIFIER_MD, VerifierDocument

COMPOSE_FILES: Final = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")

_SILENT: Final = {
    model: frozenset(name for name, rule in table.items() if not rule.asks and model.FIELDS[name].kind.model is None)
    for model, table in TABLE.items()
}
"""The fields of each record that ask for nothing and hold nothing that could."""


@dataclass(frozen=True, slots=True)
class UnsupportedTaskFeature:
    """One declared thing that a sandbox cannot honour."""

    path: str
    reason: str
    sandbox: str
    file: str | None = None
    """Where it is declared, relative to the package; None for the definition."""

    def to_dict(self) -> dict[str, str]:
        return {"path": self.path, "reason": self.reason, "sandbox": self.sandbox}

    def issue(self, *, definition: str | None = None) -> Issue:
        """As a record of a check; `definition` names the file that defines the task."""
        message = f"{self.path}: {self.reason} (sandbox {self.sandbox})"
        return Issue("unsupported-feature", "error", self.path, message, self.file or definition)


class UnsupportedTaskFeatureError(UnsupportedError):
    """A launch that was refused; `features` says why, all of it."""

    default_code = "unsupported-feature"

    def __init__(self, features: tuple[UnsupportedTaskFeature, ...]) -> None:
        shown = "; ".join(f"{feature.path}: {feature.reason}" for feature in features)
        super().__init__(f"sandbox {features[0].sandbox} does not support {shown}", path=features[0].path)
        self.features = features


def declared_capabilities(sandbox: str) -> frozenset[str]:
    """What the sandbox of that name declares that it can honour; nothing is started.

    An unknown name and a plugin that cannot be used are a `UsageError`.
    """
    declared: frozenset[str] = getattr(SANDBOXES.load(sandbox), "declared")  # noqa: B009
    return declared


def validate_task_runtime_support(
    source: TaskPackage | TaskDocument | TaskConfig,
    *,
    sandbox: str,
    task_dir: Path | str | None = None,
    capabilities: frozenset[str] | None = None,
) -> list[UnsupportedTaskFeature]:
    """Everything that a sandbox cannot honour; empty when it can run the task.

    A package is judged with its layout and verifier; a document or configuration alone, unless `task_dir`
    names its folder. `capabilities` are those of the sandbox where the caller knows them.
    """
    if capabilities is None:
        try:
            capabilities = declared_capabilities(sandbox)
        except UsageError as error:
            return [UnsupportedTaskFeature("sandbox", str(error), sandbox)]
    if isinstance(source, TaskPackage):
        package: TaskPackage | None = source
        subject: TaskDocument | TaskConfig | None = source.document or source.config
    else:
        package = load_package(task_dir) if task_dir is not None else None
        subject = source
    gate = _Gate(sandbox, capabilities)
    if isinstance(subject, TaskDocument):
        gate.document(subject, package)
    elif subject is not None:
        gate.record(subject, "")
    if package is not None:
        gate.layout(package)
    return list(dict.fromkeys(gate.found))


class _Gate:
    """Collects what one sandbox refuses."""

    def __init__(self, sandbox: str, capabilities: frozenset[str]) -> None:
        self.sandbox = sandbox
        self.capabilities = capabilities
        self.found: list[UnsupportedTaskFeature] = []
        self.spelling: Mapping[str, str] = {}
        self.file: str | None = None
        """What is being judged, when it is not the definition."""

    def refuse(self, path: str, reason: str) -> None:
        if self.file is None:
            head, dot, rest = path.partition(".")
            path = f"{self.spelling.get(head, head)}{dot}{rest}"
        self.found.append(UnsupportedTaskFeature(path, reason, self.sandbox, self.file))

    def demand(self, path: str, capability: str) -> None:
        if capability not in self.capabilities:
            self.refuse(path, f"needs {capability}, which {self.sandbox} does not have")

    def record(self, record: Record, path: str) -> None:
        """Judge every declared field of a record and of the records inside it."""
        own = DocumentRoot if isinstance(record, TaskConfig) else type(record)
        table, silent = TABLE[own], _SILENT[own]
        for field, value in record.items():
            if field.name in silent:
                continue
            where = join(path, field.key)
            rule = table[field.name]
            before = len(self.found)
            for capability in rule.demands:
                self.demand(where, capability)
            if rule.by_value is not None and value is not None:
                self.demand(where, rule.by_value[value])
            if rule.judge is not None and value is not None:
                for asked in rule.judge(value):
                    if isinstance(asked, Refused):
                        self.refuse(where, asked.reason)
                    else:
                        self.demand(where, asked)
            if len(self.found) > before:
                continue  # what is inside a refused section would only repeat the reason
            for inner, inner_path in _records(value, where):
                self.record(inner, inner_path)

    def document(self, document: TaskDocument, package: TaskPackage | None) -> None:
        self.spelling = document.spelling
        self.record(document.config, "")
        self.record(document.namespace, "benchflow")
        for role, settings in document.roles.items():
            self.record(settings, f"agents.roles.{role}")
        if document.user is not None:
            self.record(document.user, "user")
        for path, reason in compile_user_runtime(document).problems:
            self.refuse(path, reason)
        self._policy(document)
        if document.mode == ARENA:
            self._arena(document)
        if package is not None:
            self._wiring(document, package)

    def _arena(self, document: TaskDocument) -> None:
        """An arena needs roles that take part; its course is the assessor's, so nothing else may declare one."""
        interaction = document.namespace.interaction
        participants = interaction.participants if interaction is not None else ()
        if not participants:
            self.refuse("benchflow.interaction.participants", "an arena needs at least one participant")
        if "reward" in participants:
            self.refuse("benchflow.interaction.participants", "no role may be called reward, which results call theirs")
        assessor = interaction.assessor if interaction is not None else None
        if assessor is not None and assessor in document.roles:
            why = (
                f"'{assessor}' is a role of agents.roles, whose prompt agents see; name that of the verifier's strategy"
            )
            self.refuse("benchflow.interaction.assessor", why)
        for path, declared in (("scenes", document.scenes), ("user", document.user), ("steps", document.config.steps)):
            if declared:
                self.refuse(path, "the assessor of an arena decides who speaks when")
        if document.namespace.teams:
            self.refuse("benchflow.teams", "roles of an arena are peers, each on its own")

    def _policy(self, document: TaskDocument) -> None:
        policy = document.namespace.runtime_policy
        if policy is None:
            return
        if policy.backend is not None and policy.backend != self.sandbox:
            self.refuse("benchflow.runtime_policy.backend", f"the package requires {policy.backend}")
        for index, capability in enumerate(policy.required_capabilities):
            self.demand(f"benchflow.runtime_policy.required_capabilities[{index}]", capability)

    def _wiring(self, document: TaskDocument, package: TaskPackage) -> None:
        verifier, oracle = document.namespace.verifier, document.namespace.oracle
        folder = package.verifier_dir or "verifier"
        if verifier is not None and verifier.path not in (None, folder):
            self.refuse("benchflow.verifier.path", f"only {folder}/ is read")
        if verifier is not None and verifier.spec not in (None, f"{folder}/verifier.md"):
            self.refuse("benchflow.verifier.spec", f"only {folder}/verifier.md is read")
        folder = package.oracle_dir or "oracle"
        if oracle is not None and oracle.path not in (None, folder):
            self.refuse("benchflow.oracle.path", f"only {folder}/ is read")

    def layout(self, package: TaskPackage) -> None:
        """Judge what the files ask for: a verifier, a Dockerfile, a compose file, the selected strategy."""
        if package.verifier_dir is not None or package.step_verifiers:
            self.demand("verifier", "fork")  # a verifier runs on a copy of what the agent left
        config = package.config
        image = config.environment.docker_image if config is not None else None
        builds = ["environment/Dockerfile"] if image is None else []
        for file in (*builds, f"{package.verifier_dir}/Dockerfile"):
            if file in package.files:
                self.file = file
                self.demand(file, "build.dockerfile")
        for file in (f"environment/{name}" for name in COMPOSE_FILES):
            if file in package.files:
                self.file = file
                self.demand(file, "compose")
        wiring = package.document.namespace.environment if package.document is not None else None
        if package.manifest is not None and wiring is not None:
            self.file = wiring.manifest
            self.record(package.manifest, "environment")
        if package.verifier_document is not None:
            self._verifier(package, package.verifier_document, package.verifier_dir)
        for step, document in package.step_verifiers.items():
            self._verifier(package, document, select(package.files, *(f"steps/{step}/{name}" for name in ALIASES[0])))

    def _verifier(self, package: TaskPackage, document: VerifierDocument, folder: str | None) -> None:
        self.file = f"{folder}/{VERIFIER_MD}"
        if self.file not in package.files:
            self.file = package.profiles["verifier-profile"].path
        self.record(document.outputs, "verifier.outputs")
        for name, strategy in selected_strategies(document.strategies, document.default_strategy):
            self.record(strategy, f"verifier.strategies.{name}")
            if isinstance(strategy, AssessorStrategy):
                self._assessor(package, f"verifier.strategies.{name}", strategy)
        if document.selected.type != AssessorStrategy.TYPE and _is_arena(package):
            self.refuse("verifier.default_strategy", "an arena is scored by a strategy of the type assessor")

    def _assessor(self, package: TaskPackage, path: str, strategy: AssessorStrategy) -> None:
        if not _is_arena(package):
            self.refuse(f"{path}.type", f"an assessor scores live peers: declare benchflow.interaction.mode: {ARENA}")
            return
        document = package.verifier_document
        if document is not None and document.selected is not strategy:
            self.refuse(f"{path}.type", "an assessor scores a whole game and is not a part of another strategy")
        interaction = package.document.namespace.interaction if package.document is not None else None
        if interaction is not None and interaction.assessor not in (None, strategy.role):
            self.refuse(f"{path}.role", f"benchflow.interaction.assessor is '{interaction.assessor}'")
        if strategy.agent is None:
            self._game(f"{path}.config", strategy, interaction.participants if interaction is not None else ())

    def _game(self, path: str, strategy: AssessorStrategy, participants: tuple[str, ...]) -> None:
        """The built-in assessor needs a game, for exactly the participants."""
        from benchflow.task.verifier.game_protocol import read_game  # few packages have one

        problems = IssueLog()
        game = read_game(strategy.config, path, problems)
        if game is None:
            first = problems.issues[0]
            reason = f"{first.message}; the built-in assessor plays the game of config, another one is named by agent"
            self.refuse(first.path, reason)
        elif set(game.roles) != set(participants):
            roles, names = ", ".join(game.roles), ", ".join(participants)
            self.refuse(f"{path}.roles", f"the game has {roles}, and benchflow.interaction.participants {names}")


def _is_arena(package: TaskPackage) -> bool:
    return package.document is not None and package.document.mode == ARENA


def _records(value: Any, path: str) -> Iterator[tuple[Record, str]]:
    """The records inside a value, with their paths."""
    if isinstance(value, Record):
        yield value, path
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            if isinstance(item, Record):
                yield item, f"{path}[{index}]"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Record):
                yield item, f"{path}.{key}"
