"""What the page for verifier authors shows is what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from benchflow.rewards import AggregatePolicy, RewardError, parse_hybrid, parse_rubric, settle
from benchflow.rewards.aggregate import METHODS
from benchflow.rewards.ors import AGGREGATIONS
from benchflow.rewards.reward_files import PRESERVED, STRUCTURAL, parse_reward_map

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_reward_json_on_the_page_is_valid() -> None:
    examples = blocks("json")
    assert len(examples) == 3
    for example in examples:
        parse_reward_map(json.loads(example))


@pytest.mark.parametrize("row", rows("Which number is used"), ids=" ".join)
def test_the_table_of_precedence_is_true(row: list[str]) -> None:
    document, text, method, expected = (None if cell == "–" else cell for cell in row)
    policy = None if method is None else AggregatePolicy(method)
    value = None if document is None else json.loads(document)
    scalar = None if text is None else float(text)
    if expected.startswith("refused: "):
        with pytest.raises(RewardError) as caught:
            settle(value, scalar, policy=policy)
        assert caught.value.code == expected.removeprefix("refused: ")
    else:
        assert settle(value, scalar, policy=policy).reward == float(expected)


def test_every_key_and_method_is_listed() -> None:
    keys = {word for row in rows("`reward.json`") for word in row[0].split()}
    assert keys == STRUCTURAL | PRESERVED | {"any", "other", "key"}
    assert {name.strip() for row in rows("Aggregates") for name in row[0].split(",")} == set(METHODS)
    listed = {word for row in rows("ORS episodes") for word in row[0].replace(",", " ").split()}
    assert listed - {"(default)"} == set(AGGREGATIONS)


def test_the_rubric_and_the_hybrid_on_the_page_are_valid() -> None:
    (rubric,) = blocks("toml")
    assert [criterion.id for criterion in parse_rubric(rubric.encode()).criteria] == ["correct", "clear"]
    (hybrid,) = blocks("yaml")
    assert [factor.source for factor in parse_hybrid(yaml.safe_load(hybrid)).factors] == ["exact", "judge"]
