"""Whatever happens to the nodes of a job, and whenever: every item counts once, and what was lost is on record.

Real driver and real node hosts, in one process and in virtual time; what goes wrong follows from a seed. With
`LOSSES=2000` so many seeds are tried.
"""

import importlib.metadata
import json
import math
import os
import random
from collections import Counter
from dataclasses import replace
from importlib.metadata import EntryPoint

import anyio
import pytest

from benchflow.errors import UsageError
from benchflow.evaluation.engine import Engine, unjudged
from benchflow.evaluation.job import create_job, plan_job, work_left
from benchflow.evaluation.scaled import folder_travel
from benchflow.evaluation.scaled.demand import demand_of
from benchflow.evaluation.scaled.facts import Asked
from benchflow.evaluation.scaled.fleet import Fleet
from benchflow.evaluation.scaled.node_host import NodeHost
from benchflow.evaluation.scaled.orders import HostSettings
from benchflow.evaluation.scaled.scaled_runner import ScaledRunner
from benchflow.plugins import SANDBOXES
from benchflow.record import JobRequest, read_lines
from benchflow.testing import CallFault, InProcessCluster, VirtualTimeLoop

SEEDS = int(os.environ.get("LOSSES", "6"))
TASKS, ATTEMPTS = 2, 4
CONCURRENCY = 6
FOREVER = 1e6
"""Seconds of virtual time within which everything ends."""
PACKAGE = {
    "task.md": "---\ntask: {name: losses/TASK}\nenvironment: {network_mode: no-network}\n---\nDo it.\n",
    "verifier/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/sh\ntrue\n",
}


@pytest.fixture
def drowsy(monkeypatch):
    """The name of a sandbox that takes its time."""
    found = importlib.metadata.entry_points

    def with_drowsy(**wanted):
        added = [EntryPoint("drowsy", "drowsy_sandbox:DrowsyBackend", SANDBOXES.group)]
        return [*found(**wanted), *(added if wanted.get("group") == SANDBOXES.group else [])]

    monkeypatch.setattr(importlib.metadata, "entry_points", with_drowsy)
    return "drowsy"


@pytest.fixture
def request_(tmp_path, drowsy):
    for number in range(TASKS):
        for name, text in PACKAGE.items():
            path = tmp_path / "packages" / f"t{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("TASK", f"t{number}"))
            path.chmod(0o755)
    return JobRequest((str(tmp_path / "packages"),), "nop", attempts=ATTEMPTS, sandbox=drowsy)


CHANGES = {
    "pulse": lambda pulse: replace(pulse, clock=pulse.clock - 3600),
    "run": lambda answer: answer and replace(answer, folder=replace(answer.folder, sha256="0" * 64)),
    "fetch": lambda piece: piece[:-1] + b"?",
}
"""A clock that is an hour late, and bytes that do not arrive as they were sent."""
EVENTS = ("lose", "vanish", "notice", "cut", "mend", "refuse", "allow", "interrupt")


class Trouble:
    """What happens to a cluster, decided by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rate = self.chance.choice([0.0, 0.02, 0.1])
        self.pause = self.chance.choice([5.0, 30.0, 120.0])

    def weather(self, _node, method):
        chance = self.chance
        if chance.random() >= self.rate:
            return None
        seconds = chance.choice([1.0, 29.0, 31.0, 90.0, math.inf])
        return chance.choice(
            [
                CallFault(lost=chance.choice(["before", "during", "after"]), unnoticed=chance.random() < 0.5),
                CallFault(late=seconds),
                CallFault(delay=seconds),
                CallFault(change=CHANGES.get(method)),
            ]
        )

    async def happen(self, cluster, interrupt) -> None:
        """Until it is cancelled."""
        while True:
            await anyio.sleep(self.chance.expovariate(1 / self.pause))
            nodes = cluster.nodes
            node = self.chance.choice(nodes) if nodes else None
            match self.chance.choice(
                ["lose", "vanish", "notice", "cut", "mend", "grow", "refuse", "allow", "interrupt"]
            ):
                case "lose" if node:
                    cluster.lose(node)
                case "vanish" if node:
                    cluster.lose(node, unnoticed=True)
                case "notice" if node:
                    cluster.notice(node)
                case "cut" if node:
                    cluster.cut(node)
                case "mend" if node:
                    cluster.mend(node)
                case "refuse" if node:
                    cluster.refuse(node, "It has another version.")
                case "allow" if node:
                    cluster.refuse(node, None)
                case "interrupt" if self.chance.random() < 0.3:
                    interrupt.cancel()
            if len(cluster.nodes) < 4 and self.chance.random() < 0.5:
                cluster.grow(1)


async def run_once(store, request, said, *, trouble=None) -> bool:
    """Run what is left of a job, with or without trouble; whether it was completed."""
    sources, tasks = plan_job(request)
    items = work_left(store, request, tasks)
    asked = Asked.for_demands(frozenset(demand_of(task, request, os.environ) for task in tasks))
    nodes = trouble.chance.randint(1, 4) if trouble else 2
    async with InProcessCluster(
        NodeHost, ((request,), asked, HostSettings(), 60.0, anyio.current_time), nodes=nodes
    ) as cluster:
        fleet = Fleet(cluster, said.append)
        completed = False
        if trouble is not None:
            cluster.weather = trouble.weather
        try:
            await fleet.open()
            fleet.crowd(CONCURRENCY)
            async with ScaledRunner(fleet, request, sources, store.places) as runner:
                engine = Engine(store, runner, concurrency=CONCURRENCY, unjudged=unjudged(store.results))
                with anyio.CancelScope() as interrupt:
                    async with anyio.create_task_group() as group:
                        if trouble is not None:
                            group.start_soon(trouble.happen, cluster, interrupt)
                        await engine.run(iter(items))
                        completed = True
                        group.cancel_scope.cancel()
        except UsageError as error:
            if error.code != "no-nodes" or trouble is None:
                raise
        finally:
            await fleet.close()
    return completed


async def job_under(seed, request, folder, said):
    """A job that is hit by trouble, then continued until nothing is left to do; its store."""
    _, tasks = plan_job(request)
    store = create_job(folder, f"seed-{seed}", request, tasks)
    trouble = Trouble(seed)
    with anyio.fail_after(FOREVER):
        for _ in range(trouble.chance.randint(1, 3)):
            await run_once(store, request, said, trouble=trouble)
        check_lines(store)
        assert await run_once(store, request, said)
    return store


def check_lines(store):
    """No result counts twice, and every line is the record of its own folder."""
    lines = list(read_lines(store.places.results)) if store.places.results.exists() else []
    assert len({line["rollout"] for line in lines}) == len(lines)
    scored = Counter(line["key"] for line in lines if line["status"] == "scored")
    assert max(scored.values(), default=0) <= 1
    for line in lines:
        folder = store.places.rollout(line["rollout"])
        assert json.loads(folder.result.read_bytes())["status"] == line["status"]
        files = {path.name for path in folder.path.iterdir()}
        if line["status"] == "scored":
            assert folder.trajectory.name in files
        else:  # a lost try has a folder of its own, not that of a try that has come back
            assert (line["error"]["category"], files) == ("infrastructure", {folder.result.name}), line["error"]
    return lines


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in range(SEEDS)])
def test_every_item_counts_once_whatever_happens_to_the_nodes(seed, request_, tmp_path, monkeypatch):
    random.seed(seed)
    if seed % 2:  # folders do not fit into an answer, and are fetched in pieces
        monkeypatch.setattr(folder_travel, "INLINE_BYTES", 100)
        monkeypatch.setattr(folder_travel, "CHUNK_BYTES", 1000)
    said = []

    async def main():
        return await job_under(seed, request_, tmp_path / "jobs", said)

    store = anyio.run(main, backend_options={"loop_factory": VirtualTimeLoop})
    lines = check_lines(store)
    assert sum(line["status"] == "scored" for line in lines) == TASKS * ATTEMPTS
    recorded = {line["rollout"] for line in lines}
    unfinished = [path.name for path in store.places.rollouts.iterdir() if path.name not in recorded]
    assert unfinished == []
    store.close()
