"""Pure parts: arguments, facts, accounts, environments, images."""

import csv
import resource

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.backends import BUILT_IN
from benchflow.sandbox.engine.box.anchor import Greeting
from benchflow.sandbox.engine.box.container_arguments import limit_arguments, mount_arguments
from benchflow.sandbox.engine.box.record_transfer import Owner
from benchflow.sandbox.engine.box.running_container import numeric_owner
from benchflow.sandbox.engine.machine.dialect import DOCKER, PODMAN
from benchflow.sandbox.engine.machine.engine_build import (
    BuildOptions,
    base_images,
    context_digest,
    final_base,
    planned,
)
from benchflow.sandbox.engine.machine.engine_client import EngineClient, last_words
from benchflow.sandbox.engine.machine.engine_facts import (
    has_project_quota,
    read_docker,
    read_podman,
)
from benchflow.sandbox.engine.machine.engine_images import read_image
from benchflow.sandbox.protocol import CAPABILITIES, Limits

PASSWD = "root:x:0:0::/root:/bin/sh\nagent:x:1234:1235::/home/agent:/bin/sh\nbroken\n"


def test_limits_count_swap_as_memory():
    args = limit_arguments(Limits(cpus=1.5, memory_mb=100, pids=7, storage_mb=9))
    assert args == [
        *("--cpus", "1.5", "--memory", "100m", "--memory-swap", "100m", "--pids-limit", "7"),
        *("--storage-opt", "size=9m"),
    ]
    assert limit_arguments(Limits()) == []


def test_commas_in_mounted_paths_are_no_second_option():
    _, value = mount_arguments("/a,readonly=false", '/b"c')
    assert next(csv.reader([value])) == ["type=bind", "source=/a,readonly=false", 'target=/b"c', "readonly"]


def test_values_of_variables_stay_out_of_the_arguments():
    client = EngineClient(DOCKER, env={"PATH": "/bin", "TAKEN": "theirs"})
    args, env = client.environment({"SECRET": "hunter2", "PATH": "/inside", "TAKEN": "ours", "https_proxy": "p"})
    assert args == ["--env", "SECRET", "--env", "PATH=/inside", "--env", "TAKEN=ours", "--env", "https_proxy=p"]
    assert env == {"PATH": "/bin", "TAKEN": "theirs", "SECRET": "hunter2"}


def test_containers_of_podman_ask_for_no_more_than_the_command_has():
    args = EngineClient(PODMAN, env={}).ulimits()
    asked = dict(value.split("=") for value in args[1::2])
    for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        hard = resource.getrlimit(kind)[1]
        assert hard == resource.RLIM_INFINITY or int(asked[name].split(":")[1]) <= hard
    assert EngineClient(DOCKER, env={}).ulimits() == []
    assert EngineClient(PODMAN, env={"CONTAINER_HOST": "unix:///run/podman.sock"}).ulimits() == []


def test_owners_become_numbers():
    assert numeric_owner("agent", PASSWD, "") == Owner(1234, 1235)
    assert numeric_owner("agent:staff", PASSWD, "staff:x:50:\n") == Owner(1234, 50)
    assert numeric_owner("7:8", "", "") == Owner(7, 8)
    assert numeric_owner("agent", "", "") == Owner(1000, 1000)
    for unknown in ("nobody", "agent:nogroup"):
        with pytest.raises(SandboxFailure, match="no"):
            numeric_owner(unknown, PASSWD, "")


def test_a_docker_says_what_it_can_limit():
    info = {
        "KernelVersion": "6.1",
        "Architecture": "x86_64",
        "Driver": "overlay2",
        "MemoryLimit": True,
        "CpuCfsQuota": True,
        "PidsLimit": True,
        "DriverStatus": [["Backing Filesystem", "extfs"]],
    }
    facts = read_docker(info, kernel="6.1", root=True, local=True)
    assert facts.capabilities == BUILT_IN - {"limits.disk"}
    assert [missing.capability for missing in facts.missing()] == ["limits.disk"]
    elsewhere = read_docker(info, kernel="5.0", root=True, local=True)
    assert "network.allowlist" not in elsewhere.capabilities
    assert not elsewhere.same_kernel
    assert set(CAPABILITIES) >= BUILT_IN


def test_layers_are_read_by_root_on_the_engines_machine_if_the_overlay_keeps_all_that_was_written():
    native = ("Native Overlay Diff", "true")
    docker = {"KernelVersion": "6.1", "Driver": "overlay2", "DriverStatus": [list(native)]}
    podman = {"host": {"kernel": "6.1"}, "store": {"graphDriverName": "overlay", "graphStatus": dict([native])}}
    here = {"kernel": "6.1", "root": True, "local": True}
    for read, info in ((read_docker, docker), (read_podman, podman)):
        assert read(info, **here).reads_layers
        for other in ({"kernel": "5.0"}, {"root": False}, {"local": False}):
            assert not read(info, **here | other).reads_layers
    for less in ({"Driver": "vfs"}, {"DriverStatus": None}, {"SecurityOptions": ["name=rootless"]}):
        assert not read_docker(docker | less, **here).reads_layers
    for less in ({"graphDriverName": "vfs"}, {"graphStatus": {}}):
        assert not read_podman(podman | {"store": podman["store"] | less}, **here).reads_layers


def test_disk_limits_need_project_quotas_below_the_engines_data():
    mounts = "/dev/a / ext4 rw 0 0\n/dev/b /data xfs rw,prjquota 0 0\n/dev/c /data/plain xfs rw 0 0\n"
    assert has_project_quota(mounts, "/data/docker")
    assert not has_project_quota(mounts, "/data/plain/docker")
    assert not has_project_quota(mounts, "/var/lib/docker")
    assert not has_project_quota("", "/x")


def test_a_rootless_podman_without_controllers_limits_nothing():
    host = {"arch": "amd64", "kernel": "6.1", "cgroupControllers": [], "security": {"rootless": True}}
    facts = read_podman({"host": host, "store": {}}, kernel="6.1", root=False, local=True)
    assert not {"limits.cpu", "limits.memory", "limits.pids", "network.allowlist"} & facts.capabilities


def test_an_image_tells_all_that_a_dockerfile_recorded():
    image = read_image(
        "x:1",
        {
            "Id": "sha256:ab",
            "Config": {
                "Env": ["A=b=c"],
                "WorkingDir": "/w",
                "User": "u",
                "Entrypoint": ["e"],
                "Cmd": ["c", "d"],
                "Healthcheck": {"Test": ["CMD-SHELL", "up"], "Interval": 2_000_000_000, "Retries": 4},
            },
        },
    )
    assert (image.reference, image.env, image.workdir, image.user) == ("ab", {"A": "b=c"}, "/w", "u")
    assert (image.entrypoint, image.command) == (("e",), ("c", "d"))
    assert image.healthcheck is not None
    assert (image.healthcheck.command, image.healthcheck.interval_sec, image.healthcheck.retries) == ("up", 2.0, 4)


def test_the_greeting_parts_the_engines_words_from_the_commands():
    stream = b"level=warning msg=x\n\0anchor\0\x2a\0\0\0\0\0\0\0err"
    for cut in range(len(stream)):
        greeting = Greeting()
        shown = greeting.feed(stream[:cut]) + greeting.feed(stream[cut:])
        assert (greeting.pid, shown, greeting.words) == (42, b"err", "level=warning msg=x\n")


def test_the_last_words_are_the_engines_own_error():
    text = "time=x level=warning msg=y\nError response from daemon: no such thing\n\nRun 'docker run --help'\n"
    assert last_words(text) == "no such thing"
    assert last_words("") == "no reason given"


def test_the_digest_of_a_build_covers_what_the_build_sees(tmp_path):
    def digest(**options):
        return context_digest(tmp_path, "Dockerfile", BuildOptions(**options))

    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / ".dockerignore").write_text("*.log\nDockerfile\n")
    first = digest()
    (tmp_path / "noise.log").write_text("x")
    assert digest() == first
    assert digest(timeout_sec=3) == first
    assert digest(build_args={"A": "1"}) != first
    assert digest(target="stage") != first
    (tmp_path / "data").write_text("x")
    second = digest()
    assert second != first
    (tmp_path / "data").chmod(0o755)
    assert digest() != second
    third = digest()
    (tmp_path / "Dockerfile").write_text("FROM y\n")
    assert digest() != third


def test_images_that_a_build_needs_are_found_whatever_else_the_engine_supports(tmp_path):
    text = (
        "ARG V=1\nFROM r.io/a:$V AS one\nRUN --mount=type=cache,target=/c x\nONBUILD RUN y\n"
        "FROM one\nCOPY --from=one /x /x\nCOPY --from=r.io/b:2 --chown=1 /x /y\nCOPY --from=0 /z /z\n"
    )
    (tmp_path / "Dockerfile").write_text(text)
    plan = planned(tmp_path / "Dockerfile", BuildOptions(build_args={"V": "3"}))
    assert base_images(plan) == ["r.io/a:3", "r.io/b:2"]
    assert final_base(plan) == "r.io/a:3"


def test_of_several_digests_an_image_has_that_of_the_repository_that_was_asked_for():
    found = {"Id": "sha256:1", "RepoDigests": ["local/x@sha256:a", "r.io/x@sha256:b"]}
    assert read_image("r.io/x:1", found).base_digest == "sha256:b"
    assert read_image("local/x@sha256:a", found).base_digest == "sha256:a"
