"""The result of a rollout as it is written: `result.json`, and a line of `results.jsonl`.

A result is `scored` with a reward, or `unscored` with the boundary that failed; nothing in between. The JSON schema of
the document ships with the package (`result.schema.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, Self

from benchflow.errors import Category
from benchflow.rewards.numbers import finite, shown

SCHEMA_ID: Final = "benchcube.result.v1"
SCHEMA_FILE: Final = Path(__file__).with_name("result.schema.json")

Phase = Literal["plan", "environment", "agent", "verify", "record"]
PHASES: Final[tuple[Phase, ...]] = ("plan", "environment", "agent", "verify", "record")


_NAMED: Final = frozenset(
    {
        "schema", "task", "agent", "sandbox", "attempt", "status", "reward", "rewards", "error", "verifier",
        "timing", "usage", "key", "started_at", "finished_at", "rollout",
    }
)  # fmt: skip
"""Keys of a document that are not extra."""


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Why there is no score: exactly one boundary, how it failed, in which phase."""

    category: Category
    code: str
    phase: Phase
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """One attempt of one agent at one task."""

    task: Mapping[str, Any]
    """`name`, `path`, `digest`."""
    agent: Mapping[str, Any]
    """`name`, `model`, `exit_code`, `timed_out`."""
    sandbox: Mapping[str, Any]
    """`name`, `base`, `fidelity`."""
    attempt: int
    key: str
    """What was run, by content: the same key is the same work."""
    status: Literal["scored", "unscored"]
    reward: float | None
    started_at: str
    finished_at: str
    rewards: Mapping[str, float] = field(default_factory=dict)
    error: ErrorRecord | None = None
    verifier: Mapping[str, Any] | None = None
    """`strategy`, `isolation`, `exit_code`, `diagnostics`, …"""
    timing: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What a mode adds: `steps`, `branches`, `artifacts`."""

    def __post_init__(self) -> None:
        if (self.status == "scored") != (self.reward is not None) or (self.status == "scored") == (
            self.error is not None
        ):
            raise ValueError("A result has a reward exactly when it is scored, and an error exactly when it is not.")
        for name, value in (("reward", self.reward), *self.rewards.items()):
            if value is not None and finite(value) is None:
                raise ValueError(f"A reward is a finite number, and {name} is {shown(value)}.")

    def to_dict(self) -> dict[str, Any]:
        """The document, in the order people read it."""
        error = self.error
        return {
            "schema": SCHEMA_ID,
            "task": dict(self.task),
            "agent": dict(self.agent),
            "sandbox": dict(self.sandbox),
            "attempt": self.attempt,
            "status": self.status,
            "reward": self.reward,
            "rewards": dict(self.rewards),
            "error": None
            if error is None
            else {"category": error.category, "code": error.code, "phase": error.phase, "message": error.message},
            "verifier": None if self.verifier is None else dict(self.verifier),
            "timing": {name: round(seconds, 6) for name, seconds in self.timing.items()},
            "usage": {name: value for name, value in self.usage.items() if isfinite(value)},
            **self.extra,
            "key": self.key,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The result of a document; raises `ValueError` when it is not one."""
        if data.get("schema") != SCHEMA_ID:
            raise ValueError(f"not a {SCHEMA_ID} document: schema is {data.get('schema')!r}")
        try:
            error = data["error"]
            return cls(
                task=data["task"],
                agent=data["agent"],
                sandbox=data["sandbox"],
                attempt=data["attempt"],
                key=data["key"],
                status=data["status"],
                reward=data["reward"],
                rewards=data["rewards"],
                error=None if error is None else ErrorRecord(**error),
                verifier=data["verifier"],
                timing=data["timing"],
                usage=data["usage"],
                extra={name: value for name, value in data.items() if name not in _NAMED},
                started_at=data["started_at"],
                finished_at=data["finished_at"],
            )
        except (KeyError, TypeError) as problem:
            raise ValueError(f"not a complete {SCHEMA_ID} document: {problem}") from problem


def result_schema() -> dict[str, Any]:
    """The JSON schema of `result.json`."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema
