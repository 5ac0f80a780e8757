"""Whatever bytes a verifier leaves: a reward inside the range, or a `RewardError`, and nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from benchflow.rewards import AggregatePolicy, RewardError, Scored, read_reward, write_reward
from benchflow.rewards.aggregate import METHODS
from benchflow.rewards.reward_files import PRESERVED, STRUCTURAL

numbers = st.floats() | st.integers(-2, 2) | st.floats(0, 1) | st.booleans()
json_values = st.recursive(
    st.none() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
metrics = st.dictionaries(st.sampled_from("abc"), st.floats(0, 1), min_size=1)
aggregates = st.fixed_dictionaries(
    {"method": st.sampled_from(METHODS)},
    optional={"weights": st.dictionaries(st.sampled_from("abc"), st.floats(0, 1), min_size=1)},
)
maps = st.dictionaries(st.sampled_from(sorted(STRUCTURAL | PRESERVED | {"x"})), json_values, max_size=5)
sound_maps = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.floats(0, 1),
        "metrics": metrics,
        "aggregate": aggregates,
        "rubric": st.lists(st.fixed_dictionaries({"score": st.floats(0, 1)}), max_size=2),
        "metadata": json_values,
        "speed": st.floats(0, 1),
    },
)
documents = st.binary(max_size=40) | (maps | sound_maps | json_values).map(lambda value: json.dumps(value).encode())
texts = st.binary(max_size=12) | numbers.map(lambda value: repr(value).encode())
policies = st.none() | st.builds(
    AggregatePolicy,
    st.none() | st.sampled_from(METHODS),
    criteria=st.none() | st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple),
)


@given(st.none() | texts, st.none() | documents, policies)
@example(b"1", b'{"metrics": {}, "aggregate": {"method": "mean"}}', None)
def test_any_files_give_a_reward_or_a_reward_error(
    text: bytes | None, document: bytes | None, policy: AggregatePolicy | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if text is not None:
            (folder / "reward.txt").write_bytes(text)
        if document is not None:
            (folder / "reward.json").write_bytes(document)
        try:
            scored = read_reward(folder, policy=policy)
        except RewardError as error:
            code = error.code
        else:
            code = None
            check_reads_back(folder, scored)
        assert code in {None, "reward-missing", "reward-mismatch", "reward-invalid"}


def check_reads_back(folder: Path, scored: Scored) -> None:
    assert 0 <= scored.reward <= 1
    assert all(0 <= value <= 1 for value in scored.metrics.values())
    write_reward(folder, scored, unseen=True)
    again = read_reward(folder)
    assert (again.reward, again.metrics, again.items) == (scored.reward, scored.metrics, scored.items)
    assert again.document == scored.document
    assert {path.name for path in folder.iterdir()} == {"reward.txt", "reward.json"}
