"""The verifier of a task or of one of its steps: settings, folders, document, and variables that are never recorded.

Its files are assembled on this machine and copied into a sandbox as one tree:

/verifier             the files of the verifier       /tests          a link to it, or the other way round;
                                                      see `Scope.places`
/logs/verifier        empty, the verifier's own
/run/verifier-ground  what interpreters need to know what is as built
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchflow.errors import EnvironmentFailure, PackageError, UsageError
from benchflow.files import copy_file
from benchflow.files.redaction import Redactor
from benchflow.record import Isolation
from benchflow.rewards import UNIT, RewardRange
from benchflow.sandbox.machine_settings.allowance import allows
from benchflow.sandbox.protocol import NetworkPolicy
from benchflow.sandbox.task_policy import network_policy, referenced_variables, resolve_variables
from benchflow.task.config.task_config import AUTO, ArtifactConfig, VerifierConfig
from benchflow.task.runtime_view import VERIFIER_MOUNTS, StepView, TaskRuntimeView
from benchflow.task.taken import Copy
from benchflow.task.verifier.declared_strategies import LLMJudgeStrategy, ScriptStrategy, Strategy
from benchflow.task.verifier.verifier_document import VERIFIER_MD, VerifierDocument

if TYPE_CHECKING:
    from benchflow.sandbox.factory import Preparation
    from benchflow.verifier.perturbation import Perturbation
    from benchflow.verifier.surviving.made_places import MadeByVerifier
    from benchflow.verifier.surviving.missed_lookups import MissedPaths
    from benchflow.verifier.watched.making import Making
    from benchflow.verifier.watched.watch import Watch

TEST_SCRIPT: Final = "test.sh"
_MODES: Final = {"no-network": "none", "public": "public", "allowlist": "allowlist"}
VERIFIER: Final = "/verifier"
TESTS: Final = "/tests"
LOGS: Final = "/logs/verifier"
GROUND: Final = "/run/verifier-ground"
"""Files of ours in every box of a verifier; `lookups` says what they settle."""
_EXECUTABLE: Final = 0o755
_PLAIN: Final = 0o644


@dataclass(frozen=True, slots=True)
class Scope:
    """The verifier of a task or of one of its steps."""

    view: TaskRuntimeView
    config: VerifierConfig
    folders: tuple[Path, ...]
    """The verifier's files; later folders override earlier ones."""
    document: VerifierDocument | None
    artifacts: tuple[ArtifactConfig, ...]
    prompt: str
    isolation: Isolation
    """What this verifier sees of the agent's changes."""
    step: str | None = None
    perturbation: Perturbation | None = None
    missed: MissedPaths | None = None
    """Where system changes are kept: what its programs look for in vain on the environment as built."""
    watch: Watch | None = None
    """Collects what its programs look for."""
    made: MadeByVerifier | None = None
    """What it makes on the environment as built."""
    making: Making | None = None
    """Collects what it makes."""
    system_as_built: bool = False
    """Whether the system is seen as built although this isolation keeps its changes."""
    leaves_nothing: bool = False
    """Whether nothing that the verifier changes may stay, even where it could prepare the next step."""

    @property
    def prepares_next(self) -> bool:
        """Whether the next step begins with what the verifier of this one leaves in the environment, as in Harbor."""
        followed = self.step in [item.config.name for item in self.view.steps[:-1]]
        return followed and self.isolation.rung == "open" and not self.leaves_nothing

    @property
    def opt_outs(self) -> tuple[str, ...]:
        """The keys by which the package lets the agent act on this verifier, for the record."""
        hardening = self.config.hardening
        kept = self.isolation.keeps_system and self.isolation.chosen_by == "declared"
        spelled = hardening.keep_system_changes or hardening.keep_processes
        names = {
            "verifier.isolation": kept and not spelled,
            "verifier.hardening.keep_system_changes": kept and hardening.keep_system_changes,
            "verifier.hardening.keep_processes": kept and hardening.keep_processes,
            "verifier.hardening.cleanup_conftests": not hardening.cleanup_conftests,
            "verifier.pytest_plugins": bool(self.config.pytest_plugins),
        }
        return tuple(name for name, chosen in names.items() if chosen)

    @property
    def user(self) -> str:
        """Whom the verifier runs as."""
        return str(self.config.user) if self.config.user is not None else "root"

    @property
    def mount(self) -> str:
        """The folder of the verifier's files: the task's, or the step's where only steps have a verifier."""
        own = VERIFIER_MOUNTS.get(self.folders[-1].name) if self.folders else None
        return self.view.verifier_mount or own or VERIFIER

    @property
    def places(self) -> tuple[str, ...]:
        """The folder of the verifier's files, and the link that leads to it.

        At `open` a split package without strategies has no link, as in Harbor: its image may keep files in `/verifier`.
        """
        if self.mount == VERIFIER:
            return VERIFIER, TESTS
        as_in_harbor = self.isolation.rung == "open" and self.document is None
        return (TESTS,) if as_in_harbor else (TESTS, VERIFIER)

    @property
    def requires_downloads(self) -> bool:
        """Whether a low reward counts only if the verifier reached all that it asked for outside."""
        wiring = self.view.namespace.verifier
        return wiring is None or wiring.downloads == "required"

    @property
    def reward_range(self) -> RewardRange:
        bounds = self.config.reward_range
        return RewardRange(*bounds) if bounds is not None else UNIT

    @property
    def default_strategy(self) -> str:
        if self.document is not None:
            return self.document.default_strategy
        return "llm-judge" if self.config.type == "llm-judge" else "script"

    def strategy(self, name: str | None = None) -> tuple[str, Strategy]:
        """A declared strategy by name, or the default; `UsageError` for an undeclared name."""
        chosen = name or self.default_strategy
        if self.document is not None:
            found = self.document.strategies.get(chosen)
            if found is None:
                known = ", ".join(self.document.strategies)
                raise UsageError(f"Unknown strategy {chosen!r}; declared: {known}.", code="unknown-strategy")
            return chosen, found
        if name not in (None, self.default_strategy):
            raise UsageError(f"Unknown strategy {name!r}: the package has no verifier.md.", code="unknown-strategy")
        return chosen, self._undeclared()

    def _undeclared(self) -> Strategy:
        """The strategy without a verifier document: the test script, or the judge of the configuration."""
        wiring = self.view.namespace.verifier
        if self.config.type == "llm-judge":
            judge = self.config.judge
            rubric = wiring.rubric if wiring is not None and wiring.rubric is not None else judge.rubric_path
            return LLMJudgeStrategy(
                type="llm-judge", rubric=rubric, model=judge.model, input_dir=judge.input_dir,
                context=judge.context or None,
            )  # fmt: skip
        script = wiring.entrypoint if wiring is not None and wiring.entrypoint is not None else TEST_SCRIPT
        script = script.removeprefix("verifier/").removeprefix("tests/")
        if self.file(script) is None:
            place = f"steps/{self.step}" if self.step else self.view.task_dir.name
            raise PackageError(f"{place} has no verifier: neither {VERIFIER_MD} nor {script}.", code="missing-verifier")
        return ScriptStrategy(type="script", command=f"{self.mount}/{script}")

    def file(self, relative: str) -> Path | None:
        """A file of the verifier, from the last folder that has it."""
        for folder in reversed(self.folders):
            place = folder / relative
            if place.is_file():
                return place
        return None

    @property
    def declares_network(self) -> bool:
        """Whether the package says that this verifier, and not only the task, uses the network."""
        policy, own = self.view.namespace.runtime_policy, self.config.environment
        modes = [self.config.network_mode, own.network_mode if own is not None else None]
        override = policy.network.phase_overrides.get("verifier") if policy is not None else None
        declared = override is not None and network_policy(self.view, "verifier").mode != "none"
        return declared or any(mode in ("public", "allowlist") for mode in modes)

    def network(self, inherited: NetworkPolicy) -> NetworkPolicy:
        """The network of the verifier: what it declares, or else what the task allows in this phase.

        An override of the phase in the runtime policy takes precedence over both.
        """
        if self.perturbation is not None and self.perturbation.offline:
            return NetworkPolicy("none")
        mode, policy = self.config.network_mode, self.view.namespace.runtime_policy
        if policy is not None and "verifier" in policy.network.phase_overrides:
            return network_policy(self.view, "verifier")
        if mode is None:
            return inherited
        hosts = self.config.allowed_hosts or ()
        return NetworkPolicy(_MODES[mode], hosts if mode == "allowlist" else ())  # type: ignore[arg-type] # the values are modes


def isolation_of(preparation: Preparation, step: str | None) -> Isolation:
    """What of the agent's changes a verifier sees: as the user or a proof chose, as declared, or the default.

    Where the package declares `auto` and nothing was proven, it is `open`.
    """
    chosen = preparation.chosen.get(step)
    return chosen.isolation if chosen is not None else _declared_isolation(config_of(preparation.view, step))


def _declared_isolation(config: VerifierConfig) -> Isolation:
    wanted = config.wanted_isolation
    if wanted is None:
        return Isolation("shared", "default", None)
    if wanted == AUTO:
        return Isolation("open", "default", None)
    return Isolation(wanted, "declared", None)  # type: ignore[arg-type] # the values are rungs


def scope_of(view: TaskRuntimeView, step: str | None = None, isolation: Isolation | None = None) -> Scope:
    """The verifier of a task, or of the step called `step`, with the declared isolation or another one."""
    config, folders, document = config_of(view, step), [view.verifier_dir], view.verifier_document
    artifacts, prompt = view.config.artifacts, view.prompt
    if step is not None:
        found = _step_of(view, step)
        artifacts = (*artifacts, *found.config.artifacts)
        prompt = found.instruction or prompt
        if found.verifier_dir is not None:
            folders.append(found.verifier_dir)
            document = found.verifier_document or document
    present = tuple(folder for folder in folders if folder is not None)
    return Scope(view, config, present, document, artifacts, prompt, isolation or _declared_isolation(config), step)


def config_of(view: TaskRuntimeView, step: str | None = None) -> VerifierConfig:
    """The settings of the verifier of a task, or of the step called `step`."""
    config = view.config.verifier
    return config if step is None else _inherit(_step_of(view, step).config.verifier, config)


def _step_of(view: TaskRuntimeView, step: str) -> StepView:
    found = next((item for item in view.steps if item.config.name == step), None)
    if found is None:
        raise UsageError(f"{view.name} has no step {step!r}.", code="unknown-step")
    return found


def _inherit(own: VerifierConfig, task: VerifierConfig) -> VerifierConfig:
    """The settings of a step; unset values come from the task."""
    inherited = {name: getattr(task, name) for name in task.declared - own.declared}
    wanted = own.wanted_isolation or task.wanted_isolation
    if wanted is not None:
        inherited["isolation"] = wanted
    if wanted != "separate":
        inherited.pop("environment", None)
    return own.replace(**inherited)


def words_of(text: str) -> frozenset[str]:
    """File names that a text mentions."""
    return frozenset(_names(text))


def paths_asked_for(text: str, workdir: str) -> frozenset[str]:
    """Paths that a text mentions, from the working folder if they are relative."""
    words = (word.rstrip("/") for word in _words(text) if "/" in word)
    return frozenset(word if word.startswith("/") else f"{workdir}/{word.removeprefix('./')}" for word in words)


def paths_of(text: str) -> frozenset[str]:
    """Absolute paths that a text mentions."""
    return frozenset(word.rstrip("/") for word in _words(text) if word.startswith("/"))


def _names(text: str) -> Iterator[str]:
    return (word.rpartition("/")[2] for word in _words(text))


def _words(text: str) -> Iterator[str]:
    for word in text.replace("`", " ").replace('"', " ").replace("'", " ").split():
        yield word.strip(".,;:()[]{}<>*!?")


_SCOPES: Final = ("verifier", "judge")


@dataclass(frozen=True, slots=True)
class VerifierVariables:
    """The variables of a verifier, and those whose values must not be recorded."""

    values: Mapping[str, str] = field(repr=False)
    secret: Mapping[str, str] = field(repr=False)

    def redact(self, text: str) -> str:
        """A text without secret values."""
        return Redactor(self.secret.values()).text(text)


def verifier_variables(scope: Scope, machine: Mapping[str, str]) -> VerifierVariables:
    """Variables of `verifier.env` and the secrets of verifier and judge, from the machine that runs them.

    A required variable that is not set is an `EnvironmentFailure` (`variable-missing`).
    """
    values = resolve_variables(scope.config.env, machine, path="verifier.env")
    taken = referenced_variables(scope.config.env)
    secret = {name: machine[name] for name in taken if name in machine}
    for item in scope.view.namespace.secrets:
        if item.scope not in _SCOPES:
            continue
        name = item.env or item.name
        if name in machine:
            values.setdefault(name, machine[name])
            secret[name] = machine[name]
        elif item.required:
            message = f"benchflow.secrets needs the variable {name}, which is not set on this machine."
            raise EnvironmentFailure(message, code="variable-missing", path="benchflow.secrets")
    if allows("verify", machine):
        from benchflow.sandbox.machine_settings.collected import current

        secret |= {f"settings[{number}]": value for number, value in enumerate(current(machine).secrets)}
    return VerifierVariables(values, secret)


def made_tree(scope: Scope, extra: Mapping[str, bytes]) -> Path | None:
    """The tree of a scope's files, if it was assembled before."""
    return _copy(scope).made(_tree_key(scope, extra))


def assemble_tree(scope: Scope, extra: Mapping[str, bytes]) -> Path:
    """The tree of a scope's files, assembled once per copy of a package.

    `extra` are more files: executable ones of the verifier by relative path, plain ones of its box by absolute path.
    """
    return _copy(scope).tree(_tree_key(scope, extra), lambda root: _fill(root, scope, extra))


def place_of_trees(scope: Scope) -> Path:
    """A folder beside which the trees of a scope are."""
    return _copy(scope).root


@functools.lru_cache(maxsize=32)
def names_in(folders: Sequence[Path]) -> frozenset[str]:
    """The names of all files and folders in the folders of a verifier."""
    walked = (found for folder in folders for found in os.walk(folder))
    return frozenset(name for _, inner, files in walked for name in (*inner, *files))


def _copy(scope: Scope) -> Copy:
    copy = scope.view.files.copy
    if copy is None:
        raise TypeError(f"{scope.view.name} was not taken: its verifier may no longer be what was planned.")
    return copy


def _tree_key(scope: Scope, extra: Mapping[str, bytes]) -> Hashable:
    return scope.folders, scope.places, frozenset(extra.items())


def _fill(root: Path, scope: Scope, extra: Mapping[str, bytes]) -> None:
    root.chmod(0o755)
    # The folder that the author wrote for is not a link: `find /tests` does not look into one.
    real, *links = scope.places
    files = root / real[1:]
    files.mkdir()
    for folder in scope.folders:
        _lay_over(folder, files)
    for path, data in extra.items():
        place = root / path[1:] if path.startswith("/") else files / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(_PLAIN if path.startswith("/") else _EXECUTABLE)
    for link in links:
        (root / link[1:]).symlink_to(real)
    (root / LOGS[1:]).mkdir(parents=True)


def _lay_over(source: Path, target: Path) -> None:
    """Copy regular files and folders; anything else was refused when the package was loaded."""
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            place.mkdir(exist_ok=True)
            _lay_over(Path(entry.path), place)
        elif entry.is_symlink():
            place.unlink(missing_ok=True)
            place.symlink_to(Path(entry.path).readlink())
        elif entry.is_file(follow_symlinks=False):
            _copy_file(Path(entry.path), place)


def _copy_file(source: Path, place: Path) -> None:
    """A copy that everybody can read; a script can also be executed."""
    place.unlink(missing_ok=True)
    status = copy_file(source, place)
    script = source.suffix == ".sh" or source.name == TEST_SCRIPT
    place.chmod(_EXECUTABLE if script else stat.S_IMODE(status.st_mode) | 0o444)
