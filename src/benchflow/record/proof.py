"""A proof of isolation: what the verifications of an oracle's state showed, and for which content and environment.

Proofs are kept as files, `<folder>/<content digest>/<key>.json`, each written atomically. One that is damaged, or that
is of another key, does not exist for a reader.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchflow.files.atomic import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.codec import plain, read
from benchflow.record.result import Rung

PROOF_SCHEMA: Final = "benchcube.proof.v1"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ProofKey:
    """What a proof depends on."""

    content_digest: str
    environment: str
    """The digest of the image, or of the machine's own programs."""
    sandbox: str
    rules: str
    """The version of the rules of isolation."""
    steps: tuple[str | None, ...]
    """The steps whose isolation is proven; one without a name for a task without steps."""

    def place(self, folder: Path) -> Path:
        """The file of its proof."""
        return proofs_of(folder, self.content_digest) / f"{_sha256(plain(self))}.json"


@dataclass(frozen=True, slots=True)
class RungOutcome:
    """One verification of the state that an oracle run left."""

    run: int
    """The number of the oracle run, from 1."""
    rung: Rung
    reward: float | None
    """None if it was not scored."""


@dataclass(frozen=True, slots=True)
class StepProof:
    """The strictest rung at which the oracle's state of a step, or of the task, scores full."""

    step: str | None
    rung: Rung
    full: float
    outcomes: tuple[RungOutcome, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven of a package in an environment."""

    key: ProofKey
    steps: tuple[StepProof, ...]
    proven_at: str
    """ISO 8601, UTC."""

    @property
    def digest(self) -> str:
        """Of everything but the time."""
        return f"sha256:{_sha256([plain(self.key), plain(self.steps)])}"


@cache
def rules() -> str:
    """The version of the rules of isolation: a digest of the code that follows them, found without importing it."""
    spec = importlib.util.find_spec("benchflow.verifier")
    found = hashlib.sha256()
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        files = (path for path in Path(place).rglob("*") if path.is_file() and path.parent.name != "__pycache__")
        for path in sorted(files):
            found.update(path.relative_to(place).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def proofs_of(folder: Path, content_digest: str) -> Path:
    """The folder with the proofs of a package's content."""
    return folder / content_digest.removeprefix("sha256:")


def recall_proof(folder: Path, key: ProofKey) -> Proof | None:
    """The proof for exactly this key, if there is one."""
    place = key.place(folder)
    proof = _read(place)
    if proof is None or proof.key != key:
        return None
    with contextlib.suppress(OSError):  # `bench cache prune` goes by the last use
        os.utime(place)
    return proof


def remember_proof(folder: Path, proof: Proof) -> None:
    """Keep a proof; raises `OSError` if nothing can be written."""
    place = proof.key.place(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, json.dumps({"schema": PROOF_SCHEMA, **plain(proof)}))


def list_proofs(folder: Path, content_digest: str) -> Iterator[Proof]:
    """All proofs of a package's content, in any environment and by any rules."""
    for place in sorted(proofs_of(folder, content_digest).glob("*.json")):
        proof = _read(place)
        if proof is not None and proof.key.content_digest == content_digest:
            yield proof


def _read(place: Path) -> Proof | None:
    try:
        document = parse_json(read_regular(place, max_bytes=_MAX_BYTES))
        if not isinstance(document, dict) or document.pop("schema", None) != PROOF_SCHEMA:
            return None
        return read(Proof, document)
    except (OSError, RefusedFileError, StrictJSONError, ValueError):
        return None


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
