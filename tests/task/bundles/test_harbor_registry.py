"""Registry files name tasks by Git address, commit and path; each is fetched once and then works offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchflow.errors import BenchflowError, UsageError
from benchflow.task.bundles.git_commits import commit_folder
from benchflow.task.discovery import find_packages
from benchflow.task.package import load_package


@pytest.fixture
def repository(tmp_path, make):
    """A repository with two packages, one of them with a profile beside it, and traps for those who check it out."""
    top = tmp_path / "repo"
    make("repo/tasks/a")
    make("repo/tasks/b", extra="environment-profile: ../shared/env.yaml\n", **{"data/crlf.txt": "x\r\n"})
    (top / "tasks/shared").mkdir()
    (top / "tasks/shared/env.yaml").write_text("cpus: 3\n")
    (top / "tasks/b/verifier/test.sh").chmod(0o755)
    (top / ".gitattributes").write_text("* text=auto filter=evil export-ignore\n")
    return top, commit_folder(top)


@pytest.fixture
def registry(tmp_path, repository):
    def write(*tasks, name="acme", version="1.0", **more):
        top, commit = repository
        rows = [
            {"name": task, "git_url": f"file://{top}", "git_commit_id": commit, "path": f"tasks/{task}", **more}
            for task in tasks
        ]
        place = tmp_path / "registry.json"
        known = json.loads(place.read_text()) if place.exists() else []
        known.append({"name": name, "version": version, "description": "", "tasks": rows, "metrics": []})
        place.write_text(json.dumps(known))
        return place

    return write


def test_tasks_are_fetched_as_they_were_committed_and_work_offline_afterwards(tmp_path, repository, registry):
    place = registry("a", "b")
    before = {name: load_package(repository[0] / "tasks" / name).digest for name in "ab"}
    found = find_packages([place])
    assert [item.shown for item in found] == [f"{place}:acme@1.0/a", f"{place}:acme@1.0/b"]
    assert {item.inside[1][-1]: load_package(item.path).digest for item in found} == before
    assert os.access(found[1].path / "verifier/test.sh", os.X_OK)
    assert load_package(found[1].path).config.environment.cpus == 3
    shutil.rmtree(repository[0])
    assert [load_package(item.path).digest for item in find_packages([place])] == [before["a"], before["b"]]


def test_a_dataset_and_a_task_are_named_after_the_file(registry):
    registry("a")
    place = registry("a", "b", version="2.0")
    shown = [item.inside[1] for item in find_packages([Path(f"{place}#acme@2.0")])]
    assert shown == ["acme@2.0/a", "acme@2.0/b"]
    [one] = find_packages([Path(f"{place}:acme@1.0/a")])
    assert one.named
    with pytest.raises(UsageError, match="several datasets 'acme'"):
        find_packages([Path(f"{place}#acme")])
    with pytest.raises(UsageError, match="no dataset 'other'; its datasets: acme@1.0, acme@2.0"):
        find_packages([Path(f"{place}#other")])
    with pytest.raises(UsageError, match="is pinned"):
        find_packages([Path(f"{place}@sha256:{'0' * 64}")])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"git_commit_id": "HEAD"}, "'HEAD' is not a commit"),
        ({"git_commit_id": "f" * 40}, "cannot be fetched from file://"),
        ({"git_url": "--upload-pack=touch evil"}, "is not a Git address"),
        ({"git_url": "ext::sh -c touch% evil"}, "is not a Git address"),
        ({"git_url": "file:///nowhere"}, "cannot be fetched"),
        ({"path": "tasks/none"}, "has no package at 'tasks/none'"),
        ({"path": "../a"}, "has no package at"),
        ({"git_url": None, "path": "../a"}, "is not a package below the folder"),
    ],
)
def test_a_task_that_cannot_be_fetched_is_a_broken_package_and_the_others_are_there(registry, more, why):
    registry("a")
    place = registry("a", version="2.0", **more)
    good, bad = find_packages([place])
    assert good.problem is None
    assert load_package(good.path).valid
    assert why in bad.problem.message
    with pytest.raises(BenchflowError, match="acme@2.0/a"):
        assert bad.path


def test_submodules_links_and_hooks_of_a_repository_do_nothing(tmp_path, repository, registry):
    top, _ = repository
    (top / "tasks/a/out").symlink_to("../../../../etc/passwd")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(top)]
    subprocess.run([*git, "add", "-A"], check=True, capture_output=True)
    oid = "1" * 40
    subprocess.run([*git, "update-index", "--add", "--cacheinfo", f"160000,{oid},tasks/b/sub"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    place = registry("a", "b", git_commit_id=commit)
    linked, nested = find_packages([place])
    assert "is a link to" in linked.problem.message
    assert "is a submodule" in nested.problem.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "is not JSON"),
        ("[1]", "lists no tasks"),
        ('[{"name": "x", "version": "1", "tasks": []}]', "has no tasks"),
        ('[{"version": "1", "tasks": [{"path": "x"}]}]', "no name"),
        ('[{"name": "x", "version": "1", "tasks": [{"git_url": "x"}]}]', "without a path"),
        ('[{"name": "x", "version": "1", "tasks": [{"path": "x"}, {"path": "x"}]}]', "'x@1/x' twice"),
    ],
)
def test_a_file_that_is_not_a_registry_is_refused(tmp_path, text, why):
    place = tmp_path / "registry.json"
    place.write_text(text)
    with pytest.raises(UsageError, match=why):
        find_packages([place])


def test_the_same_content_is_the_same_commit(tmp_path, make):
    for name in ("one", "two"):
        make(f"{name}/a", **{".gitignore": "*\n", ".gitattributes": "* text=auto\n", "data/crlf": "x\r\n"})
    assert commit_folder(tmp_path / "one") == commit_folder(tmp_path / "two")
