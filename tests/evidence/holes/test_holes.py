"""Every family finds the hole that was planted for it, and nothing in the sound twin.

`make exploits` (`EXPLOITS=all`) runs all holes; otherwise a third of them is run, some of every table.
"""

import os

import pytest
from forging_holes import FORGING_HOLES
from hook_holes import HOOK_HOLES
from inside_holes import INSIDE_HOLES
from network_holes import NETWORK_HOLES
from output_holes import OUTPUT_HOLES
from reach_holes import REACH_HOLES

from benchflow.evidence.audit.auditing import bounds_of, load_families
from benchflow.evidence.audit.battery import Battery
from benchflow.evidence.audit.scouting import look
from benchflow.evidence.trial_stage import StageOptions, open_stage
from benchflow.plugins import FAMILIES

ALL = os.environ.get("EXPLOITS") == "all"
HOLES = [*OUTPUT_HOLES, *FORGING_HOLES, *INSIDE_HOLES, *REACH_HOLES, *HOOK_HOLES, *NETWORK_HOLES]
JUDGED = {"judge-instructions", "judge-answer"}
"""Their holes are judges, in test_judge_families.py."""


async def tried(hole, folder, backend):
    """The report of the family, after an honest solution got the full reward."""
    async with open_stage(folder, StageOptions(sandbox=backend, base_image="host")) as stage:
        seen = await look(stage)
        assert seen.solved == 1.0
        return await Battery(stage, seen, bounds_of(stage.package)).try_family(
            load_families((hole.family,))[hole.family]
        )


def test_every_registered_family_has_a_planted_hole():
    assert {hole.family for hole in HOLES} | JUDGED == set(FAMILIES.names())


@pytest.mark.anyio
@pytest.mark.sandbox
@pytest.mark.parametrize("hole", HOLES if ALL else HOLES[::3], ids=lambda hole: hole.family)
async def test_a_planted_hole_is_found_and_its_sound_twin_holds(hole, tmp_path, local_backend):
    found = await tried(hole, hole.write(tmp_path / "hole", sound=False), local_backend)
    assert found.verdict == hole.verdict, found.evidence
    sound = await tried(hole, hole.write(tmp_path / "twin", sound=True), local_backend)
    assert sound.verdict in ("held", "not-applicable"), sound.evidence
