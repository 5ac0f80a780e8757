"""Each way to miss a cluster is one sentence that says what to do."""

from __future__ import annotations

import socket
from importlib.metadata import PackageNotFoundError

import pytest
from ray_nodes import RayNodes

from benchflow.cluster import NodeRefused, ray_connection
from benchflow.cluster.host_actor import HostActor
from benchflow.cluster.ray_connection import connect
from benchflow.cluster.source_digest import Installed, installed
from benchflow.errors import UsageError


@pytest.fixture
def listening() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def refused(address: str | None) -> str:
    with pytest.raises(UsageError) as caught:
        connect(address)
    return str(caught.value)


def test_an_address_where_nothing_listens_is_told_at_once(listening: str) -> None:
    assert refused(listening).startswith(f"No Ray cluster answers at {listening}: Connection refused. Start one with")


@pytest.mark.parametrize("address", ["somewhere", "host:", ":6379", "host:port"])
def test_what_is_not_an_address_is_told(address: str) -> None:
    assert refused(address) == f"'{address}' is not an address of a Ray cluster, which is HOST:PORT."


def test_an_address_of_ray_client_is_refused_with_the_way_to_join() -> None:
    assert "ray start --address=HOST:PORT --num-cpus=0" in refused("ray://head:10001")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            {"failure": "none", "message": "Could not find any running Ray instance."},
            "No Ray cluster runs on this machine",
        ),
        (
            {"failure": "none", "message": "Found multiple active Ray instances"},
            "More than one Ray cluster runs on this",
        ),
        ({"failure": "closed", "message": "Timed out.\nMore."}, "does not answer as a Ray cluster: Timed out."),
        (
            {"address": "a:1", "ray": "2.1.0", "python": "3.9.1"},
            "The Ray cluster at a:1 has Ray 2.1.0 on Python 3.9.1, and this process Ray",
        ),
    ],
)
def test_what_a_probe_finds_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], sentence: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_connection, "_probed", lambda _address: found)
    said = refused(None)
    assert sentence in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        (Installed("9.9", "abc", "3.11.7"), "has benchcube 9.9 where this machine has"),
        (Installed(installed().benchcube, "abc", installed().python), "has other source files of benchcube"),
        (Installed(installed().benchcube, installed().source, "3.9.1"), "has Python 3.9.1 where this machine has"),
    ],
)
def test_a_node_with_other_code_says_how_it_differs(theirs: Installed, sentence: str) -> None:
    assert sentence in str(installed().difference(theirs))
    assert installed().difference(installed()) is None
    with pytest.raises(NodeRefused, match="install the same version on both"):
        HostActor(theirs, "nowhere:Host", ())


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(
    "settings", [{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong"}, {"RAY_AUTH_MODE": "token"}, {}], ids=str
)
def test_a_missing_or_wrong_token_is_told_and_not_shown(
    ray_cluster: RayNodes, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], tmp_path: object
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    said = refused(ray_cluster.address)
    assert said.startswith(f"The Ray cluster at {ray_cluster.address} refuses this process, whose token is missing or")
    assert "RAY_AUTH_MODE=token" in said
    assert ray_cluster.token not in said


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(ray_connection, "version", absent)
    with pytest.raises(UsageError, match=r"^--engine ray needs the extra 'ray': .*\[.*ray") as caught:
        ray_connection.connect(None)
    assert caught.value.code == "extra-missing"
