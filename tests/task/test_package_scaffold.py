"""New packages: complete in form, and honest about what is left to write."""

import re

import pytest

from benchflow.errors import UsageError
from benchflow.task.document.authoring import PRESETS
from benchflow.task.document.task_document import TaskDocument
from benchflow.task.package_scaffold import MARKER, scaffold_package
from benchflow.task.verifier.verifier_document import VerifierDocument


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_both_documents_parse_whatever_line_replaces_the_markers(preset):
    for text in ("x", "Say \"hi\" and 'bye' # : - {a}", "[1, 2]"):
        files = {
            name: re.sub(r"\[REPLACE:[^\]]*\]", lambda _found, text=text: text, file.text)
            for name, file in scaffold_package("rotate-logs", organisation="acme", preset=preset).items()
        }
        assert not any(MARKER in content for content in files.values())
        document = TaskDocument.from_text(files["task.md"])
        assert document.config.task is not None
        assert document.config.task.name == "acme/rotate-logs"
        assert document.config.task.description == text
        assert document.instruction == text
        assert document.presets == ((preset,) if preset else ())
        verifier = VerifierDocument.from_text(files["verifier/verifier.md"])
        assert verifier.selected.type == ("reward-kit" if preset == "reward-kit" else "script")


def test_every_file_but_none_twice_has_a_marker():
    files = scaffold_package("a")
    assert all(file.text.count(MARKER) >= 1 for file in files.values())
    assert {name for name, file in files.items() if file.executable} == {
        "verifier/test.sh",
        "oracle/solve.sh",
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "a b", "a..b", "ä", "a" * 101, "a\n"])
def test_names_are_one_plain_folder(name):
    with pytest.raises(UsageError):
        scaffold_package(name)
    with pytest.raises(UsageError):
        scaffold_package("good", organisation=name)
