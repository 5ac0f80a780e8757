"""What Python and pytest find without being told to is the environment's; what a test names is the agent's."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

LIBRARIES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
EVIL = "import os\\nos._exit(0)\\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of pytest, for sandboxes that have none."""
    folder = tmp_path_factory.mktemp("library")
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def task(package, library):
    """A package with a verifier of one command; `files` are more files of it. Pytest is part of the environment."""

    def make(command: str, files: dict[str, str] | None = None, *, frontmatter: str = "", built: str = "") -> Path:
        script = f"#!/bin/bash\ncd /app\nif {command}; then r=1; else r=0; fi\necho $r > /logs/verifier/reward.txt\n"
        dockerfile = (
            "FROM debian:12\nWORKDIR /app\nCOPY library /usr/lib/python3/dist-packages/\n"
            f"RUN cd /usr/lib/python3/dist-packages && python3 -m compileall -q _pytest pluggy || true\n{built}\n"
        )
        verifier = {f"verifier/{name}": text for name, text in (files or {}).items()}
        folder = package(frontmatter, {"verifier/test.sh": script, "environment/Dockerfile": dockerfile, **verifier})
        shutil.copytree(library, folder / "environment" / "library", copy_function=os.link)
        return folder

    return make


@pytest.fixture
def reward(bench):
    """The reward of a package after a script of the agent."""

    async def verify(folder: Path, script: str, user: str | None = None) -> float | None:
        async with bench(folder, base_image="host") as it:
            await it.agent(script, user=user)
            found = await it.verify()
            print((it.output / "test-stdout.txt").read_text(), found.withheld, found.verdict)
            return found.verdict.reward

    return verify


COMMANDS = {
    "python on a script": "python3 /verifier/test_it.py",
    "python -m": "PYTHONPATH=/verifier python3 -m test_it",
    "python -c": "python3 -c \"import sys; sys.path.append('/verifier'); import test_it\"",
    "python from standard input": "python3 - < /verifier/test_it.py",
    "python without variables": (
        "env -i /usr/bin/python3 -c \"import sys; sys.path.append('/verifier'); import test_it\""
    ),
    "unittest": "python3 -m unittest discover -s /verifier",
    "pytest": "python3 -m pytest -q /verifier/test_it.py",
    "a copied test": "cp /verifier/test_it.py /app/ && python3 -m pytest -q /app/test_it.py",
    "a copied script": "cp /verifier/test_it.py /app/ && python3 /app/test_it.py",
}
SCRIPT = """\
    import json, hashlib, pathlib, unittest

    class Test(unittest.TestCase):
        def test_it(self):
            self.assertEqual(pathlib.Path("/app/answer.txt").read_text(), "42")

    assert pathlib.Path("/app/answer.txt").read_text() == "42"
    """
ATTACKS = {
    "a link to a package": (
        f"mkdir src; printf '{EVIL}' > src/__init__.py; for m in hashlib json pytest; do ln -s src $m; done"
    ),
    "a module": f"for m in hashlib json pathlib pytest _pytest; do printf '{EVIL}' > $m.py; done",
    "a link to a file": f"printf '{EVIL}' > x.txt; for m in hashlib json pytest; do ln -s x.txt $m.py; done",
    "a hard link": f"printf '{EVIL}' > x; for m in hashlib json pytest; do ln x $m.py; done",
    "sourceless bytecode": (
        f"printf '{EVIL}' > x.py; python3 -c 'import py_compile; py_compile.compile(\"x.py\", \"json.pyc\")'; "
        "cp json.pyc hashlib.pyc; cp json.pyc pytest.pyc"
    ),
    "start-up code": f"for m in sitecustomize usercustomize; do printf '{EVIL}' > $m.py; done",
    "linked start-up code": f"mkdir s; printf '{EVIL}' > s/__init__.py; ln -s s sitecustomize; ln -s s usercustomize",
    "a module beside a file of the test's name": f"printf '{EVIL}' > json.py; touch test_it.py",
}


def pairs(one: dict[str, str], other: dict[str, str]) -> list[object]:
    """All pairs of names; each name occurs once among those that are not slow."""
    wide, narrow = len(one), len(other)
    return [
        pytest.param(a, b, marks=() if i % narrow == j % wide else pytest.mark.slow)
        for i, a in enumerate(one)
        for j, b in enumerate(other)
    ]


@pytest.mark.parametrize(("command", "attack"), pairs(COMMANDS, ATTACKS))
async def test_no_module_of_the_agent_stands_before_one_of_the_environment(task, reward, command, attack):
    folder = task(COMMANDS[command], {"test_it.py": SCRIPT})
    assert await reward(folder, ATTACKS[attack]) == 0


@pytest.mark.parametrize("command", COMMANDS)
async def test_an_honest_answer_scores_with_every_command(task, reward, command):
    folder = task(COMMANDS[command], {"test_it.py": SCRIPT})
    assert await reward(folder, "printf 42 > answer.txt; touch json.py conftest.py") == 1


PLUGIN = (
    "import pytest\\n@pytest.hookimpl(tryfirst=True)\\n"
    "def pytest_runtest_makereport(item, call):\\n    call.excinfo = None\\n"
)
POINTS = "[pytest11]\\nevil = evil\\n"
SET = "[pytest]\\naddopts = -p evil\\n"
TOML = '[tool.pytest.ini_options]\\naddopts = "-p evil"\\n'
IMPORTED = f"printf '{PLUGIN}' > evil.py; "
RUNS = {
    "tests of the verifier": "python3 -m pytest -q /verifier/test_it.py",
    "tests copied into the working folder": "cp /verifier/test_it.py /app/ && python3 -m pytest -q test_it.py",
    "tests copied into a folder of tests": (
        "mkdir -p /app/tests && cp /verifier/test_it.py /app/tests/ && python3 -m pytest -q tests/test_it.py"
    ),
    "a copy of the working folder": (
        "cp -r /app /work && cp /verifier/test_it.py /work/ && cd /work && python3 -m pytest -q test_it.py"
    ),
}
PLANTED = {
    "conftest.py": f"printf '{PLUGIN}' > conftest.py",
    "a link conftest.py": f"printf '{PLUGIN}' > x.txt; ln -s x.txt conftest.py",
    "conftest.py in a folder of tests": f"mkdir tests; printf '{PLUGIN}' > tests/conftest.py",
    "conftest.py in a linked folder of tests": f"mkdir t; printf '{PLUGIN}' > t/conftest.py; ln -s t tests",
    "pytest.ini": f"{IMPORTED} printf '{SET}' > pytest.ini",
    "a link pytest.ini": f"{IMPORTED} printf '{SET}' > x; ln -s x pytest.ini",
    "tox.ini": f"{IMPORTED} printf '{SET}' > tox.ini",
    "a padded tox.ini": f"{IMPORTED} printf '{SET}' > tox.ini; head -c 2M /dev/zero | tr '\\0' '#' >> tox.ini",
    "setup.cfg": f"{IMPORTED} printf '[tool:pytest]\\naddopts = -p evil\\n' > setup.cfg",
    "pyproject.toml": f"{IMPORTED} printf '{TOML}' > pyproject.toml",
    "a link pyproject.toml": f"{IMPORTED} printf '{TOML}' > x; ln -s x pyproject.toml",
    "a padded pyproject.toml": (
        f"{IMPORTED} printf '{TOML}#' > pyproject.toml; head -c 2M /dev/zero | tr '\\0' x >> pyproject.toml"
    ),
    "metadata": f"{IMPORTED} mkdir x.dist-info; printf '{POINTS}' > x.dist-info/entry_points.txt",
    "linked metadata": (
        f"{IMPORTED} mkdir x; printf '{POINTS}' > x/entry_points.txt; ln -s x x.dist-info; ln -s x y.egg-info"
    ),
    "metadata in upper case": f"{IMPORTED} mkdir x.DIST-INFO; printf '{POINTS}' > x.DIST-INFO/entry_points.txt",
    "metadata in mixed case": f"{IMPORTED} mkdir x.Egg-Info; printf '{POINTS}' > x.Egg-Info/entry_points.txt",
    "metadata with a hard link": (
        f"{IMPORTED} printf '{POINTS}' > p; mkdir x.egg-info; ln p x.egg-info/entry_points.txt"
    ),
    "an egg": f"mkdir -p x.egg/EGG-INFO; {IMPORTED} printf '{POINTS}' > x.egg/EGG-INFO/entry_points.txt",
    "a package around the tests": (f"mkdir tests; printf '{EVIL}' > __init__.py; printf '{EVIL}' > tests/__init__.py"),
}
PYTEST = """\
    from pathlib import Path

    def test_it():
        assert Path("/app/answer.txt").read_text() == "42"
    """


@pytest.mark.parametrize(("run", "planted"), pairs(RUNS, PLANTED))
async def test_pytest_uses_no_plugin_and_no_setting_of_the_agent(task, reward, run, planted):
    folder = task(RUNS[run], {"test_it.py": PYTEST})
    assert await reward(folder, PLANTED[planted]) == 0


@pytest.mark.parametrize("planted", PLANTED)
async def test_what_pytest_does_not_use_stays_visible_and_costs_no_honest_agent_its_reward(task, reward, planted):
    folder = task(RUNS["tests copied into the working folder"], {"test_it.py": PYTEST})
    assert await reward(folder, f"{PLANTED[planted]}; printf 42 > answer.txt") == 1


FAILS = "def test_it():\n    assert False\n"


@pytest.mark.parametrize(("cleanup", "expected"), [("true", 0), ("false", 1)])
async def test_hooks_act_by_opt_out_only(task, reward, cleanup, expected):
    frontmatter = f"verifier: {{hardening: {{cleanup_conftests: {cleanup}}}}}\n"
    folder = task(
        "cp /verifier/test_it.py . && python3 -m pytest test_it.py", {"test_it.py": FAILS}, frontmatter=frontmatter
    )
    assert await reward(folder, PLANTED["conftest.py"]) == expected
