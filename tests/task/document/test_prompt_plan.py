"""Prompt plans, the user's contract, and that private facts are in no dump."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task import load_package
from benchflow.task.document.prompt_plan import (
    UserContract,
    compile_task_prompt_plan,
    compile_user_runtime,
    materialize_prompt_plan_scenes,
)
from benchflow.task.document.task_document import TaskDocument, read_document
from benchflow.task.runtime_capabilities import validate_task_runtime_support

ROLES = {"roles": {"a": {"agent": "x"}, "b": {"agent": "y"}}}
BODY = "B\n## role:a\nRA\n## scene:sc\nSC\n"
SCENES = [{"name": "sc", "turns": [{"role": "a", "prompt": "T"}, "b"]}]


def document(body: str = "Do it.\n", **frontmatter: Any) -> TaskDocument:
    return TaskDocument.from_text(f"---\n{yaml.safe_dump(frontmatter)}---\n{body}")


def prompts(policy: dict[str, Any] | None = None) -> list[str]:
    namespace = {"prompt": policy} if policy else {}
    parsed = document(BODY, agents=ROLES, scenes=SCENES, benchflow=namespace)
    return [turn.prompt for turn in compile_task_prompt_plan(parsed).turns]


def test_the_nearest_text_replaces_the_others_by_default() -> None:
    assert prompts() == ["T", "SC"]
    assert prompts({"composition": "replace"}) == ["T", "SC"]


def test_append_joins_all_in_order() -> None:
    assert prompts({"composition": "append"}) == ["B\n\nRA\n\nSC\n\nT", "B\n\nSC"]


def test_the_order_may_be_a_subset() -> None:
    assert prompts({"composition": "append", "order": ["turn", "base"]}) == ["T\n\nB", "B"]
    assert prompts({"composition": "replace", "order": ["role", "base"]}) == ["RA", "B"]


def test_without_scenes_there_is_one_turn_with_the_base() -> None:
    plan = compile_task_prompt_plan(document())
    assert [(turn.scene, turn.role, turn.prompt) for turn in plan.turns] == [(None, None, "Do it.")]


def test_a_split_package_has_one_turn_with_its_instruction() -> None:
    plan = compile_task_prompt_plan(None, fallback_prompt=" Do it.\n")
    assert (plan.composition, plan.order, plan.turns[0].prompt) == ("replace", ("base",), "Do it.")


def test_scenes_can_be_had_with_the_prompts_of_the_plan() -> None:
    scenes = materialize_prompt_plan_scenes(document(BODY, agents=ROLES, scenes=SCENES))
    assert [turn.prompt for scene in scenes for turn in scene.turns or ()] == ["T", "SC"]


USER = {
    "model": "scripted",
    "stop_rule": "satisfied-or-4-rounds",
    "private_facts": {"region": "eu-west-1", "ab": "x"},
}
TEAM = {
    "core": {
        "handoff": {
            "mode": "sequential",
            "workspace_visibility": "shared",
            "trajectory_visibility": "metadata",
        }
    }
}
TWO_ROLES = {"agents": ROLES, "scenes": [{"turns": ["a", "b"]}]}


def contract(**frontmatter: Any) -> UserContract:
    return compile_user_runtime(document(**frontmatter))


def test_nothing_declared_is_no_user() -> None:
    assert contract() == UserContract()


def test_a_scripted_user_is_supported_and_named_by_keys_only() -> None:
    found = contract(user=USER, benchflow={"nudges": {"mode": "simulated-user", "nudge_budget": 3}})
    assert (found.status, found.runtime_kind, found.max_rounds) == ("supported", "scripted-linear", 3)
    assert found.private_fact_keys == ("ab", "region")


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "gpt-5", "gemini-2.5", "openai/local", "some-local-model"])
def test_a_persona_only_model_user_is_supported(model: str) -> None:
    found = contract(user={"model": model, "persona": "Terse."})
    assert (found.status, found.runtime_kind, found.persona_present) == ("supported", "model-linear", True)


def test_branches_and_confirmations_are_part_of_the_contract() -> None:
    nudges = {
        "branchable": True,
        "branch_execution": "forked-snapshot",
        "confirmation_policy": {"deletes": "human"},
    }
    found = contract(user=USER, benchflow={"nudges": nudges})
    assert (found.branch_execution, found.confirmation_policy) == ("forked-snapshot", {"deletes": "human"})
    parsed = document(user=USER, benchflow={"nudges": nudges})
    assert validate_task_runtime_support(parsed, sandbox="local") == []


def test_a_team_hands_off_in_one_workspace() -> None:
    found = contract(user=USER, benchflow={"teams": TEAM}, **TWO_ROLES)
    assert (found.status, found.handoff_kind, found.handoff_team) == (
        "supported",
        "sequential-shared",
        "core",
    )
    assert found.handoff_trajectory_visibility == "metadata"
    assert contract(benchflow={"teams": TEAM}, **TWO_ROLES).status == "supported"


@pytest.mark.parametrize(
    ("handoff", "kind"),
    [
        ({"mode": "parallel"}, "parallel-shared"),
        ({"mode": "parallel", "workspace_visibility": "isolated", "artifacts": ["x"]}, "parallel-isolated"),
        ({"mode": "sequential", "workspace_visibility": "isolated", "artifacts": ["/a/b/"]}, "sequential-isolated"),
        ({"mode": "sequential", "trajectory_visibility": "full"}, "sequential-shared"),
    ],
)
def test_a_team_may_work_apart(handoff: dict[str, Any], kind: str) -> None:
    parsed = document(benchflow={"teams": {"t": {"handoff": handoff}}}, **TWO_ROLES)
    found = compile_user_runtime(parsed)
    assert (found.status, found.handoff_kind) == ("supported", kind)
    assert found.handoff_artifacts == tuple(path.rstrip("/") for path in handoff.get("artifacts", ()))
    assert validate_task_runtime_support(parsed, sandbox="local") == []
    missing = validate_task_runtime_support(parsed, sandbox="bare", capabilities=frozenset({"limits.time"}))
    assert [feature.reason for feature in missing] == (
        ["needs fork, which bare does not have"] if kind.endswith("isolated") else []
    )


@pytest.mark.parametrize(
    ("frontmatter", "path"),
    [
        ({"user": {"model": "scripted"}}, "user"),
        ({"user": {**USER, "stop_rule": "whenever"}}, "user.stop_rule"),
        ({"user": {**USER, "stop_rule": "x-0-rounds"}}, "user.stop_rule"),
        (
            {"user": {**USER, "stop_rule": "x-1-rounds"}, "agents": ROLES, "scenes": [{"turns": ["a", "a"]}]},
            "user",
        ),
        ({"user": USER, **TWO_ROLES}, "user"),
        (
            {"user": USER, "benchflow": {"teams": {**TEAM, "more": TEAM["core"]}}, **TWO_ROLES},
            "benchflow.teams",
        ),
        (
            {"user": USER, "benchflow": {"teams": {"t": {"handoff": {"mode": "parallel"}}}}, **TWO_ROLES},
            "benchflow.teams.t.handoff",
        ),
        (
            {
                "benchflow": {"teams": {"t": {"handoff": {"mode": "sequential", "workspace_visibility": "isolated"}}}},
                **TWO_ROLES,
            },
            "benchflow.teams.t.handoff.artifacts",
        ),
        (
            {"benchflow": {"teams": {"t": {"roles": ["a"], "handoff": {"mode": "parallel"}}}}, **TWO_ROLES},
            "benchflow.teams.t.roles",
        ),
        ({"benchflow": {"teams": TEAM}}, "benchflow.teams.core"),
    ],
)
def test_what_cannot_be_run_is_unsupported_with_path_and_reason(frontmatter: dict[str, Any], path: str) -> None:
    found = contract(**frontmatter)
    assert found.status == "unsupported"
    assert found.reason
    assert path in [where for where, _ in found.problems]
    refused = validate_task_runtime_support(document(**frontmatter), sandbox="local")
    assert path in [feature.path for feature in refused]


SECRET = "s3cr3t-v4lue"


def test_private_facts_are_in_no_dump_of_a_package(make_package) -> None:
    frontmatter = {"task": {"name": "a/b"}, "user": {**USER, "private_facts": {"region": SECRET}}}
    text = f"---\n{yaml.safe_dump(frontmatter)}---\nDo it.\n"
    package = load_package(make_package({"task.md": text}), sandbox="local")
    assert package.valid
    document = package.document
    assert document is not None
    assert document.user is not None
    assert document.user.private_facts["region"] == SECRET
    shown = [
        json.dumps(package.to_dict()),
        repr(package),
        repr(package.view),
        repr(package.prompt_plan),
        repr(document),
        repr(document.user),
        str(document.user.to_dict()),
        str(asdict(package.prompt_plan.user_runtime)),
    ]
    assert [text for text in shown if SECRET in text] == []
    assert "region" in shown[0]


@given(
    st.dictionaries(st.text(max_size=8), st.integers() | st.none() | st.lists(st.just(SECRET), max_size=2), min_size=1)
)
def test_wrong_private_facts_are_reported_without_their_values(facts: dict[str, Any]) -> None:
    text = f"---\n{yaml.safe_dump({'user': {'private_facts': facts}})}---\nx\n"
    parsed, issues = read_document(text, sidecars={})
    assert issues
    assert not [issue for issue in issues if SECRET in issue.message]
    assert SECRET not in repr(parsed)
