"""Two real Ray nodes of different ability: each gets what it can run, and what none can is refused before launch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ray_nodes import RayNodes

from loaded_commands import BENCH

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("ray")]

TASK = "---\nschema_version: '1.3'\ntask: {{name: t/{name}}}\n{more}---\nDo it.\n"
SECRET = "benchflow:\n  secrets: [{name: NODE_SECRET, scope: verifier}]\n"


def package(folder: Path, name: str, more: str) -> None:
    (folder / name / "verifier").mkdir(parents=True)
    (folder / name / "task.md").write_text(TASK.format(name=name, more=more))
    (folder / name / "verifier/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")


def test_a_node_gets_only_what_it_can_run_and_a_job_that_none_can_is_refused(
    ray_cluster: RayNodes, tmp_path: Path
) -> None:
    if "one" not in ray_cluster.nodes:
        ray_cluster.add("one", environ={"NODE_SECRET": "canary-of-the-node-77ab"})
    ray_cluster.add("bare", processors=3)
    package(tmp_path / "tasks", "secret", SECRET)
    package(tmp_path / "tasks", "wide", "environment: {cpus: 3}\n")
    run = [*BENCH, "eval", "run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "2", "--engine", "ray"]
    try:
        ran = subprocess.run([*run, "--name", "job"], cwd=tmp_path, env=ray_cluster.environ, capture_output=True)
        package(tmp_path / "tasks", "huge", "environment: {cpus: 64}\n")
        refused = subprocess.run([*run, "--name", "huge"], cwd=tmp_path, env=ray_cluster.environ, capture_output=True)
    finally:
        ray_cluster.nodes.pop("bare").kill()
    assert ran.returncode == 0, ran.stderr.decode()
    assert b"of the 2 tasks: it has no value for the variable NODE_SECRET (set it in the environment" in ran.stderr
    assert b"of the 2 tasks: it has 2 processors, and 3 are declared." in ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "jobs/job/results.jsonl").read_bytes().splitlines()]
    places = {
        line["task"]["name"]: {other["node"]["name"] for other in lines if other["task"] == line["task"]}
        for line in lines
    }
    assert not places["t/secret"] & places["t/wide"]
    ended = json.loads((tmp_path / "jobs/job/nodes.json").read_bytes())
    sizes = {node["name"]: node["processors"] for node in ended["nodes"]}
    assert (ended["state"], {sizes[name] for name in places["t/wide"]}) == ("ended", {3.0})
    assert refused.returncode == 2, refused.stderr.decode()
    assert b"No node of the cluster can run 1 of the 3 tasks. t/huge: " in refused.stderr
    assert b"has 3 processors, and 64 are declared" in refused.stderr
    assert not (tmp_path / "jobs/huge").exists()
