"""`leaderboard.json`: what a leaderboard file claims about jobs, typed, with its only text and its reader.

Everything in it but the signature follows from the parts of the file that it lists, so a stranger computes it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from benchflow.files.strict_json import parse_json
from benchflow.record.codec import plain, read
from benchflow.record.identity import Settings, WorkKey
from benchflow.record.outcome import Status
from benchflow.record.result import Isolation, SandboxPart
from benchflow.record.summaries.estimates import Estimate
from benchflow.record.summaries.job_summary import Statistics

LEADERBOARD_SCHEMA: Final = "benchcube.leaderboard.v1"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One part of the file."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task of a job, and how often it was attempted."""

    name: str
    content_digest: str | None
    attempts: int
    ordinal: int = 1


@dataclass(frozen=True, slots=True)
class ListedRollout:
    """A result that counts, with the hashes of what it rests on."""

    rollout: str
    task: str
    content_digest: str | None
    attempt: int
    key: WorkKey
    status: Status
    reward: float | None
    sandbox: SandboxPart
    isolation: Isolation | None
    result: str | None
    """SHA-256 of the result document of the newest verdict."""
    trajectory: str | None
    workspaces: Mapping[str, str]
    """SHA-256 of each kept workspace, by its path below the rollout."""
    verdict: str | None
    """One digest of everything that the verifier left; None if it left nothing."""
    ordinal: int = 1


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A result that does not count, and why."""

    rollout: str
    task: str
    content_digest: str | None
    attempt: int
    key: WorkKey
    status: Status
    reward: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One agent with one model on all tasks."""

    name: str
    agent: str
    model: str | None
    settings: Settings
    settings_digest: str
    """Of the settings as they were; a path of the machine in them is not published."""
    attempts: int
    """Per task."""
    planned: int
    marks: tuple[str, ...]
    """What a reader has to know before comparing: overrides, open verification, reference agents, missing scores."""
    tasks: tuple[ListedTask, ...]
    rollouts: tuple[ListedRollout, ...]
    left_out: tuple[LeftOut, ...]
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class ListedComparison:
    """The difference of two jobs, paired by task."""

    first: str
    second: str
    difference: Estimate
    """Mean reward of the second minus that of the first, over the tasks that both have scored."""
    verdict: str


@dataclass(frozen=True, slots=True)
class BoardSignature:
    """An Ed25519 signature of the text without it."""

    public_key: str
    """Hexadecimal."""
    value: str


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The index of a leaderboard file."""

    jobs: tuple[ListedJob, ...]
    comparisons: tuple[ListedComparison, ...]
    files: tuple[ListedFile, ...]
    signature: BoardSignature | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": LEADERBOARD_SCHEMA, **plain(self)}

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """The leaderboard of a document; raises `ValueError` when it is not one."""
        if not isinstance(document, dict) or document.get("schema") != LEADERBOARD_SCHEMA:
            raise ValueError(f"it is not a document of the schema {LEADERBOARD_SCHEMA}")
        return read(cls, document)

    def render(self) -> bytes:
        """The one text of this leaderboard."""
        return (json.dumps(self.to_dict(), indent=1, ensure_ascii=True) + "\n").encode()

    def signed_text(self) -> bytes:
        """What a signature covers."""
        return replace(self, signature=None).render()


def read_leaderboard(text: bytes) -> Leaderboard:
    """The leaderboard in a text; raises `ValueError` for any that `render` would not write."""
    board = Leaderboard.from_dict(parse_json(text))
    if board.render() != text:
        raise ValueError("it has keys, or a spelling, that this version does not write")
    return board
