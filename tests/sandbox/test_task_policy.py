"""What a package declares decides network, limits, mounts, folders and tools of its sandbox."""

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.protocol import CAPABILITIES, DEFAULT_PIDS, Limits, Mount, NetworkPolicy
from benchflow.sandbox.task_policy import (
    asset_mounts,
    mcp_servers,
    needed_capabilities,
    network_policy,
    safe_workdir,
    sandbox_limits,
    working_folder,
)
from benchflow.task.package import load_package


@pytest.fixture
def view(make_package):
    def make(frontmatter="", files=None):
        package = load_package(make_package(frontmatter, files))
        assert [issue for issue in package.issues if issue.severity == "error"] == []
        return package.view

    return make


def test_the_environments_network_holds_for_all_phases_unless_they_say_otherwise(view):
    found = view(
        "environment:\n  network_mode: no-network\n"
        "agent:\n  network_mode: allowlist\n  allowed_hosts: [a.example, b.example]\n"
    )
    assert network_policy(found, "environment") == NetworkPolicy("none")
    assert network_policy(found, "agent") == NetworkPolicy("allowlist", ("a.example", "b.example"))
    assert network_policy(found, "verifier") == NetworkPolicy("none")


def test_without_declaration_the_network_is_public(view):
    assert network_policy(view(), "agent") == NetworkPolicy("public")


def test_the_runtime_policy_overrides_single_phases(view):
    found = view(
        "benchflow:\n  runtime_policy:\n    network:\n      agent_egress: none\n"
        "      phase_overrides: {verifier: no-network}\n"
    )
    assert network_policy(found, "environment").mode == "public"
    assert network_policy(found, "agent").mode == "none"
    assert network_policy(found, "verifier").mode == "none"


PHASES = ("environment", "agent", "verifier")


@pytest.mark.parametrize("rest", ["", "environment: {cpus: 1}\nagent: {timeout_sec: 9}\nverifier: {timeout_sec: 9}\n"])
def test_the_default_of_the_runtime_policy_holds_for_every_phase_without_a_network_of_its_own(view, rest):
    found = view(f"{rest}benchflow:\n  runtime_policy: {{network: {{task_default: no-network}}}}\n")
    assert [network_policy(found, phase).mode for phase in (*PHASES, "oracle")] == ["none"] * 4


def test_the_default_of_the_runtime_policy_brings_its_hosts(view):
    found = view("benchflow:\n  runtime_policy: {network: {task_default: allowlist, allowed_hosts: [a.example]}}\n")
    assert {network_policy(found, phase) for phase in PHASES} == {NetworkPolicy("allowlist", ("a.example",))}


@pytest.mark.parametrize(
    ("declared", "modes"),
    [
        ("environment: {network_mode: public}", ["public", "public", "public"]),
        ("agent: {network_mode: public}", ["none", "public", "none"]),
        ("verifier: {network_mode: public}", ["none", "none", "public"]),
    ],
)
def test_a_declared_network_wins_over_the_default_of_the_runtime_policy(view, declared, modes):
    found = view(f"{declared}\nbenchflow:\n  runtime_policy: {{network: {{task_default: no-network}}}}\n")
    assert [network_policy(found, phase).mode for phase in PHASES] == modes


def test_declared_limits_are_kept_and_defaults_only_where_the_machine_can(view):
    environment = view("environment:\n  memory_mb: 512\n").config.environment
    assert sandbox_limits(environment, frozenset()) == Limits(memory_mb=512)
    assert sandbox_limits(environment, frozenset(CAPABILITIES)) == Limits(
        cpus=1, memory_mb=512, storage_mb=10240, pids=DEFAULT_PIDS
    )


def test_what_is_declared_is_needed(view):
    found = view(
        "environment:\n  cpus: 2\n  docker_image: x\n  network_mode: no-network\n  healthcheck: {command: 'true'}\n"
    )
    needed = needed_capabilities(found)
    assert set(needed) == {"limits.cpu", "image", "healthcheck", "network.none"}
    assert needed["limits.cpu"] == "environment.cpus"
    assert set(needed) <= set(CAPABILITIES)


@pytest.mark.parametrize(
    ("declared", "image", "folder"),
    [(None, None, "/app"), (None, "/", "/app"), (None, "/srv", "/srv"), ("/w/", "/srv", "/w"), ("/a//b", None, "/a/b")],
)
def test_the_working_folder_is_declared_or_the_images_or_app(declared, image, folder):
    assert working_folder(declared, image) == folder


@pytest.mark.parametrize("path", ["", "/", "//", "relative", "/a/../b", "/a/./b", "/a\0b"])
def test_an_unsafe_working_folder_is_refused(path):
    with pytest.raises(EnvironmentFailure, match="absolute"):
        safe_workdir(path)


def test_assets_are_mounted_in_their_phase_only(view):
    files = {"data/set.csv": "1", "verifier/key.txt": "secret", "data/env.txt": "e"}
    found = view(
        "benchflow:\n  assets:\n"
        "    - {path: data/set.csv, visibility: agent, mount_phase: agent, target: /data/set.csv}\n"
        "    - {path: data/env.txt, visibility: agent, mount_phase: environment, target: /data/env.txt}\n"
        "    - {path: verifier/key.txt, visibility: hidden_verifier, mount_phase: verifier, target: /key}\n",
        files,
    )
    root = found.task_dir.resolve()
    assert asset_mounts(found, "agent") == (
        Mount(root / "data/set.csv", "/data/set.csv"),
        Mount(root / "data/env.txt", "/data/env.txt"),
    )
    assert asset_mounts(found, "verifier") == (
        Mount(root / "data/env.txt", "/data/env.txt"),
        Mount(root / "verifier/key.txt", "/key"),
    )


def test_mcp_servers_are_prepared_as_agents_take_them(view):
    found = view(
        "environment:\n  mcp_servers:\n"
        "    - {name: tool, transport: stdio, command: run, args: [a], env: {K: '${TOKEN}'}}\n"
        "    - {name: web, transport: http, url: 'http://localhost:1/mcp', headers: {X: '${TOKEN}'}}\n"
        "    - {name: old, url: 'http://localhost:2/sse'}\n"
    )
    assert mcp_servers(found, {"TOKEN": "t"}) == [
        {"name": "tool", "command": "run", "args": ["a"], "env": [{"name": "K", "value": "t"}]},
        {"type": "http", "name": "web", "url": "http://localhost:1/mcp", "headers": [{"name": "X", "value": "t"}]},
        {"type": "sse", "name": "old", "url": "http://localhost:2/sse", "headers": []},
    ]
    with pytest.raises(EnvironmentFailure, match="TOKEN"):
        mcp_servers(found, {})
