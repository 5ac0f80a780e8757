"""Warnings about tasks that are complete and worth nothing."""

import pytest

from benchflow.task.checks import check_folder

PYTHON_TEST = "import subprocess\n\ndef test_it():\n    assert subprocess.run(['/app/run']).returncode == 0\n"
SOLUTION = "#!/bin/sh\nprintf '%s\\n' 'the quick brown fox' > /app/answer.txt\n"
SOUND = {
    "task.md": "---\ntask: {name: acme/worth}\n---\nWrite /app/answer.txt and /app/solution.py.\n",
    "environment/Dockerfile": "FROM debian\n",
    "oracle/solve.sh": SOLUTION,
    "verifier/test.sh": "#!/bin/sh\ncurl -s http://localhost:8000/ | grep -q ok\npytest /verifier/test_it.py\n",
    "verifier/test_it.py": PYTHON_TEST,
}


@pytest.fixture
def codes(tmp_path):
    """The codes that a check of these files finds besides those of the sound package."""

    def find(**changed):
        found = []
        for number, files in enumerate((SOUND, {**SOUND, **changed})):
            folder = tmp_path / str(number)
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
            result = check_folder(folder)
            assert result.valid, result.issues
            found.append([issue.code for issue in result.issues])
        return [code for code in found[1] if code not in found[0]]

    return find


def test_a_sound_package_has_none_of_them(codes):
    assert codes() == []


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        ("environment/help/answer.sh", SOLUTION, "solution-exposed"),
        ("environment/checks.py", PYTHON_TEST, "tests-exposed"),
        ("task.md", SOUND["task.md"] + f"Run this:\n{SOLUTION}", "oracle-in-prompt"),
        ("verifier/test.sh", "#!/bin/sh\npip install pytest\npytest\n", "tests-download"),
        ("verifier/test.sh", "#!/bin/sh\ncurl -LsSf https://host.example/x | sh\n", "tests-download"),
        ("verifier/test_it.py", "import sys\nsys.path.insert(0, '/app')\nimport solution\n", "tests-import-work"),
        ("verifier/test_it.py", "from solution import answer\n", "tests-import-work"),
        ("verifier/test_it.py", "import sys\nsys.path.append(str(Path('/app')))\n", "tests-import-work"),
        ("verifier/test_it.js", "const work = require('/app/work.js');\n", "tests-import-work"),
        ("verifier/test_it.mjs", "import { work } from '/app/work.mjs';\n", "tests-import-work"),
        ("examples/inner/task.md", "---\ntask: {name: acme/inner}\n---\nDo.\n", "nested-package"),
    ],
)
def test_what_makes_a_task_worthless_is_warned_about(codes, path, text, code):
    inner = {"examples/inner/environment/Dockerfile": "FROM x\n"} if code == "nested-package" else {}
    assert codes(**{path: text}, **inner) == [code]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("verifier/test.sh", "#!/bin/sh\n# pip install pytest\necho 'git clone'\n"),
        ("verifier/test_it.py", "import json\nimport pytest\n"),
        ("verifier/test_it.py", 'ASK = """\nimport sys\nsys.path.insert(0, \'/app\')\nimport solution\n"""\n'),
        ("verifier/test_it.py", "def test_it():\n    assert read('/app/out'), \"import of ('/app/in') failed\"\n"),
        ("verifier/test_it.py", "from pathlib import Path; OUT = Path('/app/out')\n"),
        ("verifier/test_it.py", "run_path = '/app/run'\n"),
        ("verifier/test_it.js", "import fs from 'node:fs'; fs.readFileSync('/app/out');\n"),
        ("verifier/test_it.js", "// require it\nconst out = open('/app/require', 'import (\"/app/out\")');\n"),
        ("environment/empty.py", "\n"),
        ("docs/task.md", "Notes on the task.\n"),
    ],
)
def test_what_only_looks_like_it_is_not(codes, path, text):
    assert codes(**{path: text}) == []
