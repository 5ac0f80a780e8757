"""Which paths of a package matter to an attacker."""

import pytest

from benchflow.evidence.audit.scouting import look, named_paths, outputs_of
from benchflow.evidence.trial_stage import StageOptions, open_stage


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("Write /app/out.txt.", ["/app/out.txt"]),
        ("Write `report.json` and 'src/a.py'.", ["/work/report.json", "/work/src/a.py"]),
        ("See https://example.com/a/b.txt", []),
        ("cat /etc/passwd > /logs/verifier/reward.txt; ls /usr/bin/env", []),
        ("test -s /data/x && cmp /data/x ./x", ["/data/x"]),
        ("cd /work", []),
    ],
)
def test_a_path_counts_if_it_is_named_and_not_part_of_the_system(text, paths):
    assert list(named_paths([text], "/work")) == paths


@pytest.mark.parametrize(
    ("made", "named", "there", "outputs"),
    [
        ([], ["/a/x", "/a/y.txt"], {"/a/y.txt"}, ["/a/x"]),
        (
            ["/a/deep/b", "/a/c.txt"],
            ["/a/c.txt", "/a/deep", "/a/other", "/a/d.txt"],
            set(),
            ["/a/c.txt", "/a/deep/b", "/a/d.txt"],
        ),
        (["/a/x.py"], ["/a/x.py"], {"/a/x.py"}, []),
    ],
)
def test_outputs_are_what_the_oracle_creates_and_then_what_is_named(made, named, there, outputs):
    assert list(outputs_of(made, named, there)) == outputs


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_the_scout_sees_the_working_folder_and_what_a_solution_would_write(make_package, backend):
    folder = make_package("environment:\n  workdir: /app\n", {"oracle/notes.txt": "how it is done"})
    async with open_stage(folder, StageOptions(sandbox=backend)) as stage:
        seen = await look(stage)
    assert seen.workdir == "/app"
    assert seen.outputs[0] == "/app/answer.txt"
    assert seen.solved == 1.0
    assert seen.is_solution(b"done\n")
    assert not seen.is_solution(b"")
    assert "PATH" in seen.variables
    assert "sh" not in seen.programs
    assert {"python3", "bash"} <= seen.programs
    assert "verifier/test.sh" in seen.verifier
    assert seen.oracle["oracle/notes.txt"] == "how it is done"


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_files_that_the_oracle_changes_are_edited_ones(make_package, backend):
    files = {
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY notes.txt /app/\n",
        "environment/notes.txt": "x\n",
    }
    solve = "cp -p /etc/hostname made.txt; echo y > notes.txt; rm -f gone\n"
    folder = make_package("", {**files, "oracle/solve.sh": solve})
    options = StageOptions(sandbox=backend, base_image="host")
    async with open_stage(folder, options) as stage:
        seen = await look(stage)
    assert seen.edited == ("/app/notes.txt",)
    assert seen.outputs[0] == "/app/made.txt"
