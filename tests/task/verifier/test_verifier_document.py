"""`verifier.md`: all strategies, rubric, outputs, role prompts, and its TOML projection."""

from __future__ import annotations

from typing import Any

import pytest
import tomli_w
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.package import load_package
from benchflow.task.verifier.declared_strategies import STRATEGIES
from benchflow.task.verifier.verifier_document import (
    VerifierDocument,
    VerifierDocumentParseError,
    load_verifier_document,
    read_verifier_document,
)

SAMPLE: dict[str, Any] = {
    "document_version": "0.3",
    "verifier": {
        "name": "everything",
        "default_strategy": "exact",
        "strategies": {
            "exact": {"type": "script", "command": "./test.sh --fast"},
            "kit": {
                "type": "reward-kit",
                "root": "rewards",
                "entrypoint": "reward.py",
                "criteria": "rewards/criteria.toml",
            },
            "prose": {
                "type": "llm-judge",
                "rubric": "rubrics/verifier.toml",
                "model": "claude-sonnet-4-6",
                "input_dir": "/app",
                "context_file": "judges/context.md",
            },
            "panel": {
                "type": "agent-judge",
                "role": "verifier_judge",
                "model": "gpt-5.5",
                "isolation": "verifier-only",
                "inputs": ["trajectory/acp_trajectory.jsonl", "/logs/artifacts/patch.diff"],
            },
            "ors": {
                "type": "ors-episode",
                "reward_aggregation": "last_non_null",
                "terminal_policy": "finished_true",
            },
            "both": {
                "type": "hybrid",
                "combine": "product",
                "factors": {"code": "exact", "style": {"strategy": "prose"}},
            },
            "gain": {"type": "gain", "strategy": "exact", "baseline": "no-op", "ceiling": "oracle"},
            "board": {
                "type": "leaderboard-submission",
                "inputs": ["/app/answer.json"],
                "command": "./submit.sh",
            },
            "arena": {
                "type": "assessor",
                "role": "verifier_judge",
                "protocol": "a2a",
                "config": {"free": [1]},
            },
        },
        "rubric": {
            "combine": "weighted_sum",
            "dimensions": {
                "correctness": {"weight": 0.7, "source": "exact"},
                "style": {"weight": 0.3, "source": "prose"},
            },
            "files": {"human": "rubrics/verifier.md", "structured": "rubrics/verifier.toml"},
        },
        "outputs": {
            "reward_text": "/logs/verifier/reward.txt",
            "reward_json": "/logs/verifier/reward.json",
            "details_json": "/logs/verifier/reward-details.json",
            "aggregate_policy": {"method": "weighted-mean", "weights": {"a": 2, "b": 1}},
        },
    },
}
BODY = "## role:verifier_judge\nJudge only the declared evidence.\n"


def text(mapping: Any = SAMPLE, body: str = BODY) -> str:
    return f"---\n{yaml.safe_dump(mapping)}---\n{body}"


def strategy(**values: Any) -> dict[str, Any]:
    return {"verifier": {"strategies": {"s": values}}}


def codes(mapping: Any, body: str = BODY) -> list[tuple[str, str]]:
    return [(issue.code, issue.path) for issue in read_verifier_document(text(mapping, body))[1]]


def test_every_strategy_and_section_is_read() -> None:
    document = VerifierDocument.from_text(text())
    assert {item.type for item in document.strategies.values()} == STRATEGIES.keys()
    assert document.selected.type == "script"
    assert document.strategies["ors"].inputs == ("trajectory/ors-rewards.jsonl",)
    assert document.outputs.aggregate_policy is not None
    assert document.outputs.aggregate_policy.method == "weighted_mean"
    assert document.role_prompts == {"verifier_judge": "Judge only the declared evidence."}
    assert document.to_dict() == {
        "name": "everything",
        "default_strategy": "exact",
        "selected_strategy": {"name": "exact", "type": "script"},
    }


def test_the_first_strategy_is_the_default() -> None:
    document = VerifierDocument.from_text(
        "---\nverifier:\n  strategies:\n    z: {type: script, command: a}\n    b: {type: script, command: b}\n---\n"
    )
    assert document.default_strategy == "z"
    assert document.outputs.declared == frozenset()


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({}, ("missing-key", "verifier")),
        ({"verifier": {}}, ("missing-key", "verifier.strategies")),
        ({"verifier": {"strategies": {}}}, ("invalid-value", "verifier.strategies")),
        ({"verifier": {"strategies": {"s": 1}}}, ("invalid-type", "verifier.strategies.s")),
        (strategy(), ("missing-key", "verifier.strategies.s.type")),
        (strategy(type="magic"), ("unknown-strategy", "verifier.strategies.s.type")),
        (strategy(type=["script"]), ("unknown-strategy", "verifier.strategies.s.type")),
        (strategy(type="script"), ("missing-key", "verifier.strategies.s.command")),
        (strategy(type="script", command="x", cmd="y"), ("unknown-key", "verifier.strategies.s.cmd")),
        (strategy(type="reward-kit", root="../x"), ("unsafe-path", "verifier.strategies.s.root")),
        (
            strategy(type="reward-kit", root="r", criteria="/c"),
            ("unsafe-path", "verifier.strategies.s.criteria"),
        ),
        (strategy(type="llm-judge"), ("missing-key", "verifier.strategies.s.rubric")),
        (
            strategy(type="llm-judge", rubric="r", context="a", context_file="b"),
            ("conflicting-keys", "verifier.strategies.s.context_file"),
        ),
        (
            strategy(type="agent-judge", role="verifier_judge", inputs=["x"]),
            ("missing-key", "verifier.strategies.s.isolation"),
        ),
        (
            strategy(type="agent-judge", role="verifier_judge", isolation="shared", inputs=["x"]),
            ("invalid-value", "verifier.strategies.s.isolation"),
        ),
        (
            strategy(type="agent-judge", role="ghost", isolation="verifier-only", inputs=["x"]),
            ("unknown-role", "verifier.strategies.s.role"),
        ),
        (
            strategy(type="agent-judge", role="verifier_judge", isolation="verifier-only", inputs=[]),
            ("invalid-value", "verifier.strategies.s.inputs"),
        ),
        *(
            (
                strategy(
                    type="agent-judge", role="verifier_judge", isolation="verifier-only", **{"inputs": ["/x"], **more}
                ),
                (code, f"verifier.strategies.s.{key}"),
            )
            for more, code, key in [
                ({"agent": "oracle"}, "invalid-value", "agent"),
                ({"agent": "script:../x.sh", "verdict_file": "/logs/verifier/v.json"}, "unsafe-path", "agent"),
                ({"agent": "script:x.sh"}, "missing-key", "verdict_file"),
                ({"agent": "nop:x"}, "invalid-value", "agent"),
                ({"agent": "acp:x", "verdict_file": "/logs/verifier/reward.json"}, "unsafe-path", "verdict_file"),
                ({"agent": "acp:x", "verdict_file": "/etc/passwd"}, "unsafe-path", "verdict_file"),
                ({"verdict_file": "/logs/verifier/v.json"}, "conflicting-keys", "verdict_file"),
                ({"inputs": ["/x", "/app/"]}, "conflicting-keys", "inputs[1]"),
            ]
        ),
        (strategy(type="ors-episode", inputs=["a/../b"]), ("unsafe-path", "verifier.strategies.s.inputs[0]")),
        (strategy(type="ors-episode", format="xml"), ("invalid-value", "verifier.strategies.s.format")),
        (
            strategy(type="hybrid", factors={"a": "ghost"}),
            ("unknown-strategy", "verifier.strategies.s.factors.a.strategy"),
        ),
        (strategy(type="hybrid", factors={"a": "s"}), ("unknown-strategy", "verifier.strategies.s")),
        (
            strategy(type="hybrid", combine="weighted_sum", factors={"a": "s"}),
            ("missing-key", "verifier.strategies.s.factors.a.weight"),
        ),
        (strategy(type="gain", strategy="ghost"), ("unknown-strategy", "verifier.strategies.s.strategy")),
        (
            strategy(type="leaderboard-submission", inputs=["x"]),
            ("conflicting-keys", "verifier.strategies.s"),
        ),
        (
            {"verifier": {**SAMPLE["verifier"], "default_strategy": "ghost"}},
            ("unknown-strategy", "verifier.default_strategy"),
        ),
        ({**SAMPLE, "colour": 1}, ("unknown-key", "colour")),
        (
            {"verifier": {**SAMPLE["verifier"], "rubric": {"dims": {}}}},
            ("unknown-key", "verifier.rubric.dims"),
        ),
        (
            {"verifier": {**SAMPLE["verifier"], "outputs": {"reward_json": "/app/reward.json"}}},
            ("invalid-value", "verifier.outputs.reward_json"),
        ),
        (
            {"verifier": {**SAMPLE["verifier"], "outputs": {"aggregate_policy": {"method": "vote"}}}},
            ("invalid-value", "verifier.outputs.aggregate_policy.method"),
        ),
    ],
)
def test_wrong_documents_are_reported_with_their_path(mapping: Any, expected: tuple[str, str]) -> None:
    assert expected in codes(mapping)
    with pytest.raises(VerifierDocumentParseError):
        VerifierDocument.from_text(text(mapping))


def test_strategies_made_of_each_other_are_refused() -> None:
    mapping = {
        "verifier": {
            "strategies": {
                "a": {"type": "hybrid", "factors": {"x": "b"}},
                "b": {"type": "gain", "strategy": "a"},
            }
        }
    }
    assert ("unknown-strategy", "verifier.strategies.a") in codes(mapping)


def test_other_sections_and_repeated_roles_are_reported() -> None:
    found = codes(SAMPLE, BODY + "## prompt\nleak\n" + BODY)
    assert found == [("unused-prompt", "prompt"), ("duplicate-section", "role:verifier_judge")]


def test_a_folder_or_a_file_can_be_loaded(make_package) -> None:
    folder = make_package()
    by_folder = load_verifier_document(folder / "verifier")
    assert by_folder == load_verifier_document(folder / "verifier" / "verifier.md")
    assert by_folder.name == "rotate"
    with pytest.raises(VerifierDocumentParseError, match="cannot be read"):
        load_verifier_document(folder / "oracle")


def test_issues_of_a_package_name_file_and_line(make_package) -> None:
    verifier = "---\nverifier:\n  strategies:\n    s:\n      type: script\n      comand: x\n---\n"
    issues = load_package(make_package({"verifier/verifier.md": verifier})).layout_issues
    assert [(issue.code, issue.file, issue.line) for issue in issues] == [
        ("unknown-key", "verifier/verifier.md", 6),
        ("missing-key", "verifier/verifier.md", 4),
    ]


def test_an_equal_projection_is_accepted(make_package) -> None:
    folder = make_package({"verifier/verifier.md": text(), "verifier/task.toml": tomli_w.dumps(SAMPLE)})
    assert load_package(folder).issues == ()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"verifier": {**SAMPLE["verifier"], "name": "other"}}, "projection-drift"),
        ({"document_version": "0.9"}, "projection-drift"),
        ({"verifier": {**SAMPLE["verifier"], "colour": 1}}, "unknown-key"),
    ],
)
def test_a_projection_that_differs_is_an_error(make_package, change: dict[str, Any], code: str) -> None:
    projection = tomli_w.dumps({**SAMPLE, **change})
    folder = make_package({"verifier/verifier.md": text(), "verifier/task.toml": projection})
    issues = load_package(folder).issues
    assert code in [issue.code for issue in issues]
    if code == "projection-drift":
        assert issues[0].path == "verifier/verifier.md|verifier/task.toml"


def test_a_projection_that_is_no_toml_is_an_error(make_package) -> None:
    issues = load_package(make_package({"verifier/task.toml": "a = = b"})).issues
    assert [(issue.code, issue.file) for issue in issues] == [("invalid-toml", "verifier/task.toml")]


_names = st.sampled_from(
    ["type", "command", "root", "inputs", "factors", "strategy", "role", "isolation", "config", "z"]
)
_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from([*STRATEGIES, "s", "t"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["s", "t"]), st.dictionaries(_names, _values, max_size=5), max_size=2),
    st.text(max_size=40),
)
def test_any_strategies_give_a_document_or_issues(strategies: dict[str, Any], body: str) -> None:
    mapping = {"verifier": {"strategies": strategies}}
    document, issues = read_verifier_document(text(mapping, body))
    assert document is not None or issues
    if document is not None:
        assert document.to_dict()["name"] == "verifier"


@given(st.binary(max_size=100))
def test_any_bytes_give_a_document_or_issues(data: bytes) -> None:
    document, issues = read_verifier_document(data)
    assert (document is None) == bool(issues)
