"""What the ground folder says of the agent's changes, and what the interpreter hook makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Rights
from benchflow.verifier import ground
from benchflow.verifier.ground import (
    changed_settings,
    configures_uv,
    creates_uv_project,
    describe,
    environments_of_uv,
    sources_of,
    uv_variables,
)
from benchflow.verifier.lookups import LOOKUPS
from benchflow.verifier.surviving.survival import Rules

NOTHING = PathSet()


def rights(when: int = 1) -> Rights:
    return Rights(0o644, 0, 0, when)


def added(path: str, kind: str = "file", **more: object) -> Change:
    return Change(path, "added", kind, **{"rights": rights(), **more})  # type: ignore[arg-type]


def records(changes: list[Change], withheld: PathSet = NOTHING, rules: Rules | None = None) -> list[str]:
    found = describe(changes, withheld, rules or Rules("/app")).decode("utf-8", "surrogateescape")
    return [record for record in found.split("\0") if record and not record.startswith("place ")]


def test_of_an_added_tree_the_outermost_folder_is_described_and_every_setting():
    tree = [added("/app/x", "directory"), added("/app/x/a.py"), added("/app/x/conftest.py")]
    assert records(tree) == ["added /app/x", "setting /app/x/conftest.py"]


def test_what_was_built_and_changed_is_told_from_what_was_added_and_from_a_link_in_its_place():
    changes = [Change("/app/a.py", "changed", "file", rights=rights()), added("/app/b", "symlink", target="c")]
    replaced = Change("/app/c", "changed", "symlink", target="b", rights=rights())
    gone = Change("/app/d.py", "deleted", "file")
    assert records([*changes, replaced, gone]) == ["changed /app/a.py", "added /app/b", "added /app/c"]


def test_what_is_withheld_or_mounted_is_not_described():
    rules = Rules("/app", mounted=("/opt/data/set",))
    changes = [added("/usr/x"), added("/opt/data", "directory"), added("/opt/data/set", "directory")]
    assert records(changes, PathSet(["/usr"]), rules) == []


def test_of_sources_that_the_agent_added_or_changed_the_sizes_are_described_and_links_have_none():
    changes = [added("/app/a.py", size=3), Change("/app/b.py", "changed", "file", size=4), added("/app/c.txt")]
    links = [added("/app/d.py", "symlink", target="c.txt"), Change("/app/e.py", "deleted", "file")]
    installed = [added("/app/.venv/lib/python3/site-packages/x.py"), added("/usr/x.py")]
    found = sources_of([*changes, *links, *installed], PathSet(["/usr"]))
    assert found == b"3 /app/a.py\0004 /app/b.py\0-1 /app/d.py\0"


def test_an_opt_out_leaves_nothing_to_describe():
    assert describe([added("/app/x")], NOTHING, Rules("/app", keep_hooks=True)) == b"kept \0"


def test_names_that_are_no_text_survive_the_way():
    assert describe([added("/app/\udcff")], NOTHING, Rules("/app")).endswith(b"added /app/\xff\0")


def test_only_settings_that_were_built_are_read_as_built():
    changes = [Change("/app/tox.ini", "changed", "file"), added("/app/setup.cfg"), Change("/app/x", "changed", "file")]
    assert changed_settings(changes, NOTHING) == ["/app/tox.ini"]


@pytest.mark.parametrize(
    ("paths", "project", "variables"),
    [
        (["/app/answer.txt", "/app/sub/pyproject.toml"], False, set()),
        (["/app/pyproject.toml"], False, {"UV_NO_CONFIG", "UV_PROJECT"}),
        (["/app/.venv"], False, {"UV_NO_CONFIG", "UV_PROJECT"}),
        (["/app/.python-version"], True, {"UV_NO_CONFIG"}),
        (["/uv.toml"], True, {"UV_NO_CONFIG"}),
        (["/app/.venv"], True, {"UV_NO_CONFIG", "UV_PROJECT_ENVIRONMENT"}),
    ],
)
def test_uv_is_kept_off_what_the_agent_added_and_off_nothing_else(paths, project, variables):
    assert set(uv_variables([added(path) for path in paths], NOTHING, "/app", project=project)) == variables


@pytest.mark.parametrize(
    ("paths", "remade", "variables"),
    [
        (["/app/.venv", "/app/sub/.venv"], ["/app/.venv"], set()),
        (["/app/.venv", "/app/.python-version"], ["/app/.venv"], {"UV_NO_CONFIG"}),
        (["/app/.venv", "/app/pyproject.toml"], [], {"UV_NO_CONFIG", "UV_PROJECT"}),
        (["/app/uv.lock"], [], {"UV_NO_CONFIG", "UV_PROJECT"}),
    ],
)
def test_where_the_verifier_creates_a_project_uv_has_it_unless_the_agent_has_one_there(paths, remade, variables):
    changes = [added(path) for path in paths]
    found = [change.path for change in environments_of_uv(changes, NOTHING, "/app")]
    assert found == remade
    assert set(uv_variables(changes, PathSet(found), "/app", project=False, creates=True)) == variables


@pytest.mark.parametrize(
    ("script", "creates"),
    [
        ("uv init\nuv add pytest\n", True),
        ("cd /app && ~/.local/bin/uv --offline init .\n", True),
        ("uv venv; git init\n", False),
        ("# uv init\nuv run x\n", False),
        ("uv run python initialise.py\n", False),
    ],
)
def test_a_verifier_creates_a_project_if_one_of_its_files_runs_uv_init(tmp_path, script, creates):
    (tmp_path / "test.sh").write_text(script)
    assert creates_uv_project((tmp_path,)) is creates


@pytest.mark.parametrize(
    ("name", "text", "configures"),
    [
        ("pyproject.toml", "[tool.uv]\npython-preference = 'system'\n", True),
        ("pyproject.toml", "[tool]\nuv = {}\n", True),
        ("pyproject.toml", "[project]\nname = 'p'\n", False),
        ("uv.toml", "offline = true\n", True),
        (".python-version", "3.12\n", True),
        ("uv.lock", "", False),
    ],
)
def test_a_verifier_has_settings_for_uv_if_one_of_its_files_can_have_some(tmp_path, name, text, configures):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / name).write_text(text)
    assert configures_uv((tmp_path,)) is configures


def test_every_look_up_is_a_sentence_and_says_how_it_is_settled():
    for row in LOOKUPS:
        assert row.finds.endswith(".")
        assert row.how.endswith(".")
        assert row.settled in ("variable", "hook", "as-built", "sanitised", "named")


INTERPRETERS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")) or [Path(sys.executable)]


@pytest.fixture
def hooked(tmp_path):
    """Runs a script with the hook in a folder that the agent filled."""
    python = tmp_path / "ground" / "python"
    shutil.copytree(Path(ground.__file__).parent / "kit" / "ground", python)
    app = tmp_path / "app"
    app.mkdir()

    def run(interpreter: Path, script: str, *added_names: str) -> str:
        listed = "".join(f"added {app / name}\0" for name in added_names)
        (tmp_path / "ground" / "changes").write_text(f"place /usr\0{listed}")
        time.sleep(0.02)  # what is written from here on is later than the ground
        env = {**os.environ, "PYTHONPATH": str(python), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [interpreter, "-c", script], cwd=app, env=env, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    run.app = app  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda path: path.parent.parent.name)
def test_the_hook_works_in_every_version_of_python(hooked, interpreter):
    (hooked.app / "json.py").write_text("raise SystemExit('agent')")
    (hooked.app / "mine.py").write_text("")
    (hooked.app / "x").mkdir()
    script = "import json, mine, sys; json.loads('1'); print([p for p in sys.path if 'ground' in p], mine.__name__)"
    assert hooked(interpreter, script, "json.py", "mine.py") == "[] mine\n"


def test_portions_of_a_namespace_that_the_agent_added_come_last(hooked):
    for name in ("built", "planted"):
        (hooked.app / name / "space").mkdir(parents=True)
        (hooked.app / name / "space" / "part.py").write_text(f"print('{name}')")
    script = "import sys; sys.path[:0] = ['planted', 'built']; import space.part"
    assert hooked(Path(sys.executable), script, "planted") == "built\n"


def test_a_module_that_was_built_keeps_its_place_and_one_that_was_added_does_not(hooked):
    (hooked.app / "colorsys.py").write_text("print('of the folder')")
    script = "import colorsys; print('done')"
    assert hooked(Path(sys.executable), script) == "of the folder\ndone\n"
    assert hooked(Path(sys.executable), script, "colorsys.py") == "done\n"
