"""What only engines do: builds, compose, ownership, trouble. On real engines."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, UnsupportedError
from benchflow.sandbox.engine import EngineBackend
from benchflow.sandbox.engine.machine.ownership import OWNED
from benchflow.sandbox.protocol import NetworkPolicy, SandboxSpec
from benchflow.sandbox.pulling import PullSettings

ENGINES = [
    pytest.param(name, marks=[pytest.mark.engine, pytest.mark.xdist_group(name)]) for name in ("docker", "podman")
]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.parametrize("bench", ENGINES, indirect=True, scope="module"),
]

BASE = "benchcube-test/base:1"


def context(folder: Path, dockerfile: str, **files: str) -> Path:
    folder.mkdir()
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


async def owned(bench):
    """Ids of the containers that this backend's owner has."""
    host = await bench.backend.connect()
    return (await host.client.ask("ps", "--all", "--quiet", "--filter", f"label={OWNED}={host.owner.id}")).split()


async def test_a_dockerfile_becomes_an_environment_and_is_built_once(bench, tmp_path):
    stamp = "RUN echo built; cat /proc/sys/kernel/random/uuid > /stamp\n"
    text = f"FROM {BASE}\nENV GREETING='hello there'\nWORKDIR /work\n{stamp}COPY data /work/data\nUSER agent\n"
    place = context(tmp_path / "c", text, data="d")
    images = []

    async def build():
        images.append(await bench.backend.build(place))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(build)
    assert len({image.reference for image in images}) == 1
    image = images[0]
    assert (image.env["GREETING"], image.workdir, image.user) == ("hello there", "/work", "agent")
    async with bench.backend.create(SandboxSpec(image=image, workdir="/work")) as sandbox:
        shown = await sandbox.exec("id -un; cat data; echo $GREETING")
        assert shown.stdout == b"agent\ndhello there\n"
        assert await sandbox.changes() == []
    (place / "data").write_text("other")
    assert (await bench.backend.build(place)).reference != image.reference


async def test_packages_with_one_dockerfile_install_once_even_if_built_at_once(bench, tmp_path):
    text = f"FROM {BASE}\nRUN cat /proc/sys/kernel/random/uuid > /opt/installed\nCOPY own.txt /opt/own.txt\n"
    images = []

    async def build(name):
        place = context(tmp_path / name, text, **{"own.txt": name})
        images.append(await bench.backend.build(place))

    async with anyio.create_task_group() as tasks:
        for name in ("one", "two"):
            tasks.start_soon(build, name)
    installed = set()
    for image in images:
        async with bench.backend.create(SandboxSpec(image=image, workdir="/")) as sandbox:
            installed.add((await sandbox.exec(["cat", "/opt/installed"], timeout=60)).stdout)
    assert (len({image.reference for image in images}), len(installed)) == (2, 1)


async def test_a_failing_build_shows_its_last_lines(bench, tmp_path):
    place = context(tmp_path / "c", f"FROM {BASE}\n\nRUN echo the reason is here; exit 3\n")
    with pytest.raises(EnvironmentFailure, match="the reason is here") as caught:
        await bench.backend.build(place)
    assert (caught.value.code, caught.value.line) == ("build-failed", 3)


async def test_a_base_image_that_nobody_has_is_named_with_what_helps(bench, tmp_path):
    place = context(tmp_path / "c", "FROM localhost:1/nobody/has-it:1\n")
    with pytest.raises(EnvironmentFailure, match="--base-image host") as caught:
        await bench.backend.build(place)
    assert caught.value.code == "image-missing"


async def test_a_build_over_its_time_is_ended(bench, tmp_path):
    place = context(tmp_path / "c", f"FROM {BASE}\nRUN sleep 612\n")
    with anyio.fail_after(60), pytest.raises(EnvironmentFailure, match="limit of 3 s") as caught:
        await bench.backend.build(place, timeout_sec=3)
    assert (caught.value.code, caught.value.line) == ("build-timeout", 2)
    await nothing_is_left_of_a_build(bench, "612")


async def nothing_is_left_of_a_build(bench, seconds):
    """Until no working container is there, and no process that sleeps for that long."""
    if bench.backend.name != "podman":
        return  # the daemon of Docker ends a build by itself
    client = (await bench.backend.connect()).client
    with anyio.fail_after(60):
        while sleeping(seconds) or "buildah" in await client.ask("ps", "--all", "--external"):  # noqa: ASYNC110
            await anyio.sleep(0.2)


def sleeping(seconds):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process may end while it is looked at
            found.append(path.read_bytes())
    return [line for line in found if line.startswith(b"sleep\0" + seconds.encode())]


BUILDING = """
import sys, anyio
from pathlib import Path
from benchflow.sandbox.engine import EngineBackend
name, place, command, state = sys.argv[1:]
backend = EngineBackend(name, command=command.split(), state=Path(state))
anyio.run(backend.build, Path(place))
"""


async def test_a_killed_command_leaves_nothing_of_its_build(bench, tmp_path):
    place = context(tmp_path / "c", f"FROM {BASE}\nRUN sleep 613\n")
    client = (await bench.backend.connect()).client
    words = [
        sys.executable,
        "-c",
        BUILDING,
        bench.backend.name,
        str(place),
        " ".join(client.argv()),
        str(tmp_path / "s"),
    ]
    process = await anyio.open_process(words, env=client.environment()[1])
    with anyio.fail_after(60):
        while bench.backend.name == "podman" and not sleeping("613"):  # noqa: ASYNC110
            await anyio.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await nothing_is_left_of_a_build(bench, "613")


async def test_settings_of_this_machine_are_used_in_a_build_and_not_kept(bench, tmp_path, monkeypatch):
    if bench.backend.name != "podman":
        pytest.skip("docker cannot mount files for a build, and says so")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://me:pw-of-pip@mirror.test/simple\n")
    for name, value in {"HOME": str(tmp_path), "BENCHCUBE_MACHINE_SETTINGS": "build", "XDG_CONFIG_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    run = 'RUN grep -c mirror.test "$PIP_CONFIG_FILE" > /seen && echo "$UV_INDEX_URL" | grep -c pip@mirror >> /seen\n'
    image = await bench.backend.build(context(tmp_path / "c", f"FROM {BASE}\n{run}"))
    assert not [name for name in image.env if name.startswith(("PIP_", "UV_", "SSL_"))]
    host = await bench.backend.connect()
    assert "pw-of-pip" not in await host.client.ask("image", "inspect", image.reference)
    assert "pw-of-pip" not in await host.client.ask("history", "--no-trunc", image.reference)
    async with bench.backend.create(SandboxSpec(image=image, workdir="/")) as sandbox:
        shown = await sandbox.exec("cat /seen; ls -d /dev/benchflow /etc/pip.conf 2>/dev/null")
        assert shown.stdout == b"1\n1\n"


async def test_a_base_image_is_replaced_by_no_engine(bench, tmp_path):
    await bench.backend.build(context(tmp_path / "c", f"FROM {BASE}\n"), base_image="host")
    missing = context(tmp_path / "d", "FROM benchcube-test/nowhere:1\n")
    with pytest.raises(UnsupportedError, match="--base-image"):
        await bench.backend.build(missing, base_image="host", pull=PullSettings("never"))


@dataclass(frozen=True)
class Registries:
    """The same images with and without a password, on the loopback address of the engines."""

    backend: EngineBackend
    open: str
    guarded: str

    async def forget(self, *digests: str) -> None:
        """Remove the images from the engine."""
        client = (await self.backend.connect()).client
        for name in (self.open, self.guarded):
            for found in (name, *(f"{name.removesuffix(':1')}@{digest}" for digest in digests)):
                await client.run("rmi", found)


PASSWORDS = "ann:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"
"""`secret`, hashed."""


@pytest.fixture(scope="module")
async def registries(bench, engines, tmp_path_factory, anyio_backend):
    folder = tmp_path_factory.mktemp("registries")
    (folder / "htpasswd").write_text(PASSWORDS)
    ports = (5701, 5702)  # the engines have a network of their own
    auth = ("", f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n")
    conf = "".join(f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n' for port in ports)
    (folder / "registries.conf").write_text(conf)
    with ExitStack() as stack:
        for port, more in zip(ports, auth, strict=True):
            (folder / f"{port}.yml").write_text(
                f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n"
                f"http: {{addr: '127.0.0.1:{port}'}}\n"
                f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n{more}"
            )
            command = engines.inside("docker-registry", "serve", str(folder / f"{port}.yml"))
            running = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(running.kill)
        client = (await bench.backend.connect()).client
        env = {**client.environment()[1], "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf")}
        backend = EngineBackend(bench.backend.name, command=client.argv(), env=env, state=folder / "state")
        found = Registries(backend, *(f"127.0.0.1:{port}/lib/base:1" for port in ports))
        own = await bench.backend.build(context(folder / "c", f"FROM {BASE}\nRUN echo own > /opt/own\n"))
        await client.ask("tag", own.reference, found.open)
        with anyio.fail_after(60):
            while (await client.run("push", found.open, env=env)).exit_code != 0:  # noqa: ASYNC110 - until it listens
                await anyio.sleep(0.2)
        await client.ask("rmi", "--force", own.reference)  # an engine knows the digest of what it built, too
        yield found
        await backend.close()


async def test_images_of_a_registry_are_pulled_as_policy_pins_and_credentials_say(bench, registries, tmp_path):
    resolve, name = registries.backend.resolve, registries.guarded
    with pytest.raises(EnvironmentFailure, match="`--pull never` forbids"):
        await resolve(registries.open, pull=PullSettings("never"))
    image = await resolve(registries.open)
    assert image.base_digest is not None
    assert (await resolve(registries.open, pull=PullSettings("always"))).reference == image.reference
    for wrong in ({}, {name: "ann:guess"}):
        with pytest.raises(EnvironmentFailure, match="could not be pulled") as caught:
            await resolve(name, pull=PullSettings(credentials=wrong))
        assert caught.value.code == "image-missing"
        assert "guess" not in str(caught.value)
    pull = PullSettings(credentials={name: "ann:secret"}, pins={name: image.base_digest})
    pinned = await resolve(name, pull=pull)
    assert (pinned.reference, pinned.base_digest) == (image.reference, image.base_digest)
    with pytest.raises(EnvironmentFailure, match="could not be pulled"):
        await resolve(registries.open, pull=PullSettings(pins={registries.open: "sha256:" + "a" * 64}))
    await registries.forget(image.base_digest)

    lines = (
        f"FROM {registries.open} AS first\nRUN echo x > /made\nFROM first\nCOPY --from={name} /opt/built.txt /copied\n"
    )
    place = context(tmp_path / "c", lines)
    with pytest.raises(EnvironmentFailure, match="could not pull") as caught:
        await registries.backend.build(place)
    assert caught.value.code == "image-missing"
    built = await registries.backend.build(place, pull=PullSettings("always", credentials={name: "ann:secret"}))
    assert (built.base, built.base_digest) == (registries.open, image.base_digest)
    await registries.forget(image.base_digest)
    place = context(tmp_path / "d", f"FROM {name}\nRUN echo x > /made\n")
    assert (await registries.backend.build(place, pull=pull)).base_digest == image.base_digest
    file = tmp_path / "compose.yaml"
    file.write_text(f"services: {{main: {{}}, web: {{image: '{name}'}}}}\n")
    await registries.forget(image.base_digest)
    composition = await registries.backend.compose(file, image=bench.image, pull=pull)
    assert [part.image.base_digest for part in composition.parts] == [image.base_digest]


async def test_an_entry_point_runs_before_the_agent_and_git_trusts_folders_of_the_package(bench, make_package):
    def dockerfile(script):
        lines = (
            f"FROM {BASE}",
            f"RUN printf '#!/bin/sh\\n{script}\\n' > /start; chmod 755 /start",
            "WORKDIR /srv/work",
        )
        return "\n".join((*lines, 'ENTRYPOINT ["/start"]', 'CMD ["touch", "/never"]\n'))

    files = {"environment/Dockerfile": dockerfile('echo "$PWD $(id -un) $*" > /made; echo done; exec "$@"')}
    package = make_package("environment:\n  network_mode: no-network\n", files)
    async with await Environment.from_task(package, sandbox=bench.backend) as found:
        shown = await found.sandbox.exec("cat /made; ls /never; grep -A1 safe /etc/gitconfig")
        assert shown.stdout.decode() == "/srv/work root sh -c sleep infinity\n[safe]\n\tdirectory = *\n"
        assert found.entrypoint.log == b"done\n"
        assert found.services is None
    (package / "environment/Dockerfile").write_text(dockerfile("echo no database; exit 3"))
    with pytest.raises(EnvironmentFailure, match=r"(?s)entry point.*with code 3.*no database"):
        await Environment.from_task(package, sandbox=bench.backend)


async def test_without_an_image_nothing_starts(bench):
    with pytest.raises(UnsupportedError, match="image"):
        await bench.backend.create(SandboxSpec()).start()


async def test_secrets_of_the_environment_are_in_no_image(bench):
    async with bench.sandbox(env={"TOKEN": "hunter2"}) as sandbox:
        assert (await sandbox.exec("echo $TOKEN")).stdout == b"hunter2\n"
        snapshot = await sandbox.snapshot()
    host = await bench.backend.connect()
    assert "hunter2" not in await host.client.ask("image", "inspect", snapshot.reference)
    await bench.backend.discard(snapshot)


async def test_a_failed_start_leaves_no_container(bench):
    before = await owned(bench)
    with pytest.raises(Exception, match="nobody"):
        await bench.sandbox(user="nobody-knows-me", workdir="/not/there").start()
    assert await owned(bench) == before


COMPOSE = f"""
services:
  main:
    command: sleep infinity
    depends_on: {{web: {{condition: service_healthy}}, once: {{condition: service_completed_successfully}}}}
  web:
    image: {BASE}
    command: ["sh", "-c", "echo started > /opt/state; while true; do echo reply | nc -l -p 8080; done"]
    environment: {{KIND: web}}
    healthcheck: {{test: "cat /proc/net/tcp* | grep -q :1F90", interval: 200ms, retries: 50}}
  once:
    image: {BASE}
    command: ["true"]
"""


async def test_services_of_a_compose_file_work_together(bench, tmp_path):
    (tmp_path / "docker-compose.yaml").write_text(COMPOSE)
    backend = bench.backend
    composition = await backend.compose(tmp_path / "docker-compose.yaml", image=bench.image)
    async with backend.create(SandboxSpec(image=bench.image, composition=composition)) as sandbox:
        assert (await sandbox.exec("nc -w 5 web 8080 </dev/null")).stdout == b"reply\n"
        assert (await sandbox.exec("ls /sys/class/net")).stdout.split() == [b"lo"]
        web = sandbox.service("web")
        assert (await web.exec("echo $KIND; cat /opt/state; hostname", user="root")).stdout.startswith(
            b"web\nstarted\n"
        )
        await web.write_file("/opt/extra", b"e")
        await sandbox.write_file("/app/mine", b"m")
        assert {change.path for change in await sandbox.changes()} == {"/app/mine"}
        await sandbox.kill_processes()
        assert (await sandbox.exec("nc -w 5 web 8080 </dev/null")).stdout == b"reply\n"
        async with await sandbox.fork() as fork:
            assert await fork.read_file("/app/mine") == b"m"
            assert await fork.service("web").read_file("/opt/extra") == b"e"
            assert (await fork.exec("nc -w 5 web 8080 </dev/null")).stdout == b"reply\n"
        async with await sandbox.fork_beside(network=NetworkPolicy("public")) as beside:
            assert beside.not_forwarded == ()
            assert (await beside.exec("cat mine; nc -w 5 web 8080 </dev/null")).stdout == b"mreply\n"
            assert len((await beside.exec("ls /sys/class/net")).stdout.split()) > 1
            assert (await sandbox.exec("ls /sys/class/net")).stdout.split() == [b"lo"]
            await web.write_file("/opt/extra", b"still the same")
        async with await web.fork_beside() as beside:
            assert await beside.read_file("/opt/extra") == b"still the same"
            assert (await beside.exec("nc -w 5 web 8080 </dev/null; hostname")).stdout.startswith(b"reply\n")
            await beside.write_file("/opt/extra", b"another")
        assert await sandbox.service("web").read_file("/opt/extra") == b"still the same"
        await sandbox.set_network(NetworkPolicy("public"))
        assert len((await sandbox.exec("ls /sys/class/net")).stdout.split()) > 1
    assert await owned(bench) == []


async def test_services_of_a_container_are_used_from_a_fork_beside_it(bench):
    async with bench.backend.create(SandboxSpec(image=bench.image)) as sandbox:
        await sandbox.process("nc -ll -p 8080 -e echo reply")
        await sandbox.process("nc -ll -p 8081 -e echo more", user="root")
        with anyio.fail_after(30):
            while (await sandbox.exec("cat /proc/net/tcp* | grep -c ':1F9[01] .* 0A'")).stdout.strip() != b"2":  # noqa: ASYNC110 - the container sets no event
                await anyio.sleep(0.1)
        async with await sandbox.fork_beside() as beside:
            assert beside.not_forwarded == ()
            ask = "nc -w 5 127.0.0.1 {} </dev/null"
            assert (await beside.exec(ask.format(8080))).stdout == b"reply\n"
            assert (await beside.exec(ask.format(8081))).stdout == b"more\n"
            await beside.process("nc -ll -p 9000 -e echo hidden")
            assert (await sandbox.exec(ask.format(9000))).stdout == b""
            shown = await sandbox.exec("cat /proc/[0-9]*/cmdline", user="root")
            assert b"hidden" not in shown.stdout
    assert await owned(bench) == []


async def test_a_service_that_fails_says_why_and_leaves_nothing(bench, tmp_path):
    (tmp_path / "compose.yaml").write_text(
        f"services: {{bad: {{image: '{BASE}', command: [sh, -c, 'echo no luck; exit 4'], "
        "healthcheck: {test: 'test -e /ready', interval: 100ms, retries: 99}}, "
        "main: {depends_on: {bad: {condition: service_healthy}}}}"
    )
    composition = await bench.backend.compose(tmp_path / "compose.yaml", image=bench.image)
    sandbox = bench.backend.create(SandboxSpec(image=bench.image, composition=composition))
    with pytest.raises(EnvironmentFailure, match="bad"):
        await sandbox.start()
    assert await owned(bench) == []


DRIVER = """
import json, os, sys, anyio
from pathlib import Path
from benchflow.sandbox.engine import EngineBackend
from benchflow.sandbox.protocol import SandboxSpec
wanted = json.loads(sys.argv[1])
async def main():
    backend = EngineBackend(wanted["name"], command=wanted["command"], env=wanted["env"], state=Path(wanted["state"]))
    sandbox = backend.create(SandboxSpec(image=await backend.resolve(wanted["image"])))
    await sandbox.start()
    await sandbox.process("sleep 7300")
    fork = await sandbox.fork()
    print(f'{sandbox.id} {fork.id} {(await backend.connect()).owner.id}', flush=True)
    await anyio.sleep_forever()
anyio.run(main)
"""


async def test_what_a_killed_driver_started_ends_by_itself_and_is_removed_at_the_next_start(bench, tmp_path):
    client = (await bench.backend.connect()).client
    wanted = {
        "name": bench.backend.name,
        "command": client.argv(),
        "env": client.environment()[1],
        "state": str(tmp_path),
        "image": BASE,
    }
    async with await anyio.open_process([sys.executable, "-c", DRIVER, json.dumps(wanted)], stderr=None) as driver:
        assert driver.stdout is not None
        *ids, owner = (await driver.stdout.receive()).decode().split()
        assert len(ids) == 2
        driver.send_signal(signal.SIGKILL)
    with anyio.fail_after(30):
        for name in ids:
            while await client.ask("inspect", "--format", "{{.State.Running}}", name) == "true":  # noqa: ASYNC110
                await anyio.sleep(0.3)
    listed = await client.ask("ps", "--all", "--format", "{{.Names}}")
    assert set(ids) <= set(listed.split())
    of_the_driver = ("images", "--all", "--quiet", "--filter", f"label={OWNED}={owner}")
    assert await client.ask(*of_the_driver) != ""
    successor = EngineBackend(wanted["name"], command=wanted["command"], env=wanted["env"], state=tmp_path)
    await successor.connect()
    assert not set(ids) & set((await client.ask("ps", "--all", "--format", "{{.Names}}")).split())
    assert await client.ask(*of_the_driver) == ""
    await successor.close()
    assert list((tmp_path / "owners").iterdir()) == []


async def test_the_image_with_the_agents_folder_outlives_forks_and_goes_with_its_backend(bench, tmp_path):
    client = (await bench.backend.connect()).client
    backend = EngineBackend(bench.backend.name, command=client.argv(), env=client.environment()[1], state=tmp_path)
    listing = ("images", "--all", "--quiet", "--filter", f"label={OWNED}={(await backend.connect()).owner.id}")
    async with bench.sandbox():
        pass
    for _ in range(2):
        async with backend.create(SandboxSpec(image=bench.bare)) as sandbox:
            await sandbox.write_file("/app/x", b"x")
            async with await sandbox.fork():
                pass
    assert len((await client.ask(*listing)).split()) == 1
    await backend.close()
    assert await client.ask(*listing) == ""
    async with bench.sandbox() as still_possible:
        assert (await still_possible.exec("true")).ok


async def test_containers_of_others_are_never_removed(bench, tmp_path):
    client = (await bench.backend.connect()).client
    name = "somebody-elses"
    await client.ask("create", "--name", name, "--label", f"{OWNED}=unknown", BASE, "true")
    try:
        other = EngineBackend(bench.backend.name, command=client.argv(), env=client.environment()[1], state=tmp_path)
        await other.connect()
        await other.close()
        assert await client.ask("inspect", "--format", "{{.Name}}", name)
    finally:
        await client.ask("rm", "-f", name)
