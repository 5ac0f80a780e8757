"""Declared assets against the files that are there: visibility, presence and pins."""

from __future__ import annotations

import re
from typing import Final

from benchflow.task.config.issues import IssueLog
from benchflow.task.config.namespace import Asset, Namespace
from benchflow.task.filemap import FileMap, digest_of

HIDDEN: Final = frozenset({"hidden_verifier", "hidden_oracle", "runtime_secret", "evidence_only"})
AGENT_FOLDERS: Final = ("environment", "prompts")
HIDDEN_FOLDERS: Final = ("verifier", "tests", "oracle", "solution", "evidence")
_STEP_WORKDIR: Final = re.compile(r"steps/[^/]+/(workdir|instruction\.md)(/|$)")
_ELSEWHERE: Final = frozenset({"external_dataset", "runtime_secret"})
"""Visibilities whose content need not be part of the package."""


def check_assets(namespace: Namespace, files: FileMap, problems: IssueLog) -> None:
    """Hidden assets must lie where the agent never looks, pinned ones must be what they were."""
    seen_by_agent = [
        *AGENT_FOLDERS,
        *(asset.path for asset in namespace.assets if asset.visibility == "agent"),
    ]
    for index, asset in enumerate(namespace.assets):
        path = f"benchflow.assets[{index}]"
        _check_visibility(asset, path, seen_by_agent, problems)
        _check_presence(asset, path, files, problems)
    for index, image in enumerate(namespace.provenance.images if namespace.provenance else ()):
        source = image.build_source
        if source is not None and source.sha256 is not None:
            path = f"benchflow.provenance.images[{index}].build_source"
            _check_pin(source.path, source.sha256, path, files, problems)


def _check_visibility(asset: Asset, path: str, seen_by_agent: list[str], problems: IssueLog) -> None:
    where = f"{path}.visibility"
    if asset.visibility in HIDDEN:
        exposed = next((seen for seen in seen_by_agent if _overlap(asset.path, seen)), None)
        if exposed is None and _STEP_WORKDIR.match(asset.path):
            exposed = "the working folder of a step"
        if exposed is not None:
            message = f"{asset.path} is {asset.visibility}, but lies in {exposed}, which the agent sees"
            problems.error("exposed-asset", where, message)
        elif asset.mount_phase in ("agent", "environment"):
            message = f"{asset.path} is {asset.visibility}, but is mounted for the {asset.mount_phase} phase"
            problems.error("exposed-asset", f"{path}.mount_phase", message)
    elif asset.visibility == "agent":
        hidden = next((folder for folder in HIDDEN_FOLDERS if _within(asset.path, folder)), None)
        if hidden is not None:
            message = f"{asset.path} is meant for the agent, but lies in {hidden}/, which the agent never sees"
            problems.error("exposed-asset", where, message)


def _check_presence(asset: Asset, path: str, files: FileMap, problems: IssueLog) -> None:
    if asset.path in files or asset.path in files.folders:
        if asset.sha256 is not None:
            _check_pin(asset.path, asset.sha256, path, files, problems)
    elif not asset.generated and asset.visibility not in _ELSEWHERE:
        problems.error("missing-asset", f"{path}.path", f"the asset {asset.path} is not in the package")


def _check_pin(file: str, pinned: str, path: str, files: FileMap, problems: IssueLog) -> None:
    actual = content_hash(files, file)
    if actual is None:
        problems.error("missing-asset", f"{path}.path", f"{file} is pinned, but not in the package")
    elif actual != pinned:
        problems.error("pin-mismatch", f"{path}.sha256", f"{file} has the SHA-256 {actual}, not the pinned {pinned}")


def content_hash(files: FileMap, path: str) -> str | None:
    """What a pin of a file or folder holds; a folder's is the digest of its file map."""
    if path in files:
        return files.files[path].sha256
    if path in files.folders:
        return digest_of(files.hashes(path)).removeprefix("sha256:")
    return None


def _overlap(path: str, other: str) -> bool:
    return _within(path, other) or _within(other, path)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
