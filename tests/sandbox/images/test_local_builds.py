"""Real Dockerfiles built in real sandboxes of this machine: on its own userland, and on imported root file systems."""

import asyncio
import ensurepip
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images import ImageRegistry, LayerStore, image_sources
from benchflow.sandbox.images.filework import FileWork
from benchflow.sandbox.images.image_sources import debian_mirror
from benchflow.sandbox.images.layer_tree import LayerTree
from benchflow.sandbox.images.recipes import add_debian
from benchflow.sandbox.network.addresses import VARIABLE
from benchflow.sandbox.protocol import NetworkPolicy, SandboxSpec

pytestmark = pytest.mark.anyio
OFFLINE = {"base_image": "host", "network": NetworkPolicy("none")}


@pytest.fixture
def dockerfile(context):
    def write(text, **files):
        (context / "Dockerfile").write_text(text)
        for name, content in files.items():
            (context / name).write_text(content)
        return context

    return write


async def output(backend, image, command, **options):
    spec = SandboxSpec(image=image, workdir=image.workdir or "/", user=image.user or "root")
    async with backend.create(spec) as sandbox:
        result = await sandbox.exec(command, **options)
        assert result.ok, result
        return result.stdout.decode()


def temporary(backend):
    return [path.name for path in (backend.store.root / "tmp").glob("*")]


async def test_commands_run_with_what_the_dockerfile_says(backend, dockerfile):
    context = dockerfile(
        "FROM any:1\nENV GREETING='hello world'\nARG NAME=nobody\nWORKDIR /srv/app\nCOPY data .\n"
        'RUN echo "$GREETING $NAME $(id -u) $PWD $HOME $(cat data)" > said\n'
        "RUN useradd -m -u 1234 dev && chown dev said\n"
        'USER dev\nRUN ["sh", "-c", "id -u >> said; echo $HOME >> said"]\n'
        'SHELL ["/bin/bash", "-euo", "pipefail", "-c"]\nRUN <<EOF\nlist=(one two)\necho "${list[1]}" >> said\nEOF\n'
        "RUN <<PY\n#!/usr/bin/env python3\nopen('said', 'a').write('python\\n')\nPY\n"
        "RUN cat <<'END' >> said\n$literal\nEND\n",
        data="data",
    )
    image = await backend.build(context, build_args={"NAME": "you"}, **OFFLINE)
    said = await output(backend, image, "cat said; id -un")
    assert said == "hello world you 0 /srv/app /root data\n1234\n/home/dev\ntwo\npython\n$literal\ndev\n"
    assert (image.base, image.fidelity) == ("host", "substituted")


async def test_users_of_a_dockerfile_find_their_names_and_ids_free_on_the_host(backend, dockerfile):
    context = dockerfile("FROM any:1\nRUN useradd -u 1000 node && useradd agent && id -u agent > /ids\n")
    image = await backend.build(context, **OFFLINE)
    assert await output(backend, image, "cat /ids; ls /usr/lib/python3*/EXTERNALLY-MANAGED || true") == "1001\n"


async def test_files_of_an_image_that_is_not_available_are_never_copied_from_a_substitute(backend, dockerfile):
    context = dockerfile("FROM any:1\nCOPY --from=tools.example/uv:1 /uv /bin/\n")
    with pytest.raises(
        EnvironmentFailure, match=r"line 2: COPY --from=tools.example/uv:1 .*no other image can replace"
    ):
        await backend.build(context, **OFFLINE)


async def test_layers_hold_what_changed_and_nothing_of_the_set_up(backend, dockerfile):
    image = await backend.build(dockerfile("FROM any:1\nRUN mkdir /made && echo x > /made/x\n"), **OFFLINE)
    (layer,) = image.layers
    assert sorted(str(path.relative_to(layer)) for path in layer.rglob("*")) == ["made", "made/x"]


async def test_a_command_that_changes_nothing_leaves_no_layer(backend, dockerfile):
    image = await backend.build(dockerfile("FROM any:1\nRUN true\nRUN cat /etc/os-release >/dev/null\n"), **OFFLINE)
    assert image.layers == ()


async def test_deletions_survive_into_later_commands_and_into_copies(backend, dockerfile):
    context = dockerfile(
        "FROM any:1 AS a\nRUN mkdir -p /d/sub && touch /d/keep /d/drop /d/sub/x\n"
        "RUN rm -r /d/drop /d/sub && mkdir /d/sub\n"
        "RUN test ! -e /d/drop && test ! -e /d/sub/x\nFROM any:1\nCOPY --from=a /d /copied\n"
    )
    image = await backend.build(context, **OFFLINE)
    assert await output(backend, image, "cd /copied && find . | sort") == ".\n./keep\n./sub\n"


async def test_copies_go_through_links_of_the_userland(backend, dockerfile):
    context = dockerfile(
        "FROM any:1\nCOPY --chmod=755 tool /bin/our-tool\nRUN our-tool > /out\n", tool="#!/bin/sh\necho works\n"
    )
    image = await backend.build(context, **OFFLINE)
    assert await output(backend, image, "cat /out; readlink /bin") == "works\nusr/bin\n"


@pytest.mark.skipif(os.environ.get("BENCHCUBE_TEST_IDENTITY") == "single", reason="there is one owner only")
async def test_owners_by_name_are_the_environments_own(backend, dockerfile):
    context = dockerfile(
        "FROM any:1\nRUN useradd -u 4321 someone\nCOPY --chown=someone f /f\nRUN stat -c %u /f > /owner\n", f="f"
    )
    image = await backend.build(context, **OFFLINE)
    assert await output(backend, image, "cat /owner") == "4321\n"


async def test_a_second_build_runs_nothing(backend, dockerfile):
    context = dockerfile("FROM any:1\nRUN date +%N > /stamp\n")
    seen = []
    first = await backend.build(context, **OFFLINE)
    second = await backend.build(context, on_progress=seen.append, **OFFLINE)
    assert first == second
    assert [line.split()[0] for line in seen] == ["cached"]


async def test_many_builds_at_once_run_a_command_once(backend, dockerfile):
    context = dockerfile("FROM any:1\nRUN date +%N > /stamp && sleep 0.2\n")
    seen = []

    async def one():
        await backend.build(context, on_progress=seen.append, **OFFLINE)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(one)
    assert sorted(line.split()[0] for line in seen) == ["built"] + ["cached"] * 7


async def test_a_failed_command_shows_its_last_lines_and_leaves_nothing(backend, dockerfile):
    context = dockerfile("FROM any:1\nRUN seq 1000; echo it went wrong >&2; exit 7\n")
    with pytest.raises(EnvironmentFailure) as caught:
        await backend.build(context, **OFFLINE)
    text = str(caught.value)
    assert text.startswith("Dockerfile line 2: RUN seq 1000;")
    assert "with code 7" in text
    assert text.endswith("it went wrong")
    assert "\n1000\n" in text
    assert "\n100\n" not in text
    assert temporary(backend) == []


async def test_a_build_over_its_time_is_ended_with_its_processes(backend, dockerfile):
    context = dockerfile("FROM any:1\nRUN sleep 98765 & sleep 98765\n")
    with pytest.raises(EnvironmentFailure) as caught:
        await backend.build(context, timeout_sec=3, **OFFLINE)
    assert (caught.value.code, caught.value.line) == ("build-timeout", 2)
    assert temporary(backend) == []
    assert "98765" not in await asyncio.to_thread(processes)


def processes():
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.replace(
        __file__, ""
    )


async def test_a_command_without_network_reaches_nothing(backend, dockerfile):
    context = dockerfile("FROM any:1\nRUN --network=none ! curl -sS -m 5 http://192.0.2.1/ 2> /said\n")
    image = await backend.build(context, base_image="host")
    assert await output(backend, image, "cat /said")


async def test_a_command_that_plants_links_cannot_reach_out_of_its_layer(backend, dockerfile, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("hosts", "hostname", "resolv.conf"):
        (victim / name).write_text("")
    context = dockerfile(
        f"FROM any:1\nRUN mv /srv /old && ln -s {victim} /srv && ln -s {victim} /link && rm -rf /run && "
        f"ln -s {victim} /run\n"
        "COPY f /link/f\nCOPY f /srv/hosts\n",
        f="content",
    )
    image = await backend.build(context, **OFFLINE)
    assert sorted(path.name for path in victim.iterdir()) == ["hostname", "hosts", "resolv.conf"]
    assert (victim / "hosts").read_text() == ""
    assert LayerTree(image.layers).read_text(f"{victim}/f") == "content"


async def test_a_killed_build_leaves_nothing_that_the_next_one_keeps(backend, dockerfile, local_store):
    context = dockerfile("FROM any:1\nRUN touch /half && echo running && sleep 3 && touch /whole\n")
    child = await anyio.open_process(
        [sys.executable, "-c", CHILD, str(local_store), str(context)], stdout=subprocess.PIPE
    )
    assert await child.stdout.receive() == b"running"
    assert temporary(backend) != []
    child.send_signal(signal.SIGKILL)
    await child.wait()
    image = await backend.build(context, **OFFLINE)
    assert await output(backend, image, "ls /half /whole") == "/half\n/whole\n"
    assert temporary(backend) == []


CHILD = """
import sys, anyio
from pathlib import Path
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import NetworkPolicy

def say(stream, data):
    print(data.decode().strip(), end="", flush=True)

async def main():
    backend = LocalBackend(Path(sys.argv[1]))
    try:
        await backend.build(Path(sys.argv[2]), base_image="host", network=NetworkPolicy("none"), on_output=say)
    finally:
        await backend.close()

anyio.run(main)
"""


@pytest.mark.slow
async def test_processes_that_build_the_same_share_the_work(backend, dockerfile, local_store):
    context = dockerfile("FROM any:1\nRUN date +%N > /stamp && sleep 1\nRUN cp /stamp /again\n")
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(anyio.run_process, [sys.executable, "-c", CHILD, str(local_store), str(context)])
    image = await backend.build(context, **OFFLINE)
    assert await output(backend, image, "cmp /stamp /again && echo same") == "same\n"


# A root file system of its own: one static program.


@pytest.fixture
def busybox(tmp_path):
    """A root file system that holds a shell and little more."""
    tool = shutil.which("busybox")
    assert tool, "the system package busybox-static is missing"
    root = tmp_path / "rootfs"
    for folder in ("bin", "etc", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copy(tool, root / "bin" / "busybox")
    for name in ("sh", "cat", "ls", "id", "echo", "mkdir", "stat", "adduser"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    return root


def registry_of(backend):
    mapped = os.environ.get("BENCHCUBE_TEST_IDENTITY") == "range"
    return ImageRegistry(LayerStore(backend.store.root, FileWork(mapped)))


async def test_a_registered_root_file_system_is_an_exact_base(backend, dockerfile, busybox):
    await image_sources.add_rootfs(registry_of(backend), "tiny:1", busybox)
    context = dockerfile("FROM tiny:1\nCOPY f /f\nRUN cat /f > /g && ls / > /seen\n", f="content\n")
    image = await backend.build(context, network=NetworkPolicy("none"))
    assert (image.base, image.fidelity) == ("tiny:1", "exact")
    assert await output(backend, image, "cat /g; cat /seen") == "content\nbin\ndev\netc\nf\ng\nproc\nseen\nsys\ntmp\n"
    assert (await backend.resolve("tiny:1")).layers == image.layers[:1]


async def test_from_scratch_runs_what_was_copied(backend, dockerfile, busybox):
    context = dockerfile('FROM scratch\nCOPY busybox /busybox\nRUN ["/busybox", "touch", "/made"]\n')
    shutil.copy(busybox / "bin" / "busybox", context / "busybox")
    image = await backend.build(context, network=NetworkPolicy("none"))
    assert LayerTree(image.layers).names("/") == ["busybox", "made"]


async def test_from_scratch_without_a_shell_says_what_is_missing(backend, dockerfile):
    with pytest.raises(EnvironmentFailure, match="/bin/sh") as caught:
        await backend.build(dockerfile("FROM scratch\nRUN true\n"), network=NetworkPolicy("none"))
    assert caught.value.line == 2


# With the package registries of this machine.


def _hosts_of_pip():
    """The hosts that pip uses by default, as the pip that comes with Python says."""
    with zipfile.ZipFile(next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))) as wheel:
        text = wheel.read("pip/_internal/models/index.py").decode()
    return re.findall(r'(?:PackageIndex\(\s*"https://|file_storage_domain=")([\w.]+)', text)[:2]


@pytest.fixture
def registries(monkeypatch):
    """Lets sandboxes reach the mirrors of this machine, also where it gives them addresses that are not public."""
    names = [urlsplit(debian_mirror()).hostname, *_hosts_of_pip()]
    addresses = {info[4][0] for name in names for info in socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)}
    monkeypatch.setenv(VARIABLE, ",".join(sorted(addresses)))


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
async def test_packages_are_installed_by_apt_and_pip_on_this_machines_userland(backend, dockerfile):
    context = dockerfile(
        "FROM python:3.11-slim\nRUN apt-get update && apt-get install -y --no-install-recommends tree\n"
        "RUN python3 -m venv /opt/v && /opt/v/bin/pip install --no-cache-dir six\n"
    )
    image = await backend.build(context, base_image="host", timeout_sec=240)
    said = await output(
        backend, image, "tree --version | cut -c1-4; /opt/v/bin/python -c 'import six; print(six.__name__)'"
    )
    assert said == "tree\nsix\n"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
@pytest.mark.usefixtures("registries")
async def test_stages_with_apt_on_a_debootstrap_base(backend, dockerfile):
    registry = registry_of(backend)
    await add_debian(registry, "debian:bookworm-slim", "bookworm", source="debootstrap bookworm")
    context = dockerfile(
        "FROM debian:bookworm-slim AS build\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends tree && rm -rf /var/lib/apt/lists/*\n"
        "FROM debian:bookworm-slim\n"
        "RUN useradd -m app\n"
        "COPY --from=build /usr/bin/tree /opt/bin/\n"
        "COPY --chown=app main.sh /srv/\nUSER app\nWORKDIR /srv\nENV TOOLS=/opt/bin\n",
        **{"main.sh": "$TOOLS/tree --version | cut -c1-4; stat -c %U main.sh; whoami; which tree || echo none\n"},
    )
    image = await backend.build(context, timeout_sec=400)
    assert await output(backend, image, "sh main.sh") == "tree\napp\napp\nnone\n"
    assert (image.base, image.fidelity) == ("debian:bookworm-slim", "exact")
