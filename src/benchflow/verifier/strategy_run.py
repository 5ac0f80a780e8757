"""The input of a strategy: one verification of one scope, with access to boxes, inputs and other strategies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchflow.environment import Environment
from benchflow.rewards import Verdict
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.verifier.declared_strategies import Strategy
from benchflow.verifier.boxes import Box, BoxMaker, Findings
from benchflow.verifier.scope import Scope, VerifierVariables

Score = Callable[["Run"], Awaitable[Verdict]]
"""A strategy: returns a verdict, or raises an error of the tree that attributes the failure."""

Again = Callable[[str, Path, Sandbox | None], Awaitable[Verdict]]
"""Score by another strategy of the same verifier into a folder, on this sandbox or another."""


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy at work."""

    name: str
    """Its name in the verifier document."""
    strategy: Strategy
    scope: Scope
    output: Path
    """An empty host folder that becomes the record of the verification."""
    environment: Environment
    sandbox: Sandbox
    """The agent's sandbox; access it through `box` only."""
    findings: Findings
    variables: VerifierVariables
    maker: BoxMaker = field(repr=False)
    machine: Mapping[str, str] = field(repr=False)
    again: Again = field(repr=False)
    rollout: Path | None = None
    """The folder of the rollout, where declared evidence is."""
    cache: Path | None = None
    """The folder of cached baseline and ceiling scores; default: a folder of the user's cache."""

    def box(self, extra: dict[str, bytes] | None = None) -> AbstractAsyncContextManager[Box]:
        """A box in verifier scope for the length of a block."""
        return self.maker.open(extra)
