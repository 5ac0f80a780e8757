"""Packages are taken when they are planned: copied, compared with the plan, and never used when damaged."""

import gc
import os
import shutil
import stat
import threading
import time

import pytest

from benchflow.errors import InfrastructureFailure, PackageError
from benchflow.sandbox.task_policy import asset_mounts
from benchflow.task.filemap import scan
from benchflow.task.package import load_package
from benchflow.task.taken import COPIES, Copies, stamp_of

FILES = {
    "task.md": "---\ntask: {name: acme/taken}\n---\nDo it.\n",
    "verifier/test.sh": "echo 1\n",
    "verifier/data/cases.txt": "one\n",
    "oracle/solve.sh": "true\n",
}


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "task", FILES)


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def content(root):
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def replace_file(path):
    new = path.with_name("new")
    new.write_text("echo 0\n")
    new.replace(path)


CHANGES = {
    "content": lambda path: path.write_text("echo 0\n"),
    "rename over": replace_file,
    "truncation": lambda path: os.truncate(path, 0),
    "removal": lambda path: path.unlink(),
    "link": lambda path: (path.unlink(), path.symlink_to("data/cases.txt")),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a huge file": lambda path: os.truncate(path, 1 << 42),
}


def test_a_taken_package_reads_its_copy_and_names_the_authors_folder(folder):
    taken = Copies().take(load_package(folder))
    assert taken.path == folder
    assert taken.view.task_dir == folder
    assert taken.view.verifier_dir != folder / "verifier"
    assert content(taken.files.root) == FILES
    write(folder, dict.fromkeys(FILES, "other"))
    assert content(taken.view.verifier_dir.parent) == FILES


def test_the_authors_files_are_not_linked(folder):
    taken = Copies().take(load_package(folder))
    taken.files.copy.tree("all", lambda root: (root / "x").write_text("x"))
    assert {path.stat().st_nlink for path in folder.rglob("*") if path.is_file()} == {1}
    inodes = {path.stat().st_ino for path in folder.rglob("*")}
    assert not inodes & {path.stat().st_ino for path in taken.files.root.rglob("*")}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_folder_that_is_not_what_was_planned_is_refused_by_name(folder, change):
    package = load_package(folder)
    change(folder / "verifier" / "test.sh")
    with pytest.raises(
        PackageError, match=r"has changed since it was planned: verifier/test\.sh is different"
    ) as error:
        Copies().take(package)
    assert error.value.code == "package-changed"


def test_a_link_that_points_elsewhere_now_is_refused(folder):
    (folder / "verifier" / "link").symlink_to("data/cases.txt")
    package = load_package(folder)
    (folder / "verifier" / "link").unlink()
    (folder / "verifier" / "link").symlink_to("test.sh")
    with pytest.raises(PackageError, match="verifier/link is different"):
        Copies().take(package)


def test_a_file_that_was_added_after_the_plan_is_not_part_of_it(folder):
    package = load_package(folder)
    (folder / "verifier" / "conftest.py").write_text("raise SystemExit")
    assert content(Copies().take(package).files.root) == FILES


def test_modes_and_times_are_kept_and_every_file_can_be_removed(folder):
    script, data = folder / "verifier" / "test.sh", folder / "verifier" / "data"
    script.chmod(0o755)
    data.chmod(0o555)
    os.utime(script, ns=(10**18, 10**18))
    copies = Copies()
    root = copies.take(load_package(folder)).files.root
    assert stat.S_IMODE((root / "verifier/test.sh").stat().st_mode) == 0o755
    assert (root / "verifier/test.sh").stat().st_mtime_ns == 10**18
    del copies
    gc.collect()
    assert not root.exists()
    data.chmod(0o755)


def test_links_stay_below_the_copy_however_they_are_spelled(folder):
    links = {"plain": "data", "up": "../../task/verifier/data", "absolute": str(folder / "verifier" / "data")}
    for name, target in links.items():
        (folder / "verifier" / name).symlink_to(target)
    taken = Copies().take(load_package(folder))
    root = taken.files.root
    for name in links:
        assert (root / "verifier" / name).resolve() == (root / "verifier" / "data").resolve()


def test_assets_are_mounted_from_the_copy(folder):
    asset = "{path: hidden/a.txt, visibility: hidden_verifier, mount_phase: verifier, target: /data}"
    write(folder, {"task.md": f"---\ntask: {{name: acme/taken}}\nbenchflow:\n  assets: [{asset}]\n---\nDo it.\n"})
    write(folder, {"hidden/a.txt": "planned"})
    taken = Copies().take(load_package(folder))
    (folder / "hidden" / "a.txt").write_text("changed")
    (mount,) = asset_mounts(taken.view, "verifier")
    assert mount.source.read_text() == "planned"


def test_a_package_is_copied_once_for_all_that_ask(folder):
    copies, package, found = Copies(), load_package(folder), []
    threads = [threading.Thread(target=lambda: found.append(copies.take(package))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(taken) for taken in found}) == 1
    assert copies.take(found[0]) is found[0]
    assert copies.take(load_package(folder)) is found[0]


def test_a_damaged_copy_is_refused_in_use_and_made_again_for_the_next(folder):
    copies, package = Copies(), load_package(folder)
    taken = copies.take(package)
    before = (taken.files.root / "verifier/test.sh").stat()
    (taken.files.root / "verifier/test.sh").write_text("echo 0\n")
    os.utime(taken.files.root / "verifier/test.sh", ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(InfrastructureFailure, match=r"verifier/test\.sh is different") as error:
            taken.files.copy.check()
        assert error.value.code == "copy-damaged"
    assert copies.known(package) is None
    again = copies.take(package)
    assert content(again.files.root) == FILES


@pytest.mark.parametrize("name", ["verifier/added.txt", "verifier/data/cases.txt", "task.md"])
def test_every_kind_of_damage_is_found(folder, name):
    taken = Copies().take(load_package(folder))
    place = taken.files.root / name
    if place.exists():
        place.chmod(0o777)
    else:
        place.write_text("")
    assert taken.files.copy.damage() == name


def _replace(root):
    (root / "new").write_text("")
    (root / "new").replace(root / "verifier" / "test.sh")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda root: (root / "added.txt").write_text(""), "added.txt"),
        (lambda root: (root / "verifier" / "data" / "added.txt").write_text(""), "verifier/data/added.txt"),
        (lambda root: (root / "verifier" / "data" / "cases.txt").unlink(), "verifier/data/cases.txt"),
        (lambda root: (root / "task.md").write_text("else"), "task.md"),
        (_replace, "verifier/test.sh"),
        (shutil.rmtree, None),
    ],
)
def test_damage_shows_in_change_times_once_they_prove_something(folder, tmp_path, monkeypatch, damage, named):
    real = time.time_ns
    monkeypatch.setattr("benchflow.task.taken.time.time_ns", lambda: real() + 10**9)
    copy = Copies().take(load_package(folder)).files.copy
    read = []
    monkeypatch.setattr("benchflow.task.taken.scan", lambda root: read.append(root) or scan(root))
    assert copy.damage() is None
    assert not read
    newest, probe = max(mark[1] for mark in stamp_of(copy.root.parent)), tmp_path / "probe"
    while not probe.exists() or probe.stat().st_ctime_ns <= newest:  # the next tick of the kernel's clock
        probe.write_text("")
    damage(copy.root)
    found = copy.damage()
    assert found is not None
    assert named in (None, found)


def test_a_damaged_tree_is_made_again(folder):
    copy = Copies().take(load_package(folder)).files.copy
    make = lambda root: (root / "x").write_text("made")  # noqa: E731
    first = copy.tree("key", make)
    assert copy.tree("key", make) == first
    (first / "x").write_text("else")
    assert copy.made("key") is None
    second = copy.tree("key", make)
    assert (second / "x").read_text() == "made"


@pytest.mark.slow
def test_what_nobody_uses_is_removed_beyond_the_limit(tmp_path):
    copies = Copies(most_copies=2)
    packages = [load_package(write(tmp_path / name, FILES)) for name in "abc"]
    in_use = copies.take(packages[0])
    roots = [copies.take(package).files.root for package in packages[1:]]
    gc.collect()
    assert in_use.files.root.exists()
    del in_use
    gc.collect()
    copies.take(packages[0])
    gc.collect()
    assert [root.exists() for root in roots] == [False, True]


def test_a_copy_outlives_its_store_as_long_as_a_view_of_it(folder):
    view = Copies().take(load_package(folder)).view
    gc.collect()
    assert (view.verifier_dir / "test.sh").read_text() == FILES["verifier/test.sh"]


def test_a_forked_child_removes_nothing_of_its_parent(folder):
    taken = COPIES.take(load_package(folder))
    child = os.fork()
    if child == 0:
        del taken
        COPIES._kept.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert content(taken.files.root) == FILES


@pytest.mark.slow
def test_packages_of_thousands_of_files_are_taken(folder):
    write(folder, {f"verifier/many/{number % 50}/{number}.txt": str(number) for number in range(3_000)})
    taken = Copies().take(load_package(folder))
    assert len(content(taken.files.root)) == 3_000 + len(FILES)
    assert taken.files.copy.damage() is None
