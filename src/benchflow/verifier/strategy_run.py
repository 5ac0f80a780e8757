"""One strategy at work: its input, the function that scores by its type, and the outputs that the document declares.

A `Run` is one verification of one scope, with access to boxes, inputs and other strategies. The outputs are how metrics
become one reward, and what else is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from benchflow.environment import Environment
from benchflow.errors import BenchflowError, EnvironmentFailure, Issue, SandboxFailure
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.plugins import STRATEGIES
from benchflow.rewards import AggregatePolicy, RewardError, Verdict, parse_policy
from benchflow.rewards.reward_files import MAX_BYTES, REWARD_JSON
from benchflow.sandbox.protocol import ExecResult, Sandbox
from benchflow.task.verifier.declared_strategies import Strategy
from benchflow.verifier.boxes import MAX_LOG_BYTES, Box, BoxMaker, Findings
from benchflow.verifier.scope import LOGS, Scope, VerifierVariables
from benchflow.verifier.surviving.path_patterns import is_pattern, matches

if TYPE_CHECKING:
    from benchflow.agents.running import Installations
    from benchflow.models.gateway import Access

Score = Callable[["Run"], Awaitable[Verdict]]
"""A strategy: returns a verdict, or raises an error of the tree that attributes the failure."""

Again = Callable[[str, Path, Sandbox | None], Awaitable[Verdict]]
"""Score by another strategy of the same verifier into a folder, on this sandbox or another."""
INSTALL_FAILED: Final = "It could not install its dependencies; see test-stdout.txt."
_INSTALL_MARKS: Final = (
    "dependency install failed", "failed to download `", "failed to fetch:", "error sending request for url",
    "failed to lookup address information", "no solution found", "could not find a version", "resolution impossible",
)  # fmt: skip


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
    models: Access | None = field(default=None, repr=False)
    """Where calls of judges are recorded and counted."""
    assess: Score | None = field(default=None, repr=False)
    """Plays the game of an arena, while its participants are there."""
    installations: Installations | None = field(default=None, repr=False)
    """Environments with agents installed, of judges that are agents; without it each judge installs its own."""

    def box(self, extra: dict[str, bytes] | None = None) -> AbstractAsyncContextManager[Box]:
        """A box in verifier scope for the length of a block."""
        return self.maker.open(extra)


def declared_policy(run: Run) -> AggregatePolicy | None:
    """How the package combines metrics: by its aggregate policy, or else by the dimensions of its rubric."""
    document = run.scope.document
    if document is None:
        return None
    policy = document.outputs.aggregate_policy
    if policy is not None:
        return parse_policy(policy.to_declared_dict(), path="outputs.aggregate_policy")
    rubric = document.rubric
    if rubric.combine is None or _bare_metrics(run.output / REWARD_JSON) != frozenset(rubric.dimensions):
        return None
    weights = {name: item.weight for name, item in rubric.dimensions.items() if item.weight is not None}
    return parse_policy({"method": rubric.combine, "weights": weights} if weights else {"method": rubric.combine})


def _bare_metrics(file: Path) -> frozenset[str] | None:
    """The names of the metrics in a `reward.json` that states neither a reward nor an aggregate."""
    try:
        found = parse_json(read_regular(file, max_bytes=MAX_BYTES))
    except (OSError, RefusedFileError, StrictJSONError):
        return None
    if not isinstance(found, dict) or {"reward", "aggregate"} & found.keys():
        return None
    metrics = found.get("metrics")
    return frozenset(metrics) if isinstance(metrics, dict) else None


async def keep_artifacts(run: Run, box: Box) -> None:
    """Copy what the package declares as results of verification; files in `/logs/verifier` are already kept."""
    for path in _declared_artifacts(run, box.sandbox.spec.workdir):
        if path.startswith(f"{LOGS}/"):
            continue
        try:
            for found in await matches(box.sandbox, path) if is_pattern(path) else [path]:
                await box.sandbox.download(found, _place(run.output, found), max_bytes=MAX_LOG_BYTES)
        except (SandboxFailure, EnvironmentFailure, OSError) as error:
            message = f"The artifact {path} could not be copied: {error}"
            run.findings.add(Issue("artifact-missing", "warning", "outputs.artifacts", message))


async def keep_declared(run: Run) -> None:
    """`keep_artifacts` for strategies that run nothing of the package in a box, such as judges: they name files of the
    agent's. A failure is a note: the reward is known by then."""
    wanted = [path for path in _declared_artifacts(run, run.sandbox.spec.workdir) if not path.startswith(f"{LOGS}/")]
    if not wanted:
        return
    try:
        async with run.box() as box:
            await keep_artifacts(run, box)
    except BenchflowError as error:
        message = f"The artifacts {', '.join(wanted)} could not be copied: {error}"
        run.findings.add(Issue("artifact-missing", "warning", "outputs.artifacts", message))


def _place(output: Path, path: str) -> Path:
    """Where an artifact is kept, in a folder that exists; a path that leads out of the record is refused."""
    top = output / "artifacts"
    target = top / path.lstrip("/")
    if ".." in target.parts[len(top.parts) :] or not target.resolve().is_relative_to(top.resolve()):
        raise SandboxFailure("it would be written outside the record", code="unsafe-path")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _declared_artifacts(run: Run, workdir: str) -> Iterator[str]:
    document, wiring = run.scope.document, run.scope.view.namespace.verifier
    yield from (path for path in (document.outputs.artifacts if document is not None else ()) if path.startswith("/"))
    for path in (*wiring.outputs.artifacts, *wiring.transfer.verifier_to_result) if wiring is not None else ():
        yield path if path.startswith("/") else f"{workdir}/{path}"


@contextmanager
def missing_reward(run: Run, result: ExecResult) -> Iterator[None]:
    """Read a reward in this block: the exit code explains a missing reward, and is noted if it failed despite one."""
    try:
        yield
    except RewardError as error:
        if error.code != "reward-missing" or not result.exit_code:
            raise
        message = f"The verifier exited with code {result.exit_code} and left no reward.{_hint(result)}"
        raise RewardError(message, code=error.code) from error
    if result.exit_code:
        message = f"The verifier left a reward but exited with code {result.exit_code}."
        run.findings.add(Issue("verifier-exit", "warning", "", message))


def _hint(result: ExecResult) -> str:
    """A fixed sentence for a common cause; never a part of the output."""
    printed = result.stdout.decode(errors="replace").lower()
    if any(mark in printed for mark in _INSTALL_MARKS):
        return f" {INSTALL_FAILED}"
    return ""


def load_strategy(kind: str) -> Score:
    """The function that scores by a strategy of this type."""
    return cast("Score", STRATEGIES.load(kind))


def wrong_with(name: str, found: object) -> str | None:
    """What is wrong with the object of a plugin; None if it is a function."""
    del name
    return None if callable(found) else "is not a function that scores"
