"""The page about proving runs as it is written."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import loaded_commands

PAGE = (Path(__file__).parents[2] / "docs" / "proving.md").read_text()
MADE = Path(__file__).parents[2] / "src" / "benchflow"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.sandbox
def test_the_example_runs_as_it_is_written(tmp_path):
    [files] = blocks("sh")
    subprocess.run(["sh", "-ec", files], cwd=tmp_path, check=True)
    [session] = blocks("console")
    for part in session.split("$ bench ")[1:]:
        command, _, output = part.partition("\n")
        done = loaded_commands.bench(*command.split(), "--sandbox", "local", cwd=tmp_path, env=dict(os.environ))
        wanted = [line for line in output.splitlines() if "…" not in line]
        assert done.stdout.splitlines()[: len(wanted)] == wanted, done.stderr


def test_every_code_of_the_page_is_reported():
    source = "\n".join(file.read_text() for file in (MADE / "evidence").glob("*.py"))
    source += (MADE / "task" / "document" / "evidence_block.py").read_text()
    table = PAGE.partition("## Codes")[2]
    codes = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert codes
    assert [code for code in codes if f'"{code}"' not in source] == []
