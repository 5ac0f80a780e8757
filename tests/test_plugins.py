"""One loader for all entry-point groups: a plugin that is broken is one sentence, and in nobody's way."""

import sys
from types import SimpleNamespace

import pytest

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.plugins import AGENTS, SANDBOXES, STRATEGIES, PluginGroup

GROUPS = [AGENTS, SANDBOXES, STRATEGIES]
by_name = pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.what)
HOSTILE = {
    "raises": "raise ValueError('no key.\\nSet KEY first.')",
    "exits": "raise SystemExit(3)",
    "lacks": "import no_such_module_anywhere",
    "torn": "def (",
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with a good plugin, hostile ones and one of a built-in name, in every group."""
    info = tmp_path / "several-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: several\nVersion: 1.0\n")
    for name, text in HOSTILE.items():
        (tmp_path / f"plugin_{name}.py").write_text(text)
    monkeypatch.setitem(sys.modules, "plugin_good", SimpleNamespace(it="good"))
    lines = []
    for group in GROUPS:
        names = ["good", next(iter(group.built_in)), *HOSTILE]
        lines += [f"[{group.group}]", *(f"{name} = plugin_{name if name in HOSTILE else 'good'}:it" for name in names)]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)


@by_name
def test_what_is_built_in_is_there(group):
    for name in group.built_in:
        assert group.load(name) is not None


@by_name
def test_names_are_listed_without_importing_anything(group, installed):
    found = group.plugins()  # the examples of this repository may be installed too
    assert {*HOSTILE, "good"} <= set(found)
    assert found == tuple(sorted(found))
    assert group.names() == (*group.built_in, *found)
    assert not [name for name in sys.modules if name.startswith("plugin_") and name != "plugin_good"]


@by_name
def test_a_good_plugin_loads_whatever_the_others_do(group, installed):
    assert group.load("good") == "good"


@by_name
@pytest.mark.parametrize("name", HOSTILE)
def test_a_plugin_that_cannot_be_imported_is_one_sentence(group, installed, name):
    with pytest.raises(InfrastructureFailure) as caught:
        group.load(name)
    assert caught.value.code == "plugin-invalid"
    said = str(caught.value)
    assert said.startswith(f"The {group.what} plugin '{name}' (plugin_{name}:it) cannot be loaded: ")
    assert said.endswith(".")
    assert "\n" not in said


@by_name
def test_a_name_that_two_distributions_provide_is_refused_with_both(group, installed, tmp_path):
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group.group}]\ngood = plugin_other:it\n")
    with pytest.raises(InfrastructureFailure, match=r"'good'.* exists more than once: plugin_good:it, plugin_other:it"):
        group.load("good")


@by_name
def test_a_built_in_name_cannot_be_taken_over(group, installed):
    name = next(iter(group.built_in))
    assert group.load(name) != "good"
    assert group.names().count(name) == 1


@by_name
def test_an_unknown_name_lists_those_there_are(group, installed):
    with pytest.raises(UsageError, match=f"Unknown {group.what} 'nonsense'; choose one of .*, good") as caught:
        group.load("nonsense")
    assert caught.value.code == group.unknown


def test_a_group_without_anything_has_no_names():
    assert PluginGroup("benchflow.nothing", "thing", "unknown-thing", {}).names() == ()
