"""Files that run inside a sandbox, beside a verifier's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchflow.record import RolloutFolder, read_trajectory
from benchflow.record.reading.atif_steps import VERSION, atif_steps

FOLDER: Final = ".rewardkit"
"""Their location in the verifier's folder."""
TRAJECTORY: Final = "trajectory.json"
"""What the agent did, beside them."""

_LAUNCHER: Final = '#!/bin/sh\nPYTHONPATH="${0%/bin/*}${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m rewardkit "$@"\n'


def kit_files(checks: Iterable[Path] = (), rollout: Path | None = None) -> dict[str, bytes]:
    """The modules of `rewardkit` and its command, by their path in the verifier's folder.

    If a module in the folders of `checks` looks at trajectories, there is also what the agent of the `rollout` did, as
    it was recorded outside the sandbox.
    """
    source = Path(__file__).parent / "rewardkit"
    files = {f"{FOLDER}/rewardkit/{path.name}": path.read_bytes() for path in sorted(source.glob("*.py"))}
    files[f"{FOLDER}/bin/rewardkit"] = _LAUNCHER.encode()
    recorded = RolloutFolder(rollout).trajectory if rollout is not None else None
    if recorded is not None and recorded.is_file() and _look_at_trajectories(checks):
        files[f"{FOLDER}/{TRAJECTORY}"] = _steps(recorded)
    return files


def _look_at_trajectories(folders: Iterable[Path]) -> bool:
    return any(b"trajectory_" in path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py")))


def _steps(recorded: Path) -> bytes:
    """Who acted, and which tools were called. No texts: an agent decides how long they are."""
    names = ("tool_call_id", "function_name")
    steps = [
        {
            "step_id": number,
            "source": step["source"],
            "tool_calls": [{name: call[name] for name in names} for call in step.get("tool_calls", ())],
        }
        for number, step in enumerate(atif_steps(read_trajectory(recorded)), start=1)
    ]
    return json.dumps({"schema_version": VERSION, "steps": steps}).encode()
