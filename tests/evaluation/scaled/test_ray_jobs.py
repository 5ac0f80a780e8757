"""Jobs on a real Ray cluster: the same results as on one machine, and what is left when a part of it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNode, RayNodes

from loaded_commands import BENCH

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("ray")]

TASK = "---\nschema_version: '1.3'\ntask: {{name: t/{name}}}\n{more}---\nDo it.\n"
SECRETS = "benchflow:\n  secrets: [{name: NODE_SECRET, scope: verifier}]\n"
OF_ONE_RUN = {"timing", "started_at", "finished_at", "rollout", "job", "node"}
SLOW = "sleep 0.4; echo 1 > /logs/verifier/reward.txt"


def package(folder: Path, name: str, verifier: str = "echo 1 > /logs/verifier/reward.txt", more: str = "") -> None:
    (folder / name / "verifier").mkdir(parents=True)
    (folder / name / "task.md").write_text(TASK.format(name=name, more=more))
    (folder / name / "verifier/test.sh").write_text(f"#!/bin/sh\n{verifier}\n")


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Job:
    """A job in a process of its own."""

    def __init__(self, cluster: RayNodes, folder: Path, *arguments: str) -> None:
        self.folder = folder / "jobs/job"
        self._errors = folder / f"stderr-{time.monotonic_ns()}"
        self._output = self._errors.with_name(f"{self._errors.name}-out")
        with self._errors.open("wb") as errors, self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*BENCH, "eval", *arguments],
                cwd=folder,
                env={**cluster.environ, "DRIVER_API_KEY": "canary-of-the-driver-1f0c"},
                stdout=output,
                stderr=errors,
            )

    def end(self) -> tuple[int, str, str]:
        return self.process.wait(240), self._output.read_text(), self.said()

    def said(self) -> str:
        return self._errors.read_text()

    def lines(self) -> list[dict[str, Any]]:
        try:
            whole = (self.folder / "results.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]

    def reached(self, count: int) -> None:
        def done() -> bool:
            assert self.process.poll() is None, f"it has ended: {self.said()}"
            return len(self.lines()) >= count

        until(done, f"no {count} results")

    def scored(self) -> Counter[str]:
        return Counter(line["key"] for line in self.lines() if line["status"] == "scored")


@pytest.fixture
def nodes(ray_cluster: RayNodes) -> list[RayNode]:
    """Two nodes; of those that a test kills others come in their place."""
    missing = [name for name in ("one", "two") if name not in ray_cluster.nodes]
    if missing:
        ray_cluster.join(missing, environ={"NODE_SECRET": "canary-of-the-node-77ab"})
    return [ray_cluster.nodes[name] for name in ("one", "two")]


def kill(cluster: RayNodes, name: str) -> RayNode:
    node = cluster.nodes.pop(name)
    node.kill()
    return node


def left_on(node: RayNode) -> list[str]:
    """Files in the temporary folder of a node, and mounts below it."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(node.folder) in line]
    return [*mounts, *(str(path) for path in node.folder.glob("benchcube-*/*"))]


def hosts(node: RayNode) -> list[int]:
    """The processes of a node that carry out rollouts."""
    found = []
    for process in node.processes():
        try:
            if b"HostActor" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def comparable(document: Any) -> Any:
    """A summary without what differs between two runs of the same job: times, names of folders, the order of ends."""
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if key not in OF_ONE_RUN}
        if isinstance(kept.get("results"), list):
            kept["results"] = sorted(kept["results"], key=lambda result: result["key"])
        return {key: comparable(value) for key, value in kept.items()}
    return [comparable(value) for value in document] if isinstance(document, list) else document


def test_a_job_gives_the_same_summary_on_a_cluster_and_no_secret_is_in_what_ray_wrote(
    ray_cluster: RayNodes, nodes: list[RayNode], tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks"
    package(tasks, "passes")
    package(tasks, "fails", "echo 0.25 > /logs/verifier/reward.txt")
    package(tasks, "large", "head -c 9000000 /dev/urandom > /logs/verifier/big; echo 1 > /logs/verifier/reward.txt")
    package(tasks, "tells", "echo $NODE_SECRET; echo 1 > /logs/verifier/reward.txt", SECRETS)
    package(tasks, "gives-none", "true")
    (tasks / "invalid").mkdir()
    (tasks / "invalid/task.md").write_text("---\ntask: 7\n---\n")
    arguments = ("run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "2", "--json")
    clustered = Job(ray_cluster, tmp_path, *arguments, "--name", "job", "--engine", "ray")
    code, output, said = clustered.end()
    assert code == 1, said
    here = subprocess.run(
        [*BENCH, "eval", *arguments, "--name", "here"],
        cwd=tmp_path,
        env={**os.environ, "NODE_SECRET": "canary-of-the-node-77ab"},
        capture_output=True,
        check=False,
    )
    assert comparable(json.loads(output)) == comparable(json.loads(here.stdout)), said
    big = [path.stat().st_size for path in (tmp_path / "jobs/job/rollouts").glob("*/verifier/big")]
    assert big == [9_000_000] * 2
    one, other = (
        {
            str(path.relative_to(folder))
            for folder in (tmp_path / "jobs" / name / "rollouts").iterdir()
            for path in folder.rglob("*")
        }
        for name in ("job", "here")
    )
    assert one == other
    for place in (ray_cluster.session, tmp_path / "jobs"):
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert b"canary-of-the" not in path.read_bytes(), path
    assert [left_on(node) for node in nodes] == [[], []]


def test_a_killed_driver_leaves_nothing_on_nodes_and_its_job_resumes_without_repeating(
    ray_cluster: RayNodes, nodes: list[RayNode], tmp_path: Path
) -> None:
    package(tmp_path / "tasks", "slow", SLOW)
    arguments = ("run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "20")
    job = Job(ray_cluster, tmp_path, *arguments, "--name", "job", "--engine", "ray", "--concurrency", "4")
    job.reached(5)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    until(lambda: "To continue: bench eval resume job --engine ray" in job.said(), job.said())
    done = job.scored()
    for node in nodes:
        until(lambda node=node: not hosts(node) and not left_on(node), f"{hosts(node)} {left_on(node)}")
    resumed = Job(ray_cluster, tmp_path, "resume", "job", "--engine", "ray", "--json")
    resumed.reached(sum(done.values()) + 3)
    for node in nodes:
        for process in hosts(node):
            os.kill(process, signal.SIGKILL)  # not the node: it gets another host
    code, output, said = resumed.end()
    assert code == 0, said
    assert json.loads(output)["scored"] == 20
    assert set(resumed.scored().values()) == {1}
    assert "node-lost" in {line["error"]["code"] for line in resumed.lines() if line["error"]}
    assert not list((job.folder / "rollouts").glob(".*"))


def test_an_interrupt_ends_rollouts_on_nodes_and_a_second_one_the_driver_at_once(
    ray_cluster: RayNodes, nodes: list[RayNode], tmp_path: Path
) -> None:
    package(tmp_path / "tasks", "endless", "sleep 300")
    arguments = ("run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "4", "--name", "job")
    job = Job(ray_cluster, tmp_path, *arguments, "--engine", "ray")
    running = lambda: (job.folder / "nodes.json").exists() and "endless" in (job.folder / "nodes.json").read_text()  # noqa: E731
    until(running, "nothing began")
    job.process.send_signal(signal.SIGINT)
    code, _, said = job.end()
    assert code == 130, said
    assert said.splitlines()[-1] == "Interrupted. To continue: bench eval resume job --engine ray"
    assert [left_on(node) for node in nodes] == [[], []]
    again = Job(ray_cluster, tmp_path, "resume", "job", "--engine", "ray")
    until(lambda: "endless" in (job.folder / "nodes.json").read_text(), "nothing began")
    again.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(60) in (130, -signal.SIGINT)
    for node in nodes:
        until(lambda node=node: not hosts(node) and not left_on(node), f"{hosts(node)} {left_on(node)}")


def test_a_job_outlives_all_its_nodes_and_loses_nothing(
    ray_cluster: RayNodes, nodes: list[RayNode], tmp_path: Path
) -> None:
    package(tmp_path / "tasks", "slow", SLOW)
    arguments = ("run", "tasks", "--agent", "nop", "--sandbox", "local", "--attempts", "45", "--json")
    job = Job(ray_cluster, tmp_path, *arguments, "--name", "job", "--engine", "ray", "--concurrency", "6")
    job.reached(15)
    dead = [kill(ray_cluster, "one")]
    job.reached(30)
    dead.append(kill(ray_cluster, "two"))
    until(lambda: "No node is left in the cluster; the job waits" in job.said(), "it did not say that it waits")
    ray_cluster.add("one", environ={"NODE_SECRET": "canary-of-the-node-77ab"})
    code, output, said = job.end()
    assert code == 0, said
    assert json.loads(output)["scored"] == 45
    assert set(job.scored().values()) == {1}
    lost = [line["error"] for line in job.lines() if line["status"] == "unscored"]
    assert lost, "nothing ran on the nodes when they were killed"
    assert {(error["category"], error["code"]) for error in lost} == {("infrastructure", "node-lost")}
    assert len(list((job.folder / "rollouts").iterdir())) == len(job.lines())
    for node in dead:
        until(lambda node=node: not node.processes() and not left_on(node), f"{node.processes()} {left_on(node)}")
