"""Real node hosts in this process: what they do with packages, kept work, a silent driver, and a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchflow.cluster import NodeLost
from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.engine import Engine, unjudged
from benchflow.evaluation.job import create_job, plan_job, work_left
from benchflow.evaluation.scaled import folder_travel
from benchflow.evaluation.scaled.demand import demand_of
from benchflow.evaluation.scaled.facts import Asked
from benchflow.evaluation.scaled.fleet import Fleet
from benchflow.evaluation.scaled.node_host import NodeHost
from benchflow.evaluation.scaled.orders import Order, OrderedTask
from benchflow.evaluation.scaled.parcels import Parcels
from benchflow.evaluation.scaled.scaled_runner import ScaledRunner
from benchflow.evaluation.store import JobStore
from benchflow.record import JobRequest, WorkKey, read_lines
from benchflow.task.bundles.kept_packages import packages_place
from benchflow.testing import InProcessCluster, ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.sandbox]

JUDGED = {
    "task.md": "---\nschema_version: '1.3'\ntask: {name: t/judged}\n---\nWrite the answer.\n",
    "verifier/verifier.md": "---\nverifier:\n  strategies:\n    prose: {type: llm-judge, rubric: rubric.toml}\n---\n",
    "verifier/rubric.toml": '[judge]\nmodel = "openai/test-model"\n[[criterion]]\nname = "right"\n'
    'description = "The answer is 42."\n',
    "oracle/solve.sh": "echo 'the answer is 42' > answer.md\n",
}
PLAIN = {
    "task.md": "---\ntask: {name: t/plain}\n---\nDo it.\n",
    "verifier/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "true\n",
}


def package(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@asynccontextmanager
async def fleet_for(
    request: JobRequest, said: list[str], **options: Any
) -> AsyncIterator[tuple[Fleet, InProcessCluster]]:
    _, tasks = plan_job(request)
    asked = Asked.for_demands(frozenset(demand_of(task, request, os.environ) for task in tasks))
    async with InProcessCluster(NodeHost, ((request,), asked), nodes=1) as cluster:
        fleet = Fleet(cluster, said.append)
        try:
            await fleet.open()
            fleet.crowd(2)
            yield fleet, cluster
        finally:
            await fleet.close()


async def run(store: JobStore, fleet: Fleet, request: JobRequest) -> list[dict[str, Any]]:
    """Run what is left; the lines of the job."""
    sources, tasks = plan_job(request)
    items = work_left(store, request, tasks)
    async with ScaledRunner(fleet, request, sources, store.places) as runner:
        engine = Engine(store, runner, concurrency=2, backoff=lambda _: 0.0, unjudged=unjudged(store.results))
        await engine.run(iter(items))
    return list(read_lines(store.places.results))


@pytest.mark.parametrize("inline", [folder_travel.INLINE_BYTES, 10], ids=["inline", "in pieces"])
async def test_kept_work_is_scored_again_on_a_node_without_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(folder_travel, "INLINE_BYTES", inline)
    package(tmp_path / "tasks/judged", JUDGED)
    request = JobRequest((str(tmp_path / "tasks"),), "oracle", sandbox="local")
    with ModelServer(["I like it.", {"score": "yes", "reason": "it is"}]) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        said: list[str] = []
        async with fleet_for(request, said) as (fleet, cluster):
            store = create_job(tmp_path / "jobs", "job", request, plan_job(request)[1])
            first, second = await run(store, fleet, request)
            [node] = cluster.nodes
            assert cluster.calls[node.id, "run"] == 1
            assert cluster.calls[node.id, "score_again"] == 1
    assert (first["error"]["category"], second["reward"]) == ("judge", 1.0), (first, second)
    assert first["rollout"] == second["rollout"]
    rollout = store.places.rollout(first["rollout"]).path
    assert (rollout / second["rescore"]["folder"] / "result.json").is_file()
    assert list(store.places.rollouts.iterdir()) == [rollout]
    store.close()


async def test_a_package_that_is_damaged_on_its_node_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    package(tmp_path / "tasks/plain", PLAIN)
    request = JobRequest((str(tmp_path / "tasks"),), "oracle", sandbox="local", attempts=1)
    more = JobRequest((str(tmp_path / "tasks"),), "oracle", sandbox="local", attempts=2)
    said: list[str] = []
    async with fleet_for(more, said) as (fleet, cluster):
        store = create_job(tmp_path / "jobs", "job", request, plan_job(request)[1])
        await run(store, fleet, request)
        [kept] = packages_place().glob("*/plain/verifier/test.sh")
        kept.write_text("#!/bin/sh\necho 0.5 > /logs/verifier/reward.txt\n")
        for copy in Path(os.environ.get("TMPDIR", "/tmp")).glob(f"benchcube-*/{os.getpid()}-*/package-*"):
            subprocess.run(["rm", "-rf", copy], check=True)
        lines = await run(store, fleet, more)
        [node] = cluster.nodes
        assert cluster.calls[node.id, "take"] == 2
    assert [line["reward"] for line in lines] == [1.0, 1.0], said
    store.close()


async def test_a_full_disk_of_the_job_ends_it_at_once_and_it_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    package(tmp_path / "tasks/plain", PLAIN)
    request = JobRequest((str(tmp_path / "tasks"),), "oracle", sandbox="local", attempts=20)
    store = create_job(tmp_path / "jobs", "job", request, plan_job(request)[1])
    async with fleet_for(request, []) as (fleet, cluster):
        with monkeypatch.context() as patch:
            patch.setattr(folder_travel, "unpack", full)
            with pytest.raises(BaseExceptionGroup) as raised:
                await run(store, fleet, request)
        told = r"No space left on device\. Fix this, .* resume .*job$"
        assert raised.group_contains(InfrastructureFailure, match=told)
        assert sum(cluster.calls.values()) < 20
        assert not store.places.results.exists()
        assert list(store.places.rollouts.iterdir()) == []
        lines = await run(store, fleet, request)
    assert [line["reward"] for line in lines] == [1.0] * 20
    store.close()


async def test_a_node_that_hears_nothing_of_its_driver_ends_its_rollouts(tmp_path: Path) -> None:
    package(tmp_path / "tasks/plain", {**PLAIN, "oracle/solve.sh": "sleep 600\n"})
    request = JobRequest((str(tmp_path / "tasks"),), "oracle", sandbox="local")
    _, [task] = plan_job(request)
    parcel = Parcels().parcel(task.payload)
    ordered = OrderedTask(task.id, task.path, task.digest, task.environment, task.roles, parcel.digest)
    host = NodeHost((request,), Asked(), lease_sec=1.0)
    await host.take(parcel.digest, 0, parcel.size, parcel.part(0))
    with anyio.fail_after(60), pytest.raises(NodeLost, match="had not heard from the driver"):
        await host.run(Order("one", 0, "rollout", ordered, 1, WorkKey("key"), None))
    await host.close()
