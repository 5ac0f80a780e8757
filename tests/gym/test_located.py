"""A config names content: a worker runs it from a bundle, a shared folder or its cache, and refuses other content."""

import json
import os
import shutil
import subprocess
import sys
import uuid

import pytest

from benchflow.cli import main
from benchflow.errors import PackageError
from benchflow.gym import PackageBenchmarkConfig, located
from benchflow.task.bundles import known_places
from cube.task import TaskConfig


def fill(folder, name="acme/found", *, mark=None, reward=1):
    (folder / "verifier").mkdir(parents=True)
    (folder / "task.md").write_text(f"---\ntask: {{name: {name}}}\n---\nDo it. {mark or uuid.uuid4()}\n")
    (folder / "verifier" / "test.sh").write_text(f"echo {reward} > /logs/verifier/reward.txt\n")
    return folder


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A cache of its own, and no memory of what this process listed."""
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv(located.PACKAGES_VARIABLE, raising=False)
    monkeypatch.setattr(located.PLACES, "_listed", {})
    monkeypatch.setattr(located.PLACES, "_searched", {})
    return tmp_path / "store"


def listed(path, sandbox="local"):
    (config,) = PackageBenchmarkConfig(paths=[str(path)], sandbox=sandbox, base_image="host").get_task_configs()
    return config.model_dump_json()


def made(text):
    """The task, as a worker that has just begun makes it."""
    located.PLACES._listed.clear()
    return TaskConfig.model_validate_json(text).make()


def forget(store):
    shutil.rmtree(store, ignore_errors=True)
    located.PLACES._listed.clear()


def test_a_config_names_bundle_and_digest_and_no_path_of_this_machine(tmp_path):
    folder = fill(tmp_path / "some" / "where" / "p")
    assert main(["tasks", "bundle", str(folder), "-o", str(tmp_path / "b.zip")]) == 0
    of_folder, of_bundle = listed(tmp_path / "some"), listed(tmp_path / "b.zip")
    assert str(tmp_path) not in of_folder + of_bundle
    assert json.loads(of_folder)["metadata"]["inside"] == "where/p"
    assert json.loads(of_folder)["metadata"]["bundle"] is None
    metadata = json.loads(of_bundle)["metadata"]
    assert metadata["inside"] == "p"
    assert metadata["bundle"].startswith("sha256:")
    assert metadata["content_digest"] == json.loads(of_folder)["metadata"]["content_digest"]


@pytest.mark.parametrize("has", ["bundle", "folder", "folder elsewhere", "package itself"])
def test_a_worker_finds_it_where_its_variable_says(tmp_path, monkeypatch, store, has):
    folder = fill(tmp_path / "origin" / "p")
    text = listed(tmp_path / "origin")
    target = tmp_path / "other"
    if has == "bundle":
        target = tmp_path / "b.zip"
        assert main(["tasks", "bundle", str(folder), "-o", str(target)]) == 0
    else:
        places = {"folder": target / "p", "folder elsewhere": target / "x" / "y", "package itself": target}
        shutil.copytree(folder, places[has])
    shutil.rmtree(tmp_path / "origin")
    forget(store)
    monkeypatch.setenv(located.PACKAGES_VARIABLE, os.pathsep.join([str(tmp_path / "nothing"), str(target)]))
    assert made(text).id == "acme/found"


@pytest.mark.slow
def test_other_processes_of_the_user_find_it_where_it_was_listed(tmp_path):
    text = listed(fill(tmp_path / "p"))
    script = (
        "import sys; from cube.task import TaskConfig\n"
        "print(TaskConfig.model_validate_json(sys.stdin.read()).make().id)"
    )
    worker = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, text=True, cwd=tmp_path)
    assert worker.stdout == "acme/found\n", worker.stderr


def test_a_package_of_a_bundle_is_found_in_the_cache_when_the_file_and_its_place_are_gone(tmp_path, store):
    fill(tmp_path / "p")
    assert main(["tasks", "bundle", str(tmp_path / "p"), "-o", str(tmp_path / "b.zip")]) == 0
    text = listed(tmp_path / "b.zip")
    (tmp_path / "b.zip").unlink()
    shutil.rmtree(store / "places")
    assert made(text).id == "acme/found"


def test_a_copy_that_is_gone_does_not_hide_the_others(tmp_path):
    folder = fill(tmp_path / "one" / "p")
    text = listed(folder)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    listed(tmp_path / "two" / "p")
    shutil.rmtree(tmp_path / "two")
    assert made(text).id == "acme/found"


def test_a_worker_without_the_content_says_what_it_looked_for_and_where(tmp_path, monkeypatch, store):
    folder = fill(tmp_path / "p")
    text = listed(folder)
    digest = json.loads(text)["metadata"]["content_digest"]
    shutil.rmtree(folder)
    with pytest.raises(PackageError) as caught:
        made(text)
    assert str(caught.value) == (
        f"The package 'acme/found' with the content {digest} is not on this worker: BENCHCUBE_PACKAGES is not set; "
        "the cache of this user does not have it. Name a bundle or a folder that has it in BENCHCUBE_PACKAGES."
    )
    assert caught.value.code == "package-missing"
    forget(store)
    other = fill(tmp_path / "shared" / "p")
    (tmp_path / "damaged.zip").write_bytes(b"PK\3\4 and nothing")
    places = [str(tmp_path / "gone"), str(tmp_path / "damaged.zip"), str(other.parent)]
    monkeypatch.setenv(located.PACKAGES_VARIABLE, os.pathsep.join(places))
    with pytest.raises(PackageError) as caught:
        made(text)
    assert f"{tmp_path / 'gone'} cannot be searched (" in str(caught.value)
    assert f"{tmp_path / 'damaged.zip'} cannot be searched (" in str(caught.value)
    assert f"{other.parent} does not have it" in str(caught.value)


def test_other_content_at_the_same_place_is_refused(tmp_path, monkeypatch, store):
    text = listed(fill(tmp_path / "origin" / "p", mark="one", reward=0))
    fill(tmp_path / "shared" / "p", mark="one", reward=1)
    shutil.rmtree(tmp_path / "origin")
    forget(store)
    monkeypatch.setenv(located.PACKAGES_VARIABLE, str(tmp_path / "shared"))
    with pytest.raises(PackageError, match="is not on this worker"):
        made(text)


def test_a_folder_that_gets_the_content_later_is_searched_again(tmp_path, monkeypatch, store):
    text = listed(fill(tmp_path / "origin" / "p", mark="one"))
    shutil.rmtree(tmp_path / "origin")
    forget(store)
    fill(tmp_path / "shared" / "q", mark="two")
    monkeypatch.setenv(located.PACKAGES_VARIABLE, str(tmp_path / "shared"))
    with pytest.raises(PackageError, match="is not on this worker"):
        made(text)
    fill(tmp_path / "shared" / "new", mark="one")
    assert made(text).id == "acme/found"


def test_a_changed_package_is_not_run_by_those_who_listed_it(tmp_path):
    folder = fill(tmp_path / "p", reward=0)
    text = listed(folder)
    (folder / "verifier" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(PackageError, match="has changed since the task was listed") as caught:
        TaskConfig.model_validate_json(text).make()
    assert caught.value.code == "package-changed"


def test_evidence_that_is_added_does_not_make_it_another_package(tmp_path):
    folder = fill(tmp_path / "p")
    text = listed(folder)
    (folder / "evidence").mkdir()
    (folder / "evidence" / "notes.md").write_text("It was proven.\n")
    assert made(text).id == "acme/found"


@pytest.mark.parametrize("changed", [{"content_digest": "sha256:../../x"}, {"digest": "none"}, {"bundle": "file.zip"}])
def test_what_is_not_a_digest_is_refused_before_anything_is_looked_for(tmp_path, changed):
    config = json.loads(listed(fill(tmp_path / "p")))
    config["metadata"].update(changed)
    with pytest.raises(ValueError, match="String should match pattern"):
        TaskConfig.model_validate_json(json.dumps(config))


def test_a_path_that_leaves_the_shared_folder_is_no_hint(tmp_path, monkeypatch, store):
    folder = fill(tmp_path / "outside")
    config = json.loads(listed(folder))
    config["metadata"]["inside"] = "../outside"
    forget(store)
    fill(tmp_path / "shared" / "q")
    monkeypatch.setenv(located.PACKAGES_VARIABLE, str(tmp_path / "shared"))
    with pytest.raises(PackageError, match="is not on this worker"):
        made(json.dumps(config))


def test_only_so_many_places_of_one_content_are_remembered_and_none_that_is_gone(tmp_path):
    digest = "sha256:" + "0" * 64
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        known_places.note_place(digest, tmp_path / str(number))
    (tmp_path / "18").rmdir()
    known_places.note_place(digest, tmp_path / "0")
    assert [place.name for place in known_places.noted_places(digest)] == [
        "0", "19", "17", "16", "15", "14", "13", "12",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_the_seed_of_a_task_reaches_agent_and_verifier_and_nothing_sets_it_otherwise(tmp_path, gym, monkeypatch):
    monkeypatch.delenv("BENCHCUBE_STORE")  # the machine's own, where its userland is prepared
    for isolation in ("shared", "separate"):
        folder = fill(tmp_path / isolation)
        (folder / "task.md").write_text(
            f"---\ntask: {{name: acme/seeded}}\nverifier: {{isolation: {isolation}}}\n---\nDo it. {uuid.uuid4()}\n"
        )
        (folder / "verifier" / "test.sh").write_text('echo "0.${BENCHCUBE_SEED:-5}" > /logs/verifier/reward.txt\n')
        it = gym(folder)
        assert it.task.reset()[1]["seed"] is None
        assert (it.bash("echo ${BENCHCUBE_SEED-none}"), it.task.evaluate()[0]) == ("none\n", 0.5)
        it.task.seed = 25
        assert it.task.reset()[1]["seed"] == 25
        assert (it.bash("echo $BENCHCUBE_SEED"), it.task.evaluate()[0]) == ("25\n", 0.25)
        fork = it.task.fork()
        assert fork.evaluate()[0] == 0.25
        fork.close()
