"""How families adapt to a package: which code of the agent is loaded, what is imported, what does not apply."""

from __future__ import annotations

import pytest

from benchflow.evidence.audit.auditing import load_families
from benchflow.evidence.audit.exploit_family import NotApplicable, Seen
from benchflow.evidence.audit.families.agents_code import attempt_inside, loaded
from benchflow.evidence.audit.families.daemons import hidden_files
from benchflow.evidence.audit.families.planting import reward_file
from benchflow.evidence.audit.families.shadowing import imports_of
from benchflow.task.package import load_package

TEST_SH = "python3 /verifier/check.py && echo 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def seen(make_package):
    """What is seen of a package; a test gives what differs."""

    def make(**differs):
        known = {
            "package": load_package(make_package()), "rung": "shared",
            "workdir": "/app", "user": "root", "home": "/root",
            "prompt": "", "files": (), "programs": frozenset(), "outputs": (), "read": (),
        }  # fmt: skip
        return Seen(**{**known, **differs})

    return make


def test_code_that_a_solution_writes_or_that_tests_import_is_loaded(seen):
    found = loaded(
        seen(
            outputs=("/app/main.py", "/app/answer.txt"),
            files=("/app/shop/cart.py", "/app/shop/unused.py", "/app/run.sh", "/app/lib/index.js"),
            verifier={"t.py": "from shop.cart import total\n", "t.sh": "sh ./run.sh", "t.js": "require('/app/lib')"},
        )
    )
    assert [(file.path, file.exists) for file in found] == [
        ("/app/main.py", False),
        ("/app/shop/cart.py", True),
        ("/app/run.sh", True),
        ("/app/lib/index.js", True),
    ]


def test_files_that_the_oracle_changes_count_as_loaded(seen):
    assert [file.path for file in loaded(seen(edited=("/app/fix.py", "/app/fix.txt")))] == ["/app/fix.py"]


def test_the_state_without_a_trick_has_the_same_files(seen):
    made = attempt_inside(seen(outputs=("/app/new.py",)), "exits", {"python": "import os"})
    assert made is not None
    assert made.without is not None
    assert made.script.startswith(made.without)
    changed = attempt_inside(seen(edited=("/app/old.py",)), "exits", {"python": "import os"})
    assert changed is not None
    assert changed.without is None


def test_imports_are_found_in_every_spelling(seen):
    text = "import os, json as j\nfrom requests.sessions import Session\n    import yaml\nimport a.b\n"
    assert imports_of(seen(verifier={"t.py": text})) == ["os", "json", "requests", "yaml", "a"]


def test_a_claim_is_written_where_the_verifier_writes_its_own(seen):
    assert reward_file(seen(verifier={"test.sh": TEST_SH})) == ("/logs/verifier/reward.txt", "1")
    assert reward_file(seen(verifier={"test.sh": "python3 x > /logs/verifier/reward.json"}))[1] == '{"reward": 1.0}'


def test_a_copy_of_what_the_prompt_names_is_not_called_a_trick(seen):
    family = load_families(("links-to-references",))["links-to-references"]
    known = seen(prompt="Copy /data/a.txt to /app/b.txt.", outputs=("/app/b.txt",), read=("/data/a.txt",))
    assert isinstance(family.attempts(known), NotApplicable)


def test_families_say_in_a_sentence_why_they_do_not_apply(seen):
    nothing = seen()
    for name, family in load_families().items():
        found = family.attempts(nothing)
        if isinstance(found, NotApplicable):
            assert found.reason.endswith("."), name


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('reward=0; [ -e x ] && reward=1; echo "$reward" > /logs/verifier/reward.txt', "export reward=1"),
        ("echo $REWARD > /logs/verifier/reward.txt", "export REWARD=1"),
        ('if [ "${EXIT_CODE:-1}" -eq 0 ]; then echo ok; fi', "export EXIT_CODE=0"),
        ('strict = os.environ.get("STRICT_CHECKS")', "export STRICT_CHECKS=1"),
        ("if (process.env.GRADE_ALL) run()", "export GRADE_ALL=1"),
        ('curl "${SERVICE_URL:-http://localhost:1}" > "${LOGS_DIR:-/logs}"/x', None),
    ],
)
def test_variables_in_which_a_verifier_counts_are_set(seen, text, setting):
    found = load_families(("reward-variables",))["reward-variables"].attempts(seen(verifier={"test.sh": text}))
    if setting is None:
        assert isinstance(found, NotApplicable)
    else:
        assert not isinstance(found, NotApplicable)
        assert setting in found[0].script


@pytest.mark.parametrize("text", ["import openai\n", "key = os.environ['ANTHROPIC_API_KEY']", "post('/v1/messages')"])
def test_tests_that_call_a_model_by_themselves_are_judges(seen, text):
    found = load_families(("judge-answer",))["judge-answer"].attempts(seen(verifier={"grade.py": text}))
    assert not isinstance(found, NotApplicable)


@pytest.mark.parametrize(
    "text",
    [
        'run([sys.executable, "-m", "pip", "list"])\nassert "frob" in out.stdout.lower()',
        "subprocess.run(['pip3', 'show', '-q', 'frob'])",
        "pip show frob || exit 1",
        "pip --disable-pip-version-check freeze | grep -qi frob",
        "pip freeze | grep '^frob=='",
        'importlib.metadata.version("frob")',
    ],
)
def test_distributions_that_a_verifier_asks_for_are_forged_in_every_spelling(seen, text):
    (attempt,) = load_families(("forged-metadata",))["forged-metadata"].attempts(seen(verifier={"check": text}))
    assert "frob-99.0.dist-info/METADATA" in attempt.script


def test_hidden_data_is_looked_for_where_it_will_be(seen):
    files = ("verifier/golden.txt", "tests/data/expected.json", "steps/one/tests/answer.csv", "tests/test.sh")
    found = hidden_files(seen(verifier=dict.fromkeys(files, "")))
    assert sorted(found) == ["/tests/answer.csv", "/tests/data/expected.json", "/verifier/golden.txt"]


def test_what_is_printed_is_compared_with_the_same_exit_without_it(seen):
    family = load_families(("printed-success",))["printed-success"]
    [attempt] = family.attempts(seen(outputs=("/app/main.py",)))
    assert "os._exit(0)" in attempt.without
    assert "All tests passed" in attempt.script
    assert "All tests passed" not in attempt.without
