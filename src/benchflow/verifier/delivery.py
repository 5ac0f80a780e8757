"""Missing deliverables of an agent: a score of 0 with the reason, so that deleting work does not avoid a score.

Files that the runtime, the package or the environment should have provided are different: then it is unscored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchflow.errors import Issue, SandboxFailure
from benchflow.rewards import RewardItem, Scored
from benchflow.sandbox.protocol import OF_THE_FILE
from benchflow.verifier.strategy_run import Run
from benchflow.verifier.survival import REASONS, below

ARTIFACTS: Final = ("/logs/artifacts", "/artifacts")
"""The logs and records that the agent has to write."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """One deliverable that was expected of the agent."""

    path: str
    reason: str
    """The reason, as a sentence."""


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
