"""A sandbox as the gym layer drives it: blocking calls, forwarded ports, one clear end."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow.gym.sandbox_container import SandboxContainer, SandboxContainerBackend
from cube.container import Container, ContainerConfig, ContainerExecError, ContainerLaunchError, relocate_if_readonly


@pytest.fixture
def container(containers: SandboxContainerBackend) -> Iterator[Container]:
    with containers.launch(ContainerConfig(image="host", cpu_cores=1, ram_gb=0.5, disk_gb=0.1)) as launched:
        yield launched


def test_commands_run_with_their_settings(container: Container) -> None:
    result = container.exec("echo $WORD; pwd; echo problem >&2; exit 3", workdir="/tmp", env={"WORD": "hello"})
    assert (result.stdout, result.stderr, result.exit_code) == ("hello\n/tmp\n", "problem\n", 3)
    assert result.duration_seconds > 0
    assert container.exec("nproc").stdout == "1\n"


def test_a_timeout_ends_with_124(container: Container) -> None:
    assert container.exec("echo before; sleep 1000", timeout=0.3).exit_code == 124
    assert container.exec_long_running("echo after", timeout=30).stdout == "after\n"


def test_a_port_inside_is_reached_through_one_of_this_machine(container: Container) -> None:
    container.exec(
        "mkdir site; echo served > site/page; cd site; /usr/bin/python3 -m http.server 8000 >/dev/null 2>&1 &"
    )
    url = container.get_url(8000)
    assert url == container.get_url(8000)
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"{url}/page", timeout=5) as answer:
                assert answer.read() == b"served\n"
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_status_follows_the_life_of_the_container(containers: SandboxContainerBackend) -> None:
    container = containers.launch(ContainerConfig(image=""))
    assert (container.get_status().running, container.get_status().healthy) == (True, True)
    container.stop()
    container.stop()
    assert container.get_status().running is False
    with pytest.raises(ContainerExecError):
        container.exec("true")


def test_what_cannot_be_had_is_a_launch_error(containers: SandboxContainerBackend) -> None:
    with pytest.raises(ContainerLaunchError, match="GPUs"):
        containers.launch(ContainerConfig(image="host", gpu=True))
    with pytest.raises(ContainerLaunchError, match="nobody/knows"):
        containers.launch(ContainerConfig(image="nobody/knows:it"))


def test_helpers_of_the_gym_layer_work_on_it(container: Container) -> None:
    assert isinstance(container, SandboxContainer)
    assert relocate_if_readonly(container, "/app", "/tmp/app") == "/app"
    assert relocate_if_readonly(container, "/etc/default", "/tmp/moved") == "/tmp/moved"
    assert container.exec("ls /tmp/moved").exit_code == 0


def test_the_backend_travels_as_json(tmp_path: Path) -> None:
    text = SandboxContainerBackend(network="public").model_dump_json()
    assert SandboxContainerBackend.model_validate_json(text).network == "public"
