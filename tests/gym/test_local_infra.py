"""Resources on this machine in real sandboxes: containers of tasks, services of scripts, and how all of it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchflow.gym.sandbox_container import SandboxContainerBackend
from cube.active_runs import active_runs
from cube.container import ContainerConfig, ContainerError, ContainerLaunchError
from cube.core import Observation
from cube.infra_local import LocalInfraConfig
from cube.resource import DockerImageConfig, DockerServiceConfig
from cube.task import Task, TaskMetadata
from cube.tool import ToolConfig
from cube.tools.terminal import ContainerTerminalTool, FileTerminalTool, TerminalToolConfig

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
SMALL = {"image": "host", "ram_gb": 0.5, "cpu_cores": 1, "disk_gb": 0.5}
SERVE = "/usr/bin/python3 -m http.server 8000 --directory /data"


@pytest.fixture
def infra(containers: SandboxContainerBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalInfraConfig:
    monkeypatch.setattr("cube._CUBE_CACHE_ROOT", tmp_path)
    monkeypatch.setattr("cube.provision_store._DEFAULT_STORE_DIR", tmp_path / "provisions")
    return LocalInfraConfig(network="none")


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def site(port: int, more: str = "", name: str = "site") -> DockerServiceConfig:
    """A web server that is started and awaited as launch scripts do."""
    script = f"""set -euo pipefail
docker run -d --name web -p {port}:8000 -e WORD=served -v pages:/data host {SERVE}
docker exec web sh -c 'echo "$0" > /data/page' "$CUBE_LAUNCH_ID"
{more}
for i in $(seq 1 200); do curl -sf http://localhost:{port}/page >/dev/null && exit 0; sleep 0.05; done
echo 'not healthy' >&2; exit 1
"""
    return DockerServiceConfig(name=name, scope="benchmark", services={"site": port}, launch_script=script)


class Terminal(Task):
    """A task with a terminal in its container."""

    def reset(self):
        return Observation.from_text("go"), {}

    def evaluate(self, obs=None):
        return 0.0, {}


def test_a_task_gets_its_container_from_the_infrastructure_and_ends_it_once(infra):
    metadata = TaskMetadata(id="group/one", container_config=ContainerConfig(**SMALL, ports=[8000]))
    task = Terminal(
        metadata=metadata,
        tool_config=TerminalToolConfig(working_dir="/tmp", max_output_chars=80),
        runtime_context={"infra": infra},
    )
    tool = task.tool
    assert isinstance(tool, ContainerTerminalTool)
    assert tool.bash("id -un; pwd") == "root\n/tmp"
    assert tool.bash("echo out; echo err >&2; exit 3") == "out\nerr\n[exit_code: 3]"
    assert tool.bash("sleep 100", timeout=0.2) == "[error] The command was stopped after 0.2 s.\n[exit_code: 124]"
    long = tool.bash("printf %0100d 7")
    assert long.startswith("0" * 40 + "\n[… 20 characters left out …]")
    assert len(tool.bash_unlimited("printf %0100d 7")) == 100
    assert [run.resource for run in active_runs()] == ["group/one"]
    with ThreadPoolExecutor(4) as pool:  # closed twice, and from several threads at once
        list(pool.map(lambda _: task.close(), range(8)))
    assert active_runs() == []
    with pytest.raises(ContainerError):
        tool.bash("true")


def test_files_are_written_whole_and_read_back(infra):
    with infra.launch(DockerImageConfig(name="files", **SMALL)) as handle:
        tool = TerminalToolConfig(working_dir="/tmp", enable_file_actions=True).make(handle.container)
        assert isinstance(tool, FileTerminalTool)
        assert [action.name for action in tool.action_set] == ["bash", "read_file", "write_file"]
        text = "quoted 'text' with $HOME, ünïcode and\n" * 5000
        tool.write_file("a folder/with 'quotes'/file", text)
        assert tool.bash_unlimited("md5sum < \"a folder/with 'quotes'/file\"").split()[0] == _md5(text)
        assert tool.read_file("a folder/with 'quotes'/file").startswith("quoted 'text' with $HOME, ünï")
        assert tool.bash("ls \"a folder/with 'quotes'\"") == "file"
        with pytest.raises(ContainerError, match="No such file"):
            tool.read_file("missing")


def _md5(text: str) -> str:
    import hashlib

    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def test_a_tool_that_cannot_be_built_leaves_no_container(infra):
    class Broken(ToolConfig):
        def make(self, container=None):
            raise RuntimeError("no tool")

    with pytest.raises(RuntimeError, match="no tool"):
        Terminal(
            metadata=TaskMetadata(id="x", container_config=ContainerConfig(**SMALL)),
            tool_config=Broken(),
            runtime_context={"infra": infra},
        )
    assert active_runs() == []


def test_a_launch_script_serves_many_tasks_at_once_without_an_engine(infra, port):
    with infra.launch(site(port)) as handle:
        assert handle.endpoint == f"http://localhost:{port}"
        (run,) = infra.list_active()
        assert (run["run_id"], run["resource"], run["abandoned"]) == (handle.run_id, "site", False)

        def fetch(_: int) -> str:
            with urllib.request.urlopen(f"{handle.endpoint}/page", timeout=30) as page:
                return str(page.read().decode().strip())

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(fetch, range(40))) == {handle.run_id}
        with pytest.raises(ContainerLaunchError, match=r"Resource 'again' cannot be launched: .*port"):
            infra.launch(site(port, name="again"))
    handle.close()
    assert infra.list_active() == []
    with pytest.raises(OSError, match="refused"):
        fetch(0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("docker compose up -d", "`docker compose` is not supported without a container engine.*sandbox='docker'"),
        ("docker run -d --privileged host true", "--privileged` is not supported"),
        ("exit 7", "exited with code 7"),
        ("docker run -d -v pages:/x host sleep 9", "the volume 'pages' of two containers"),
        ("docker inspect web", "without --format"),
        (
            "docker run -d --name broken host sh -c 'echo cannot; exit 4'; sleep 0.5",
            "broken exited with code 4: can",
        ),
        ("docker run -d no-such-image-here sleep 9", "no-such-image-here"),
    ],
)
def test_a_script_that_cannot_be_honoured_says_why_and_leaves_nothing(infra, port, more, message):
    with pytest.raises(ContainerLaunchError, match=message):
        infra.launch(site(port, more))
    assert infra.list_active() == []
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_script_sees_its_containers_as_an_engine_shows_them(infra, port, tmp_path):
    seen = tmp_path / "seen"
    more = f"""{{ docker ps --format '{{{{.Names}}}}'; docker ps -q --filter name=other
docker inspect -f '{{{{.State.Running}}}}' web; docker logs web | grep -c . || true
docker run -d --label a=b --name two host sleep 100 >/dev/null; docker ps --filter label=a=b --format '{{{{.Names}}}}'
docker rm -f two missing; docker ps --filter label=a=b; }} > {seen}"""
    with infra.launch(site(port, more)):
        lines = seen.read_text().splitlines()
    assert lines[:2] == ["web", "true"]
    assert lines[3:] == ["two", "two", "missing"]


def test_services_that_do_not_listen_are_not_ready(infra, port):
    silent = DockerServiceConfig(name="mute", services={"web": port}, launch_script="docker run -d host sleep 100")
    with pytest.raises(ContainerLaunchError, match="nothing listens on the ports of web"):
        infra.launch(silent)
    assert infra.list_active() == []


def test_what_is_kept_for_too_long_is_ended(infra):
    handle = infra.launch(DockerImageConfig(name="old", **SMALL))
    assert infra.cleanup_stale() == []
    assert infra.cleanup_stale(max_age_seconds=0) == [handle.run_id]
    assert not handle.container.get_status().running
    infra.cleanup(handle.run_id)
    handle = infra.launch(DockerImageConfig(name="other", **SMALL))
    infra.cleanup(handle.run_id)
    assert not handle.container.get_status().running


def test_a_process_that_forgets_to_close_a_container_ends_all_the_same(tmp_path):
    script = (
        "from cube import DockerImageConfig, LocalInfraConfig\n"
        "infra = LocalInfraConfig(network='none')\n"
        "print(infra.launch(DockerImageConfig(name='x', image='host', ports=[8000])).endpoint)\n"
    )
    env = {**os.environ, "CUBE_CACHE_DIR": str(tmp_path), "BENCHCUBE_STORE": str(tmp_path / "store")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout[:17]) == (0, "http://127.0.0.1:")


def test_a_damaged_record_of_a_run_is_removed(infra, tmp_path):
    (tmp_path / "active").mkdir()
    for name, data in {"a": "{", "b": "[]", "c": '{"owner": [1]}'}.items():
        (tmp_path / "active" / f"{name}.json").write_text(data)
    assert infra.list_active() == []
    assert list((tmp_path / "active").iterdir()) == []


KILLED = """
import sys, time
from cube import DockerImageConfig, DockerServiceConfig, LocalInfraConfig
infra = LocalInfraConfig(network="none"{settings})
handle = infra.launch({resource})
print(handle.run_id, flush=True)
time.sleep(600)
"""


def killed(resource: str, settings: str, env: dict[str, str], check: Callable[[str], None]) -> str:
    """Launch in another process, look, and kill it with no chance to clean up."""
    script = KILLED.format(resource=resource, settings=settings)
    process = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            run_id = process.stdout.readline().strip()
            check(run_id)
        finally:
            process.kill()
    return run_id


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_sandboxes_end_with_a_process_that_is_killed(infra, port, tmp_path):
    env = {**os.environ, "CUBE_CACHE_DIR": str(tmp_path), "BENCHCUBE_STORE": str(tmp_path / "store")}
    marker = f"http.server {port}"
    script = f"docker run -d host /usr/bin/python3 -m {marker}"

    def runs(run_id: str = "") -> None:
        assert run_id
        eventually(lambda: _processes(marker) > 0)

    run_id = killed(f"DockerServiceConfig(name='s', launch_script={script!r})", "", env, runs)
    eventually(lambda: _processes(marker) == 0)
    assert [run["abandoned"] for run in infra.list_active(run_id)] == [True]
    assert infra.cleanup_stale() == [run_id]
    assert infra.list_active() == []


def _processes(text: str) -> int:
    words = (line.replace(b"\0", b" ") for line in _command_lines())
    return sum(text.encode() in line and b"-c" not in line.split()[:2] for line in words if line)


def _command_lines() -> Iterator[bytes]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended
                yield (folder / "cmdline").read_bytes()


@pytest.mark.engine
@pytest.mark.xdist_group("docker")
def test_containers_of_an_engine_are_found_and_removed_after_a_kill(infra, engines, monkeypatch, tmp_path):
    env = {**engines.docker(), "CUBE_CACHE_DIR": str(tmp_path)}
    monkeypatch.setenv("DOCKER_HOST", env["DOCKER_HOST"])
    docker = LocalInfraConfig(sandbox="docker")
    label = "label=cube.launch"

    def listed(run_id: str) -> list[str]:
        words = ["docker", "ps", "-aq", "--filter", f"{label}={run_id}"]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.split()

    script = "docker run -d benchcube-test/base:1 sleep 1000; docker run -d benchcube-test/base:1 sleep 1000"
    resource = f"DockerServiceConfig(name='s', launch_script={script!r})"
    run_id = killed(resource, ", sandbox='docker'", env, lambda run_id: None)
    assert len(listed(run_id)) == 2
    assert docker.cleanup_stale() == [run_id]
    assert listed(run_id) == []
    with docker.launch(DockerServiceConfig(name="s", launch_script=script)) as handle:
        assert len(listed(handle.run_id)) == 2
    assert listed(handle.run_id) == []
    with pytest.raises(ContainerLaunchError, match="with code 9"):
        docker.launch(DockerServiceConfig(name="s", launch_script=f"{script}; echo $CUBE_LAUNCH_ID; exit 9"))
    assert subprocess.run(["docker", "ps", "-aq"], env=env, capture_output=True, text=True).stdout == ""


@pytest.mark.engine
@pytest.mark.xdist_group("docker")
def test_the_container_of_a_task_runs_on_an_engine_where_that_is_asked(infra, engines, monkeypatch):
    env = engines.docker()
    monkeypatch.setenv("DOCKER_HOST", env["DOCKER_HOST"])
    docker = LocalInfraConfig(sandbox="docker", network="none")
    image = DockerImageConfig(name="box", image="benchcube-test/base:1", ram_gb=0.25, cpu_cores=1)
    words = ["docker", "ps", "-q"]
    with docker.launch(image) as handle:
        said = handle.container.exec("echo $W; exit 3", env={"W": "here"})
        assert (said.stdout, said.exit_code) == ("here\n", 3)
        assert len(subprocess.run(words, env=env, capture_output=True, text=True).stdout.split()) == 1
    assert subprocess.run(words, env=env, capture_output=True, text=True).stdout == ""


def test_an_interrupted_launch_leaves_no_container(infra, port, tmp_path):
    """A launch that is interrupted while its script waits ends the script and stops what it had started."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        eventually((tmp_path / "waiting").exists)
        signal.pthread_kill(main, signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        infra.launch(site(port, f"touch {tmp_path}/waiting; sleep 600"))
    watcher.join()
    assert infra.list_active() == []
    assert not _listens(port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
