"""`TaskPackage`: a folder with every file read once, everything parsed, every problem collected.

`load_package` never raises for invalid content; `TaskPackage.issues` lists the problems. The native layout (`task.md`)
and the split layout (`task.toml`, `instruction.md`) result in the same type. `package_parts` gives each part a digest,
so that later changes can be found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from benchflow.errors import Issue
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.task_document import TASK_MD, TaskDocument
from benchflow.task.filemap import FileMap
from benchflow.task.package_layout import EVIDENCE, INSTRUCTION, TASK_TOML, content_digest, source_hashes
from benchflow.task.profiles import Profile
from benchflow.task.verifier.verifier_document import VerifierDocument

if TYPE_CHECKING:
    from benchflow.task.document.environment_manifest import EnvironmentManifest
    from benchflow.task.document.prompt_plan import TaskPromptPlan
    from benchflow.task.document.task_toml import InboundCompatibility
    from benchflow.task.interop.export_report import CompatibilityExportReport
    from benchflow.task.runtime_capabilities import UnsupportedTaskFeature
    from benchflow.task.runtime_view import TaskRuntimeView

__all__ = [
    "INSTRUCTION",
    "TASK_MD",
    "TASK_TOML",
    "VERIFIER_PART",
    "Entrypoint",
    "TaskPackage",
    "changed_parts",
    "load_package",
    "normal_prompt",
    "package_parts",
]

Entrypoint = Literal["task.md", "legacy"]
VERIFIER_PART: Final = "verifier"
_FOLDERS: Final[Mapping[str, Sequence[str]]] = {
    VERIFIER_PART: ("verifier", "tests"),
    "environment": ("environment",),
    "oracle": ("oracle", "solution"),
    "task": ("prompts", "workdir"),
}
_KNOWN: Final[dict[str, dict[str, str]]] = {}
"""By the digest of the package, which covers all of it."""
_MOST_KNOWN: Final = 1_000


@dataclass(frozen=True)
class TaskPackage:
    """A package as it was found. It may be invalid: see `issues`."""

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
    step_verifiers: Mapping[str, VerifierDocument] = field(repr=False)
    """The verifier documents of steps, by name of the step."""
    manifest: EnvironmentManifest | None = field(repr=False)
    """The services of the environment, when the document names a manifest."""
    profiles: Mapping[str, Profile] = field(repr=False)
    shared: Mapping[str, str] = field(repr=False)
    """Path -> SHA-256 of the files beside the package that belong to it: profiles and a manifest of services."""
    imported: InboundCompatibility | None = field(repr=False)
    """What a split definition contains beyond the configuration."""
    name: str
    digest: str
    document_issues: tuple[Issue, ...]
    """Problems of the definition: `task.md`, its sidecars and profiles; or `task.toml`, `instruction.md`."""
    layout_issues: tuple[Issue, ...]
    """All other problems: files, verifier document, aliases, assets."""
    sandbox: str | None = None
    """The sandbox to run on; determines `runtime_issues`."""

    @classmethod
    def from_task_dir(cls, path: Path | str, sandbox: str | None = None) -> TaskPackage:
        """Load a package, optionally for a given sandbox."""
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
        """The runtime view; raises `PackageError` when the definition cannot be read."""
        from benchflow.task.runtime_view import TaskRuntimeView

        return TaskRuntimeView.of(self)

    @cached_property
    def prompt_plan(self) -> TaskPromptPlan:
        """The prompts of every turn, and the redacted contract of the user."""
        from benchflow.task.document.prompt_plan import compile_task_prompt_plan

        return compile_task_prompt_plan(self.document, fallback_prompt=self.instruction or "")

    @cached_property
    def runtime_issues(self) -> tuple[UnsupportedTaskFeature, ...]:
        """What the chosen sandbox does not support; empty without one."""
        if self.sandbox is None:
            return ()
        from benchflow.task.runtime_capabilities import validate_task_runtime_support

        return tuple(validate_task_runtime_support(self, sandbox=self.sandbox))

    @cached_property
    def content_digest(self) -> str:
        """The digest without evidence: what the task is, whatever is known about it."""
        return content_digest(self.files, self.shared)

    @property
    def runtime_supported(self) -> bool:
        return not self.runtime_issues

    @property
    def source_hashes(self) -> dict[str, str]:
        """Path -> SHA-256 of everything that defines the task, including what is beside the package."""
        return dict(sorted({**source_hashes(self.files), **self.shared}.items()))

    def compatibility_export_report(self, *, target: str = "harbor") -> CompatibilityExportReport:
        """What an export to a foreign format would lose."""
        from benchflow.task.interop.split_export import build_compatibility_export_report

        return build_compatibility_export_report(self, target=target)

    def line(self, path: str) -> int | None:
        """The line of a dotted path in `task.md`, or of the nearest path above it."""
        from benchflow.task.loading import document_line

        return document_line(self.files, path) if self.document is not None else None

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
        """The package as plain data, without private facts and hidden expectations."""
        verifier = self.verifier_document
        return {
            "task_dir": str(self.path.absolute()),
            "name": self.name,
            "digest": self.digest,
            "content_digest": self.content_digest,
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
            "profiles": {key: {"path": item.path, "sha256": item.sha256} for key, item in self.profiles.items()},
            "compatibility": self.compatibility(),
            "source_hashes": self.source_hashes,
            "config": self.config.to_dict() if self.config is not None else None,
            "issues": [issue.to_dict() for issue in self.issues],
        }


def load_package(path: Path | str, *, sandbox: str | None = None, files: FileMap | None = None) -> TaskPackage:
    """Read a package folder; invalid content becomes issues, never an exception.

    With `files` the folder is not scanned: they are what it contains, or would contain if it were taken out of a file.
    """
    from benchflow.task.loading import PackageLoader

    return PackageLoader(path if isinstance(path, Path) else Path(path), files).load(sandbox)


def normal_prompt(text: str) -> str:
    """A prompt without insignificant whitespace."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def package_parts(package: TaskPackage) -> dict[str, str]:
    """Digests of what determines a verdict (`verifier`), of the `environment`, the `oracle`, and the `task` itself.

    Files that decide nothing, such as evidence, belong to none of them. All attempts at a package share the answer.
    """
    known = _KNOWN.get(package.digest)
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[package.digest] = _parts(package)
    return known


def _parts(package: TaskPackage) -> dict[str, str]:
    hashes: dict[str, dict[str, str]] = {part: {} for part in _FOLDERS}
    for path, digest in package.files.hashes().items():
        part = _part_of(path)
        if part is not None:
            hashes[part][path] = digest
    settings = _settings(package)
    return {part: _digest([files, settings[part]]) for part, files in hashes.items()}


def changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The parts that differ."""
    return [part for part in after if before.get(part) != after[part]]


def _part_of(path: str) -> str | None:
    names = path.split("/")
    if names[0] == "steps" and len(names) > 2:
        names = names[2:]
        if names == ["instruction.md"]:
            return "task"
    if len(names) < 2:
        return None
    return next((part for part, folders in _FOLDERS.items() if names[0] in folders), None)


def _settings(package: TaskPackage) -> dict[str, Any]:
    """The definition, each setting in the part that it belongs to."""
    view = package.view
    config = view.config.to_dict()
    namespace = view.namespace.to_dict()
    namespace.pop(EVIDENCE, None)
    steps = config.pop("steps", None) or []
    own = [{"name": step["name"], "verifier": step.pop("verifier", None)} for step in steps]
    least = [step.pop("min_reward", None) for step in steps]
    scoring = [config.pop(name, None) for name in ("verifier", "reward", "multi_step_reward_strategy")]
    document = package.document
    manifest = [package.manifest.to_dict()] if package.manifest is not None else []
    people = [view.roles, view.scenes, document.user, document.persona] if document is not None else []
    return {
        VERIFIER_PART: [scoring, own, least, namespace.pop("verifier", None)],
        "environment": [config.pop("environment", None), *manifest],
        "oracle": config.pop("oracle", None),
        "task": [config, steps, namespace, view.prompt, people],
    }


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=repr, ensure_ascii=True)
    return f"sha256:{sha256(text.encode()).hexdigest()}"
