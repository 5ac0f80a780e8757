"""What the page on publishing shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "publishing.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("jobs")
def test_the_page_on_publishing_runs_as_it_is_written(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def shell(command):
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)

    [files] = blocks("sh")
    assert shell(files).returncode == 0
    for session in (text for text in blocks("") if text.startswith("$ ")):
        for part in session.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            done = shell(command)
            assert re.sub(r"sha256:\w+", "sha256:…", done.stdout).split("\n") == output.split("\n"), done.stderr
