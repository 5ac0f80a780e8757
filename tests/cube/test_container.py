"""Contracts and helpers of containers."""

import pytest

from cube.container import (
    ContainerBackend,
    ContainerError,
    ContainerExecError,
    ExecResult,
    HealthCheckError,
    port_from_url,
    relocate_if_readonly,
)


class Recorder:
    """Answers commands from a script and counts stops."""

    def __init__(self, *exit_codes):
        self.exit_codes = list(exit_codes)
        self.commands = []
        self.stopped = 0

    def exec(self, command, timeout=None, workdir=None, env=None):
        self.commands.append(command)
        return ExecResult(exit_code=self.exit_codes.pop(0), stderr="read-only")

    def stop(self, timeout=10):
        self.stopped += 1


class Checked(ContainerBackend):
    verdict: bool | None = True

    def launch(self, config):
        raise NotImplementedError

    def health_check(self, container):
        if self.verdict is None:
            raise OSError("no answer")
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "message"), [(False, "Health check returned False"), (None, "raised an exception: no answer")]
)
def test_an_unhealthy_container_is_stopped(verdict, message):
    container = Recorder()
    with pytest.raises(HealthCheckError, match=message):
        Checked(verdict=verdict)._run_health_check(container)
    assert container.stopped == 1


def test_a_healthy_container_goes_on():
    container = Recorder()
    Checked()._run_health_check(container)
    assert container.stopped == 0


def test_a_writable_folder_stays():
    assert relocate_if_readonly(Recorder(0), "/data", "/tmp/data") == "/data"


def test_a_read_only_folder_is_copied():
    container = Recorder(1, 0)
    assert relocate_if_readonly(container, "/a b", "/tmp/x", extra_setup="true") == "/tmp/x"
    assert container.commands[1] == "mkdir -p /tmp/x && cp -a '/a b'/. /tmp/x/ && true"


def test_a_failed_copy_is_an_error():
    with pytest.raises(ContainerExecError, match="read-only"):
        relocate_if_readonly(Recorder(1, 1), "/data", "/tmp/data")


@pytest.mark.parametrize(("url", "port"), [("http://a:81/x", 81), ("http://a", 80), ("https://a/", 443)])
def test_the_port_of_a_url(url, port):
    assert port_from_url(url) == port


def test_a_url_without_port_is_an_error():
    with pytest.raises(ContainerError, match="has no port"):
        port_from_url("ftp://a")
