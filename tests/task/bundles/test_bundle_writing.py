"""A bundle is made of content alone, and holds all of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.errors import PackageError, UsageError
from benchflow.task.bundles import zip_layout
from benchflow.task.bundles.bundle_index import Benchmark, parse_index
from benchflow.task.bundles.bundle_reading import open_bundle
from benchflow.task.bundles.bundle_writing import gather, make_index, write_bundle
from benchflow.task.discovery import find_packages
from benchflow.task.package import load_package

NAMES = st.text("abcdeé-_. ", min_size=1, max_size=6).filter(lambda name: name.strip(". ") == name)
FILES = st.dictionaries(NAMES.map(str.lower), st.binary(max_size=60), max_size=4)


def write(folder, files):
    (folder / "data").mkdir(parents=True)
    (folder / "task.md").write_text("---\nschema_version: '1.3'\n---\nDo it.\n")
    for name, data in files.items():
        (folder / "data" / name).write_bytes(data)


@settings(max_examples=25, deadline=None)
@given(packages=st.dictionaries(st.sampled_from(["a", "b", "c-d", "e f"]), FILES, min_size=1))
def test_what_is_opened_has_the_digests_of_what_was_bundled_and_the_same_content_has_the_same_bytes(packages):
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        root = Path(scratch)
        patch.setenv("BENCHCUBE_STORE", str(root / "store"))
        digests = []
        for place, order in (("one", list(packages)), ("two", list(reversed(packages)))):
            for name in order:
                write(root / place / name, packages[name])
            found = [gather(root / place / name, name, name) for name in order]
            assert not any(package.problem for package in found)
            digests.append(write_bundle(root / f"{place}.zip", make_index(found, Benchmark())))
        assert digests[0] == digests[1]
        assert (root / "one.zip").read_bytes() == (root / "two.zip").read_bytes()
        opened = {item.inside[1]: load_package(item.path).digest for item in find_packages([root / "one.zip"])}
        assert opened == {name: load_package(root / "one" / name).digest for name in packages}


def test_times_permissions_and_umask_leave_no_trace(tmp_path, make, gathered):
    first = make("tasks/a", **{"oracle/solve.sh": "#!/bin/sh\n"})
    (first / "oracle/solve.sh").chmod(0o700)
    one = write_bundle(tmp_path / "one.zip", gathered())
    old = os.umask(0o077)
    try:
        shutil.copytree(first, tmp_path / "copy/a")
        (tmp_path / "copy/a/oracle/solve.sh").chmod(0o755)
        os.utime(tmp_path / "copy/a/task.md", (0, 0))
        two = write_bundle(tmp_path / "two.zip", gathered(tmp_path / "copy/a"))
        [taken] = find_packages([tmp_path / "two.zip"])
        assert os.access(taken.path / "oracle/solve.sh", os.X_OK)
        assert not os.access(taken.path / "verifier/test.sh", os.X_OK)
    finally:
        os.umask(old)
    assert one == two == f"sha256:{hashlib.sha256((tmp_path / 'one.zip').read_bytes()).hexdigest()}"


def test_any_zip_program_can_read_a_bundle(tmp_path, make, gathered):
    make("tasks/a")
    make("tasks/b", **{"data/ü.txt": "x"})
    write_bundle(tmp_path / "x.zip", gathered())
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "bundle.json"
        assert archive.read("b/data/ü.txt") == b"x"
        archive.extractall(tmp_path / "out")
    assert load_package(tmp_path / "out/b").digest == load_package(tmp_path / "tasks/b").digest


def test_links_and_empty_folders_are_kept(tmp_path, make, gathered):
    folder = make("tasks/a")
    (folder / "tests").symlink_to("verifier")
    (folder / "environment/empty/inner").mkdir(parents=True)
    write_bundle(tmp_path / "x.zip", gathered())
    [taken] = find_packages([tmp_path / "x.zip"])
    assert (taken.path / "tests").readlink() == Path("verifier")
    assert (taken.path / "environment/empty/inner").is_dir()


def test_what_lies_beside_a_package_and_belongs_to_it_travels(tmp_path, make, gathered):
    (tmp_path / "tasks/shared").mkdir(parents=True)
    (tmp_path / "tasks/shared/env.yaml").write_text("cpus: 3\n")
    for name in ("a", "b"):
        make(f"tasks/{name}", extra="environment-profile: ../shared/env.yaml\n")
    write_bundle(tmp_path / "x.zip", gathered())
    for taken in find_packages([tmp_path / "x.zip"]):
        package = load_package(taken.path)
        assert package.valid
        assert package.config.environment.cpus == 3
        assert package.digest == load_package(tmp_path / "tasks" / taken.inside[1]).digest


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda folder: (folder / "out").symlink_to("/etc/passwd"), "points outside the package"),
        (lambda folder: (folder / "in").symlink_to(folder / "task.md"), "not a plain relative path"),
        (lambda folder: os.mkfifo(folder / "pipe"), "is a pipe"),
    ],
)
def test_what_a_bundle_cannot_keep_is_refused(make, break_it, why):
    folder = make("tasks/a")
    break_it(folder)
    assert why in gather(folder, "a", "tasks/a").problem


def test_names_that_differ_only_in_case_are_refused(make, gathered):
    make("tasks/a", **{"data/Readme": "1", "data/readme": "2"})
    with pytest.raises(UsageError, match="differ only in case"):
        gathered()


def test_a_file_that_changes_while_it_is_written_leaves_nothing(tmp_path, make, gathered):
    folder = make("tasks/a", **{"data/large": "x" * (2 << 20)})
    contents = gathered()
    (folder / "data/large").write_text("y" * (2 << 20))
    with pytest.raises(PackageError, match="has changed while it was written"):
        write_bundle(tmp_path / "x.zip", contents)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tasks"]


def test_an_index_reads_back_as_it_was_written(make, gathered):
    make("tasks/a")
    index = gathered(benchmark=Benchmark("acme/x", "1", "MIT", "Sums.", {"test": ("a",)})).listing
    assert parse_index(index.render()) == index


@pytest.mark.slow
def test_more_members_and_bytes_than_the_old_format_counts_are_written_for_current_readers(tmp_path):
    far = zip_layout.central_header(b"x", "file", 1, 0, 5 << 32)
    assert (5 << 32).to_bytes(8, "little") in far
    place = tmp_path / "many.zip"
    headers = [(zip_layout.local_header(b"%d" % number, 0, 0), b"%d" % number) for number in range(70_000)]
    central, offset = [], 0
    for header, name in headers:
        central.append(zip_layout.central_header(name, "file", 0, 0, offset))
        offset += len(header)
    directory = b"".join(central)
    end = zip_layout.end_records(len(central), offset, len(directory))
    place.write_bytes(b"".join(header for header, _ in headers) + directory + end)
    with zipfile.ZipFile(place) as archive:
        assert len(archive.namelist()) == 70_000


def test_opening_does_not_unpack_and_taking_one_package_leaves_the_others(tmp_path, store, make, gathered):
    for name in "abc":
        make(f"tasks/{name}")
    write_bundle(tmp_path / "x.zip", gathered())
    found = find_packages([Path(f"{tmp_path / 'x.zip'}:b")])
    assert [item.named for item in found] == [True]
    assert list((store / "packages").iterdir()) == []
    assert found[0].path.name == "b"
    assert len(list((store / "packages").iterdir())) == 1


def test_many_that_take_one_package_at_once_all_get_it_whole(tmp_path, store, make, gathered):
    make("tasks/a", **{f"data/{number}": "x" * 100 for number in range(50)})
    write_bundle(tmp_path / "x.zip", gathered())
    with ThreadPoolExecutor(8) as pool:
        found = [find_packages([tmp_path / "x.zip"])[0] for _ in range(8)]
        places = set(pool.map(lambda item: item.path, found))
    [place] = places
    assert load_package(place).digest == load_package(tmp_path / "tasks/a").digest
    assert [path.name for path in (store / "packages").iterdir()] == [place.parent.name]


def test_programs_from_elsewhere_agree(tmp_path, make, gathered):
    make("tasks/a")
    write_bundle(tmp_path / "x.zip", gathered())
    done = subprocess.run(["unzip", "-tq", tmp_path / "x.zip"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_bundle_of_a_bundle_is_the_same_bundle(tmp_path, make, gathered):
    for name in "ab":
        make(f"tasks/{name}")
    first = write_bundle(tmp_path / "x.zip", gathered())
    again = [gather(item.path, item.inside[1], item.shown) for item in find_packages([tmp_path / "x.zip"])]
    assert write_bundle(tmp_path / "y.zip", make_index(again, Benchmark())) == first
    assert open_bundle(tmp_path / "y.zip").digest == first
