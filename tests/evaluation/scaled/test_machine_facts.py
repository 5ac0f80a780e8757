"""What a machine is: within the limits of its control groups, and as its sandboxes really work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from benchflow.evaluation.scaled import machine_room
from benchflow.evaluation.scaled.abilities import CubeNeed, Demand, refusal
from benchflow.evaluation.scaled.admission import Vitals
from benchflow.evaluation.scaled.facts import Asked, cube_digest, find_facts
from benchflow.task.workers import available_cores

MEMINFO = "MemTotal:       16000000 kB\nMemFree: 100 kB\nMemAvailable:    9000000 kB\n"


def machine(folder: Path, version: int, **files: str) -> Path:
    """A `/proc` of a process in the group `/job/part`, with files in these groups: `part_memory_max` and so on."""
    proc, mounted = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    (mounted / "job/part").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    kind, options, own = (
        ("cgroup2", "rw", "0::/job/part") if version == 2 else ("cgroup", "rw,memory,cpu", "4:memory,cpu:/job/part")
    )
    (proc / "self/cgroup").write_text(f"{own}\n")
    (proc / "self/mountinfo").write_text(f"32 31 0:29 / {mounted} rw - {kind} {kind} {options}\n")
    for name, text in files.items():
        level, _, file = name.partition("_")
        place = {"part": mounted / "job/part", "job": mounted / "job", "top": mounted}[level]
        (place / file.replace("__", ".")).write_text(text)
    return proc


def test_a_node_has_what_its_control_groups_leave_it_at_every_level(tmp_path: Path) -> None:
    modern = machine(
        tmp_path / "2",
        2,
        part_memory__max="max\n",
        part_memory__current="1000000000\n",
        job_memory__max=f"{4 << 30}\n",
        job_memory__current=f"{3 << 30}\n",
        job_memory__stat=f"anon 5\ninactive_file {1 << 30}\n",
        job_cpu__max="50000 100000\n",
        part_cpu__max="max 100000\n",
    )
    assert machine_room.memory_mb(modern) == 4096
    assert machine_room.vitals((tmp_path,), modern).memory_free_mb == 2048
    assert machine_room.processors(modern) == 0.5
    older = machine(
        tmp_path / "1",
        1,
        part_memory__limit_in_bytes=f"{2 << 30}\n",
        part_memory__usage_in_bytes=f"{1 << 30}\n",
        part_memory__stat=f"inactive_file 3\ntotal_inactive_file {512 << 20}\n",
        part_cpu__cfs_quota_us="-1\n",
        part_cpu__cfs_period_us="100000\n",
    )
    assert machine_room.memory_mb(older) == 2048
    assert machine_room.vitals((), older) == Vitals(1536, None)
    assert machine_room.processors(older) == available_cores()


def test_without_limits_a_node_has_the_machine_and_what_it_cannot_read_is_unknown(tmp_path: Path) -> None:
    free = machine(tmp_path / "free", 2)
    assert machine_room.memory_mb(free) == 15_625
    assert machine_room.vitals((), free) == Vitals(8789, None)
    nothing = tmp_path / "none"
    assert machine_room.vitals((tmp_path / "not/yet/there",), nothing).memory_free_mb is None
    assert machine_room.vitals((tmp_path / "not/yet/there",), nothing).disk_free_mb is not None


def test_only_names_of_variables_are_told_and_an_empty_one_is_not_set(tmp_path: Path) -> None:
    asked = Asked(variables=frozenset({"KEY", "EMPTY", "OTHER"}), agents=frozenset({("script:no-such-file", None)}))
    environ = {"KEY": "canary-5e1f", "EMPTY": "", "MORE": "x"}
    facts = anyio.run(lambda: find_facts("n", asked, tmp_path, processors=0, environ=environ))
    assert facts.variables == {"KEY"}
    assert "canary-5e1f" not in repr(facts)
    assert (facts.processors, refusal(Demand(), facts)) == (0, "has no processors for rollouts")
    assert "no-such-file" in facts.agents["script:no-such-file", None]


def test_a_cube_is_known_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    package = tmp_path / "tiny_cube_x"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    entry = importlib.metadata.EntryPoint("tiny", "tiny_cube_x:Config", "cube.benchmarks")
    monkeypatch.setattr("benchflow.evaluation.scaled.facts.installed", lambda: {"tiny": entry})
    monkeypatch.syspath_prepend(str(tmp_path))
    first = cube_digest("tiny")
    assert first is not None
    (package / "__pycache__").mkdir()
    (package / "__pycache__/x.pyc").write_bytes(b"compiled")
    assert cube_digest("tiny") == first
    (package / "__init__.py").write_text("A = 2\n")
    assert cube_digest("tiny") not in (None, first)
    assert cube_digest("other") is None
    facts = anyio.run(lambda: find_facts("n", Asked(cubes=frozenset({"tiny", "other"})), tmp_path))
    assert refusal(Demand(cube=CubeNeed("tiny", first)), facts) == "has another version of the cube 'tiny'"
    assert refusal(Demand(cube=CubeNeed("other", first)), facts) == "does not have the cube 'other' installed"


ASK = """
import anyio, json, sys
from pathlib import Path
from benchflow.evaluation.scaled.facts import Asked, find_facts
facts = anyio.run(lambda: find_facts("n", Asked(sandboxes=frozenset({"local", "nowhere"})), Path(sys.argv[1])))
local, nowhere = facts.sandboxes["local"], facts.sandboxes["nowhere"]
print(json.dumps([local.usable, sorted(local.capabilities), sorted(local.missing), nowhere.usable, nowhere.reason]))
"""


@pytest.mark.sandbox
def test_what_a_sandbox_supports_is_tested_where_it_runs(tmp_path: Path) -> None:
    ask = [sys.executable, "-c", ASK, str(tmp_path)]
    hide = 'for device in /dev/loop*; do mount --bind /dev/null "$device"; done; exec "$@"'
    here, without = (
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        for command in (ask, ["unshare", "--mount", "sh", "-c", hide, "sh", *ask])
    )
    assert (here[0], without[0]) == (True, True)
    assert set(here[1]) - set(without[1]) == {"limits.disk"}
    assert "limits.disk" in without[2]
    assert (here[3], "nowhere" in here[4]) == (False, True)


@pytest.mark.anyio
async def test_a_script_that_differs_on_a_node_is_not_run_there(tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text("echo one")
    demand = Demand(agents=((f"script:{script}", None),))
    asked = Asked.for_demands(frozenset({demand}))
    assert refusal(demand, await find_facts("n", asked, tmp_path)) is None
    script.write_text("echo two")
    why = refusal(demand, await find_facts("n", asked, tmp_path))
    assert (
        why == f"cannot start an agent: its file for 'script:{script}' differs from the one where the job was started"
    )
