"""Builds a `TaskPackage`: scans the folder, then parses each part once.

Every part has its own log. Invalid content never raises, and an unreadable part does not hide the problems of others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchflow.errors import Issue, PackageError
from benchflow.task.beside import BesideError, BesideFile, OutsideError, read_beside
from benchflow.task.config.parsed_record import IssueLog, shorten
from benchflow.task.config.task_config import HardeningConfig, TaskConfig, VerifierConfig
from benchflow.task.document.markdown import MAX_TEXT_BYTES, MarkdownError, decode, split_frontmatter
from benchflow.task.document.task_document import PERSONA, TASK_MD, TaskDocument, read_document
from benchflow.task.document.yaml_source import YamlSource
from benchflow.task.filemap import FileMap, scan
from benchflow.task.package import Entrypoint, TaskPackage, normal_prompt
from benchflow.task.package_layout import (
    ALIASES,
    INSTRUCTION,
    TASK_TOML,
    check_aliases,
    check_assets,
    check_parts,
    select,
)
from benchflow.task.verifier.verifier_document import (
    VERIFIER_MD,
    VerifierDocument,
    VerifierRoot,
    read_verifier_document,
    verifier_document_of_profile,
)

if TYPE_CHECKING:
    from benchflow.task.document.environment_manifest import EnvironmentManifest
    from benchflow.task.document.task_toml import InboundCompatibility
    from benchflow.task.profiles import ProfileReader

_WITH_FILES: Final = frozenset({"assets", "provenance", "environment", "verifier"})
"""Keys of the namespace that refer to files in the package."""
_SIDECARS: Final = {"role.": "role:", "scene.": "scene:"}


class PackageLoader:
    """Reads one folder."""

    def __init__(self, path: Path, files: FileMap | None = None) -> None:
        self.path = path
        self.files = scan(path) if files is None else files
        self.issues: list[Issue] = []
        """Problems of the definition."""
        self.layout = IssueLog()
        self.profiles: ProfileReader | None = None
        """Those that the document refers to, if any."""
        self.manifest: BesideFile | None = None
        self.document: TaskDocument | None = None
        self.config: TaskConfig | None = None
        self.instruction: str | None = None
        self.imported: InboundCompatibility | None = None
        self.written: Mapping[str, Any] = {}
        """The definition as written, as far as it could be read."""

    def load(self, sandbox: str | None) -> TaskPackage:
        """The package, valid or not."""
        entrypoint = self._definition()
        verifier_dir, oracle_dir = (select(self.files, native, legacy) for native, legacy in ALIASES)
        check_parts(self.files, self.layout)
        check_aliases(self.files, self.layout)
        verifier_document, step_verifiers, manifest = self._verifier(verifier_dir), self._steps(), self._namespace()
        shared = self._shared()
        return TaskPackage(
            path=self.path,
            files=self.files,
            entrypoint=entrypoint,
            config=self.config,
            document=self.document,
            instruction=self.instruction,
            verifier_dir=verifier_dir,
            oracle_dir=oracle_dir,
            verifier_document=verifier_document,
            step_verifiers=step_verifiers,
            manifest=manifest,
            profiles=self.profiles.profiles if self.profiles is not None else {},
            shared=shared,
            imported=self.imported,
            name=self._name(),
            digest=self.files.digest(shared),
            document_issues=tuple(self.issues),
            layout_issues=(*self.files.issues, *self.layout.issues),
            sandbox=sandbox,
        )

    def _definition(self) -> Entrypoint | None:
        """Read the entrypoint: `task.md` takes precedence and must agree with a split definition beside it."""
        if TASK_MD in self.files:
            self._native()
            self._twin()
            return "task.md"
        if TASK_TOML in self.files:
            self._split()
            return "legacy"
        if not self.path.is_dir():
            message = f"{self.path} {'is not a folder' if self.path.exists() else 'does not exist'}"
        elif placed := next((name for name in (TASK_MD, TASK_TOML) if self._stands_there(name)), None):
            message = f"{placed} is not a readable file, so the task has no definition"
        else:
            message = "there is neither task.md nor task.toml"
        self.issues.append(Issue("not-a-package", "error", "", message))
        return None

    def _stands_there(self, name: str) -> bool:
        """Whether the name belongs to something other than a readable file."""
        kinds = (self.files.folders, self.files.links, {issue.file for issue in self.files.issues})
        return any(name in names for names in kinds)

    def _native(self) -> None:
        data = self._bytes(TASK_MD, self.issues)
        if data is None:
            return
        sidecars = self._sidecars()
        self.document, issues = read_document(data, sidecars=sidecars, merge_profiles=self._merge_profiles)
        self.issues += issues
        self.issues += self.profiles.issues if self.profiles is not None else ()
        if self.document is not None:
            self.config = self.document.config
            self.instruction = self.document.instruction
            self.written = self.document.frontmatter

    def _merge_profiles(self, mapping: dict[str, Any], problems: IssueLog) -> dict[str, Any]:
        from benchflow.task.profiles import ProfileReader  # few packages have any

        self.profiles = ProfileReader(self.path)
        return self.profiles.merge(mapping, problems)

    def _sidecars(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if "prompts" not in self.files.folders:
            return found
        for name in self.files.below("prompts"):
            file = f"prompts/{name}"
            key = sidecar_key(name)
            if key is None:
                message = f"{file} is not a prompt file: its name is not role.NAME.md, scene.NAME.md or user-persona.md"
                self.issues.append(Issue("unused-prompt", "warning", "", message, file))
                continue
            text = self._text(file, self.issues)
            if text is not None:
                found[key] = text.strip()
        return found

    def _split(self) -> None:
        from benchflow.task.document.task_toml import read_task_toml

        text = self._text(TASK_TOML, self.issues)
        if text is not None:
            reading = read_task_toml(text)
            self.config, self.imported, self.written = reading.config, reading.compatibility, reading.data
            self.issues += reading.issues
        if INSTRUCTION in self.files:
            self.instruction = self._text(INSTRUCTION, self.issues)

    def _steps(self) -> dict[str, VerifierDocument]:
        """The verifier documents of declared steps, by name; also checks that their instructions are readable."""
        documents: dict[str, VerifierDocument] = {}
        for step in (self.config.steps if self.config is not None else None) or ():
            base = f"steps/{step.name}"
            if f"{base}/{INSTRUCTION}" in self.files:
                self._text(f"{base}/{INSTRUCTION}", self.layout.issues)
            folder = select(self.files, *(f"{base}/{name}" for name in ALIASES[0]))
            document = self._verifier(folder) if f"{folder}/{VERIFIER_MD}" in self.files else None
            if document is not None:
                documents[step.name] = document
        return documents

    def _twin(self) -> None:
        """A split definition beside `task.md` must be equivalent."""
        has_toml, has_prompt = TASK_TOML in self.files, INSTRUCTION in self.files
        if self.document is None or not (has_toml or has_prompt):
            return
        steps = bool(self.config and self.config.steps)
        if has_toml != has_prompt and not (steps and has_toml):
            missing, present = (INSTRUCTION, TASK_TOML) if has_toml else (TASK_TOML, INSTRUCTION)
            message = f"{present} exists beside task.md, but {missing} does not"
            self.layout.error("incomplete-split", f"{TASK_MD}|{present}", message)
        if has_toml:
            self._compare_config()
        if has_prompt:
            text = self._text(INSTRUCTION, self.layout.issues)
            if text is not None and normal_prompt(text) != normal_prompt(self.document.instruction):
                message = "task.md and instruction.md contain different prompts"
                self.layout.error("alias-drift", f"{TASK_MD}|{INSTRUCTION}", message)

    def _compare_config(self) -> None:
        from benchflow.task.document.task_toml import read_task_toml

        text = self._text(TASK_TOML, self.layout.issues)
        if text is None:
            return
        reading = read_task_toml(text)
        self.layout.extend(reading.issues)
        if reading.config is not None and _comparable(reading.config) != _comparable(self.config):
            message = "task.md and task.toml contain different configurations"
            self.layout.error("alias-drift", f"{TASK_MD}|{TASK_TOML}", message)

    def _verifier(self, folder: str | None) -> VerifierDocument | None:
        file = f"{folder}/{VERIFIER_MD}"
        profile = self.profiles.verifier_spec() if self.profiles is not None else {}
        if folder is None or file not in self.files:
            return self._shared_verifier(folder, profile)
        data = self._bytes(file, self.layout.issues)
        if data is None:
            return None
        document, issues = read_verifier_document(data, name=folder, file=file, profile=profile)
        self.layout.extend(issues)
        if document is not None and f"{folder}/{TASK_TOML}" in self.files:
            self._projection(document, file, f"{folder}/{TASK_TOML}")
        return document

    def _shared_verifier(self, folder: str | None, profile: dict[str, Any]) -> VerifierDocument | None:
        """A profile with strategies replaces a missing `verifier.md`."""
        if self.profiles is None or "strategies" not in profile:
            return None
        file = self.profiles.profiles["verifier-profile"].path
        document, issues = verifier_document_of_profile(profile, name=folder or "verifier", file=file)
        self.layout.extend(issues)
        return document

    def _projection(self, document: VerifierDocument, file: str, projection: str) -> None:
        """`verifier/task.toml` repeats the mapping of `verifier.md` and must be equal to it."""
        from benchflow.task.document.toml_source import parse_toml, toml_locator

        text = self._text(projection, self.layout.issues)
        if text is None:
            return
        try:
            data = parse_toml(text, file=projection)
        except PackageError as problem:
            self.layout.extend([problem.issue()])
            return
        problems = IssueLog(projection, toml_locator(text))
        root = VerifierRoot.parse({"document_version": document.document_version, **data}, "", problems)
        self.layout.extend(problems.issues)
        same = root is not None and root.verifier == document.spec
        if root is not None and not (same and root.document_version == document.document_version):
            message = f"{projection} and {file} declare different verifiers"
            self.layout.error("projection-drift", f"{file}|{projection}", message)

    def _namespace(self) -> EnvironmentManifest | None:
        """Compare the namespace with the files: assets and the manifest of services."""
        if self.document is None or not self.document.namespace.declared & _WITH_FILES:
            return None
        namespace = self.document.namespace
        problems = IssueLog(TASK_MD, lambda path: document_line(self.files, path))
        check_assets(namespace, self.files, problems)
        manifest = self._manifest(namespace.environment.manifest, problems) if namespace.environment else None
        self.layout.extend(problems.issues)
        return manifest

    def _manifest(self, written: str, problems: IssueLog) -> EnvironmentManifest | None:
        """The manifest of services, which may be beside the package and shared with others, as profiles are."""
        from benchflow.task.document.environment_manifest import read_manifest

        where = "benchflow.environment.manifest"
        try:
            found = read_beside(self.path, written, MAX_TEXT_BYTES)
        except BesideError as problem:
            code = "unsafe-path" if isinstance(problem, OutsideError) else "missing-file"
            problems.error(code, where, f"{where} '{shorten(written)}' {problem}")
            return None
        self.manifest = found
        manifest, issues = read_manifest(found.data, file=found.path)
        self.layout.extend(issues)
        return manifest

    def _shared(self) -> dict[str, str]:
        """Path -> SHA-256 of what is beside the package and belongs to it."""
        manifest = self.manifest
        own = {manifest.path: manifest.sha256} if manifest is not None and not manifest.inside else {}
        return self.profiles.hashes() | own if self.profiles is not None else own

    def _bytes(self, file: str, issues: list[Issue]) -> bytes | None:
        size = self.files.files[file].size
        if size > MAX_TEXT_BYTES:
            message = f"{file} is larger than {MAX_TEXT_BYTES >> 20} MiB"
            issues.append(Issue("too-large", "error", "", message, file))
            return None
        try:
            return self.files.read(file)
        except OSError as error:
            message = f"{file} cannot be read: {error.strerror or error}"
            issues.append(Issue("unreadable", "error", "", message, file))
            return None

    def _text(self, file: str, issues: list[Issue]) -> str | None:
        data = self._bytes(file, issues)
        try:
            return None if data is None else decode(data)
        except MarkdownError as problem:
            issues.append(Issue(problem.code, "error", "", f"{file} {problem}", file, problem.line))
            return None

    def _name(self) -> str:
        if self.config is not None and self.config.task is not None:
            return self.config.task.name
        section = self.written.get("task")
        written = section.get("name") if isinstance(section, dict) else self.written.get("name")
        return written if isinstance(written, str) and written.strip() else folder_name(self.path)


def sidecar_key(name: str) -> str | None:
    """The section that a file in `prompts/` replaces (`role.<name>.md`, …), or None."""
    stem = name.removesuffix(".md")
    if stem == name or "/" in name:
        return None
    if stem == PERSONA:
        return PERSONA
    for prefix, section in _SIDECARS.items():
        if stem.startswith(prefix) and len(stem) > len(prefix):
            return section + stem.removeprefix(prefix)
    return None


def folder_name(path: Path) -> str:
    """The name of a folder, even when given as `.` or `..`."""
    return Path(os.path.normpath(path.absolute())).name or "package"


def document_line(files: FileMap, path: str) -> int | None:
    """The line of a path in `task.md`, which is known to parse."""
    return YamlSource(split_frontmatter(decode(files.read(TASK_MD))).yaml, first_line=2).line(path)


def _comparable(config: TaskConfig | None) -> TaskConfig | None:
    """The configuration without what depends on the layout: its version, and how isolation is spelled."""
    if config is None:
        return None
    steps = tuple(step.replace(verifier=_comparable_verifier(step.verifier)) for step in config.steps or ())
    return config.replace(schema_version="", verifier=_comparable_verifier(config.verifier), steps=steps)


def _comparable_verifier(verifier: VerifierConfig) -> VerifierConfig:
    """The split layout has only one word for an isolation, `separate`."""
    mode = "separate" if verifier.wanted_isolation == "separate" else None
    return verifier.replace(isolation=None, environment_mode=mode, hardening=HardeningConfig())
