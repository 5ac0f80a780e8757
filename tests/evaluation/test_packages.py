"""Packages of a job: which backend each gets, whoever else is in the job, and the settings they are known by."""

import json

import anyio
import pytest

from benchflow.evaluation.packages import PackageRunner
from benchflow.evaluation.work import TaskRef, plan_items
from benchflow.record import JobRecord, JobRequest, TaskId
from benchflow.record.codec import plain
from benchflow.sandbox.backends import BUILT_IN
from benchflow.sandbox.protocol import BackendStatus
from benchflow.task.package import load_package

ENVIRONMENTS = {
    "plain": {},
    "image": {"Dockerfile": "FROM debian:bookworm-slim\n"},
    "compose": {"docker-compose.yaml": "services:\n  main:\n    image: debian:bookworm-slim\n"},
}


class FakeBackend:
    """A backend that works, and counts how often it was ended."""

    def __init__(self, name):
        self.name = name
        self.closed = 0

    async def status(self):
        return BackendStatus(self.name, True, None, BUILT_IN)

    async def close(self):
        self.closed += 1


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.setattr("benchflow.sandbox.factory.load_backend", FakeBackend)
    for name, files in ENVIRONMENTS.items():
        folder = tmp_path / name
        (folder / "verifier").mkdir(parents=True)
        (folder / "environment").mkdir()
        (folder / "task.md").write_text(f"---\ntask: {{name: t/{name}}}\n---\nDo it.\n")
        (folder / "verifier" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
        for file, text in files.items():
            (folder / "environment" / file).write_text(text)
    return {name: load_package(tmp_path / name) for name in ENVIRONMENTS}


@pytest.mark.parametrize("order", [("plain", "image", "compose"), ("compose", "image", "plain")])
@pytest.mark.parametrize(
    ("base_image", "expected"),
    [
        ("host", {"plain": "local", "image": "local", "compose": "local"}),
        (None, {"plain": "local", "image": "local", "compose": "docker"}),
    ],
)
def test_the_backend_of_a_package_does_not_depend_on_the_others(packages, order, base_image, expected):
    async def choose():
        runner = PackageRunner([], JobRequest(sources=(), agent="nop", base_image=base_image))
        chosen = {name: await runner.backend(packages[name]) for name in order}
        again = {name: await runner.backend(packages[name]) for name in order}
        await runner.close()
        return chosen, again

    chosen, again = anyio.run(choose)
    assert {name: backend.name for name, backend in chosen.items()} == expected
    assert again == chosen
    shared = {id(backend) for backend in chosen.values()}
    assert len(shared) == len(set(expected.values())), "one backend of a name is enough"
    assert {backend.closed for backend in chosen.values()} == {1}


def key(**settings):
    request = JobRequest(sources=("a",), agent="nop", **settings)
    return next(plan_items([TaskRef(TaskId("t", "sha256:0"), "t", "sha256:0")], 1, request.settings())).key


def test_a_deadline_is_part_of_what_the_work_is_and_survives_the_job_file():
    assert len({key(), key(timeout_sec=5.0), key(timeout_sec=6.0)}) == 3
    job = JobRecord("job", JobRequest(sources=("a",), agent="nop", timeout_sec=5.0), 1, "now")
    assert JobRecord.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    assert "timeout_sec" not in plain(JobRequest(sources=("a",), agent="nop").settings()), "left out, it does not count"
