"""What a job is planned from: packages of one name, byte-identical ones, and those that only carry other evidence."""

import shutil

import pytest

from benchflow.errors import UsageError
from benchflow.evaluation.job import create_job, plan_job
from benchflow.evaluation.work import plan_items
from benchflow.record import Job, JobRequest
from benchflow.task.bundles.bundle_index import Benchmark
from benchflow.task.bundles.bundle_writing import gather, make_index, write_bundle
from benchflow.task.package import load_package

TASK = "---\nschema_version: '1.3'\ntask: {name: t/p}\n---\nDo it.\n"


def package(folder, text=TASK, verifier="echo 1 > /logs/verifier/reward.txt"):
    (folder / "verifier").mkdir(parents=True)
    (folder / "task.md").write_text(text)
    (folder / "verifier" / "test.sh").write_text(f"#!/bin/sh\n{verifier}\n")
    return folder


def planned(*paths):
    request = JobRequest(tuple(map(str, paths)), "nop")
    _, tasks = plan_job(request)
    return tasks, [item.key for item in plan_items(tasks, 1, request.settings())]


def test_two_packages_of_one_name_are_two_tasks(tmp_path):
    package(tmp_path / "tasks/x/p")
    package(tmp_path / "tasks/y/p", verifier="echo 0 > /logs/verifier/reward.txt")
    tasks, keys = planned(tmp_path / "tasks")
    assert [(task.id.name, task.id.ordinal) for task in tasks] == [("t/p", 1), ("t/p", 1)]
    assert (len({task.id for task in tasks}), len(set(keys))) == (2, 2)


def test_byte_identical_packages_are_told_apart_by_their_order_and_not_by_their_place(tmp_path):
    for name in ("a", "b", "c"):
        package(tmp_path / "tasks" / name)
    tasks, keys = planned(tmp_path / "tasks")
    assert [task.id.ordinal for task in tasks] == [1, 2, 3]
    assert len(set(keys)) == 3
    (tmp_path / "tasks").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "a").rename(tmp_path / "elsewhere" / "aa")
    assert planned(tmp_path / "elsewhere")[1] == keys


def test_the_same_package_in_two_sources_is_one_task_and_copies_are_two(tmp_path):
    one = package(tmp_path / "one" / "p")
    shutil.copytree(one, tmp_path / "two" / "p")
    assert len(planned(tmp_path / "one", tmp_path / "one")[0]) == 1
    assert [task.id.ordinal for task in planned(tmp_path / "one", tmp_path / "two")[0]] == [1, 2]


def test_a_cube_given_twice_counts_once():
    assert [task.name for task in planned("cube:counter-cube", "cube:counter-cube")[0]] == [
        task.name for task in planned("cube:counter-cube")[0]
    ]


def test_a_path_is_recorded_as_it_was_given_also_when_the_job_is_resumed_elsewhere(tmp_path, monkeypatch):
    for place in ("one", "two/x", "three"):
        package(tmp_path / place / "p")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources = ("../two", str(tmp_path / "one"), "../three/./p", "../one")
    request = JobRequest(sources, "nop")
    _, tasks = plan_job(request)
    assert [task.path for task in tasks] == ["../two/x/p", f"{tmp_path}/one/p", "../three/p"]
    store = create_job(tmp_path / "jobs", "job", request, tasks)
    store.close()
    monkeypatch.chdir(tmp_path)
    kept = Job(store.folder).record.request
    assert kept.sources == sources
    assert [task.path for task in plan_job(kept)[1]] == [task.path for task in tasks]


def test_a_job_of_a_bundle_goes_with_its_digest_even_if_the_file_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    found = [gather(package(tmp_path / "tasks" / name), name, name) for name in ("a", "b")]
    digest = write_bundle(tmp_path / "x.zip", make_index(found, Benchmark(splits={"dev": ("b",)})))
    monkeypatch.chdir(tmp_path)
    for source in ("x.zip", "x.zip#dev"):
        request = JobRequest((source,), "nop")
        _, tasks = plan_job(request)
        assert [task.path for task in tasks] == ["x.zip:a", "x.zip:b"][-len(tasks) :]
        store = create_job(tmp_path / "jobs", source[-3:], request, tasks)
        store.close()
        kept = Job(store.folder).record.request
        assert kept.sources == (f"x.zip@{digest}{source[5:]}",)
        (tmp_path / "x.zip").rename(tmp_path / "moved.zip")
        again = plan_job(kept)[1]
        assert [(task.id, task.path) for task in again] == [(task.id, task.path) for task in tasks]
        (tmp_path / "moved.zip").rename(tmp_path / "x.zip")
    assert planned(tmp_path / "x.zip")[1] == planned(tmp_path / "tasks")[1]
    write_bundle(tmp_path / "x.zip", make_index(found[:1], Benchmark()))
    with pytest.raises(UsageError, match="is pinned"):
        plan_job(kept)


EVIDENCE = (
    "benchflow:\n  evidence:\n    oracle_runs:\n      reward: 1.0\n    notes: |\n      Two lines\n      of text.\n"
)
OTHER = "  leaderboard: {x: 1}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("task: {name: t/p}\n", "task: {name: t/p}\n" + EVIDENCE),
        ("task: {name: t/p}\n\n# a comment\n", "task: {name: t/p}\n" + EVIDENCE + "\n# a comment\n"),
        ("benchflow:\n" + OTHER, EVIDENCE + OTHER),
        ("benchflow:\n" + OTHER, "benchflow:\n" + OTHER + EVIDENCE.partition("\n")[2]),
        ("benchflow:\n" + OTHER, "benchflow:\n  evidence: {oracle_runs: {reward: 1.0}}\n" + OTHER),
        ("task: {name: t/p}\n", "task: {name: t/p}\nbenchflow:\n  evidence:\n"),
    ],
)
def test_declared_evidence_changes_the_digest_and_not_the_content(tmp_path, before, after):
    plain = load_package(package(tmp_path / "a", f"---\n{before}---\nDo it with evidence.\n"))
    proven = load_package(package(tmp_path / "b", f"---\n{after}---\nDo it with evidence.\n"))
    assert plain.digest != proven.digest
    assert plain.content_digest == proven.content_digest == plain.digest


def test_files_of_evidence_change_the_digest_and_not_the_content(tmp_path):
    path = package(tmp_path / "p")
    before = load_package(path)
    (path / "evidence" / "acceptance").mkdir(parents=True)
    (path / "evidence" / "acceptance" / "report.json").write_text("{}")
    after = load_package(path)
    assert before.digest == before.content_digest == after.content_digest != after.digest
    (path / "verifier" / "evidence").mkdir()
    (path / "verifier" / "evidence" / "x").write_text("")
    assert load_package(path).content_digest != before.content_digest, "evidence is what lies in evidence/ alone"


def test_every_other_change_is_one_of_the_content(tmp_path):
    with_evidence = TASK.replace("---\nDo", EVIDENCE + "---\nDo")
    first = load_package(package(tmp_path / "a", with_evidence))
    assert load_package(package(tmp_path / "b", with_evidence + "More.\n")).content_digest != first.content_digest
    commented = with_evidence.replace("benchflow:", "# why\nbenchflow:")
    assert load_package(package(tmp_path / "c", commented)).content_digest != first.content_digest


def test_a_profile_beside_the_package_counts_in_both_digests(tmp_path):
    (tmp_path / "shared.yaml").write_text("workdir: /work\n")
    text = TASK.replace("---\nDo", "environment-profile: ../shared.yaml\n---\nDo")
    path = package(tmp_path / "p", text)
    first = load_package(path)
    (tmp_path / "shared.yaml").write_text("workdir: /other\n")
    second = load_package(path)
    assert first.digest == first.content_digest
    assert len({first.digest, first.content_digest, second.digest, second.content_digest}) == 2
