"""Bundles and registries on the command line: wherever a path is taken, a file with packages is."""

import json
from pathlib import Path

import pytest

from benchflow.task.package import load_package

PROFILED = "environment-profile: ../shared/env.yaml\n"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def bundled(bench, make_package, tmp_path):
    """Two packages, one with a profile beside it, and their bundle."""
    make_package("tasks/a")
    b = make_package("tasks/b")
    (tmp_path / "tasks/shared").mkdir()
    (tmp_path / "tasks/shared/env.yaml").write_text("cpus: 3\n")
    (b / "task.md").write_text((b / "task.md").read_text().replace("task:\n", f"{PROFILED}task:\n", 1))
    options = ("--name", "acme/pair", "--version", "1.0", "--license", "MIT", "--split", "test=b")
    done = bench("tasks", "bundle", "tasks", "-o", "x.zip", *options, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_same_packages_make_the_same_file_however_they_are_named(bench, bundled, tmp_path):
    options = ("--name", "acme/pair", "--version", "1.0", "--license", "MIT", "--split", "test=b")
    assert bench("tasks", "bundle", "tasks/b", "tasks/a", "-o", "y.zip", *options).returncode == 0
    assert (tmp_path / "y.zip").read_bytes() == (tmp_path / "x.zip").read_bytes()
    (tmp_path / "m.toml").write_text('name = "acme/pair"\nversion = "1.0"\nlicense = "MIT"\nsplits.test = ["b"]\n')
    assert bench("tasks", "bundle", "x.zip", "-o", "z.zip", "--manifest", "m.toml").returncode == 0
    assert (tmp_path / "z.zip").read_bytes() == (tmp_path / "x.zip").read_bytes()
    assert bundled["summary"] == {"total": 2, "valid": 2, "invalid": 0}
    assert bundled["benchmark"]["splits"] == {"test": ["b"]}


def test_commands_take_a_bundle_as_a_path(bench, bundled, tmp_path):
    checked = json.loads(bench("tasks", "check", f"x.zip@{bundled['digest']}", "--json").stdout)
    assert [task["path"] for task in checked["tasks"]] == ["x.zip:a", "x.zip:b"]
    assert checked["summary"]["valid"] == 2
    folders = json.loads(bench("tasks", "digest", "tasks", "--json").stdout)["tasks"]
    files = json.loads(bench("tasks", "digest", "x.zip", "--json").stdout)["tasks"]
    assert [{**task, "path": ""} for task in files] == [{**task, "path": ""} for task in folders]
    shown = json.loads(bench("tasks", "show", "x.zip:b", "--json").stdout)
    assert (shown["name"], shown["config"]["environment"]["cpus"]) == ("acme/b", 3)
    whole = json.loads(bench("tasks", "show", "x.zip", "--json").stdout)
    assert (whole["digest"], whole["benchmark"]["name"], len(whole["tasks"])) == (bundled["digest"], "acme/pair", 2)
    assert "split test" in bench("tasks", "show", f"x.zip@{bundled['digest']}").stdout
    assert "1 package checked" in bench("tasks", "check", "x.zip#test").stdout
    assert json.loads(bench("tasks", "normalize", "x.zip:a", "--json").stdout)["text"]
    assert bench("tasks", "export", "x.zip", "out", "--target", "harbor").returncode == 0
    assert (tmp_path / "out/b/task.toml").is_file()


REFUSED = [
    (("check", "x.zip@sha256:12"), "'sha256:12' is not a digest"),
    (("check", f"x.zip@sha256:{'0' * 64}"), "is pinned."),
    (("show", f"x.zip@sha256:{'0' * 64}"), "is pinned."),
    (("prove", "x.zip"), "cannot be changed"),
    (("check", "x.zip:c"), "x.zip: no package 'c' in it"),
    (("check", "x.zip#dev"), "no split 'dev'; its splits: test"),
    (("show", "x.zip#test"), "several packages; name one of them, such as x.zip:b"),
    (("normalize", "x.zip:a", "--write"), "cannot be changed"),
    (("migrate", "x.zip"), "bench tasks export x.zip FOLDER --target native"),
    (("pin", "x.zip"), "cannot be changed"),
    (("bundle", "tasks", "-o", "x.zip"), "x.zip already exists"),
    (("bundle", "tasks", "-o", "tasks/a/y.zip"), "is inside the package tasks/a"),
    (("bundle", "tasks", "-o", "none/y.zip"), "its folder does not exist"),
    (("bundle", "tasks", "-o", "y.zip", "--split", "test"), "--split takes NAME=PATTERN"),
    (("bundle", "tasks", "-o", "y.zip", "--split", "test=c*"), "which no package matches"),
    (("bundle", "tasks", "-o", "y.zip", "--split", "a b=*"), "letters, digits"),
    (("bundle", "tasks", "-o", "y.zip", "--manifest", "bad.toml"), "has the unknown key 'licence'"),
    (("export", "tasks", "out", "--dataset", "acme"), "--dataset takes NAME@VERSION"),
]


def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(bench, bundled, tmp_path, snapshot):
    (tmp_path / "bad.toml").write_text('licence = "MIT"\n')
    before = snapshot(tmp_path)
    for arguments, why in REFUSED:
        done = bench("tasks", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert why in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    after = {name: data for name, data in snapshot(tmp_path).items() if name.partition("/")[0] != "store"}
    assert after == {
        name: data for name, data in before.items() if name.partition("/")[0] not in ("store", "store.lock")
    }


def test_a_native_export_keeps_every_byte_and_undoes_a_bundle(bench, bundled, tmp_path):
    (tmp_path / "tasks/a/environment/empty").mkdir()
    (tmp_path / "tasks/a/oracle/solve.sh").chmod(0o755)
    bench("tasks", "bundle", "tasks", "-o", "y.zip")
    done = bench("tasks", "export", "y.zip", "out", "--target", "native", "--json")
    reports = json.loads(done.stdout)["reports"]
    assert [(report["status"], report["losses"]) for report in reports] == [("lossless", [])] * 2
    bench("tasks", "bundle", "out", "-o", "z.zip")
    assert (tmp_path / "z.zip").read_bytes() == (tmp_path / "y.zip").read_bytes()
    alone = bench("tasks", "export", "tasks/b", "alone", "--target", "native")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "needs ../shared/env.yaml beside it" in alone.stderr


def test_a_folder_exports_as_a_dataset_that_can_be_read_from_its_repository(bench, make_package, tmp_path):
    make_package("tasks/a")
    make_package("tasks/b")
    url = f"file://{tmp_path / 'published.git'}"
    done = bench("tasks", "export", "tasks", "out", "--dataset", "acme@1.0", "--git-url", url)
    assert done.returncode == 0, done.stderr
    assert "out/registry.json: acme@1.0, 2 tasks" in done.stderr
    (tmp_path / "out/.git").rename(tmp_path / "published.git")
    registry = json.loads((tmp_path / "out/registry.json").read_text())
    assert [task["path"] for task in registry[0]["tasks"]] == ["a", "b"]
    checked = bench("tasks", "check", "out/registry.json#acme")
    assert "2 valid, 0 invalid" in checked.stdout, checked.stdout + checked.stderr
    assert "ok   out/registry.json:acme@1.0/a" in checked.stdout
    again = bench("tasks", "export", "tasks", "local", "--dataset", "acme@1.0")
    assert again.returncode == 0
    assert "2 valid" in bench("tasks", "check", "local/registry.json").stdout


def test_the_cache_shows_and_frees_packages(bench, bundled, store):
    bench("tasks", "export", "x.zip", "out")
    kinds = {row["kind"]: row for row in json.loads(bench("cache", "show", "--json").stdout)["kinds"]}
    assert (kinds["packages"]["count"], kinds["repositories"]["count"]) == (2, 0)
    assert kinds["packages"]["size"] > 0
    done = bench("cache", "prune", "--unused", "--kind", "packages")
    assert "removed 2 entries" in done.stdout, done.stdout + done.stderr
    assert bench("tasks", "check", "x.zip").returncode == 0


def test_a_bundle_is_checked_as_its_packages_are_and_nothing_is_unpacked_without_need(
    bench, make_package, tmp_path, store
):
    make_package("tasks/plain", **{"data/x": "y"})
    bench("tasks", "bundle", "tasks", "-o", "plain.zip")
    assert bench("tasks", "check", "plain.zip").returncode == 0
    assert list((store / "packages").iterdir()) == []
    own = make_package("tasks/own-profile", **{"env.yaml": "cpus: 3\n"})
    (own / "task.md").write_text(
        (own / "task.md").read_text().replace("task:\n", "environment-profile: env.yaml\ntask:\n", 1)
    )
    (make_package("tasks/linked") / "tests").symlink_to("verifier")
    make_package("tasks/broken", **{"task.md": "---\nschema_version: '1.3'\nbad: 1\n---\nDo it.\n"})
    bench("tasks", "bundle", "tasks", "-o", "all.zip")
    reports = [json.loads(bench("tasks", "check", path, "--json").stdout)["tasks"] for path in ("tasks", "all.zip")]
    for folder, file in zip(*reports, strict=True):
        assert file.pop("path") == folder.pop("path").replace("tasks/", "all.zip:")
        assert file == folder
    assert [task["valid"] for task in reports[1]] == [False, True, True, True]


def test_a_damaged_copy_in_the_cache_is_made_again(bench, bundled, store):
    bench("tasks", "check", "x.zip")
    for place in (store / "packages").glob("*/b/verifier/test.sh"):
        place.write_text("changed\n")
    for place in (store / "packages").glob("*/shared/env.yaml"):
        place.unlink()
    assert bench("tasks", "check", "x.zip").returncode == 0
    [whole] = (store / "packages").glob("*/b")
    assert load_package(whole).digest == load_package(Path(store.parent / "tasks/b")).digest
