"""Every cube in `examples/` keeps the contract, as its users would check it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cube.registry import GROUP

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
CUBES = sorted(
    name
    for project in EXAMPLES.glob("*/pyproject.toml")
    for name in tomllib.loads(project.read_text())["project"].get("entry-points", {}).get(GROUP, {})
)
PLAYED = {"browser-cube": ("--task", "one-tea")}
"""Of a cube that starts a browser for every check one task; the tests of its own play them all."""


def test_there_are_example_cubes():
    assert {"archive-cube", "counter-cube"} <= set(CUBES)


@pytest.mark.parametrize("name", CUBES)
def test_an_example_cube_keeps_the_contract_and_its_debug_agents_reach_reward_one(name, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "cube.cli", "test", name, *PLAYED.get(name, ()), "--json"],
        env=os.environ | {"CUBE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert {check["status"] for check in report["checks"]} == {"passed"}
    assert report["played"]
    assert {each["reward"] for each in report["played"]} == {1.0}
