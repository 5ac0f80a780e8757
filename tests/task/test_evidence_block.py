"""Evidence is written into a `task.md`, and every other byte stays."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.document.evidence_block import NotDeclarableError, with_evidence
from benchflow.task.document.markdown import decode, split_frontmatter
from benchflow.task.package_layout import without_evidence

BLOCK = {
    "oracle_runs": {"required_reward": 1.0, "artifact": "evidence/a.json"},
    "artifacts": [{"path": "x", "sha256": "0"}],
}
HEAD = "---\ntask:\n  name: acme/a\n"


def evidence(data):
    return yaml.safe_load(split_frontmatter(decode(data)).yaml)["benchflow"]["evidence"]


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "---\nGo.\n",
        HEAD + "# last words\n---\nGo.\n",
        HEAD + "benchflow:\n  prompt: {composition: append}\n---\nGo.\n",
        HEAD + "benchflow:\n    # deeper\n    prompt: {composition: append}\nmetadata: {a: 1}\n---\nGo.\n",
        HEAD + "benchflow:\n  evidence: {verifier: {reruns: 3}}\n  prompt: {composition: append}\n---\nGo.\n",
        HEAD
        + "benchflow:\n  evidence:\n    verifier:\n      reruns: 3\n\nmetadata: {a: |\n    \n  }\n---\nGo.\n".replace(
            "{a: |\n    \n  }", "{a: 1}"
        ),
        HEAD + "benchflow:\n---\nGo.\n",
        HEAD.replace("\n", "\r\n") + "---\r\nGo.\r\n",
        "\ufeff" + HEAD + "---\nGo.\n",
    ],
)
def test_only_the_evidence_changes(text):
    data = text.encode()
    made = with_evidence(data, BLOCK)
    assert evidence(made) == BLOCK
    assert without_evidence(made) == without_evidence(data) or "benchflow:\n---" in text
    assert with_evidence(made, BLOCK) == made


@pytest.mark.parametrize(
    "text", [HEAD + "benchflow: {prompt: {composition: append}}\n---\nGo.\n", "---\n{task: {name: acme/a}}\n---\nGo.\n"]
)
def test_a_form_that_cannot_be_written_into_is_refused(text):
    with pytest.raises(NotDeclarableError):
        with_evidence(text.encode(), BLOCK)


WORDS = st.text("abc: #'\"\\{}[]-é\u2028", max_size=12)
VALUES = st.recursive(
    st.one_of(WORDS, st.integers(), st.booleans()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=2),
    max_leaves=6,
)


@given(
    st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=3),
    st.dictionaries(st.text("de", min_size=1), VALUES, max_size=3),
    WORDS,
)
def test_any_document_keeps_every_other_byte(metadata, namespace, body):
    front = {"metadata": metadata, "benchflow": namespace, "last": 1} if namespace else {"metadata": metadata}
    data = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n{body}\n".encode()
    made = with_evidence(data, BLOCK)
    assert evidence(made) == BLOCK
    assert without_evidence(made) == data
