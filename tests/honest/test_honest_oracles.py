"""No honest solution is lost: each scores at the strictest rung that its shape allows, found by proof."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from honest_packages import HONEST, Honest

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize("honest", HONEST, ids=lambda honest: honest.name)
def test_an_honest_solution_scores_at_the_strictest_rung_of_its_shape(bench, tmp_path: Path, honest: Honest) -> None:
    folder = honest.write(tmp_path)
    ran = bench("run", str(folder), "--sandbox", "local", "--out", str(tmp_path / "jobs"), "--json")
    result = json.loads(ran.stdout)
    assert (result["reward"], result["verifier"]["isolation"]["rung"]) == (1.0, honest.rung), result
