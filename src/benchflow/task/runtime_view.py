"""`TaskRuntimeView`: everything that a rollout needs to know about a package.

Paths are absolute. Once the package was taken, all of them but `task_dir` are in its copy (see `benchflow.task.taken`).
A view exists only for a package whose definition could be read; whether a sandbox supports it is decided by the
capability gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.errors import PackageError
from benchflow.task.config.interaction import Role, Scene
from benchflow.task.config.namespace import Namespace
from benchflow.task.config.task_config import StepConfig, TaskConfig
from benchflow.task.document.environment_manifest import EnvironmentManifest
from benchflow.task.document.markdown import decode
from benchflow.task.document.prompt_plan import TaskPromptPlan, materialize_prompt_plan_scenes
from benchflow.task.filemap import FileMap
from benchflow.task.verifier.verifier_document import VerifierDocument

if TYPE_CHECKING:
    from benchflow.task.package import TaskPackage
    from benchflow.task.profiles import Profile

VERIFIER_MOUNTS = {"verifier": "/verifier", "tests": "/tests"}
ORACLE_MOUNTS = {"oracle": "/oracle", "solution": "/solution"}
DEFAULT_WORKDIR = "/app"


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of a multi-step package: its settings, prompt and folders."""

    config: StepConfig
    instruction: str | None = field(repr=False)
    verifier_dir: Path | None
    verifier_document: VerifierDocument | None = field(repr=False)
    """The step's own; without one, the package's is used."""
    oracle_dir: Path | None
    workdir_dir: Path | None
    """Files that are copied into the working folder before the step."""


@dataclass(frozen=True, slots=True)
class TaskRuntimeView:
    """The runtime view of a package."""

    task_dir: Path
    """The author's folder: what is recorded and named. Files are read from `files.root`."""
    files: FileMap = field(repr=False)
    name: str
    digest: str
    content_digest: str
    entrypoint: str
    config: TaskConfig
    prompt: str = field(repr=False)
    """The text of `/instruction.md`."""
    prompt_plan: TaskPromptPlan = field(repr=False)
    mode: str
    namespace: Namespace
    roles: Mapping[str, Role]
    scenes: tuple[Scene, ...]
    """With the planned prompts."""
    steps: tuple[StepView, ...]
    environment_dir: Path | None
    verifier_dir: Path | None
    verifier_mount: str | None
    verifier_document: VerifierDocument | None = field(repr=False)
    oracle_dir: Path | None
    oracle_mount: str | None
    manifest: EnvironmentManifest | None = field(repr=False)
    profiles: Mapping[str, Profile] = field(repr=False)
    source_hashes: Mapping[str, str] = field(repr=False)
    compatibility: Mapping[str, Any] = field(repr=False)

    @property
    def required_reward(self) -> float:
        """What the oracle must reach. Evidence is not in the content digest, so kept proofs are compared with it."""
        evidence = self.namespace.evidence
        runs = evidence.oracle_runs if evidence is not None else None
        declared = runs.required_reward if runs is not None else None
        return 1.0 if declared is None else declared

    @classmethod
    def of(cls, package: TaskPackage) -> TaskRuntimeView:
        """The view of a package; raises `PackageError` when its definition cannot be read."""
        if package.config is None or package.entrypoint is None:
            first = next((issue for issue in package.issues if issue.severity == "error"), None)
            message = first.message if first else "there is no task definition"
            raise PackageError(message, code=first.code if first else None, file=first.file if first else None)
        document = package.document
        verifier_dir, oracle_dir = package.verifier_dir, package.oracle_dir
        return cls(
            task_dir=package.path.absolute(),
            files=package.files,
            name=package.name,
            digest=package.digest,
            content_digest=package.content_digest,
            entrypoint=package.entrypoint,
            config=package.config,
            prompt=(package.instruction or "").strip(),
            prompt_plan=package.prompt_plan,
            mode=document.mode if document else "single-shot",
            namespace=document.namespace if document else Namespace(),
            roles=document.roles if document else {},
            scenes=materialize_prompt_plan_scenes(document) if document else (),
            steps=tuple(_step(package, step) for step in package.config.steps or ()),
            environment_dir=_folder(package, "environment"),
            verifier_dir=_folder(package, verifier_dir),
            verifier_mount=VERIFIER_MOUNTS.get(verifier_dir or ""),
            verifier_document=package.verifier_document,
            oracle_dir=_folder(package, oracle_dir),
            oracle_mount=ORACLE_MOUNTS.get(oracle_dir or ""),
            manifest=package.manifest,
            profiles=package.profiles,
            source_hashes=package.source_hashes,
            compatibility=package.compatibility(),
        )

    @property
    def strategy(self) -> str:
        """The type of the selected strategy."""
        if self.verifier_document is not None:
            return self.verifier_document.selected.type
        return "llm-judge" if self.config.verifier.type == "llm-judge" else "script"


def _folder(package: TaskPackage, name: str | None) -> Path | None:
    return package.files.root.absolute() / name if name is not None and name in package.files.folders else None


def _step(package: TaskPackage, config: StepConfig) -> StepView:
    base = f"steps/{config.name}"
    file = f"{base}/instruction.md"
    text = decode(package.files.read(file)).strip() if file in package.files else None
    return StepView(
        config=config,
        instruction=text,
        verifier_dir=_folder(package, f"{base}/verifier") or _folder(package, f"{base}/tests"),
        verifier_document=package.step_verifiers.get(config.name),
        oracle_dir=_folder(package, f"{base}/oracle") or _folder(package, f"{base}/solution"),
        workdir_dir=_folder(package, f"{base}/workdir"),
    )
