"""What Harbor can say of a configuration is valid TOML, and everything else is named."""

import datetime as dt
import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.harbor_keys import express, step_name_problem
from benchflow.task.document.yaml_source import YamlSource
from benchflow.task.document.yaml_text import dump_yaml

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts, st.dates())
moments = st.datetimes(timezones=st.sampled_from([None, dt.UTC]))
values = st.recursive(
    st.one_of(scalars, moments),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=10,
)


def has_null_item(value):
    if isinstance(value, dict):
        return any(has_null_item(item) for item in value.values())
    return isinstance(value, list) and any(item is None or has_null_item(item) for item in value)


@given(st.dictionaries(texts, values, max_size=4))
def test_any_metadata_that_yaml_can_hold_is_written_or_named(metadata):
    read = YamlSource(dump_yaml({"metadata": metadata})).value
    expressed = express(TaskConfig.model_validate(read).to_declared_dict())
    written = tomllib.loads(tomli_w.dumps(expressed.kept))
    assert bool(expressed.lost) == has_null_item(metadata)
    if not expressed.lost:
        plain = {key: value for key, value in metadata.items() if value is not None}
        assert written.get("metadata", {}).keys() == plain.keys()


@pytest.mark.parametrize("name", ["a", "a b", "é", ".hidden", "console", "a.b"])
def test_portable_step_names_are_fine(name):
    assert step_name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a.", "a ", "a:b", "con", "NUL.txt", "com1", "a\x01"])
def test_other_step_names_are_named(name):
    assert step_name_problem(name)
