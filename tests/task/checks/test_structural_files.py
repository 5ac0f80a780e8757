"""The files that a verifier's strategies need."""

import pytest

from benchflow.task.checks.structural_level import local_scripts, missing_files
from benchflow.task.verifier.verifier_document import VerifierDocument


@pytest.mark.parametrize(
    ("command", "scripts"),
    [
        ("./test.sh", ("test.sh",)),
        ("bash test.sh", ("test.sh",)),
        ("python3 checks/run.py --fast checks/data", ("checks/run.py",)),
        ("checks/run --fast", ("checks/run",)),
        ("/verifier/test.sh", ("test.sh",)),
        ("sh ./a.sh && python b.py", ("a.sh", "b.py")),
        ("/usr/bin/python3 -m pytest", ()),
        ("sed -i s/a/b/ /app/out.txt", ()),
        ("python $HOME/x.py", ()),
        ("cd sub && ./test.sh", ()),
        ("curl https://x/y.sh", ()),
        ("echo 'unbalanced", ()),
        ("X=1.py true", ()),
        ("../escape.sh", ()),
    ],
)
def test_only_words_that_certainly_name_scripts_count(command, scripts):
    assert local_scripts(command) == scripts


DOCUMENT = """---
verifier:
  default_strategy: script
  strategies:
    script: {type: script, command: ./test.sh}
    kit: {type: reward-kit, root: kit, criteria: kit/criteria.toml}
    prose: {type: llm-judge, rubric: rubrics/verifier.toml, context_file: context.md}
    both: {type: hybrid, factors: {a: script, b: prose}}
  rubric: {files: {human: rubrics/verifier.md, structured: rubrics/verifier.toml}}
---
"""


def test_every_named_file_is_looked_for():
    document = VerifierDocument.from_text(DOCUMENT)
    assert [(missing.path, missing.name) for missing in missing_files(document, ())] == [
        ("verifier.strategies.script.command", "test.sh"),
        ("verifier.strategies.kit.entrypoint", "kit/reward.py"),
        ("verifier.strategies.kit.criteria", "kit/criteria.toml"),
        ("verifier.strategies.prose.rubric", "rubrics/verifier.toml"),
        ("verifier.strategies.prose.context_file", "context.md"),
        ("verifier.rubric.files.human", "rubrics/verifier.md"),
        ("verifier.rubric.files.structured", "rubrics/verifier.toml"),
    ]


def test_a_complete_verifier_lacks_nothing():
    files = {
        "test.sh",
        "kit/reward.py",
        "kit/criteria.toml",
        "rubrics/verifier.toml",
        "rubrics/verifier.md",
        "context.md",
    }
    assert list(missing_files(VerifierDocument.from_text(DOCUMENT), files)) == []
