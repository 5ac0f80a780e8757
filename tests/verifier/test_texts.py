"""Whose a settings file is that appears while a verifier works: its text decides."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path

import pytest

from benchflow.verifier import ground

SCRIPT = """\
#!/bin/bash
cat > /app/pytest.ini <<'EOF'
[pytest]
addopts = -q
EOF
cat > /app/conftest.py <<EOF
import sys
sys.path.insert(0, "$PWD")
EOF
printf '[tool:pytest]\\nxfail_strict = true\\n' > setup.cfg
python3 - <<'EOF'
from pathlib import Path
Path("tox.ini").write_text(\"\"\"\\
[tox]
skipsdist = true
\"\"\")
raise SystemExit(0)
EOF
"""


@pytest.fixture
def texts(tmp_path):
    """The module, with the files of a verifier."""
    place = Path(ground.__file__).parent / "kit" / "ground" / "verifier_texts.py"
    spec = importlib.util.spec_from_file_location("verifier_texts", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path / "verifier"
    (folder / "sub").mkdir(parents=True)
    (folder / "test.sh").write_text(SCRIPT)
    (folder / "sub/settings").write_text("[pytest]\npythonpath = src\n")
    module.VERIFIER = str(folder)
    module.GROUND = str(tmp_path)
    (tmp_path / "settings").write_text(hashlib.sha256(b"[pytest]\ntestpaths = x\n").hexdigest())
    return module


@pytest.fixture
def known(texts, tmp_path):
    """Whether a text is taken for the verifier's or the environment's."""

    def judge(text: str) -> bool:
        (tmp_path / "file").write_text(text)
        return bool(texts.is_known(str(tmp_path / "file")))

    return judge


@pytest.mark.parametrize(
    "text",
    [
        "[pytest]\naddopts = -q\n",
        'import sys\nsys.path.insert(0, "/tmp/w")\n',
        "[tool:pytest]\nxfail_strict = true\n",
        "[tox]\nskipsdist = true\n",
        "[pytest]\npythonpath = src\n",
        "[pytest]\ntestpaths = x\n",
        "\n",
    ],
)
def test_a_text_of_the_verifier_or_of_a_setting_as_built_is_known(known, text):
    assert known(text)


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(0)\n",
        "addopts = -q\n",
        "[pytest]\n",
        "[pytest]\naddopts = -q\naddopts = -p zz\n",
        "import sys\n",
        "import sys\nsys.exit(0)\n",
        "skipsdist = true\n",
        "cat\n",
    ],
)
def test_a_part_of_one_or_more_than_one_is_not(known, text):
    assert not known(text)


def test_a_copy_is_known_by_its_bytes_wherever_it_is_and_an_empty_file_is_nobodys(texts, tmp_path):
    (tmp_path / "verifier/sub/nothing").touch()
    (tmp_path / "renamed.ini").write_text("[pytest]\npythonpath = src\n")
    (tmp_path / "nothing").touch()
    assert texts.is_copy(str(tmp_path / "renamed.ini"))
    assert not texts.is_copy(str(tmp_path / "nothing"))
    assert not texts.is_copy(str(tmp_path / "missing"))


@pytest.mark.parametrize("form", ["zip", "tar", "gztar", "bztar", "xztar"])
def test_a_file_of_python_out_of_an_archive_of_the_verifier_is_known_by_its_bytes(texts, tmp_path, form):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/test_it.py").write_text("assert 1\n")
    shutil.make_archive(str(tmp_path / "verifier/tests"), form, tmp_path / "packed")
    (tmp_path / "test_it.py").write_text("assert 2\n")
    assert texts.is_packed(str(tmp_path / "packed/test_it.py"))
    assert not texts.is_packed(str(tmp_path / "test_it.py"))
