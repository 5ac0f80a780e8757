"""The result of a rollout: `result.json`, and a line of `results.jsonl`, which adds the name of the rollout's folder.

Every part has a type. A field without a default is always written, one with a default only if it differs from it. The
JSON schema of the document is made from these types (`schemas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final, Literal, Self, get_args

from benchflow.errors import Category, Issue
from benchflow.record.arena_record import ArenaPart
from benchflow.record.codec import FLAT, plain, read
from benchflow.record.identity import TaskId, WorkKey
from benchflow.record.outcome import HasOutcome, Outcome, PartOutcome, Status

RESULT_SCHEMA: Final = "benchcube.result.v2"

Rung = Literal["separate", "shared", "system", "services", "open"]
_RUNGS: Final[tuple[Rung, ...]] = get_args(Rung)
Fidelity = Literal["exact", "built", "substituted"]


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Which task."""

    name: str
    path: str
    """As given by the caller."""
    digest: str | None
    """Of every file of the package."""
    content_digest: str | None
    """The same without evidence."""
    ordinal: int = 1

    @property
    def id(self) -> TaskId:
        return TaskId(self.name, self.content_digest, self.ordinal)


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How an agent ended."""

    exit_code: int | None
    timed_out: bool
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPart:
    """Who worked, and how it ended."""

    name: str
    model: str | None
    exit_code: int | None
    timed_out: bool
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxPart:
    """Where it ran."""

    name: str | None
    base: str | None
    fidelity: Fidelity | None
    """`exact`: the image that the package names, or the machine where it names none; `built`: from its Dockerfile;
    `substituted`: on another image."""
    base_digest: str | None = None
    """The digest by which a registry knows the base image: `BASE@DIGEST` is that very image."""
    instead_of: tuple[str, ...] = ()
    """Of a substitute: the images that the package names."""
    lacks: tuple[str, ...] = ()
    """What the substitute does not have of them, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the verifier saw of the agent's changes, and who decided that."""

    rung: Rung
    chosen_by: Literal["declared", "user", "proof", "default"]
    proof: str | None
    """The digest of the proof, where one decided."""

    @property
    def keeps_system(self) -> bool:
        """Whether the verifier sees what the agent changed outside its working folder."""
        return self.rung in ("system", "services", "open")

    @property
    def keeps_processes(self) -> bool:
        """Whether the agent's processes keep running during verification."""
        return self.rung in ("services", "open")


@dataclass(frozen=True, slots=True)
class WiderCheck:
    """What the same work scores at the next wider rung, where it scored below full and changes were withheld. It is
    never the reward."""

    rung: Rung
    reward: float | None
    """None if that verification was not scored."""


@dataclass(frozen=True, slots=True)
class WithheldChange:
    """A change of the agent that the verifier did not see, including everything below it."""

    path: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class NotCarriedOver:
    """How many changes the verifier did not see, and the first of them."""

    total: int
    changes: tuple[WithheldChange, ...]


@dataclass(frozen=True, slots=True)
class VerifierPart:
    """How the verdict was reached."""

    strategy: str
    """The type of the strategy."""
    name: str
    isolation: Isolation
    exit_code: int | None
    diagnostics: tuple[Issue, ...]
    opt_outs: tuple[str, ...]
    not_carried_over: NotCarriedOver
    wider: WiderCheck | None = None


@dataclass(frozen=True, slots=True)
class StepVerifier:
    """How the verdict on a step was reached."""

    strategy: str
    exit_code: int | None
    isolation: Isolation | None = None
    """None in records of versions that did not write it."""
    wider: WiderCheck | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """The outcome for one declared path."""

    source: str
    destination: str
    status: Literal["collected", "missing", "refused", "skipped"]
    files: int | None = None
    bytes: int | None = None
    reason: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(HasOutcome):
    """One step of a multi-step task."""

    name: str
    outcome: PartOutcome = field(metadata=FLAT)
    passed: bool | None = None
    """Whether `min_reward` was reached; None without one."""
    agent: AgentEnd | None = None
    verifier: StepVerifier | None = None
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchOption:
    """The answer that starts a branch."""

    id: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord(HasOutcome):
    """One way a rollout went, or could have gone; its own folder is `branches/<id>`."""

    id: str
    parent: str
    """The line of work it leaves, `main` or a branch."""
    round: int
    request: str
    option: BranchOption
    outcome: PartOutcome = field(metadata=FLAT)
    step: str | None = None
    agent: AgentEnd | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """Whether what the agent left was kept, and how much of it, or why not."""

    kept: bool
    reason: str | None = None
    entries: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ToolAudit:
    """What the trajectory and the model calls prove about the tools that were called."""

    forbidden_tool_calls: Mapping[str, int]
    passed: bool
    removed_tools: Mapping[str, int] = field(default_factory=dict)
    """Forbidden tools of providers that the gateway took out, and of how many requests."""
    offered_tools: Mapping[str, int] = field(default_factory=dict)
    """Forbidden tools of providers that were in requests as they were sent, and in how many."""


@dataclass(frozen=True, slots=True)
class CleanupFailure:
    """Something that could not be ended after the verdict, which stands."""

    what: str
    category: Category
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class EarlierScore:
    """What a rollout was scored before it was scored again."""

    status: Status
    reward: float | None


@dataclass(frozen=True, slots=True)
class RescoreNote:
    """The verifier that rescored a kept workspace, and where the new verdict is."""

    verifier_digest: str
    package_digest: str | None
    changed: tuple[str, ...] = ()
    """Parts of the package, beside its verifier, that differ from when the rollout was made."""
    pass_number: int | None = None
    """The pass of `bench eval rescore`; None where a job scored it again by itself."""
    key: WorkKey | None = None
    """What the work would be now; None when more than the verifier has changed."""
    number: int | None = None
    folder: str | None = None
    at: str | None = None
    before: EarlierScore | None = None


@dataclass(frozen=True, slots=True)
class NodeNote:
    """The machine of a cluster that it ran on. Its own clock gave all times of the rollout."""

    name: str
    clock_offset_sec: float | None = None
    """How far that clock was ahead of the driver's, where the difference matters."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What besides the verdict is known of a rollout."""

    branches: tuple[BranchRecord, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    workspace: Workspace | None = None
    audit: ToolAudit | None = None
    rescore: RescoreNote | None = None
    cleanup: tuple[CleanupFailure, ...] = ()
    node: NodeNote | None = None
    """None: it ran where the job did."""
    limits_reached: tuple[str, ...] = ()
    """Limits that the agent ran into: `processes` of the sandbox; `max_calls`, `max_tokens`, `max_cost`,
    `max_model_time` on its calls of models, with `job` in front where the limit is that of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(HasOutcome):
    """One attempt of one agent at one task."""

    task: TaskPart
    agent: AgentPart
    sandbox: SandboxPart
    attempt: int
    outcome: Outcome = field(metadata=FLAT)
    verifier: VerifierPart | None
    timing: Mapping[str, float]
    """Seconds by phase, and `total`."""
    usage: Mapping[str, float]
    steps: tuple[StepRecord, ...] = ()
    arena: ArenaPart | None = None
    """Of a package whose agents are live peers."""
    notes: Notes = field(default=Notes(), metadata=FLAT)
    key: WorkKey
    started_at: str
    finished_at: str

    def __post_init__(self) -> None:
        if self.attempt < 1:
            raise ValueError(f"attempt: attempts count from 1, and this is {self.attempt}")

    @property
    def rung(self) -> Rung | None:
        """The isolation of its verification, of several steps the most open one; None if nothing was verified."""
        seen = [step.verifier.isolation for step in self.steps if step.verifier is not None]
        if self.verifier is not None:
            seen.append(self.verifier.isolation)
        found = [isolation.rung for isolation in seen if isolation is not None]
        return max(found, key=_RUNGS.index) if len(found) > 1 else found[0] if found else None

    @property
    def wider(self) -> tuple[tuple[float | None, WiderCheck], ...]:
        """The rewards that were checked at a wider rung too, each with that check."""
        steps = [(step.reward, step.verifier.wider) for step in self.steps if step.verifier is not None]
        whole = [(self.reward, self.verifier.wider)] if self.verifier is not None and not self.steps else []
        return tuple((reward, check) for reward, check in (*steps, *whole) if check is not None)

    def to_dict(self) -> dict[str, Any]:
        """The document, in the order people read it."""
        document = {"schema": RESULT_SCHEMA, **plain(self)}
        document["timing"] = {name: round(seconds, 6) for name, seconds in self.timing.items()}
        document["usage"] = {name: value for name, value in self.usage.items() if isfinite(value)}
        return document

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """The result of a document, also of an older schema; raises `ValueError` when it is not one."""
        if not isinstance(document, dict):
            raise ValueError(f"not a {RESULT_SCHEMA} document")
        if document.get("schema") != RESULT_SCHEMA:
            from benchflow.record.version1 import upgraded_result

            document = upgraded_result(document, RESULT_SCHEMA)
        return read(cls, document)
