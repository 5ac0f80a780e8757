"""Declared paths are kept; what is missing, unsafe or twice is recorded and fails nothing."""

import pytest

from benchflow.rollout.phases.step_bounds import collect
from benchflow.sandbox.protocol import SandboxSpec
from benchflow.task.config.task_config import ArtifactConfig

pytestmark = pytest.mark.anyio


def artifact(source, **more):
    return ArtifactConfig(source=source, **more)


@pytest.fixture
async def sandbox(backend):
    async with backend.create(SandboxSpec()) as sandbox:
        yield sandbox


async def test_files_and_folders_keep_their_place(sandbox, tmp_path):
    await sandbox.exec("mkdir -p out/deep; echo 1 > out/a.txt; echo 2 > out/deep/b.log; echo 3 > /tmp/c.txt")
    wanted = [
        artifact("out", exclude=("*.log",)),
        artifact("/tmp/c.txt", destination="c/renamed.txt"),
        artifact("none"),
    ]
    found = await collect(sandbox, wanted, tmp_path)
    assert [(item.source, item.status, item.files) for item in found] == [
        ("/app/out", "collected", 1),
        ("/tmp/c.txt", "collected", 1),
        ("/app/none", "missing", None),
    ]
    assert (tmp_path / "app" / "out" / "a.txt").read_text() == "1\n"
    assert (tmp_path / "app" / "out" / "deep").is_dir()
    assert not (tmp_path / "app" / "out" / "deep" / "b.log").exists()
    assert (tmp_path / "c" / "renamed.txt").read_text() == "3\n"


async def test_a_path_within_another_is_taken_once(sandbox, tmp_path):
    await sandbox.exec("mkdir out; echo 1 > out/a.txt")
    found = await collect(sandbox, [artifact("out"), artifact("/app/./out/a.txt"), artifact("/app/out/")], tmp_path)
    assert [item.status for item in found] == ["collected", "skipped", "skipped"]


async def test_two_artifacts_cannot_share_a_destination(sandbox, tmp_path):
    await sandbox.exec("echo 1 > a.txt; echo 2 > b.txt")
    wanted = [
        artifact("a.txt", destination="x"),
        artifact("b.txt", destination="x"),
        artifact("b.txt", destination="x/y"),
    ]
    found = await collect(sandbox, wanted, tmp_path)
    assert [item.status for item in found] == ["collected", "skipped", "skipped"]
    assert (tmp_path / "x").read_text() == "1\n"


async def test_links_out_and_special_files_are_refused(sandbox, tmp_path):
    await sandbox.exec("mkdir bad; ln -s /etc/passwd bad/link; mkfifo pipe")
    found = await collect(sandbox, [artifact("bad"), artifact("pipe")], tmp_path)
    assert [item.status for item in found] == ["refused", "refused"]
    assert all(item.reason for item in found)
    assert not list(tmp_path.rglob("link"))


async def test_the_conventional_folder_is_taken_when_it_holds_something(sandbox, tmp_path):
    assert await collect(sandbox, [], tmp_path, conventional=True) == []
    await sandbox.exec("mkdir -p /logs/artifacts; echo 1 > /logs/artifacts/kept", user="root")
    found = await collect(sandbox, [], tmp_path, conventional=True)
    assert [(item.source, item.files) for item in found] == [("/logs/artifacts", 1)]


async def test_artifacts_of_a_rollout_are_in_its_folder_and_record(run, make_package, tmp_path):
    frontmatter = "environment: {network_mode: no-network}\nartifacts: [answer.txt, {source: /tmp/gone}]\n"
    result = await run(make_package(frontmatter), "oracle")
    assert result.to_dict()["artifacts"] == [
        {"source": "/app/answer.txt", "destination": "app/answer.txt", "status": "collected", "files": 1, "bytes": 5},
        {"source": "/tmp/gone", "destination": "tmp/gone", "status": "missing"},
    ]
    assert (tmp_path / "out" / "artifacts" / "app" / "answer.txt").read_text() == "done\n"
