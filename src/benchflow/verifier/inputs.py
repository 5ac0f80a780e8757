"""Declared evidence: files of the rollout, or of the agent's sandbox as the verifier may see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, PackageError, SandboxFailure, VerifierFailure
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.rewards import RewardItem, Scored
from benchflow.sandbox.protocol import OF_THE_FILE
from benchflow.verifier.strategy_run import Run
from benchflow.verifier.surviving.survival import REASONS, SCOPE, below

ARTIFACTS: Final = ("/logs/artifacts", "/artifacts")
"""The logs and records that the agent has to write."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """One deliverable that was expected of the agent."""

    path: str
    reason: str
    """In a sentence."""


class NotDelivered(Exception):
    """The agent delivered nothing to judge; `verdict` says so. Not a failure of the verifier."""

    def __init__(self, missing: Iterable[Undelivered], criteria: Iterable[str] = ()) -> None:
        """`criteria` are those that would have been judged."""
        self.missing = tuple(missing)
        self.criteria = tuple(criteria)
        super().__init__(" ".join(item.reason for item in self.missing[:5]))

    def verdict(self, run: Run) -> Scored:
        """Reward 0, an item of 0 for every criterion, and why."""
        reason = str(self)
        source = {"source": run.strategy.type, "strategy": run.name}
        details: dict[str, Any] = {**source, "not_delivered": [asdict(item) for item in self.missing]}
        document: dict[str, Any] = {"reward": 0.0, "reason": reason, "metadata": source}
        if self.criteria:
            document["metrics"] = dict.fromkeys(self.criteria, 0.0)
        return Scored(
            0.0,
            metrics=dict.fromkeys(self.criteria, 0.0),
            items=tuple(RewardItem(name, 0.0, reason=reason) for name in self.criteria),
            document=document,
            details=details,
            diagnostics=(Issue("not-delivered", "warning", "", reason),),
        )


def is_deliverable(path: str) -> bool:
    """Whether the agent has to deliver a path: in its box yes, in records of the run only artifacts."""
    absolute = path if path.startswith("/") else f"/{path}"
    return below(absolute, *ARTIFACTS) or (path.startswith("/") and not below(path, "/logs"))


def undelivered(run: Run, path: str, error: SandboxFailure) -> Undelivered:
    """Why a path of a box could not be read; raises `error` again unless it concerns the content of the path."""
    if error.code not in OF_THE_FILE:
        raise error
    kept_back = next((item for item in run.findings.withheld if below(path, item.path)), None)
    if kept_back is not None:
        return Undelivered(path, f"{path} was not carried over: {kept_back.path} {REASONS[kept_back.reason]}.")
    return Undelivered(path, f"{path} was not delivered: {str(error).rstrip('.')}.")


MAX_BYTES: Final = 16 << 20
MAX_FOLDER_BYTES: Final = 64 << 20
MAX_FOLDER_FILES: Final = 10_000
_LOGS: Final = "/logs/"


@dataclass(frozen=True, slots=True)
class Input:
    """One piece of declared evidence."""

    path: str
    """The path as declared."""
    data: bytes


async def gather(run: Run, paths: Iterable[str]) -> list[Input]:
    """Every declared input.

    Relative paths and those below `/logs` are read from the rollout's folder, others from the sandbox. A path that the
    agent had to deliver and that is not a plain file within the size limit raises `NotDelivered`; a missing path that
    others had to provide is a `VerifierFailure`.
    """
    found: dict[str, bytes] = {}
    inside: list[str] = []
    missing: list[Undelivered] = []
    wanted = list(paths)
    for path in wanted:
        if below(path, *SCOPE):
            message = f"The input {path} belongs to the verifier or the oracle and is not evidence of the agent's work."
            raise PackageError(message, code="unsafe-input", path="inputs")
        local = _in_rollout(run, path)
        try:
            if local is not None:
                found[path] = _read(run.rollout or local.parent, local, path)
            elif path.startswith("/"):
                inside.append(path)
            else:
                raise VerifierFailure(
                    f"The input {path} is not part of this rollout.", code="input-missing", path="inputs"
                )
        except VerifierFailure as error:
            if not is_deliverable(path):
                raise
            missing.append(Undelivered(path, f"{path} was not delivered: {error}"))
    if inside:
        async with run.box() as box:
            for path in inside:
                try:
                    found[path] = await box.sandbox.read_file(path, max_bytes=MAX_BYTES)
                except SandboxFailure as error:
                    missing.append(_missing(run, path, error))
    if missing:
        raise NotDelivered(missing)
    return [Input(path, found[path]) for path in wanted]


async def gather_folders(run: Run, paths: Iterable[str], target: Path) -> None:
    """Copy folders of the agent's box below `target`, each at its own path; links that leave them are refused.

    One that is missing or cannot be copied raises `NotDelivered`.
    """
    wanted = list(paths)
    if not wanted:
        return
    missing: list[Undelivered] = []
    async with run.box() as box:
        for path in wanted:
            if not path.startswith("/") or below(path.rstrip("/") or "/", *SCOPE, "/logs") or path.strip("/") == "":
                message = (
                    f"The input {path} must be the absolute path of a folder in the agent's sandbox, outside /logs."
                )
                raise PackageError(message, code="unsafe-input", path="inputs")
            place = target / path.strip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                await box.sandbox.download(
                    path.rstrip("/"), place, max_bytes=MAX_FOLDER_BYTES, max_files=MAX_FOLDER_FILES
                )
            except SandboxFailure as error:
                missing.append(undelivered(run, path, error))
    if missing:
        raise NotDelivered(missing)


def _missing(run: Run, path: str, error: SandboxFailure) -> Undelivered:
    problem = undelivered(run, path, error)
    if is_deliverable(path):
        return problem
    raise VerifierFailure(f"The input {path}: {error}", code="input-missing", path="inputs") from error


def _in_rollout(run: Run, path: str) -> Path | None:
    if run.rollout is None or (path.startswith("/") and not path.startswith(_LOGS)):
        return None
    candidate = run.rollout / path.removeprefix(_LOGS)
    return candidate if candidate.exists() or candidate.is_symlink() else None


def _read(root: Path, file: Path, path: str) -> bytes:
    """A file of the rollout; no link may point outside it."""
    if not file.resolve().is_relative_to(root.resolve()):
        raise VerifierFailure(f"The input {path} is outside the rollout.", code="input-invalid", path="inputs")
    try:
        return read_regular(file, max_bytes=MAX_BYTES)
    except RefusedFileError as error:
        raise VerifierFailure(f"The input {path} {error}.", code="input-invalid", path="inputs") from error
