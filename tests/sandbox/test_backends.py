"""Backends are found by name, plugins included; a broken plugin says so and stops nothing else."""

import sys
from importlib.metadata import EntryPoint

import pytest

from benchflow.errors import PluginError, UsageError
from benchflow.plugins import SANDBOXES
from benchflow.sandbox import backends
from benchflow.sandbox.backends import BuiltIn
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import CAPABILITIES, BackendStatus, SandboxBackend
from benchflow.task.runtime_capabilities import declared_capabilities

PLUGIN = """
from benchflow.sandbox import SandboxBackend
from benchflow.sandbox.local.local_backend import LocalBackend

class Remote(LocalBackend):
    name = "remote"

    async def status(self):
        raise RuntimeError("the cloud is down")

class Broken(LocalBackend):
    name = "broken"

    def __init__(self):
        raise KeyError("credentials")

class Renamed(LocalBackend):
    pass

class Partial(SandboxBackend):
    name = "partial"
    declared = frozenset({"fork"})

class Late(LocalBackend):
    name = "late"

    @property
    def declared(self):
        return LocalBackend.declared

class Boastful(LocalBackend):
    name = "boastful"
    declared = LocalBackend.declared | {"teleport"}

def strange():
    return object()
"""

PLUGINS = {
    "remote": "Remote",
    "broken": "Broken",
    "strange": "strange",
    "gone": "nothing",
    "renamed": "Renamed",
    "boastful": "Boastful",
    "partial": "Partial",
    "late": "Late",
}


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "remote_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, f"remote_plugin:{attribute}", SANDBOXES.group) for name, attribute in PLUGINS.items()]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == SANDBOXES.group else [])
    yield
    sys.modules.pop("remote_plugin", None)


def test_built_in_backends_are_known_by_name():
    assert SANDBOXES.names()[:3] == ("local", "docker", "podman")
    assert isinstance(backends.load_backend("local"), LocalBackend)


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(UsageError, match="local, docker, podman"):
        backends.load_backend("nonsense")


def test_a_plugin_is_one_class(plugins):
    assert SANDBOXES.names() == ("local", "docker", "podman", *sorted(PLUGINS))
    made = backends.load_backend("remote")
    assert isinstance(made, SandboxBackend)
    assert made.name == "remote"


WRONG = {
    "strange": "is not a subclass of SandboxBackend",
    "gone": "cannot be loaded: AttributeError: module 'remote_plugin' has no attribute 'nothing'",
    "renamed": "has the name 'local'; set its class attribute `name` to 'renamed'",
    "boastful": "declares capabilities that do not exist: teleport",
    "partial": "does not define create, status",
    "late": "does not declare its capabilities: its class attribute `declared` is not a frozenset",
}


@pytest.mark.parametrize("name", WRONG)
def test_the_gate_and_the_launch_say_the_same_of_a_broken_plugin(plugins, name):
    said = f"The sandbox plugin '{name}' (remote_plugin:{PLUGINS[name]}) {WRONG[name]}."
    for judge in (backends.load_backend, declared_capabilities):
        with pytest.raises(PluginError) as caught:
            judge(name)
        assert str(caught.value) == said
        assert caught.value.code == "plugin-invalid"


@pytest.mark.anyio
async def test_a_status_that_is_none_is_not_usable(plugins, monkeypatch):
    backend = backends.load_backend("remote")

    async def nothing():
        return None

    monkeypatch.setattr(backend, "status", nothing)
    found = await backends.status_of(backend)
    assert (found.usable, found.reason) == (False, "Its status() returned NoneType instead of a BackendStatus.")


@pytest.mark.anyio
async def test_a_broken_backend_does_not_hide_the_others(plugins, monkeypatch, local_store):
    monkeypatch.setenv("BENCHCUBE_STORE", str(local_store))
    found = {status.name: status for status in await backends.all_statuses()}
    assert set(found) == set(SANDBOXES.names())
    assert found["remote"] == BackendStatus(
        "remote", False, "Its status() failed: RuntimeError: the cloud is down.", frozenset()
    )
    assert found["broken"].reason == (
        "The sandbox plugin 'broken' (remote_plugin:Broken) cannot be created: KeyError: 'credentials'."
    )


def test_what_is_declared_before_a_built_in_backend_is_loaded_is_what_its_class_declares():
    for name in SANDBOXES.built_in:
        light = SANDBOXES.load(name)
        assert isinstance(light, BuiltIn)
        assert light.name == name
        assert light.declared == type(light()).declared
        assert light.declared <= CAPABILITIES.keys()


def test_a_backend_that_declares_nothing_cannot_be_made():
    class Silent(LocalBackend):
        declared = SandboxBackend.declared

    with pytest.raises(TypeError, match="declared"):
        Silent()
