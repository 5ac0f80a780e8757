"""A package is parsed once for all gym tasks of a process, and a change of its files is noticed."""

import os
import time
import uuid

import pytest

from benchflow.errors import PackageError
from benchflow.evaluation.packages import PackageRunner
from benchflow.gym import PackageBenchmarkConfig, shared
from benchflow.record import JobRequest, labels
from benchflow.task import taken

FILES = {"task.md": "---\ntask: {name: acme/once}\n---\nDo it.\n", "verifier/test.sh": "exit 0\n"}


@pytest.fixture
def parsed(monkeypatch):
    """The folders that were parsed, in order."""
    seen = []
    load = shared.load_package
    monkeypatch.setattr(shared, "load_package", lambda folder: (seen.append(folder), load(folder))[1])
    return seen


@pytest.fixture
def settled(monkeypatch):
    """Files that were just written count as old."""
    monkeypatch.setattr(taken, "_TICK_NS", 0)


def config(folder):
    (made,) = PackageBenchmarkConfig(paths=[str(folder)], sandbox="local").get_task_configs()
    return made


@pytest.mark.usefixtures("settled")
def test_a_package_is_parsed_once_however_often_it_is_asked_for(make_package):
    packages, folder = shared.Packages(), make_package(FILES)
    first = packages.load(folder)
    assert packages.load(folder) is first
    assert packages.get(folder, first.digest) is first


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("name", ["verifier/test.sh", "verifier/more.sh", "environment/Dockerfile"])
def test_a_changed_or_new_file_is_noticed(make_package, name):
    packages, folder = shared.Packages(), make_package(FILES)
    listed = packages.load(folder)
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    before = place.stat() if place.exists() else None
    place.write_text("exit 1\n")
    if before is not None:
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert packages.load(folder).digest != listed.digest
    with pytest.raises(PackageError, match="has changed since the task was listed"):
        packages.get(folder, listed.digest)


@pytest.mark.usefixtures("settled")
def test_a_changed_profile_beside_the_package_is_noticed(make_package):
    text = "---\ntask: {name: acme/once}\nenvironment-profile: ../small.yaml\n---\nDo it.\n"
    folder = make_package({**FILES, "task.md": text})
    profile = folder.parent / "small.yaml"
    profile.write_text("cpus: 1\n")
    packages = shared.Packages()
    listed = packages.load(folder)
    assert packages.load(folder) is listed
    profile.write_text("cpus: 2\n")
    assert packages.load(folder).config.environment.cpus == 2


def test_a_package_that_changed_just_now_is_read_again_for_its_time_may_not_show_the_next_change(make_package):
    packages, folder = shared.Packages(), make_package(FILES)
    first = packages.load(folder)
    assert packages.load(folder) is not first
    time.sleep(2 * taken._TICK_NS / 1e9)
    settled = packages.load(folder)
    assert packages.load(folder) is settled


def test_tasks_that_are_made_share_the_package_of_the_listing(make_package, parsed, settled):
    made = config(make_package(FILES))
    assert made.make().id == made.make().id == "acme/once"
    assert len(parsed) == 1


def test_only_so_many_packages_are_kept(make_package, monkeypatch, settled):
    monkeypatch.setattr(shared, "MOST_PACKAGES", 1)
    packages, folder = shared.Packages(), make_package(FILES)
    first = packages.load(folder)
    packages.load(folder.parent)
    assert packages.load(folder) is not first


@pytest.mark.slow
@pytest.mark.xdist_group("gym")
def test_a_reset_parses_nothing_and_refuses_files_that_changed(make_package, parsed, settled):
    folder = make_package({**FILES, "notes.txt": str(uuid.uuid4())})  # nowhere else
    task = config(folder).make()
    try:
        for _ in range(3):
            task.reset()
        assert len(parsed) == 1
        (folder / "verifier" / "test.sh").write_text("exit 1\n")
        with pytest.raises(PackageError, match="has changed since the task was listed"):
            task.reset()
    finally:
        task.close()


def test_packages_of_one_name_are_told_apart_as_in_a_job(tmp_path):
    for place, prompt in (("x", "One."), ("y", "Two."), ("z", "Two.")):
        folder = tmp_path / place / "p"
        (folder / "verifier").mkdir(parents=True)
        (folder / "task.md").write_text(f"---\ntask: {{name: acme/p}}\n---\n{prompt}\n")
        (folder / "verifier" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    found = PackageBenchmarkConfig(paths=[str(tmp_path)]).tasks()
    assert [(key, metadata.id) for key, metadata in found.items()] == [(key, key) for key in found]
    assert [metadata.inside for metadata in found.values()] == ["x/p", "y/p", "z/p"]
    job = PackageRunner([tmp_path], JobRequest((str(tmp_path),), "nop")).packages()
    assert list(found) == list(labels(task.id for task in job).values())
    assert list(PackageBenchmarkConfig(paths=[str(tmp_path / "x")]).tasks()) == ["acme/p"]
