"""A folder as a `TaskPackage`: every file read once, everything parsed, every problem collected.

`load_package` takes whatever a folder holds and never raises for bad content; `TaskPackage.issues` says
what is wrong. The native layout (`task.md`) and the split layout (`task.toml`, `instruction.md`) give the
same object.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from benchflow.errors import Issue
from benchflow.task.assets import check_assets
from benchflow.task.config import TaskConfig
from benchflow.task.document import TASK_MD, TaskDocument, read_document
from benchflow.task.filemap import FileMap, scan
from benchflow.task.issues import IssueLog
from benchflow.task.layout import ALIASES, check_aliases, check_parts, select, source_hashes
from benchflow.task.markdown import MarkdownError, decode
from benchflow.task.profiles import Profile, ProfileReader
from benchflow.task.verifier_document import (
    VERIFIER_MD,
    VerifierDocument,
    VerifierRoot,
    read_verifier_document,
)

if TYPE_CHECKING:
    from benchflow.task.imports import InboundCompatibility
    from benchflow.task.prompts import TaskPromptPlan
    from benchflow.task.runtime_capabilities import UnsupportedTaskFeature
    from benchflow.task.runtime_view import TaskRuntimeView

Entrypoint = Literal["task.md", "legacy"]
TASK_TOML: Final = "task.toml"
INSTRUCTION: Final = "instruction.md"
_SIDECARS: Final = ("role.", "scene.")


@dataclass(frozen=True)
class TaskPackage:
    """A package as it was found. It may be invalid; `issues` tells."""

    path: Path
    files: FileMap = field(repr=False)
    entrypoint: Entrypoint | None
    """None when the folder has neither `task.md` nor `task.toml`."""
    config: TaskConfig | None
    document: TaskDocument | None = field(repr=False)
    instruction: str | None = field(repr=False)
    """The base prompt; None when there is none (multi-step packages may keep theirs in `steps/`)."""
    verifier_dir: str | None
    oracle_dir: str | None
    verifier_document: VerifierDocument | None = field(repr=False)
    profiles: Mapping[str, Profile] = field(repr=False)
    imported: InboundCompatibility | None = field(repr=False)
    """What a split definition held beyond the configuration."""
    name: str
    digest: str
    document_issues: tuple[Issue, ...]
    """Problems of the definition: `task.md`, its sidecars and profiles; or `task.toml`, `instruction.md`."""
    layout_issues: tuple[Issue, ...]
    """Problems of everything else: files, verifier document, aliases, assets."""
    sandbox: str | None = None
    """Where it is meant to run; decides `runtime_issues`."""

    @classmethod
    def from_task_dir(cls, path: Path | str, sandbox: str | None = None) -> TaskPackage:
        """Load a package, to be run on a sandbox if one is named."""
        return load_package(path, sandbox=sandbox)

    @property
    def issues(self) -> tuple[Issue, ...]:
        return self.document_issues + self.layout_issues

    @property
    def valid(self) -> bool:
        """Whether no issue is an error."""
        return not any(issue.severity == "error" for issue in self.issues)

    @cached_property
    def view(self) -> TaskRuntimeView:
        """What will run; raises `PackageError` when the definition cannot be read."""
        from benchflow.task.runtime_view import TaskRuntimeView

        return TaskRuntimeView.of(self)

    @cached_property
    def prompt_plan(self) -> TaskPromptPlan:
        """The prompts of every turn, and the redacted contract of the user."""
        from benchflow.task.prompts import compile_task_prompt_plan

        return compile_task_prompt_plan(self.document, fallback_prompt=self.instruction or "")

    @cached_property
    def runtime_issues(self) -> tuple[UnsupportedTaskFeature, ...]:
        """What the chosen sandbox cannot honour; empty without one."""
        if self.sandbox is None:
            return ()
        from benchflow.task.runtime_capabilities import validate_task_runtime_support

        return tuple(validate_task_runtime_support(self, sandbox=self.sandbox))

    @property
    def runtime_supported(self) -> bool:
        return not self.runtime_issues

    @property
    def source_hashes(self) -> dict[str, str]:
        """Path to SHA-256 of everything that defines the task, profiles included."""
        outside = {item.path: item.sha256 for item in self.profiles.values() if not item.inside}
        return dict(sorted({**source_hashes(self.files), **outside}.items()))

    def compatibility_export_report(self, *, target: str = "harbor") -> dict[str, Any]:
        """What an export to a foreign format would lose."""
        from benchflow.task.export import build_compatibility_export_report

        report: dict[str, Any] = build_compatibility_export_report(self.path, target=target)
        return report

    def compatibility(self) -> dict[str, Any]:
        """Which spellings of the layout are present."""
        folders = self.files.folders
        return {
            "has_task_md": TASK_MD in self.files,
            "has_legacy_definition": TASK_TOML in self.files,
            "selected_entrypoint": self.entrypoint,
            "uses_native_oracle_dir": self.oracle_dir == "oracle",
            "uses_native_verifier_dir": self.verifier_dir == "verifier",
            "has_legacy_solution_alias": "solution" in folders,
            "has_legacy_tests_alias": "tests" in folders,
        }

    def to_dict(self) -> dict[str, Any]:
        """The package as plain data; private facts and hidden expectations are never part of it."""
        verifier = self.verifier_document
        return {
            "task_dir": str(self.path.absolute()),
            "name": self.name,
            "digest": self.digest,
            "entrypoint": self.entrypoint,
            "prompt_path": TASK_MD
            if self.entrypoint == TASK_MD
            else INSTRUCTION
            if INSTRUCTION in self.files
            else None,
            "selected_oracle_dir": self.oracle_dir,
            "selected_verifier_dir": self.verifier_dir,
            "verifier_document": verifier.to_dict() if verifier is not None else None,
            "interaction_mode": self.document.mode if self.document else "single-shot",
            "sandbox": self.sandbox,
            "runtime_supported": self.runtime_supported,
            "runtime_issues": [issue.to_dict() for issue in self.runtime_issues],
            "prompt_plan": self.prompt_plan.to_dict(),
            "profiles": {
                key: {"path": item.path, "sha256": item.sha256} for key, item in self.profiles.items()
            },
            "compatibility": self.compatibility(),
            "source_hashes": self.source_hashes,
            "config": self.config.to_dict() if self.config is not None else None,
            "issues": [issue.to_dict() for issue in self.issues],
        }


def load_package(path: Path | str, *, sandbox: str | None = None) -> TaskPackage:
    """Read a package folder; bad content becomes issues, never an exception."""
    return _Loader(Path(path)).load(sandbox)


class _Loader:
    """Reads one folder, part by part, each part once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = scan(path)
        self.layout = IssueLog()
        self.profiles = ProfileReader(path)
        self.document: TaskDocument | None = None
        self.config: TaskConfig | None = None
        self.instruction: str | None = None
        self.imported: InboundCompatibility | None = None
        self.issues: list[Issue] = []

    def load(self, sandbox: str | None) -> TaskPackage:
        entrypoint = self._definition()
        verifier_dir, oracle_dir = (select(self.files, native, legacy) for native, legacy in ALIASES)
        check_parts(self.files, self.layout)
        check_aliases(self.files, self.layout)
        verifier = self._verifier(verifier_dir)
        if self.document is not None:
            problems = IssueLog(TASK_MD, self._line)
            check_assets(self.document.namespace, self.files, problems)
            self.layout.extend(problems.issues)
        return TaskPackage(
            path=self.path,
            files=self.files,
            entrypoint=entrypoint,
            config=self.config,
            document=self.document,
            instruction=self.instruction,
            verifier_dir=verifier_dir,
            oracle_dir=oracle_dir,
            verifier_document=verifier,
            profiles=self.profiles.profiles,
            imported=self.imported,
            name=self._name(),
            digest=self.files.digest(self.profiles.hashes()),
            document_issues=tuple(self.issues),
            layout_issues=(*self.files.issues, *self.layout.issues),
            sandbox=sandbox,
        )

    def _definition(self) -> Entrypoint | None:
        """Read the entrypoint that counts; `task.md` wins, and must agree with a split twin."""
        if TASK_MD in self.files:
            self._native()
            self._twin()
            return "task.md"
        if TASK_TOML in self.files:
            self._split()
            return "legacy"
        if TASK_MD not in self.files.links:
            if not self.path.is_dir():
                message = (
                    f"{self.path} is not a folder" if self.path.exists() else f"{self.path} does not exist"
                )
                self.issues.append(Issue("not-a-package", "error", "", message))
            else:
                self.issues.append(
                    Issue("not-a-package", "error", "", "there is neither task.md nor task.toml")
                )
        return None

    def _native(self) -> None:
        data = self._bytes(TASK_MD, self.issues)
        if data is None:
            return
        problems = IssueLog()
        self.document, issues = read_document(
            data, sidecars=self._sidecars(problems), merge_profiles=self.profiles.merge
        )
        self.issues += [*issues, *problems.issues, *self.profiles.issues]
        if self.document is not None:
            self.config = self.document.config
            self.instruction = self.document.instruction

    def _sidecars(self, problems: IssueLog) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self.files.below("prompts"):
            file = f"prompts/{name}"
            stem = name.removesuffix(".md")
            prefix = next(
                (item for item in _SIDECARS if stem.startswith(item) and len(stem) > len(item)), None
            )
            if stem == name or (prefix is None and stem != "user-persona"):
                problems.file = file
                problems.warning("unused-prompt", "", f"{file} is not a prompt that a document reads")
                continue
            text = self._text(file, problems.issues)
            if text is not None:
                found[f"{prefix[:-1]}:{stem.removeprefix(prefix)}" if prefix else stem] = text.strip()
        return found

    def _split(self) -> None:
        from benchflow.task.imports import read_task_toml

        text = self._text(TASK_TOML, self.issues)
        if text is not None:
            reading = read_task_toml(text)
            self.config, self.imported = reading.config, reading.compatibility
            self.issues += reading.issues
        if INSTRUCTION in self.files:
            self.instruction = self._text(INSTRUCTION, self.issues)

    def _twin(self) -> None:
        """A `task.md` beside the split pair must say the same."""
        has_toml, has_prompt = TASK_TOML in self.files, INSTRUCTION in self.files
        if self.document is None or not (has_toml or has_prompt):
            return
        steps = bool(self.config and self.config.steps)
        if has_toml != has_prompt and not (steps and has_toml):
            missing, present = (INSTRUCTION, TASK_TOML) if has_toml else (TASK_TOML, INSTRUCTION)
            pair = f"{TASK_MD}|{present}"
            self.layout.error("incomplete-split", pair, f"{present} stands beside task.md without {missing}")
        if has_toml:
            self._compare_config()
        if has_prompt:
            text = self._text(INSTRUCTION, self.layout.issues)
            if text is not None and normal_prompt(text) != normal_prompt(self.document.instruction):
                pair = f"{TASK_MD}|{INSTRUCTION}"
                self.layout.error("alias-drift", pair, "task.md and instruction.md hold different prompts")

    def _compare_config(self) -> None:
        from benchflow.task.imports import read_task_toml

        text = self._text(TASK_TOML, self.layout.issues)
        if text is None:
            return
        reading = read_task_toml(text)
        self.layout.extend(issue for issue in reading.issues if issue.severity == "error")
        if reading.config is not None and _comparable(reading.config) != _comparable(self.config):
            pair = f"{TASK_MD}|{TASK_TOML}"
            self.layout.error("alias-drift", pair, "task.md and task.toml hold different configurations")

    def _verifier(self, folder: str | None) -> VerifierDocument | None:
        file = f"{folder}/{VERIFIER_MD}"
        if folder is None or file not in self.files:
            return None
        data = self._bytes(file, self.layout.issues)
        if data is None:
            return None
        profile = self.profiles.verifier_spec()
        document, issues = read_verifier_document(data, name=folder, file=file, profile=profile)
        self.layout.extend(issues)
        projection = f"{folder}/{TASK_TOML}"
        if document is not None and projection in self.files:
            self._projection(document, file, projection)
        return document

    def _projection(self, document: VerifierDocument, file: str, projection: str) -> None:
        problems = IssueLog(projection)
        text = self._text(projection, self.layout.issues)
        if text is None:
            return
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as problem:
            problems.error("invalid-toml", "", f"{projection} is not valid TOML: {problem}")
            self.layout.extend(problems.issues)
            return
        root = VerifierRoot.parse({"document_version": document.document_version, **data}, "", problems)
        self.layout.extend(problems.issues)
        if root is not None and (root.verifier, root.document_version) != (
            document.spec,
            document.document_version,
        ):
            pair = f"{file}|{projection}"
            self.layout.error(
                "projection-drift", pair, f"{projection} and {file} declare different verifiers"
            )

    def _bytes(self, file: str, issues: list[Issue]) -> bytes | None:
        try:
            return self.files.read(file)
        except OSError as error:
            issues.append(
                Issue("unreadable", "error", "", f"{file} cannot be read: {error.strerror or error}", file)
            )
            return None

    def _text(self, file: str, issues: list[Issue]) -> str | None:
        data = self._bytes(file, issues)
        try:
            return None if data is None else decode(data)
        except MarkdownError as problem:
            issues.append(Issue(problem.code, "error", "", f"{file} {problem}", file, problem.line))
            return None

    def _line(self, path: str) -> int | None:
        from benchflow.task.markdown import split_frontmatter
        from benchflow.task.yaml_source import YamlSource

        return YamlSource(split_frontmatter(decode(self.files.read(TASK_MD))).yaml, first_line=2).line(path)

    def _name(self) -> str:
        if self.config is not None and self.config.task is not None:
            return self.config.task.name
        raw = self.document.frontmatter if self.document is not None else {}
        section = raw.get("task")
        written = section.get("name") if isinstance(section, dict) else raw.get("name")
        return written if isinstance(written, str) and written.strip() else self.path.absolute().name


def _comparable(config: TaskConfig | None) -> TaskConfig | None:
    """A configuration without what only the layout decides: its version, and how a shared box is left."""
    if config is None:
        return None
    verifier = config.verifier.replace(hardening=type(config.verifier.hardening)())
    return config.replace(schema_version="", verifier=verifier)


def normal_prompt(text: str) -> str:
    """A prompt without the blanks that do not count."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))
