"""Where a verifier makes something itself, nothing of the agent stands in its place."""

from __future__ import annotations

import pytest

from benchflow.sandbox.protocol import Change, Rights
from benchflow.verifier.surviving.made_places import MadeByVerifier, MadePlaces, made_places
from benchflow.verifier.watched import making

pytestmark = pytest.mark.anyio
TEST = "def test_answer():\n    assert open('/app/answer.txt').read() == '42\\n'\n"
COPIED = """\
#!/bin/bash
cd /app
{before}
cp /verifier/test_outputs.py .
if python3 -m pytest -q -p no:cacheprovider test_outputs.py; then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
"""
PLANTED = "mkdir test_outputs.py; echo 'def test_a(): pass' > test_outputs.py/test_a.py"


def change(path, what="file", kind="added", mode=0o644):
    return Change(path, kind, what, rights=Rights(mode, 0, 0, 0.0))


def places(*made):
    return made_places([], made, {})


FILES = places(change("/app/test.py"), change("/app/env", "directory"), change("/app/env/python"))


@pytest.mark.parametrize(
    "taken",
    [
        change("/app/test.py", "directory"),
        change("/app/test.py", "symlink"),
        change("/app/env"),
        change("/app/env", "symlink", "changed"),
        change("/app/env/python"),
        change("/app/env/python", "directory"),
        change("/app", "symlink", "changed"),
    ],
    ids=lambda item: f"{item.path}-{item.type}",
)
def test_what_would_be_kept_instead_is_withheld(taken):
    assert FILES.taken_by(taken, as_root=True)


@pytest.mark.parametrize(
    "left",
    [
        change("/app/test.py"),
        change("/app/env", "directory"),
        change("/app/env/more"),
        change("/app/other", "directory"),
        change("/app/env/python", "file", "deleted"),
    ],
    ids=lambda item: f"{item.path}-{item.type}",
)
def test_what_is_written_again_or_lies_elsewhere_stays(left):
    assert not FILES.taken_by(left, as_root=True)


def test_a_verifier_that_is_not_root_may_be_unable_to_write_again():
    assert FILES.taken_by(change("/app/test.py"), as_root=False)


def test_a_program_that_is_built_may_be_kept_and_so_may_a_file_in_a_folder_of_everybody():
    made = made_places(
        [], [change("/app/tool", mode=0o755), change("/app/a.o"), change("/tmp/log")], {"/app/a.o": "7f454c46"}
    )
    assert all(made.taken_by(change(path), as_root=True) for path in ("/app/tool", "/app/a.o", "/tmp/log"))


def test_a_file_as_built_that_the_verifier_writes_is_the_agents_to_edit_but_not_to_replace():
    made = places(change("/app/settings.py", kind="changed"))
    assert not made.taken_by(change("/app/settings.py", kind="changed"), as_root=True)
    assert made.taken_by(change("/app/settings.py", "directory", "changed"), as_root=True)


def test_what_was_there_before_is_not_made():
    there = change("/app/carried.txt")
    assert made_places([there], [there, change("/app/new", "directory")], {}) == places(change("/app/new", "directory"))


@pytest.mark.parametrize(
    ("asked", "words", "own", "expected"),
    [
        ((), (), (), True),
        (("/app/env",), (), (), False),
        ((), ("python",), (), False),
        ((), ("python",), ("python",), True),
        (("/app/env/python",), (), (), False),
        (("/app/env", "/app/env/python"), (), ("python",), True),
    ],
)
def test_what_the_task_asks_for_stays_unless_the_verifier_has_a_file_of_that_name(asked, words, own, expected):
    made = MadeByVerifier(FILES, frozenset(own), frozenset(asked), frozenset(words))
    assert made.takes(change("/app/env/python")) is expected


def test_what_agent_and_verifier_both_install_stays_as_its_package_manager_knows_it():
    made = MadeByVerifier(places(change("/usr/bin/curl", mode=0o755)), used=frozenset({"curl"}))
    assert not made.takes(change("/usr/bin/curl", mode=0o755))
    assert made.suspects([change("/usr/bin/curl", mode=0o755)]) == []


def test_a_working_folder_among_the_systems_is_the_agents_all_the_same():
    planted = change("/usr/src/app/test.py", "directory")
    made = MadeByVerifier(places(change("/usr/src/app/test.py")), frozenset({"test.py"}), workdir="/usr/src/app")
    assert made.takes(planted)
    assert made.suspects([planted]) == [{"/usr/src/app/test.py"}]


def test_what_is_no_file_stays_nowhere_in_the_place_of_a_file_or_folder():
    made = MadeByVerifier(FILES, asked=frozenset({"/app/env", "/app/test.py"}), words=frozenset({"env", "test.py"}))
    assert made.takes(change("/app/env", "symlink"))
    assert made.takes(change("/app/test.py", "directory"))


@pytest.mark.parametrize("kind", ["added", "changed"])
def test_a_file_called_like_the_one_that_is_copied_there_never_stays(kind):
    made = MadeByVerifier(places(change("/app/test.py", kind=kind)), frozenset({"test.py"}))
    assert made.takes(change("/app/test.py", kind=kind))
    assert not made.takes(change("/app/other/test.py"))


def test_names_that_the_verifier_uses_and_the_task_does_not_are_suspect():
    own, used = frozenset({"test_outputs.py"}), frozenset({".venv", "main.py", "answer.txt"})
    made = MadeByVerifier(MadePlaces(), own, words=frozenset({"main.py"}), used=used)
    folders = [change(f"/app/{name}", "directory") for name in ("test_outputs.py", ".VENV", "main.py", "notes")]
    assert made.suspects([*folders, change("/app/answer.txt")]) == [
        {"/app/test_outputs.py"},
        {"/app/test_outputs.py", "/app/.VENV"},
    ]


def test_what_is_in_a_folder_that_the_task_asks_for_is_suspect_only_if_it_is_called_like_a_file_of_the_verifiers():
    made = MadeByVerifier(
        own=frozenset({"test.py"}), asked=frozenset({"/app/out"}), used=frozenset({"a.gz", "test.py"})
    )
    folder = change("/app/out", "directory")
    assert made.suspects([folder, change("/app/out/a.gz")]) == []
    assert made.suspects([folder, change("/app/out/test.py")]) == [{"/app/out/test.py"}]


@pytest.mark.parametrize(
    ("file", "suspect"),
    [
        (change("/app/tool"), False),
        (change("/app/tool", mode=0o755), True),
        (change("/app/tool", "symlink"), True),
        (change("/app/tool", "directory"), True),
        (change("/app/tool", kind="changed"), False),
        (change("/app/tool", kind="deleted"), False),
        (change("/app/made/tool"), True),
        (change("/tmp/tool"), True),
    ],
)
def test_only_what_could_be_kept_is_suspect(file, suspect):
    made = MadeByVerifier(used=frozenset({"tool"}))
    assert made.suspects([change("/app/made", "directory"), file]) == ([{file.path}] if suspect else [])


@pytest.mark.sandbox
@pytest.mark.parametrize("rung", ["separate", "shared", "system", "services"])
@pytest.mark.parametrize("before", ["", "[ -f answer.txt ] || { echo 0 > /logs/verifier/reward.txt; exit; }"])
async def test_a_folder_in_the_place_of_a_test_that_the_verifier_copies_does_not_count(bench, package, rung, before):
    files = {"verifier/test.sh": COPIED.format(before=before), "verifier/test_outputs.py": TEST}
    task = package(f"verifier: {{isolation: {rung}}}\nartifacts: [/app]\n", files)
    async with bench(task) as it:
        await it.agent(f"echo guess > answer.txt; {PLANTED}")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert [(item.path, item.reason) for item in found.withheld] == [("/app/test_outputs.py", "made")]


@pytest.mark.sandbox
@pytest.mark.parametrize("rung", ["shared", "system"])
async def test_neither_does_it_where_the_working_folder_is_among_the_systems(bench, package, rung):
    script = COPIED.format(before="").replace("/app", "/usr/src/app")
    files = {"verifier/test.sh": script, "verifier/test_outputs.py": TEST.replace("/app", "/usr/src/app")}
    frontmatter = f"verifier: {{isolation: {rung}}}\nenvironment: {{workdir: /usr/src/app}}\n"
    async with bench(package(frontmatter, files)) as it:
        await it.agent(f"echo guess > answer.txt; {PLANTED}")
        assert (await it.verify()).verdict.reward == 0
        await it.agent("rm -r test_outputs.py; echo 42 > answer.txt")
        assert (await it.verify()).verdict.reward == 1


@pytest.mark.sandbox
async def test_work_beside_what_the_verifier_makes_scores_also_under_names_that_it_uses(bench, package):
    script = COPIED.format(before="[ -d src ] && cp src/value.txt answer.txt; mkdir -p build; date > build/log")
    task = package("", {"verifier/test.sh": script, "verifier/test_outputs.py": TEST}, prompt="Find the answer.")
    async with bench(task) as it:
        await it.agent("mkdir src build; echo 42 > src/value.txt; echo mine > build/log; echo x > test_outputs.py")
        assert (await it.verify()).verdict.reward == 1
        assert (await it.verify()).verdict.reward == 1


@pytest.mark.sandbox
async def test_what_a_verifier_makes_is_learned_once_and_kept_for_other_processes(
    bench, package, monkeypatch, tmp_path
):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    files = {"verifier/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt; touch /app/made"}
    task = package("", files, prompt=f"Do it in {tmp_path}.")
    learned = []
    make = making._make

    async def counted(scope, *rest):
        learned.append(scope.step)
        return await make(scope, *rest)

    monkeypatch.setattr(making, "_make", counted)
    for _ in range(2):
        async with bench(task) as it:
            await it.agent("mkdir made")
            for _ in range(2):
                assert [item.reason for item in (await it.verify()).withheld] == ["made"]
        monkeypatch.setattr(making, "_known", making.new_memory())
    assert len(learned) == 1


@pytest.mark.sandbox
async def test_it_is_noted_if_what_a_verifier_makes_cannot_be_known(bench, package, monkeypatch, tmp_path):
    async def fail(self, sandbox):
        raise OSError("no space left")

    monkeypatch.setattr(making.Making, "end", fail)
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    async with bench(package(prompt=f"Do it in {tmp_path}.")) as it:
        await it.agent("echo 42 > answer.txt")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert [note.code for note in found.diagnostics] == ["made-unknown"]
