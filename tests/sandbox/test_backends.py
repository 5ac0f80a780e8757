"""Backends are found by name, plugins included; a broken plugin says so and stops nothing else."""

import sys
from importlib.metadata import EntryPoint

import pytest

from benchflow.errors import InfrastructureFailure, UsageError
from benchflow.sandbox import backends
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import BackendStatus, SandboxBackend

PLUGIN = """
from benchflow.sandbox.local.local_backend import LocalBackend

class Remote(LocalBackend):
    name = "remote"

    async def status(self):
        raise RuntimeError("the cloud is down")

def broken():
    raise KeyError("credentials")

def strange():
    return object()
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "remote_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint(name, f"remote_plugin:{attribute}", backends.ENTRY_POINTS)
        for name, attribute in {"remote": "Remote", "broken": "broken", "strange": "strange", "gone": "nothing"}.items()
    ]
    monkeypatch.setattr(backends, "entry_points", lambda group: points if group == backends.ENTRY_POINTS else [])
    yield
    sys.modules.pop("remote_plugin", None)


def test_built_in_backends_are_known_by_name():
    assert backends.backend_names()[:3] == ("local", "docker", "podman")
    assert isinstance(backends.load_backend("local"), LocalBackend)


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(UsageError, match="local, docker, podman"):
        backends.load_backend("nonsense")


def test_a_plugin_is_one_class(plugins):
    assert backends.backend_names() == ("local", "docker", "podman", "broken", "gone", "remote", "strange")
    made = backends.load_backend("remote")
    assert isinstance(made, SandboxBackend)
    assert made.name == "remote"


@pytest.mark.parametrize("name", ["broken", "strange", "gone"])
def test_a_plugin_that_gives_no_backend_is_said(plugins, name):
    with pytest.raises(InfrastructureFailure, match=name) as caught:
        backends.load_backend(name)
    assert caught.value.code == "plugin-invalid"


@pytest.mark.anyio
async def test_a_broken_backend_does_not_hide_the_others(plugins, monkeypatch, local_store):
    monkeypatch.setenv("BENCHCUBE_STORE", str(local_store))
    found = {status.name: status for status in await backends.all_statuses()}
    assert set(found) == set(backends.backend_names())
    assert found["remote"] == BackendStatus("remote", False, "the cloud is down", frozenset())
    assert not found["broken"].usable
