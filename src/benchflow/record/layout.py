"""The layout of folders: the names inside a rollout's folder and inside a job's, defined only here."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RESCORES: Final = "rescores"


def is_folder_name(text: str) -> bool:
    """Whether a text is the plain name of a visible folder, and never a path."""
    return bool(text) and not text.startswith(".") and not any(c in text for c in "/\\\0") and len(text) <= 200


def rollout_name(task: str, attempt: int) -> str:
    """A new name for a rollout's folder: `<task>__<attempt>__<8 hex>`."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", task).strip("-.") or "task"
    return f"{safe[:80]}__{attempt}__{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class StepFolder:
    """What one step of a rollout, one branch of it, or a rollout without steps leaves."""

    path: Path

    @property
    def agent(self) -> Path:
        """Output of the agent."""
        return self.path / "agent"

    @property
    def verifier(self) -> Path:
        """Everything the verifier left."""
        return self.path / "verifier"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def workspace(self) -> Path:
        """What the agent changed, packed."""
        return self.path / "workspace.tar.gz"


@dataclass(frozen=True, slots=True)
class RolloutFolder(StepFolder):
    """The folder of one rollout, or of a later verdict on it."""

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def config(self) -> Path:
        """What runs, without anything secret."""
        return self.path / "config.json"

    @property
    def trajectory(self) -> Path:
        return self.path / "trajectory.jsonl"

    @property
    def user_rounds(self) -> Path:
        return self.path / "user_rounds.jsonl"

    @property
    def rewards(self) -> Path:
        """The rewards as events."""
        return self.path / "rewards.jsonl"

    @property
    def model_calls(self) -> Path:
        """The calls of models."""
        return self.path / "model_calls.jsonl"

    @property
    def model_call_parts(self) -> Path:
        """Large parts of these calls, by digest."""
        return self.path / "model_calls"

    @property
    def a2a(self) -> Path:
        """What was said in an arena."""
        return self.path / "a2a"

    @property
    def a2a_cards(self) -> Path:
        """The agent cards of all peers, by role, as they were served."""
        return self.a2a / "cards.json"

    @property
    def a2a_task(self) -> Path:
        """The assessor's task at its end."""
        return self.a2a / "task.json"

    @property
    def a2a_messages(self) -> Path:
        return self.a2a / "messages.jsonl"

    @property
    def a2a_events(self) -> Path:
        """The events of the assessor's task as they came, each with its time."""
        return self.a2a / "events.jsonl"

    @property
    def a2a_tool_calls(self) -> Path:
        """The calls of tools of the environment, by role."""
        return self.a2a / "tool_calls.jsonl"

    @property
    def a2a_parts(self) -> Path:
        """Large parts of messages, by digest."""
        return self.a2a / "parts"

    @property
    def entrypoint_log(self) -> Path:
        """What the entry point of the image printed."""
        return self.path / "environment" / "entrypoint.log"

    @property
    def rescores(self) -> Path:
        return self.path / RESCORES

    @property
    def outputs(self) -> tuple[Path, ...]:
        """Folders with files that came out of sandboxes."""
        names = ("verifier", "artifacts", "steps", "rounds", "branches", "agent", "environment", "a2a")
        return tuple(self.path / name for name in names)

    def step(self, name: str | None) -> StepFolder:
        """The folder of a step; the rollout's own for a task without steps."""
        return self if name is None else StepFolder(self.path / "steps" / name)

    def branch(self, name: str) -> StepFolder:
        return StepFolder(self.path / "branches" / name)

    def round(self, number: int, *, step: str | None = None, branch: str | None = None) -> Path:
        """What the verification between two rounds left."""
        parts = (part for part in (branch, step, str(number)) if part is not None)
        return self.path.joinpath("rounds", *parts)

    def newest(self) -> RolloutFolder:
        """The folder of the newest verdict: one of the rescores, or this one."""
        done = sorted(path for path in self.rescores.glob("[0-9]*") if RolloutFolder(path).result.is_file())
        return RolloutFolder(done[-1]) if done else self

    def next_rescore(self) -> tuple[RolloutFolder, int]:
        """The place of the next rescore, and its number."""
        taken = [int(path.name) for path in self.rescores.glob("[0-9]*") if path.name.isdigit()]
        number = max(taken, default=0) + 1
        return RolloutFolder(self.rescores / f"{number:04}"), number


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """The folder of a job."""

    path: Path

    @property
    def job(self) -> Path:
        """The request."""
        return self.path / "job.json"

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def rescore(self) -> Path:
        """The last pass of `rescore`, and whether it finished."""
        return self.path / "rescore.json"

    @property
    def nodes(self) -> Path:
        """What the machines of a job on a cluster do, while it runs."""
        return self.path / "nodes.json"

    @property
    def lock(self) -> Path:
        """Held by the process that runs the job."""
        return self.path / ".lock"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def rollout(self, name: str) -> RolloutFolder:
        return RolloutFolder(self.rollouts / name)
