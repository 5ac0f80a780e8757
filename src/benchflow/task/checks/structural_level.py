"""Level `structural`: the package is complete and in one piece.

A verifier that can run, with every file its strategies name; complete steps; no link out of the folder; aliases that
agree; secrets declared for the phase that uses them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from benchflow.errors import Issue
from benchflow.task.checks.schema_level import is_about_definition, marker_issues
from benchflow.task.config.namespace import SECRET_SCOPES, ambiguous_secrets, loose_secrets
from benchflow.task.config.task_config import AUTO, TaskConfig
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.package import TaskPackage
from benchflow.task.package_layout import ALIASES
from benchflow.task.verifier.declared_strategies import (
    AgentJudgeStrategy,
    LeaderboardStrategy,
    LLMJudgeStrategy,
    RewardKitStrategy,
    ScriptStrategy,
    Strategy,
    selected_strategies,
)
from benchflow.task.verifier.verifier_document import VERIFIER_MD, VerifierDocument

_MARKED_FOLDERS: Final = ("verifier/", "tests/", "steps/")
_MARKED_FILES: Final = frozenset({"oracle/solve.sh", "solution/solve.sh", "environment/Dockerfile"})
_CTRF: Final = re.compile(rb"^[^#\n]*--ctrf[= ]+['\"]?([^\s'\"$][^\s'\"]*)", re.MULTILINE)
_CTRF_PATH: Final = b"/logs/verifier/ctrf.json"


def check_structure(package: TaskPackage) -> Iterator[Issue]:
    """Problems of everything but the definition."""
    yield from (issue for issue in package.layout_issues if not is_about_definition(issue))
    names = [name for name in package.files.files if name in _MARKED_FILES or name.startswith(_MARKED_FOLDERS)]
    yield from marker_issues(package.files, names)
    config = package.config
    if config is not None and config.steps:
        yield from _check_steps(package, config)
    else:
        yield from _check_verifier(package, "", package.verifier_document)
    yield from _check_report_path(package)
    yield from check_secrets(package)
    yield from _check_proof(package)


def _check_proof(package: TaskPackage) -> Iterator[Issue]:
    """An isolation that is to be proven needs a solution, of the task or of every step."""
    config = package.config
    if config is None:
        return
    steps = config.steps or ()
    if AUTO not in (config.verifier.wanted_isolation, *(step.verifier.wanted_isolation for step in steps)):
        return
    places = [f"steps/{step.name}/" for step in steps] or [""]
    known = {f"{place}{name}/solve.sh" for place in ("", *places) for name in ALIASES[1]} & package.files.files.keys()
    solved = all(any(path.startswith((place, *ALIASES[1])) for path in known) for place in places)
    if not solved:
        message = "verifier.isolation is auto, but there is no oracle to prove it with: it is verified at 'open'"
        yield Issue("proof-no-oracle", "warning", "verifier.isolation", message, _definition(package))


def _check_steps(package: TaskPackage, config: TaskConfig) -> Iterator[Issue]:
    """Each step has a folder, an instruction, and its own verifier or that of the package.

    Where every step has its own, the package's folder may hold nothing but what they share.
    """
    shared, needed = package.verifier_dir is not None, False
    for index, step in enumerate(config.steps or ()):
        folder = f"steps/{step.name}"
        if folder not in package.files.folders:
            message = f"the step '{step.name}' has no folder {folder}/"
            yield Issue("step-incomplete", "error", f"steps[{index}].name", message, _definition(package))
            continue
        instruction = f"{folder}/instruction.md"
        data = package.files.files[instruction].data if instruction in package.files else b""
        if data is not None and not data.strip():
            yield Issue(
                "step-incomplete", "error", f"steps[{index}]", f"{instruction} is missing or empty", instruction
            )
        own = [name for name in ALIASES[0] if f"{folder}/{name}" in package.files.folders]
        if own or not shared:
            yield from _check_verifier(package, f"{folder}/", package.step_verifiers.get(step.name))
        needed = needed or not own
    if shared and needed:
        yield from _check_verifier(package, "", package.verifier_document)


def _check_verifier(package: TaskPackage, base: str, document: VerifierDocument | None) -> Iterator[Issue]:
    """The selected verifier folder can score; a profile may replace its document."""
    native, legacy = (f"{base}{name}" for name in ALIASES[0])
    folder = next((name for name in (native, legacy) if name in package.files.folders), None)
    if folder is None:
        if not base and package.verifier_dir is not None:
            return  # a link or file in its place is reported with the layout
        yield Issue("verifier-missing", "error", native, f"there is no {native}/, so nothing scores the result")
        return
    files = package.files.below(folder)
    if not files:
        yield Issue("verifier-empty", "error", folder, f"{folder}/ is empty, so nothing scores the result")
        return
    if document is not None:
        own = f"{folder}/{VERIFIER_MD}"
        file = own if own in package.files else package.profiles["verifier-profile"].path
        for missing in missing_files(document, files):
            message = f"{missing.path} names {missing.name}, which is not in {folder}/"
            yield Issue("verifier-file-missing", "error" if missing.needed else "warning", missing.path, message, file)
    elif VERIFIER_MD not in files and not _has_default_entrypoint(package, files):
        message = f"{folder}/ has neither {VERIFIER_MD} nor {DEFAULT_SCRIPTS[0]}, so nothing scores the result"
        yield Issue("verifier-entrypoint-missing", "error", folder, message)


def _has_default_entrypoint(package: TaskPackage, files: Collection[str]) -> bool:
    config = package.config
    if config is None or any(script in files for script in DEFAULT_SCRIPTS):
        return True
    if config.verifier.type == "llm-judge":
        return config.verifier.judge.rubric_path in package.files
    # A separate verifier image may bring its own entry point.
    return config.verifier.wanted_isolation == "separate" and ("Dockerfile" in files or _has_own_image(config))


def _has_own_image(config: TaskConfig) -> bool:
    environment = config.verifier.environment
    return environment is not None and environment.docker_image is not None


def _check_report_path(package: TaskPackage) -> Iterator[Issue]:
    """A test report is collected from one path; written elsewhere it is lost."""
    for name in DEFAULT_SCRIPTS:
        path = f"{package.verifier_dir}/{name}"
        data = package.files.files[path].data if path in package.files else None
        if data is None or b"--ctrf" not in data:
            continue
        for found in _CTRF.finditer(data):
            if found[1] != _CTRF_PATH:
                shown = found[1].decode("utf-8", "replace")
                line = data[: found.start(1)].count(b"\n") + 1
                message = f"the test report is written to {shown}, but only {_CTRF_PATH.decode()} is kept"
                yield Issue("report-path", "warning", "", message, path, line)


def _definition(package: TaskPackage) -> str:
    return "task.md" if package.entrypoint == "task.md" else "task.toml"


DEFAULT_SCRIPTS: Final = ("test.sh", "test.bat")
_SCRIPT_SUFFIXES: Final = (".js", ".mjs", ".py", ".rb", ".sh", ".ts")
_QUOTING: Final = re.compile(r"['\"\\#]")
_DYNAMIC: Final = re.compile(r"[$*?\[\]{}`<>|&;()=\s]|://")


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that a strategy names but the verifier folder lacks; `path` is the key that names it."""

    path: str
    name: str
    needed: bool = True
    """Whether the strategy that scores depends on it."""


def missing_files(document: VerifierDocument, files: Collection[str]) -> Iterator[MissingFile]:
    """Files named by strategies and rubric that are not in `files` (relative to the verifier folder)."""
    selected = {name for name, _ in selected_strategies(document.strategies, document.default_strategy)}
    for name, strategy in document.strategies.items():
        for key, file in _named_files(strategy):
            if file not in files:
                yield MissingFile(f"verifier.strategies.{name}.{key}", file, needed=name in selected)
    for key in ("human", "structured"):
        file = getattr(document.rubric.files, key)
        if file is not None and file not in files:
            yield MissingFile(f"verifier.rubric.files.{key}", file, needed=False)


def _named_files(strategy: Strategy) -> Iterator[tuple[str, str]]:
    if isinstance(strategy, ScriptStrategy):
        for script in local_scripts(strategy.command):
            yield "command", script
    elif isinstance(strategy, RewardKitStrategy):
        yield "entrypoint", f"{strategy.root}/{strategy.entrypoint}"
        if strategy.criteria is not None:
            yield "criteria", strategy.criteria
    elif isinstance(strategy, LLMJudgeStrategy):
        yield "rubric", strategy.rubric
        if strategy.context_file is not None:
            yield "context_file", strategy.context_file
    elif isinstance(strategy, AgentJudgeStrategy) and strategy.script is not None:
        yield "agent", strategy.script


def local_scripts(command: str) -> tuple[str, ...]:
    """The scripts in the verifier folder that a command names; the folder is its working directory.

    Only unambiguous words count: a relative program, `./something`, or a name with a script suffix. Nothing can be
    said about a command that changes directory or that cannot be split.
    """
    try:
        words = shlex.split(command) if _QUOTING.search(command) else command.split()
    except ValueError:
        return ()
    if "cd" in words or "pushd" in words:
        return ()
    found: list[str] = []
    for index, word in enumerate(words):
        local = word.removeprefix("/verifier/")
        if local.startswith(("-", "/")) or _DYNAMIC.search(local) or ".." in local.split("/"):
            continue
        if local.startswith("./") or local.endswith(_SCRIPT_SUFFIXES) or (index == 0 and "/" in local):
            found.append("/".join(part for part in local.split("/") if part not in ("", ".")))
    return tuple(found)


_PULLING: Final = ("image-pull",)
_SCORING: Final = ("verifier", "judge")


def check_secrets(package: TaskPackage) -> Iterator[Issue]:
    """References to secrets that are not declared in `benchflow.secrets`, or declared for another use."""
    if package.document is not None and len(loose := loose_secrets(package.document.namespace)) > 1:
        yield Issue("secret-ambiguous", "warning", "benchflow.secrets", ambiguous_secrets(loose), TASK_MD)
    references = list(_references(package))
    if not references:
        return
    declared: dict[str, set[str]] = {}
    for secret in package.document.namespace.secrets if package.document is not None else ():
        declared.setdefault(secret.name, set()).add(secret.scope)
    for file, path, name, scopes in references:
        found = declared.get(name)
        if found is None:
            message = f"{path} names the secret '{name[:60]}', which is not declared in benchflow.secrets"
        elif found.isdisjoint(scopes):
            wanted = " or ".join(scopes)
            message = (
                f"{path} uses the secret '{name[:60]}', which is declared for {', '.join(sorted(found))}, not {wanted}"
            )
        else:
            continue
        yield Issue("undeclared-secret", "warning", path, message, file)


def _references(package: TaskPackage) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Each use of a secret: file, path, name, and the scopes it may be declared for."""
    namespace = package.document.namespace if package.document is not None else None
    if namespace is not None and namespace.declared:
        mounts = namespace.runtime_policy.private_mounts if namespace.runtime_policy is not None else ()
        for index, mount in enumerate(mounts):
            if mount.secret_ref is not None:
                path = f"benchflow.runtime_policy.private_mounts[{index}].secret_ref"
                yield TASK_MD, path, mount.secret_ref, SECRET_SCOPES
        images = namespace.provenance.images if namespace.provenance is not None else ()
        for index, image in enumerate(images):
            if image.credential_secret_ref is not None:
                path = f"benchflow.provenance.images[{index}].credential_secret_ref"
                yield TASK_MD, path, image.credential_secret_ref, _PULLING
    if package.verifier_document is not None:
        file = f"{package.verifier_dir}/{VERIFIER_MD}"
        for name, strategy in package.verifier_document.strategies.items():
            if isinstance(strategy, LeaderboardStrategy) and strategy.secret is not None:
                yield file, f"verifier.strategies.{name}.secret", strategy.secret, _SCORING
