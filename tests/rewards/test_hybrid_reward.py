from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.rewards import (
    Factor,
    RewardError,
    RewardRange,
    Scored,
    Unscored,
    parse_hybrid,
    read_reward,
    write_reward,
)

PRODUCT = {"combine": "product", "factors": {"tests": {"source": "exact"}, "style": {"source": "prose"}}}
SUM = {
    "combine": "weighted_sum",
    "factors": {"tests": {"source": "exact", "weight": 0.75}, "style": {"source": "prose", "weight": 0.25}},
}


def test_a_product_records_every_factor_with_its_source() -> None:
    verdict = parse_hybrid(PRODUCT).reward({"style": Scored(0.5), "tests": Scored(1.0, metrics={"unit": 1.0})})
    assert verdict.reward == 0.5
    assert verdict.factors == (Factor("tests", "exact", 1.0), Factor("style", "prose", 0.5))
    assert verdict.metrics == {"tests": 1.0, "style": 0.5}
    record = {
        "source": "hybrid",
        "combine": "product",
        "factors": [
            {"name": "tests", "source": "exact", "reward": 1.0, "weight": None},
            {"name": "style", "source": "prose", "reward": 0.5, "weight": None},
        ],
    }
    assert verdict.document == {
        "reward": 0.5,
        "metrics": {"tests": 1.0, "style": 0.5},
        "aggregate": {"method": "product"},
        "metadata": record,
    }
    assert verdict.details == {
        **record,
        "details": {"tests": Scored(1.0, metrics={"unit": 1.0}).to_dict(), "style": Scored(0.5).to_dict()},
    }


def test_a_weighted_sum_uses_the_declared_weights() -> None:
    verdict = parse_hybrid(SUM).reward({"tests": Scored(1.0), "style": Scored(0.5)})
    assert verdict.reward == 0.875
    assert [factor.weight for factor in verdict.factors] == [0.75, 0.25]
    assert verdict.document["aggregate"] == {"method": "weighted_sum", "weights": {"tests": 0.75, "style": 0.25}}


def test_a_factor_may_weigh_nothing_and_a_wider_range_takes_a_larger_sum() -> None:
    factors = {"a": {"source": "x", "weight": 0}, "b": {"source": "y", "weight": 2}}
    policy = parse_hybrid({"combine": "weighted_sum", "factors": factors})
    verdict = policy.reward({"a": Scored(1.0), "b": Scored(1.0)}, RewardRange(0, 2))
    assert verdict.reward == 2.0
    assert verdict.document["aggregate"] == {"method": "weighted_sum", "weights": {"a": 0.0, "b": 2.0}}


@pytest.mark.parametrize("declared", [PRODUCT, SUM])
def test_an_unscored_factor_leaves_the_whole_unscored(declared: dict) -> None:
    outage = Unscored("judge", "verify", "timeout", "no answer in 30 s")
    verdict = parse_hybrid(declared).reward({"tests": Scored(0.0), "style": outage})
    assert isinstance(verdict, Unscored)
    assert (verdict.category, verdict.phase, verdict.code) == ("judge", "verify", "timeout")
    assert verdict.reason == "the factor 'style' (from 'prose') has no reward: no answer in 30 s"


@pytest.mark.parametrize("declared", [PRODUCT, SUM])
@given(one=st.floats(0, 1), other=st.floats(0, 1))
def test_the_reward_stays_inside_the_unit_and_grows_with_its_factors(declared: dict, one: float, other: float) -> None:
    policy = parse_hybrid(declared)
    reward = policy.reward({"tests": Scored(one), "style": Scored(other)}).reward
    assert 0 <= reward <= 1
    assert reward <= policy.reward({"tests": Scored(1.0), "style": Scored(other)}).reward


def test_a_sum_above_the_range_is_refused() -> None:
    heavy = {"combine": "weighted_sum", "factors": {n: {"source": n, "weight": 1} for n in ("a", "b")}}
    with pytest.raises(RewardError, match="^the weighted_sum of the factors is 2.0, outside"):
        parse_hybrid(heavy).reward({"a": Scored(1.0), "b": Scored(1.0)})


@pytest.mark.parametrize("declared", [PRODUCT, SUM])
def test_a_hybrid_reward_reads_back_from_its_files(declared: dict, tmp_path: Path) -> None:
    verdict = parse_hybrid(declared).reward({"tests": Scored(1.0), "style": Scored(0.3)})
    write_reward(tmp_path, verdict)
    again = read_reward(tmp_path)
    assert (again.reward, again.metrics, again.details) == (verdict.reward, verdict.metrics, verdict.details)


WRONG = {
    "a list": ([], "hybrid"),
    "no combination": ({"factors": PRODUCT["factors"]}, "hybrid.combine"),
    "a mean": ({**PRODUCT, "combine": "mean"}, "hybrid.combine"),
    "an unknown key": ({**PRODUCT, "weights": {}}, "hybrid.weights"),
    "another unknown key": ({**PRODUCT, "X": {}}, "hybrid.X"),
    "one factor": ({"combine": "product", "factors": {"a": {"source": "x"}}}, "hybrid.factors"),
    "a factor without a name": (
        {**PRODUCT, "factors": {"": {"source": "x"}, "b": {"source": "x"}}},
        "hybrid.factors",
    ),
    "a factor with an empty source": (
        {**PRODUCT, "factors": {"a": {"source": ""}, "b": {"source": "x"}}},
        "hybrid.factors.a.source",
    ),
    "factors as a list": ({**PRODUCT, "factors": ["a", "b"]}, "hybrid.factors"),
    "a factor without a source": (
        {**PRODUCT, "factors": {"a": {}, "b": {"source": "x"}}},
        "hybrid.factors.a.source",
    ),
    "a factor that is a text": ({**PRODUCT, "factors": {"a": "x", "b": {"source": "x"}}}, "hybrid.factors.a"),
    "an unknown key of a factor": (
        {**PRODUCT, "factors": {"a": {"source": "x", "w": 1}, "b": {"source": "x"}}},
        "hybrid.factors.a.w",
    ),
    "a weight in a product": ({**SUM, "combine": "product"}, "hybrid.factors.tests.weight"),
    "no weight in a sum": ({**PRODUCT, "combine": "weighted_sum"}, "hybrid.factors.tests.weight"),
    "a negative weight": (
        {"combine": "weighted_sum", "factors": {n: {"source": n, "weight": -1} for n in ("a", "b")}},
        "hybrid.factors.a.weight",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_is_refused_at_its_key(case: str) -> None:
    value, path = WRONG[case]
    with pytest.raises(PackageError) as caught:
        parse_hybrid(value, file="verifier.md")
    assert (caught.value.code, caught.value.path, caught.value.file) == (
        "invalid-hybrid",
        path,
        "verifier.md",
    )
    assert str(caught.value).startswith(f"{path} ")
    assert WORDS.get(case, "") in str(caught.value)


WORDS = {
    "a list": "must be a mapping, not []",
    "no combination": "one of product, weighted_sum, not None",
    "a mean": "not 'mean'",
    "an unknown key": "combine, factors",
    "a factor without a name": "must have names, not ''",
    "an unknown key of a factor": "source, weight",
}
