"""Shared configuration of a benchmark: `environment-profile`, `agent-profile`, `verifier-profile`.

A profile is a YAML mapping that packages reference by a path relative to the package, inside the folder that contains
the package. It provides defaults for the package's own keys, is listed in the runtime view and counts in the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchflow.errors import Issue
from benchflow.task.beside import BesideError, OutsideError, read_beside
from benchflow.task.config.interaction import Agents
from benchflow.task.config.namespace import PROFILE_KEYS, DocumentRoot
from benchflow.task.config.parsed_record import FrozenMap, IssueLog, Record, report_unknown
from benchflow.task.config.task_config import AgentConfig, EnvironmentConfig, VerifierConfig
from benchflow.task.document.markdown import MarkdownError, decode
from benchflow.task.document.merging import merge_below
from benchflow.task.document.yaml_source import MAX_CHARS, YamlError, YamlSource
from benchflow.task.verifier.verifier_document import VerifierSpec

_LATER: Final = frozenset({"missing-key", "conflicting-keys", "unknown-strategy", "unknown-role"})
"""Codes that can only be decided for the merged result."""


class Profile(NamedTuple):
    """One profile as it was read."""

    key: str
    path: str
    """Relative to the package, as written."""
    sha256: str
    mapping: Mapping[str, Any]
    """Under canonical names."""
    inside: bool
    """Whether it is inside the package, and so counted with its files."""


class ProfileReader:
    """Finds, reads and merges the profiles of one package; `issues` are those of the profile files."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.profiles: dict[str, Profile] = {}
        self.issues: list[Issue] = []

    def merge(self, mapping: dict[str, Any], problems: IssueLog) -> dict[str, Any]:
        """The frontmatter, with its profiles as defaults."""
        for key in PROFILE_KEYS:
            written = mapping.get(key)
            if isinstance(written, str) and written.strip():
                profile = self._read(key, written, problems)
                if profile is not None:
                    self.profiles[key] = profile
                    mapping = merge_below(DocumentRoot, _sections(profile), mapping)
        return mapping

    def verifier_spec(self) -> dict[str, Any]:
        """What the verifier profile provides for `verifier/verifier.md`."""
        profile = self.profiles.get("verifier-profile")
        return {k: v for k, v in profile.mapping.items() if k in VerifierSpec.KEYS} if profile else {}

    def hashes(self) -> dict[str, str]:
        """Path -> SHA-256 of the profiles outside the package."""
        return {profile.path: profile.sha256 for profile in self.profiles.values() if not profile.inside}

    def _read(self, key: str, written: str, problems: IssueLog) -> Profile | None:
        try:
            if written.startswith("/"):
                raise OutsideError("is outside the folder that contains the package")
            found = read_beside(self.package, written, MAX_CHARS * 4)
        except BesideError as problem:
            code = "profile-outside" if isinstance(problem, OutsideError) else "profile-missing"
            code = "unsafe-path" if "\0" in written else code
            problems.error(code, key, f"{key} '{written}' {problem}")
            return None
        mapping = self._parse(key, written, found.data)
        if mapping is None:
            return None
        return Profile(key, written, found.sha256, FrozenMap(mapping), found.inside)

    def _parse(self, key: str, written: str, data: bytes) -> dict[str, Any] | None:
        problems = IssueLog(written)
        try:
            source = YamlSource(decode(data))
        except (MarkdownError, YamlError) as problem:
            problems.error(problem.code, problem.path, f"{written} {problem}", line=problem.line)
            self.issues += problems.issues
            return None
        if not isinstance(source.value, dict):
            problems.error("not-a-mapping", "", f"{written} must be a mapping", line=1)
            self.issues += problems.issues
            return None
        problems = IssueLog(written, source.line)
        canonical = _canonical(key, source.value, problems)
        found = [issue for issue in problems.issues if issue.code not in _LATER]
        self.issues += found
        return None if any(issue.severity == "error" for issue in found) else canonical


def _canonical(key: str, mapping: dict[str, Any], problems: IssueLog) -> dict[str, Any]:
    """A profile under canonical names, checked against the sections it provides."""
    if key == "environment-profile":
        return _declared(EnvironmentConfig, mapping, "", problems)
    if key == "agent-profile":
        if mapping.keys() <= {"agent", "agents"} and mapping:
            flat = {**_part(mapping, "agent", problems), **_part(mapping, "agents", problems)}
        else:
            flat = mapping
        return _two(AgentConfig, Agents, flat, problems)
    return _two(VerifierConfig, VerifierSpec, mapping, problems)


def _part(mapping: Mapping[str, Any], key: str, problems: IssueLog) -> dict[str, Any]:
    part = mapping.get(key) or {}
    if isinstance(part, dict):
        return part
    problems.error("invalid-type", key, f"{key} must be a mapping")
    return {}


def _two(first: type[Record], second: type[Record], mapping: dict[str, Any], problems: IssueLog) -> dict[str, Any]:
    mine = {key: value for key, value in mapping.items() if key in first.KEYS}
    other = {key: value for key, value in mapping.items() if key in second.KEYS and key not in mine}
    for key in mapping.keys() - mine.keys() - other.keys():
        report_unknown(first, key, key, problems)
    second.parse(other, "", problems)
    return {**_declared(first, mine, "", problems), **other}


def _declared(model: type[Record], mapping: dict[str, Any], path: str, problems: IssueLog) -> dict[str, Any]:
    record = model.parse(mapping, path, problems)
    return record.to_declared_dict() if record is not None else {}


def _sections(profile: Profile) -> dict[str, Any]:
    """A profile as root keys of a document."""
    mapping = profile.mapping
    if profile.key == "environment-profile":
        return {"environment": dict(mapping)}
    if profile.key == "verifier-profile":
        return {"verifier": {key: value for key, value in mapping.items() if key in VerifierConfig.KEYS}}
    agent = {key: value for key, value in mapping.items() if key in AgentConfig.KEYS}
    agents = {key: value for key, value in mapping.items() if key in Agents.KEYS}
    return {**({"agent": agent} if agent else {}), **({"agents": agents} if agents else {})}
