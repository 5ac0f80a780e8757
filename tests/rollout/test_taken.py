"""What was planned is what runs: files of a package that change on this machine during a rollout change nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow.task.package import load_package
from benchflow.task.taken import COPIES

pytestmark = pytest.mark.anyio

FORGED = "echo 1 > /logs/verifier/reward.txt\n"
OFFLINE = "environment: {network_mode: no-network}\n"


def replaced(path, text):
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)


def in_place(path, text):
    with path.open("r+") as file:
        file.write(text.ljust(path.stat().st_size))


CHANGES = {
    "content": lambda path: path.write_text(FORGED),
    "rename over": lambda path: replaced(path, FORGED),
    "in place": lambda path: in_place(path, FORGED),
    "truncation": lambda path: os.truncate(path, 0),
    "removal": lambda path: path.unlink(),
    "a new folder": lambda path: (path.parent.rename(path.parent.with_name("old")), path.parent.mkdir()),
}


def does(action):
    """An agent that does nothing while something happens on this machine."""

    async def command(context):
        action()
        return "true"

    return command


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
async def test_a_verifier_that_is_replaced_while_the_agent_works_does_not_score(run, make_package, change):
    folder = make_package(OFFLINE)
    result = await run(folder, commands=[does(lambda: change(folder / "verifier" / "test.sh"))])
    assert (result.status, result.reward) == ("scored", 0.0)
    assert result.task.path == str(folder)


async def test_a_file_that_is_added_to_the_verifier_does_not_act(run, make_package):
    verifier = "[ -e /verifier/more ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    folder = make_package(OFFLINE, verifier=verifier)
    result = await run(folder, commands=[does(lambda: (folder / "verifier" / "more").write_text(""))])
    assert result.reward == 0.0


async def test_the_test_of_a_later_step_is_that_of_the_plan(run, make_package):
    files = {"verifier/test.sh": None, "oracle/solve.sh": None}
    for name in ("one", "two"):
        files[f"steps/{name}/instruction.md"] = f"Write {name}."
        files[f"steps/{name}/verifier/test.sh"] = "echo 0.5 > /logs/verifier/reward.txt\n"
    folder = make_package(f"{OFFLINE}steps: [{{name: one}}, {{name: two}}]\n", files)
    later = folder / "steps" / "two" / "verifier" / "test.sh"
    result = await run(folder, commands=[does(lambda: later.write_text(FORGED)), "true"])
    assert result.rewards == {"reward": 0.5, "steps.one": 0.5, "steps.two": 0.5}


async def test_the_oracle_of_a_later_step_is_that_of_the_plan(run, make_package, monkeypatch):
    check = "if grep -q planned /app/{0}.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    files = {"verifier/test.sh": None, "oracle/solve.sh": None}
    for name in ("one", "two"):
        files[f"steps/{name}/instruction.md"] = f"Write {name}."
        files[f"steps/{name}/verifier/test.sh"] = check.format(name)
        files[f"steps/{name}/oracle/solve.sh"] = f"echo planned > /app/{name}.txt\n"
    folder = make_package(f"{OFFLINE}steps: [{{name: one}}, {{name: two}}]\n", files)
    from benchflow.agents.oracle_agent import OracleAgent

    started = OracleAgent.start

    async def start(self, context):
        (folder / "steps" / "two" / "oracle" / "solve.sh").write_text("echo changed > /app/two.txt\n")
        await started(self, context)

    monkeypatch.setattr(OracleAgent, "start", start)
    result = await run(folder, "oracle")
    assert result.rewards == {"reward": 1.0, "steps.one": 1.0, "steps.two": 1.0}


async def test_a_hidden_asset_is_that_of_the_plan(run, make_package):
    asset = "{path: hidden/cases.txt, visibility: hidden_verifier, mount_phase: verifier, target: /data/cases.txt}"
    folder = make_package(
        f"{OFFLINE}benchflow:\n  assets: [{asset}]\n",
        {"hidden/cases.txt": "0.25"},
        verifier="cat /data/cases.txt > /logs/verifier/reward.txt\n",
    )
    result = await run(folder, commands=[does(lambda: (folder / "hidden" / "cases.txt").write_text("1"))])
    assert result.reward == 0.25


async def test_the_authors_files_are_never_linked(run, make_package):
    folder = make_package(OFFLINE, {"verifier/data.txt": "x"})
    counts = []

    def count():
        counts.extend(path.stat().st_nlink for path in folder.rglob("*") if path.is_file())

    assert (await run(folder, commands=[does(count)])).status == "scored"
    count()
    assert set(counts) == {1}


async def test_a_package_that_changed_after_it_was_loaded_is_unscored_and_says_which_file(run, make_package):
    package = load_package(make_package(OFFLINE))
    (package.path / "oracle" / "solve.sh").write_text("true\n")
    result = await run(package, "nop")
    assert (result.status, result.error.category, result.error.code) == ("unscored", "package", "package-changed")
    assert "oracle/solve.sh is different" in result.error.message


async def test_a_copy_that_is_damaged_while_the_agent_works_never_scores(run, make_package):
    package = load_package(make_package(OFFLINE))

    def damage():
        (COPIES.take(package).files.root / "verifier" / "test.sh").write_text(FORGED)

    result = await run(package, commands=[does(damage)])
    assert (result.status, result.error.category, result.error.code) == ("unscored", "infrastructure", "copy-damaged")
    again = await run(package, out="again", commands=["echo done > /app/answer.txt"])
    assert again.reward == 1.0


async def test_a_damaged_tree_of_verifier_files_is_assembled_again(run, make_package):
    package = load_package(make_package(OFFLINE))
    assert (await run(package)).reward == 0.0
    root = COPIES.take(package).files.root
    (tree,) = root.parent.glob("tree-*")
    (tree / "verifier" / "test.sh").write_text(FORGED)
    assert (await run(package, out="again")).reward == 0.0


def test_two_processes_take_the_same_package_and_leave_nothing(make_package, tmp_path):
    folder, temporary = make_package(OFFLINE), tmp_path / "tmp"
    temporary.mkdir()
    code = (
        "import sys; from benchflow.task.package import load_package; from benchflow.task.taken import COPIES\n"
        "taken = COPIES.take(load_package(sys.argv[1])); print(taken.files.root, flush=True); sys.stdin.read()\n"
        "taken.files.copy.check()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
            text=True,
        )
        for _ in range(2)
    ]
    roots = [Path(process.stdout.readline().strip()) for process in processes]
    assert len(set(roots)) == 2
    assert all((root / "verifier" / "test.sh").is_file() for root in roots)
    assert [process.communicate("")[0] for process in processes] == ["", ""]
    assert [process.returncode for process in processes] == [0, 0]
    assert list(temporary.iterdir()) == []
