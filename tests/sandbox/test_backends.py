"""Backends are found by name, plugins included; a broken plugin says so and stops nothing else."""

import sys
from importlib.metadata import EntryPoint

import pytest

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.plugins import SANDBOXES
from benchflow.sandbox import backends
from benchflow.sandbox.backends import BuiltIn
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import CAPABILITIES, BackendStatus, SandboxBackend

PLUGIN = """
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


@pytest.mark.parametrize("name", ["broken", "strange", "gone", "renamed", "boastful"])
def test_a_plugin_that_gives_no_backend_is_said(plugins, name):
    with pytest.raises(InfrastructureFailure, match=name) as caught:
        backends.load_backend(name)
    assert caught.value.code == "plugin-invalid"


@pytest.mark.anyio
async def test_a_broken_backend_does_not_hide_the_others(plugins, monkeypatch, local_store):
    monkeypatch.setenv("BENCHCUBE_STORE", str(local_store))
    found = {status.name: status for status in await backends.all_statuses()}
    assert set(found) == set(SANDBOXES.names())
    assert found["remote"] == BackendStatus("remote", False, "the cloud is down", frozenset())
    assert not found["broken"].usable


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
