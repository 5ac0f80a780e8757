"""What Python and pytest find without being told to is the environment's; what a test names is the agent's.

`make exploits` (`EXPLOITS=all`) tries everything that is planted with every command; otherwise everything planted and
every command have their turn, always in the same pairs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tarfile
from pathlib import Path

import pytest

ALL = os.environ.get("EXPLOITS") == "all"
pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
if not ALL:
    pytestmark.append(pytest.mark.xdist_group("python-lookups"))  # its environment takes seconds to build

LIBRARIES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
EVIL = "import os\\nos._exit(0)\\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of pytest, for sandboxes that have none: one file, which is read faster than hundreds."""
    archive = tmp_path_factory.mktemp("library") / "library.tar"

    def source(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name == "__pycache__" else member

    with tarfile.open(archive, "w") as tar:
        for name in LIBRARIES:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            tar.add(Path(spec.origin).parent, name, filter=source)
    return archive


@pytest.fixture
def task(package, library):
    """A package with a verifier of one command; `files` are more files of it. Pytest is part of the environment."""

    def make(command: str, files: dict[str, str] | None = None, *, frontmatter: str = "", built: str = "") -> Path:
        script = f"#!/bin/bash\ncd /app\nif {command}; then r=1; else r=0; fi\necho $r > /logs/verifier/reward.txt\n"
        dockerfile = (
            "FROM debian:12\nWORKDIR /app\nADD library.tar /usr/lib/python3/dist-packages/\n"
            f"RUN cd /usr/lib/python3/dist-packages && python3 -m compileall -q _pytest pluggy || true\n{built}\n"
        )
        verifier = {f"verifier/{name}": text for name, text in (files or {}).items()}
        folder = package(frontmatter, {"verifier/test.sh": script, "environment/Dockerfile": dockerfile, **verifier})
        shutil.copy(library, folder / "environment")
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
    "a file with the name of a command": (
        f"printf '{EVIL}' > json.py; touch 'python3 -m unittest' ./-m ./-c ./- '<stdin>'"
    ),
    "times ahead": f"printf '{EVIL}' > json.py; printf '{EVIL}' > pytest.py; touch -d '+1 hour' x json.py",
    "a module that libraries look for on other systems": (
        f"for m in msvcrt _winapi winreg nt org; do printf '{EVIL}' > $m.py; done"
    ),
    "a module beside a file of the test's name": f"printf '{EVIL}' > json.py; touch test_it.py",
}


def pairs(one: dict[str, str], other: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs of names, in which each name occurs."""
    wide, narrow = len(one), len(other)
    return [(a, b) for i, a in enumerate(one) for j, b in enumerate(other) if ALL or i % narrow == j % wide]


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
    "tests copied into a folder that is run as a whole": (
        "mkdir -p /app/tests && cp /verifier/test_it.py /app/tests/ && python3 -m pytest -q tests"
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
    "a test among the tests, and times ahead": (
        f"mkdir tests; printf '{EVIL}' > tests/test_a.py; printf '{PLUGIN}' > tests/conftest.py; touch -d '+1 hour' x"
    ),
    "a test among the tests": f"mkdir tests; printf '{EVIL}' > tests/test_a.py",
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


BUILT = """\
RUN mkdir -p /app/flat /app/src/inside /app/tests && echo 'value = 1' > /app/flat/__init__.py \
 && echo 'value = 1' > /app/src/inside/__init__.py && cp -r /app/flat /usr/lib/python3/dist-packages/ \
 && echo /app/src > /usr/lib/python3/dist-packages/editable.pth \
 && printf '[project]\\nname = "x"\\n[tool.pytest.ini_options]\\npythonpath = ["lib"]\\n' > /app/pyproject.toml \
 && mkdir /app/lib && echo 'value = 1' > /app/lib/found_by_settings.py \
 && printf 'import pytest\\n@pytest.fixture\\ndef given():\\n    return 1\\n' > /app/conftest.py
"""
HONEST = {
    "a solution in the working folder": (
        "python3 -m pytest -q /verifier/test_it.py",
        "import solution\ndef test_it(): assert solution.value == 2\n",
        "echo 'value = 2' > solution.py",
    ),
    "a package in the working folder that also lies installed": (
        "python3 -m pytest -q /verifier/test_it.py",
        "import flat\ndef test_it(): assert flat.value == 2\n",
        "echo 'value = 2' > flat/__init__.py",
    ),
    "an editable install": (
        "pytest -q /verifier/test_it.py || python3 -m pytest -q /verifier/test_it.py",
        "import inside\ndef test_it(): assert inside.value == 2\n",
        "echo 'value = 2' > src/inside/__init__.py",
    ),
    "settings of pytest as built, although the agent changed the file": (
        "cp /verifier/test_it.py tests/ && python3 -m pytest -q tests/test_it.py && grep -q mine pyproject.toml",
        "import found_by_settings\ndef test_it(given): assert found_by_settings.value + given == 2\n",
        'printf \'[project]\\nname = "mine"\\n[tool.pytest.ini_options]\\naddopts = "-p nothing"\\n\' > pyproject.toml',
    ),
    "settings that the verifier brings": (
        "cp /verifier/test_it.py tests/ && cp /verifier/pyproject.toml . && python3 -m pytest -q tests/test_it.py",
        "import brought\ndef test_it(): assert brought.value == 2\n",
        "echo '[broken' > pyproject.toml; mkdir -p brought; echo 'value = 2' > brought/brought.py",
    ),
    "a conftest that the verifier copies into a folder of the agent": (
        "cd mine; cp /verifier/test_it.py .; cp /verifier/own_conftest.py conftest.py; python3 -m pytest -q test_it.py",
        "def test_it(own): assert own == 2\n",
        "mkdir mine; echo 'raise SystemExit' > mine/conftest.py",
    ),
    "tests of the agent with their conftest, named by the verifier": (
        "python3 -m pytest -q /app/mine",
        "",
        """mkdir mine; cp conftest.py mine/; sed -i 's/given/mine/; s/1/2/' mine/conftest.py
        echo 'def test_it(mine): assert mine == 2' > mine/test_mine.py""",
    ),
    "a program of the agent with modules of ordinary names": (
        "python3 /app/mine/main.py",
        "",
        """mkdir mine; echo 'from calendar import mine; import types_of; assert mine == 2' > mine/main.py
        echo 'mine = 2' > mine/calendar.py; touch mine/types_of.py""",
    ),
    "a package around a test that the verifier copies": (
        "cp /verifier/test_it.py mine/ && python3 -m pytest -q mine/test_it.py",
        "from mine import value\ndef test_it(): assert value == 2\n",
        "mkdir mine; echo 'value = 2' > mine/__init__.py",
    ),
    "a deliverable with the name of a setting": (
        "cd conf && grep -q 42 conftest.py && grep -q 42 setup.cfg && grep -q 42 pytest.ini && [ -e model.pth ]",
        "",
        "mkdir conf; cd conf; touch model.pth; echo '# 42' | tee conftest.py setup.cfg > pytest.ini",
    ),
}
MORE = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["brought"]\n',
    "own_conftest.py": "import pytest\n@pytest.fixture\ndef own():\n    return 2\n",
}


@pytest.mark.parametrize("case", HONEST)
async def test_honest_work_is_found_as_in_the_environment_as_built(task, reward, case):
    command, test, script = HONEST[case]
    folder = task(command, {"test_it.py": test, **MORE}, built=BUILT)
    assert await reward(folder, script) == 1


IN_A_FOLDER_OF_ITS_OWN = {
    "unpacked": (
        f"printf '{EVIL}' > hashlib.py; cp hashlib.py pytest.py; tar cf x.tar *.py; rm *.py",
        "mkdir /w && tar xf /app/x.tar -C /w && cd /w && python3 -m pytest -q /verifier/test_it.py",
    ),
    "copied with its times": (
        f"printf '{EVIL}' > hashlib.py; printf '{EVIL}' > pytest.py",
        "cp -a /app /w && cd /w && python3 -m pytest -q /verifier/test_it.py",
    ),
    "tests below": (
        f"mkdir tests; printf '{EVIL}' > test_a.py; printf '{EVIL}' > tests/conftest.py",
        "cp -a /verifier/. tests/ && python3 -m pytest -q",
    ),
    "discovered": (
        f"mkdir tests; printf '{EVIL}' > tests/test_a.py",
        "cp /verifier/test_it.py tests/ && python3 -m unittest discover -s tests",
    ),
    "a package before a namespace": (
        f"mkdir spread; printf '{EVIL}' > spread/__init__.py",
        "python3 -c 'import spread.part' && python3 /verifier/test_it.py",
    ),
}


@pytest.mark.parametrize("case", IN_A_FOLDER_OF_ITS_OWN)
async def test_nothing_of_the_agent_acts_where_the_verifier_puts_files(task, reward, case):
    script, command = IN_A_FOLDER_OF_ITS_OWN[case]
    built = "RUN d=/usr/lib/python3/dist-packages/spread && mkdir $d && touch $d/part.py"
    assert await reward(task(command, {"test_it.py": SCRIPT}, built=built), script) == 0


AMONG_THE_TESTS = {
    "another owner": "cp /verifier/test_it.py tests/ && chown -R 0:0 /app && cd tests",
    "other rights before": "chmod -R a+rX /app && cp /verifier/test_it.py tests/ && cd tests",
    "a copy": "cp -r /app /work && cp /verifier/test_it.py /work/tests/ && cd /work/tests",
    "a copy of a copy with its times": (
        "cp /verifier/test_it.py tests/ && chown -R 0:0 . && cp -a /app /tmp/one && cp -r /tmp/one /work"
        " && cd /work/tests"
    ),
    "a copy of the tests alone": (
        "cp -r tests /tmp/mine && cp -p /verifier/test_it.py /tmp/mine && ln -s /tmp/mine /w && cd /w"
    ),
    "tests out of an archive": "tar -xf /verifier/test.tar -C tests && chown -R 0:0 . && cd tests",
}
RUNNERS = {"pytest": "python3 -m pytest -q", "unittest": "python3 -m unittest discover -v -s"}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("case", AMONG_THE_TESTS)
async def test_no_test_of_the_agent_becomes_one_of_the_verifier_by_rights_or_copies(task, reward, case, runner):
    folder = task(f"{AMONG_THE_TESTS[case]}; {RUNNERS[runner]} .", {"test_it.py": SCRIPT})
    with tarfile.open(folder / "verifier/test.tar", "w") as tar:
        os.utime(folder / "verifier/test_it.py", (1e9, 1e9))
        tar.add(folder / "verifier/test_it.py", "test_it.py")
    script = f"mkdir tests; printf '{EVIL}' > x.txt; ln -s ../x.txt tests/test_a.py; cp x.txt tests/test_b.py"
    assert await reward(folder, script) == 0


WANTED = 'echo \'def test_mine(): assert open("/app/answer.txt").read() == "42"\' > tests/test_mine.py'
BUILT_TESTS = (
    "RUN mkdir /app/tests && echo 'def test_built(): assert 1' > /app/tests/test_built.py && echo 'v = 1' > /app/v.py"
)
RUN_TOGETHER = {
    "tests of the agent that are named": (
        "cp /verifier/test_it.py tests/; chown -R 0:0 .; set -- tests/test_it.py tests/test_mine.py",
        "2 passed",
    ),
    "tests of the agent among those as built, for another owner": ("chown -R 0:0 .; set -- tests", "2 passed"),
    "tests of the agent in a copy, for a changed program": (
        "cp -r /app /work; cd /work; sed -i s/1/2/ v.py; set -- tests",
        "2 passed",
    ),
    "tests as built in a copy, of which the agent has a copy": (
        "chmod -R go-w .; cp -r /app /work; cp /verifier/test_it.py /work/tests/; cd /work; set -- tests",
        "2 passed",
    ),
    "tests that the verifier edits and computes": (
        """sed s/test_it/test_edited/ /verifier/test_it.py > tests/test_mine.py; chown -R 0:0 .
        echo 'def test_seven(): pass' | sed s/seven/7/ > tests/test_more.py; set -- tests""",
        "3 passed",
    ),
}


@pytest.mark.parametrize("case", RUN_TOGETHER)
async def test_tests_as_built_of_the_verifier_and_named_ones_run_together(task, reward, case):
    prepare, expected = RUN_TOGETHER[case]
    command = f'{prepare}; python3 -m pytest -q -rA "$@" > /tmp/log; cat /tmp/log; grep "{expected}" /tmp/log'
    folder = task(command, {"test_it.py": PYTEST}, built=BUILT_TESTS)
    copied = "mkdir -p z/tests; cp tests/test_built.py z/tests"
    assert await reward(folder, f"printf 42 > answer.txt; {WANTED}; {copied}") == 1


async def test_a_test_as_built_that_the_agent_changed_does_not_run_among_those_of_the_verifier(task, reward):
    command = "cp /verifier/test_it.py tests/ && python3 -m pytest -q tests"
    folder = task(command, {"test_it.py": PYTEST}, built=BUILT_TESTS)
    changed = f"printf '{EVIL}' > tests/test_built.py"
    assert await reward(folder, changed) == 0
    assert await reward(folder, f"printf 42 > answer.txt; {changed}") == 1


async def test_the_module_path_and_the_start_up_code_of_the_environment_keep_working(task, reward):
    built = (
        "RUN mkdir /opt/own && echo 'value = 2' > /opt/own/own.py && echo 'import own; own.value += 40' "
        "> /opt/own/sitecustomize.py\nENV PYTHONPATH=/opt/own\n"
    )
    test = (
        "import own, sys\ndef test_it():\n    assert own.value == 42 and not [p for p in sys.path if 'ground' in p]\n"
    )
    folder = task("python3 -m pytest -q /verifier/test_it.py", {"test_it.py": test}, built=built)
    assert await reward(folder, "true") == 1


async def test_data_outside_the_working_folder_is_carried_over_as_data(task, reward):
    places = ["/srv/a.txt", "/var/lib/app/a.txt", "/opt/new/a.txt", "/data/a.txt", "/root/a.txt"]
    folder = task(f"cat {' '.join(places)}")
    script = "".join(f"mkdir -p {Path(place).parent}; echo 1 > {place}; " for place in places)
    assert await reward(folder, script, "root") == 1


async def test_a_verifier_that_is_not_root_has_the_same_ground(task, reward):
    folder = task("python3 /verifier/test_it.py", {"test_it.py": SCRIPT}, frontmatter="verifier: {user: nobody}\n")
    assert await reward(folder, ATTACKS["a module"]) == 0
    assert await reward(folder, "printf 42 > answer.txt; touch json.py") == 1
