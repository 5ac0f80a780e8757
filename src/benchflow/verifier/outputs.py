"""What a verifier document says of its outputs: where the reward files are, how metrics become one reward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchflow.errors import Issue
from benchflow.rewards import AggregatePolicy, RewardError, parse_policy
from benchflow.rewards.files import REWARD_DETAILS, REWARD_JSON, REWARD_TEXT
from benchflow.sandbox.protocol import ExecResult
from benchflow.verifier.run import Run
from benchflow.verifier.scope import Scope
from benchflow.verifier.staging import LOGS

_INSTALL_MARKS: Final = (
    "dependency install failed", "failed to download `", "failed to fetch:", "error sending request for url",
    "failed to lookup address information", "no solution found", "could not find a version", "resolution impossible",
)  # fmt: skip


def declared_policy(scope: Scope) -> AggregatePolicy | None:
    """The aggregate policy of the verifier document."""
    policy = scope.document.outputs.aggregate_policy if scope.document is not None else None
    return None if policy is None else parse_policy(policy.to_dict(), path="outputs.aggregate_policy")


def rename_outputs(run: Run) -> None:
    """Give reward files that the document put elsewhere below `/logs/verifier` their canonical names."""
    document = run.scope.document
    if document is None:
        return
    outputs = document.outputs
    for declared, name in (
        (outputs.reward_text, REWARD_TEXT),
        (outputs.reward_json, REWARD_JSON),
        (outputs.details_json, REWARD_DETAILS),
    ):
        if declared is None or declared == f"{LOGS}/{name}":
            continue
        source = run.output / declared.removeprefix(f"{LOGS}/")
        if _is_plain(source, run.output):
            source.replace(run.output / name)


def _is_plain(path: Path, folder: Path) -> bool:
    """Whether a path leads to something in the folder without a link on the way."""
    return path.exists() and not any(part.is_symlink() for part in (path, *path.parents) if part.is_relative_to(folder))


@contextmanager
def missing_reward(run: Run, result: ExecResult) -> Iterator[None]:
    """Read a reward in this block: why there is none names the exit code, and a bad exit beside a reward is noted."""
    try:
        yield
    except RewardError as error:
        if error.code != "reward-missing" or not result.exit_code:
            raise
        message = f"The verifier ended with exit code {result.exit_code} and left no reward.{_hint(result)}"
        raise RewardError(message, code=error.code) from error
    if result.exit_code:
        message = f"The verifier left its reward and ended with exit code {result.exit_code}."
        run.findings.add(Issue("verifier-exit", "warning", "", message))


def _hint(result: ExecResult) -> str:
    """A fixed sentence for a common cause; nothing of what was printed."""
    printed = result.stdout.decode(errors="replace").lower()
    if any(mark in printed for mark in _INSTALL_MARKS):
        return " It could not install what it depends on; see test-stdout.txt."
    return ""
