"""The content of a `task.md` is everything but `benchflow.evidence`: no two documents that differ elsewhere are one."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.task.package import changed_parts, load_package, package_parts
from benchflow.task.package_layout import without_evidence

EVIDENCE = "benchflow:\n  evidence:\n    oracle_runs:\n      required_reward: 1.0\n"


def task_md(front: str) -> bytes:
    return f"---\n{front}---\n\nDo it.\n".encode()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\u2028" * 60])
def test_characters_that_only_yaml_takes_for_line_breaks_move_nothing(separator: str) -> None:
    front = f'metadata:\n  note: "a{separator}b"\n{{}}agent:\n  timeout_sec: 60\n'
    assert without_evidence(task_md(front.format(EVIDENCE))) == task_md(front.format(""))


@pytest.mark.parametrize(
    "front",
    [
        "benchflow:\n  evidence:\n    oracle_runs:\n      required_reward: &t 60\nagent:\n  timeout_sec: *t\n",
        "x: &t 1\nbenchflow:\n  evidence:\n    a: &t 2\ny: *t\n",
        "metadata: &m\n  x: 1\n  evidence: {a: 1}\nbenchflow: *m\n",
        "benchflow: &b\n  document_version: '0.6'\n  evidence: {a: 1}\nmetadata: *b\n",
        "benchflow: {document_version: '0.6', evidence: {a: 1}}\n",
        "benchflow:\n  evidence: {a: 1}\n  evidence: {a: 2}\n",
        "{benchflow: {evidence: {a: 1}}, agent: {timeout_sec: 60}}\n",
        "benchflow: !!set\n  evidence:\n",
    ],
)
def test_a_document_that_evidence_cannot_be_cut_from_is_taken_whole(front: str) -> None:
    assert without_evidence(task_md(front)) == task_md(front)


@pytest.mark.parametrize(
    "evidence",
    [
        "benchflow: {evidence: {oracle_runs: {required_reward: 1.0}}}\n",
        "benchflow: {\n  evidence: {a: 1},\n}\n",
        "benchflow:\n  evidence: {a: 1}\n",
        '"benchflow":\n  "evidence":\n    a: |\n      text\n      # no comment\n',
    ],
)
def test_evidence_on_lines_of_its_own_is_left_out_however_it_is_written(evidence: str) -> None:
    front = "schema_version: '1.3'\n{}task:\n  name: t/p\n"
    assert without_evidence(task_md(front.format(evidence))) == task_md(front.format(""))


def test_carriage_returns_and_a_byte_order_mark_stay() -> None:
    front = "schema_version: '1.3'\n{}task:\n  name: t/p\n"
    with_evidence, without = (
        b"\xef\xbb\xbf" + task_md(front.format(part)).replace(b"\n", b"\r\n") for part in (EVIDENCE, "")
    )
    assert without_evidence(with_evidence) == without


text = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), text, st.sampled_from(["a\u2028b", "\u0085", "---", "x: y"])
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)
mappings = st.dictionaries(text.filter(lambda key: key not in ("benchflow", "evidence")), values, max_size=3)


def document(before: object, namespace: object, evidence: object, after: object) -> bytes:
    """A `task.md` with these parts in block form, unescaped where YAML allows it."""

    def part(value: object) -> str:
        return yaml.safe_dump(value, default_flow_style=False, allow_unicode=True) if value else ""

    inner = part({"evidence": evidence}) + part(namespace)
    lines = "".join(f"  {line}\n" if line else "\n" for line in inner.split("\n")[:-1])
    return task_md(f"{part({'before': before})}benchflow:\n{lines}{part({'after': after})}")


@settings(max_examples=3 * settings().max_examples)
@given(before=values, namespace=mappings, evidence=values, other=values, after=values)
def test_another_value_of_evidence_is_the_same_content(before, namespace, evidence, other, after) -> None:
    first, second = (document(before, namespace, value, after) for value in (evidence, other))
    cut = without_evidence(first)
    assert cut != first
    assert cut == without_evidence(second)


@settings(max_examples=3 * settings().max_examples)
@given(parts=st.tuples(values, mappings, values), others=st.tuples(values, mappings, values), evidence=values)
def test_another_value_elsewhere_is_other_content(parts, others, evidence) -> None:
    first = document(parts[0], parts[1], evidence, parts[2])
    for index in range(3):
        changed = [*parts]
        changed[index] = others[index]
        second = document(changed[0], changed[1], evidence, changed[2])
        if first != second:
            assert without_evidence(first) != without_evidence(second)


lines = st.sampled_from(
    [
        "a: 1",
        "b: &t 2",
        "c: *t",
        "d: |",
        "  text",
        "",
        "# note",
        "  e: &t 3",
        "  - *t",
        'f: "x\u2028y"',
        "g:",
        "  h: *t",
    ]
)
evidences = st.sampled_from(
    ["", " &t", " {a: &t 4}", "\n    a: &t 5", "\n    a: |\n      x", "\n    # note", " *t", " >-\n    x\n"]
)


@settings(max_examples=5 * settings().max_examples)
@given(before=st.lists(lines, max_size=4), evidence=evidences, after=st.lists(lines, max_size=4))
def test_whatever_stands_around_evidence_the_rest_means_the_same(before, evidence, after) -> None:
    front = "\n".join([*before, f"benchflow:\n  evidence:{evidence}", *after]) + "\n"
    rest = without_evidence(task_md(front))
    if rest == task_md(front):
        return
    whole, left = (yaml.safe_load(part) for part in (front, rest.decode().split("---\n")[1]))
    whole["benchflow"].pop("evidence")
    assert left == {key: value for key, value in whole.items() if key != "benchflow" or value}


def test_added_evidence_changes_no_part_of_a_package(make_package) -> None:
    folder = make_package()
    before = package_parts(load_package(folder))
    path = folder / "task.md"
    path.write_text(path.read_text().replace("---\n", "---\n" + EVIDENCE, 1))
    package = load_package(folder)
    assert package.view.namespace.to_dict()["evidence"]
    assert changed_parts(before, package_parts(package)) == []
