"""One loader for all entry-point groups: a plugin that is broken is one sentence, and in nobody's way."""

import sys

import pytest

from benchflow.errors import PluginError, UsageError
from benchflow.plugins import AGENTS, SANDBOXES, STRATEGIES, PluginGroup

GROUPS = [AGENTS, SANDBOXES, STRATEGIES]
by_name = pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.what)
HOSTILE = {
    "raises": "raise ValueError('no key.\\nSet KEY first.')",
    "exits": "raise SystemExit(3)",
    "lacks": "import no_such_module_anywhere",
    "torn": "def (",
}


GOOD = """
from benchflow.agents import AgentInfo, AgentKind
from benchflow.testing import InMemoryBackend

agent = AgentKind(AgentInfo("good", "Works.", "process"))

class sandbox(InMemoryBackend):
    name = "good"

async def strategy(run):
    ...

other = "something else"
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with a good plugin, hostile ones and one of a built-in name, in every group."""
    info = tmp_path / "several-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: several\nVersion: 1.0\n")
    for name, text in HOSTILE.items():
        (tmp_path / f"plugin_{name}.py").write_text(text)
    (tmp_path / "plugin_good.py").write_text(GOOD)
    lines = []
    for group in GROUPS:
        names = ["good", next(iter(group.built_in)), *HOSTILE]
        lines += [
            f"[{group.group}]",
            *(
                f"{name} = plugin_{name}:it" if name in HOSTILE else f"{name} = plugin_good:{group.what}"
                for name in names
            ),
        ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


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
    assert not [name for name in sys.modules if name.startswith("plugin_")]


@by_name
def test_a_good_plugin_loads_whatever_the_others_do(group, installed):
    assert group.load("good") is getattr(sys.modules["plugin_good"], group.what)


@by_name
@pytest.mark.parametrize("name", HOSTILE)
def test_a_plugin_that_cannot_be_imported_is_one_sentence(group, installed, name):
    with pytest.raises(PluginError) as caught:
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
    with pytest.raises(PluginError, match=r"'good'.* exists more than once: plugin_good:\w+, plugin_other:it"):
        group.load("good")


@by_name
def test_a_built_in_name_cannot_be_taken_over_and_the_attempt_is_reported(group, installed):
    name = next(iter(group.built_in))
    group.load(name)
    assert "plugin_good" not in sys.modules
    assert group.names().count(name) == 1
    said = f"The {group.what} plugin '{name}' (plugin_good:{group.what}) is ignored: the name is built in. "
    assert group.ignored() == (said + "Rename its entry point.",)


@by_name
def test_an_object_of_another_kind_is_refused(group, installed, tmp_path):
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group.group}]\nwrong = plugin_good:other\n")
    with pytest.raises(PluginError, match=rf"The {group.what} plugin 'wrong' \(plugin_good:other\) is not a"):
        group.load("wrong")


@by_name
def test_an_unknown_name_lists_those_there_are(group, installed):
    with pytest.raises(UsageError, match=f"Unknown {group.what} 'nonsense'; available: .*, good") as caught:
        group.load("nonsense")
    assert caught.value.code == group.unknown


def test_a_group_without_anything_has_no_names():
    assert PluginGroup("benchflow.nothing", "thing", "unknown-thing", {}, "").names() == ()
