"""How long sandboxes of this machine take to start, run, copy and fork, beside `docker run` and `podman run`.

Engines that are not running are started for the run, in their own namespaces, which needs root; their image is one
static busybox. Medians; copies of small files are measured against `tar | tar` on the same disk.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import Image, Limits, SandboxSpec
from benchflow.sandbox.pulling import PullSettings
from lib.side_by_side import Row, print_table

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from engines import Engines, EngineUnavailable

BUSYBOX = "/bin/busybox"
MEMORY = Path("/dev/shm")
PEER_IMAGE = "benchcube-benchmark"
LIMITED = SandboxSpec(limits=Limits(cpus=1, memory_mb=512, pids=128))


async def median(times: int, action: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        await action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


async def timed(action: Awaitable[object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    await action
    return time.perf_counter() - start


@dataclass(frozen=True)
class Peer:
    """An engine to compare with: how it is called."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]

    def call(self, *arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        words = [*self.command, *arguments]
        return subprocess.run(words, env=self.env, input=data, capture_output=True, check=False)


def trouble_of(peer: Peer) -> str | None:
    """Create the benchmark's image in an engine and run it once; return the reason if that fails."""
    if not shutil.which(peer.name):
        return "not installed"
    if not Path(BUSYBOX).exists():
        return f"{BUSYBOX} does not exist"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for link in ("bin/busybox", "bin/true", "bin/sleep"):
            tar.add(BUSYBOX, link)
    steps: list[tuple[list[str], bytes | None]] = [
        (["info"], None),
        (["import", "-", PEER_IMAGE], archive.getvalue()),
        (["run", "--rm", "--network", "none", PEER_IMAGE, "/bin/true"], None),
    ]
    for arguments, data in steps:
        done = peer.call(*arguments, data=data)
        if done.returncode != 0:
            peer.call("rmi", "-f", PEER_IMAGE)
            words = done.stderr.decode(errors="replace").strip().splitlines()
            return f"`{peer.name} {arguments[0]}` failed: {words[-1] if words else done.returncode}"
    return None


def measure_peer(peer: Peer) -> tuple[float, float]:
    """`run --rm true` and `exec true`, milliseconds; the benchmark's image is removed afterwards."""

    def run(*arguments: str) -> float:
        start = time.perf_counter()
        peer.call(*arguments).check_returncode()
        return (time.perf_counter() - start) * 1e3

    whole = statistics.median(run("run", "--rm", "--network", "none", PEER_IMAGE, "/bin/true") for _ in range(10))
    started = peer.call("run", "-d", "--network", "none", PEER_IMAGE, "/bin/sleep", "600")
    box = started.stdout.decode().strip()
    inside = statistics.median(run("exec", box, "/bin/true") for _ in range(10))
    peer.call("rm", "-f", box)
    peer.call("rmi", "-f", PEER_IMAGE)
    return whole, inside


def own_engine(name: str, engines: Engines) -> Peer:
    """An engine started for this run."""
    if name == "docker":
        return Peer(name, ("docker",), engines.docker())
    command, env = engines.podman()
    return Peer(name, tuple(command), env)


def measure_engines() -> dict[str, tuple[float, float]]:
    """The figures of docker and podman: those of the machine if they work, otherwise started for this run.

    If an engine cannot be measured, the reason is printed."""
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(prefix="benchcube-engines-", ignore_cleanup_errors=True) as folder:
        engines: Engines | None = None
        for name in ("docker", "podman"):
            peer = Peer(name, (name,), os.environ)
            trouble = trouble_of(peer)
            if trouble is not None:
                try:
                    engines = engines or Engines(Path(folder))
                    peer = own_engine(name, engines)
                    trouble = trouble_of(peer)
                except EngineUnavailable as error:
                    trouble = f"{trouble}; {error}"
            if trouble is None:
                found[name] = measure_peer(peer)
            else:
                print(f"{name} was not measured: {trouble}")
        if engines is not None:
            engines.stop()
    return found


def used_memory() -> int:
    """Bytes of processes and of the kernel for them that cannot be reclaimed."""
    kinds = ("AnonPages", "PageTables", "KernelStack", "SUnreclaim", "Percpu", "Shmem")
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[kind].split()[0]) for kind in kinds if kind in fields) * 1024


async def start_true_stop(backend: LocalBackend, spec: SandboxSpec) -> None:
    async with backend.create(spec) as box:
        await box.exec(["true"])


async def at_once(backend: LocalBackend, count: int) -> tuple[float, float]:
    """Seconds until all are running, and megabytes for each."""
    boxes = [backend.create(SandboxSpec()) for _ in range(count)]
    before = used_memory()
    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for box in boxes:
            group.start_soon(box.start)
    taken = time.perf_counter() - start
    each = (used_memory() - before) / count / 1e6
    async with anyio.create_task_group() as group:
        for box in boxes:
            group.start_soon(box.stop)
    return taken, each


async def fork_after(backend: LocalBackend, megabytes: int) -> float:
    async with backend.create(SandboxSpec()) as box:
        await box.exec(f"head -c {megabytes}M /dev/urandom > data")

        async def fork() -> None:
            child = await box.fork()
            forked.append(child)

        forked: list[object] = []
        taken = await median(15, fork)
        for child in forked:
            await child.stop()  # type: ignore[attr-defined] # they are sandboxes
        return taken


def by_tar(source: Path, target: Path) -> float:
    """Seconds."""
    start = time.perf_counter()
    subprocess.run(f"tar -C {source} -cf - . | tar -C {target} -xf -", shell=True, check=True)
    return time.perf_counter() - start


async def small_files(backend: LocalBackend, scratch: Path) -> tuple[float, float, float]:
    """Seconds of `tar | tar`, of an upload and of a download of 10,000 files."""
    source = scratch / "small"
    for folder in range(100):
        (source / str(folder)).mkdir(parents=True)
        for number in range(100):
            (source / str(folder) / str(number)).write_bytes(os.urandom(2048))
    target = scratch / "by-tar"
    target.mkdir()
    reference = by_tar(source, target)
    async with backend.create(SandboxSpec()) as box:
        up = await timed(box.upload(source, "/app/small"))
        down = await timed(box.download("/app/small", scratch / "back"))
    return reference, up, down


def write_large(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(1024):
            file.write(os.urandom(1 << 20))


async def large_file(backend: LocalBackend, scratch: Path) -> tuple[float, float, float]:
    """Gigabytes per second of `cp` onto the disk, of an upload and of a download; each starts with empty write buffers.

    The files on this side are in memory, so that the disk is measured only once.
    """
    with tempfile.TemporaryDirectory(prefix="benchcube-large-", dir=MEMORY) as folder:
        source, back = Path(folder, "large"), Path(folder, "back")
        write_large(source)

        async def speed(copy: Awaitable[object]) -> float:
            os.sync()
            return (1 << 30) / await timed(copy) / 1e9

        by_cp = await speed(anyio.run_process(["cp", str(source), str(scratch / "by-cp")]))
        async with backend.create(SandboxSpec()) as box:
            up = await speed(box.upload(source, "/app/large"))
            down = await speed(box.download("/app/large", back, max_bytes=2 << 30))
    return by_cp, up, down


async def layered_image(backend: LocalBackend) -> Image:
    """An environment of ten layers, as a Dockerfile leaves them."""
    layers: list[Path] = []
    for number in range(10):
        upper = backend.store.layers / f"benchmark-{os.getpid()}-{number}"
        upper.mkdir()
        image = Image("benchmark", "sha256:0", layers=tuple(layers))
        async with backend.create(SandboxSpec(image=image, user="root", workdir="/"), upper=upper) as box:
            await box.exec(f"mkdir -p /srv && echo {number} > /srv/{number}")
        layers.append(upper)
    return Image("benchmark", "sha256:0", layers=tuple(layers))


DOCKERFILE = """\
FROM debian:bookworm
ENV MODE=benchmark
RUN mkdir -p /srv/data && echo first > /srv/first
COPY files /srv/files
RUN find /srv/files -type f | wc -l > /srv/count
COPY settings.txt /etc/settings.txt
RUN grep -q 1000 /srv/count && cp /etc/settings.txt /srv/data
WORKDIR /srv
"""


def write_context(context: Path) -> None:
    """The build context of `DOCKERFILE`: 1,001 files of 2 kB."""
    for folder in range(20):
        (context / "files" / str(folder)).mkdir(parents=True)
        for number in range(50):
            (context / "files" / str(folder) / str(number)).write_bytes(os.urandom(2048))
    (context / "settings.txt").write_bytes(os.urandom(2048))
    (context / "Dockerfile").write_text(DOCKERFILE)


async def build_again(backend: LocalBackend, scratch: Path, rounds: int) -> float:
    """Milliseconds from a Dockerfile whose layers are all in the store to a sandbox that ran `true`."""
    context = scratch / "context"
    write_context(context)

    async def usable() -> None:
        image = await backend.build(context, base_image="host", pull=PullSettings("never"))
        await start_true_stop(backend, SandboxSpec(image=image))

    await usable()
    return await median(rounds, usable)


def beside(engines: dict[str, tuple[float, float]], index: int, what: str, ours: float, target: float) -> list[Row]:
    """One row for each engine that was measured, at least one."""
    rows = [Row(f"{what}, beside {name}", figures[index], ours, target, "ms") for name, figures in engines.items()]
    return rows or [Row(what, None, ours, target, "ms")]


async def measure(rounds: int) -> list[Row]:
    engines = measure_engines()
    with tempfile.TemporaryDirectory(prefix="benchcube-sandbox-") as folder:
        scratch = Path(folder)
        backend = LocalBackend(scratch / "store")
        try:
            for _ in range(5):
                await start_true_stop(backend, SandboxSpec())
            empty = await median(rounds, lambda: start_true_stop(backend, SandboxSpec()))
            limited = await median(rounds, lambda: start_true_stop(backend, LIMITED))
            spec = SandboxSpec(image=await layered_image(backend))
            await start_true_stop(backend, spec)
            layered = await median(rounds, lambda: start_true_stop(backend, spec))
            rebuilt = await build_again(backend, scratch, rounds)
            async with backend.create(SandboxSpec()) as box:
                command = await median(2 * rounds, lambda: box.exec(["true"]))
            async with backend.create(LIMITED) as box:
                confined = await median(2 * rounds, lambda: box.exec(["true"]))
            together, each = await at_once(backend, 200)
            little, much = await fork_after(backend, 1), await fork_after(backend, 1024)
            reference, up, down = await small_files(backend, scratch)
            by_cp, speed_in, speed_out = await large_file(backend, scratch)
        finally:
            await backend.close()
    return [
        *beside(engines, 0, "start, `true`, stop", empty, 18),
        *beside(engines, 0, "the same with cpu, memory and process limits", limited, 18),
        Row("what a cached environment of ten layers adds", None, max(layered - empty, 0), 5, "ms"),
        Row("an environment of 1,000 files built again from the cache, `true`, stop", None, rebuilt, 50, "ms"),
        *beside(engines, 1, "exec in a running sandbox", command, 5),
        Row("exec in a running sandbox with limits", None, confined, 5, "ms"),
        Row("200 sandboxes at once", None, together, 2, "s"),
        Row("memory of each of them", None, each, 2, "MB"),
        Row("fork after 1 MB was written", None, little, 20, "ms"),
        Row("fork after 1 GB was written", None, much, 20, "ms"),
        Row("upload of 10,000 files, beside tar | tar", reference, up, 2 * reference, "s"),
        Row("download of 10,000 files, beside tar | tar", reference, down, 2 * reference, "s"),
        Row("upload of one large file, beside cp", by_cp, speed_in, 1, "GB/s", higher_is_better=True),
        Row("download of one large file, beside cp", by_cp, speed_out, 1, "GB/s", higher_is_better=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rows = anyio.run(measure, parser.parse_args().rounds)
    print_table(rows)


if __name__ == "__main__":
    main()
