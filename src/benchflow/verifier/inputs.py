"""Declared evidence: files of the rollout, or of the agent's sandbox as the verifier may see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow.errors import PackageError, SandboxFailure, VerifierFailure
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.verifier.delivery import NotDelivered, Undelivered, is_deliverable, undelivered
from benchflow.verifier.strategy_run import Run
from benchflow.verifier.survival import SCOPE, below

MAX_BYTES: Final = 16 << 20
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
