"""`bench tasks init`: from nothing to a package that checks."""

import json
import re
import stat

import pytest

from benchflow.task.document.authoring import PRESETS

MARKER = re.compile(r"\[REPLACE:[^\]]*\]")


def fill_in(folder, text="Something definite."):
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_text(MARKER.sub(text, path.read_text()))


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_new_package_checks_once_its_markers_are_filled_in(invoke, tmp_path, preset):
    code, out, err = invoke("tasks", "init", "rotate-logs", *(("--preset", preset) if preset else ()))
    assert (code, err) == (0, "")
    folder = tmp_path / "rotate-logs"
    markers = sum(len(MARKER.findall(path.read_text())) for path in folder.rglob("*") if path.is_file())
    assert f"{markers} placeholders" in out
    code, out, _ = invoke("tasks", "check", "rotate-logs", "--json")
    assert code == 1
    issues = json.loads(out)["tasks"][0]["issues"]
    assert {issue["code"] for issue in issues} == {"marker-left"}
    assert len(issues) == markers
    for issue in issues:
        line = (folder / issue["file"]).read_text().splitlines()[issue["line"] - 1]
        assert "[REPLACE:" in line
    fill_in(folder)
    assert invoke("tasks", "check", "rotate-logs", "--level", "publication-grade")[0] == 0
    assert stat.S_IMODE((folder / "oracle/solve.sh").stat().st_mode) == 0o755


def test_the_folder_and_the_organisation_can_be_chosen(invoke, tmp_path):
    code, out, _ = invoke("tasks", "init", "a", "--dir", "new/place", "--org", "acme", "--json")
    assert code == 0
    assert json.loads(out)["path"] == "new/place/a"
    fill_in(tmp_path / "new/place/a")
    assert json.loads(invoke("tasks", "check", "new", "--json")[1])["tasks"][0]["name"] == "acme/a"


@pytest.mark.parametrize("name", ["", "..", "a/b", "/abs", ".hidden", "-x", "a b", "x" * 200])
def test_a_bad_name_is_refused_and_nothing_is_made(invoke, tmp_path, name):
    code, out, err = invoke("tasks", "init", "--", name)
    assert (code, out) == (2, "")
    assert err
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_never_touched(invoke, tmp_path, snapshot):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/keep").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("full")
    (tmp_path / "empty").mkdir()
    before = snapshot(tmp_path)
    for arguments in (("full",), ("file",), ("link",), ("x", "--dir", "file"), ("x", "--preset", "nope")):
        code, out, err = invoke("tasks", "init", *arguments)
        assert (code, out) == (2, ""), arguments
        assert err
    assert snapshot(tmp_path) == before
    assert invoke("tasks", "init", "empty")[0] == 0
    assert any((tmp_path / "empty").iterdir())
