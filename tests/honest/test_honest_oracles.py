"""No honest solution is lost: each scores at the strictest rung that its shape allows, found by proof."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchflow.rollout import RolloutConfig, run_rollout
from benchflow.rollout.proving import Proofs
from benchflow.sandbox.protocol import SandboxBackend

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

SOLUTIONS = tomllib.loads((Path(__file__).parent / "solutions.toml").read_text())["solutions"]
TASK = 'version = "1.0"\n[agent]\nuser = "{user}"\ntimeout_sec = 60.0\n'
TEST = "#!/bin/bash\n(\nset -e\n{test}\n)\nif [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def write_package(folder: Path, solution: dict[str, Any]) -> Path:
    """A split package without an image of its own, so that its isolation is chosen by proof."""
    for part in ("tests", "solution", "environment"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(TASK.format(user=solution.get("user", "agent")))
    (folder / "instruction.md").write_text(solution.get("instruction", "Do what the test checks.") + "\n")
    (folder / "solution" / "solve.sh").write_text(f"#!/bin/bash\nset -e\n{solution['solution']}\n")
    (folder / "tests" / "test.sh").write_text(TEST.format(test=solution["test"]))
    return folder


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda solution: solution["name"])
async def test_an_honest_solution_scores_at_the_strictest_rung_of_its_shape(
    backend: SandboxBackend, tmp_path: Path, solution: dict[str, Any]
) -> None:
    package = write_package(tmp_path / solution["name"], solution)
    proofs, machine = Proofs(tmp_path / "proofs"), {"PATH": os.environ["PATH"]}
    config = RolloutConfig(package, "oracle", sandbox=backend, machine=machine, proofs=proofs)
    result = await run_rollout(config, tmp_path / "out")
    assert result.verifier is not None, result
    assert (result.reward, result.verifier.isolation.rung) == (1.0, solution["rung"]), result.verifier
