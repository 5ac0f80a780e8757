"""Starts real container engines for tests and benchmarks, in their own namespaces and folders, with a base image.

The machine is not changed: the engines' networks, mounts and data disappear with the process that holds their
namespaces.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

BASE_IMAGE = "benchcube-test/base:1"
BARE_IMAGE = "benchcube-test/bare:1"
"""The same without a user `agent`; another user has its usual id."""
ACCOUNTS = """\
root:x:0:0:root:/root:/bin/sh
agent:x:1000:1000::/home/agent:/bin/sh
other:x:1001:1001::/tmp:/bin/sh
"""
BARE_ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/tmp:/bin/sh\n"
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[network]
network_backend = "netavark"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/pt"
"""


_WITHOUT_COLLECTION = {"GOGC": "800", "GOMAXPROCS": "1"}
"""For programs in Go that run for milliseconds: they take a tenth less without threads that look for garbage."""


class EngineUnavailable(Exception):
    """An engine cannot run on this machine; the message says what to do."""


class Engines:
    """A Docker and a Podman engine below one folder, each started on first use."""

    def __init__(self, folder: Path) -> None:
        require_root_and("unshare", "nsenter", "setpriv", "busybox", "ip")
        self._folder = folder
        self._dockerd: subprocess.Popen[bytes] | None = None
        self._podman_used = False
        script = (
            "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready"
            " && exec setpriv --pdeathsig KILL sleep infinity"
        )
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", script],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._holder.stdout is None or self._holder.stdout.readline().strip() != b"ready":
            raise EngineUnavailable("Namespaces for the engines cannot be created; this needs root.")

    def inside(self, *argv: str) -> list[str]:
        """The command, run where the engines live."""
        return ["nsenter", "--target", str(self._holder.pid), "--net", "--mount", "--", *argv]

    def docker(self) -> dict[str, str]:
        """The environment that reaches a running dockerd."""
        env = {**os.environ, **_WITHOUT_COLLECTION, "DOCKER_HOST": f"unix://{self._folder}/docker.sock"}
        if self._dockerd is None:
            require_root_and("dockerd", "docker", "containerd")
            self._start_dockerd(env)
            make_base_images(["docker"], env)
        return env

    def podman(self) -> tuple[list[str], dict[str, str]]:
        """The command and environment of a podman with its own storage."""
        require_root_and("podman", "runc")
        conf = self._folder / "containers.conf"
        command = self.inside("podman", "--root", str(self._folder / "pr"), "--runroot", str(self._folder / "pn"))
        env = {**os.environ, **_WITHOUT_COLLECTION, "CONTAINERS_CONF": str(conf)}
        if not self._podman_used:
            conf.write_text(CONTAINERS_CONF.format(folder=self._folder), encoding="utf-8")
            self._podman_used = True
            make_base_images(command, env)
        return command, env

    def _start_dockerd(self, env: dict[str, str]) -> None:
        log = self._folder / "dockerd.log"
        with log.open("wb") as output:
            places = ("--data-root", f"{self._folder}/data", "--exec-root", f"{self._folder}/exec")
            self._dockerd = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "TERM"),
                    *self.inside("dockerd", *places, "--host", env["DOCKER_HOST"]),
                    *("--pidfile", f"{self._folder}/docker.pid", "--storage-driver", "overlay2"),
                    *("--exec-opt", "native.cgroupdriver=cgroupfs"),
                ],
                env=env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        for _ in range(300):
            if subprocess.run(["docker", "version"], env=env, capture_output=True, check=False).returncode == 0:
                return
            if self._dockerd.poll() is not None:
                break
            time.sleep(0.1)
        words = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise EngineUnavailable(f"dockerd does not start: {' '.join(words)}")

    def stop(self) -> None:
        """Remove all containers, end the engines, and remove their data."""
        if self._podman_used:
            command, env = self.podman()
            subprocess.run([*command, "rm", "--all", "--force", "-t", "0"], env=env, capture_output=True, check=False)
        if self._dockerd is not None:
            env = self.docker()
            ids = subprocess.run(["docker", "ps", "-aq"], env=env, capture_output=True, check=False).stdout.split()
            if ids:
                subprocess.run(
                    ["docker", "rm", "-f", *map(os.fsdecode, ids)], env=env, capture_output=True, check=False
                )
            self._dockerd.send_signal(signal.SIGTERM)
            try:
                self._dockerd.wait(30)
            except subprocess.TimeoutExpired:
                self._dockerd.kill()
                self._dockerd.wait()
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def require_root_and(*commands: str) -> None:
    if os.geteuid() != 0:
        raise EngineUnavailable("Starting engines needs root.")
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        raise EngineUnavailable(f"Missing commands: {', '.join(missing)}; `make system` installs them.")


def make_base_images(command: list[str], env: dict[str, str]) -> None:
    """Tiny images from the static busybox of this machine: no registry is used."""
    for name, passwd in ((BASE_IMAGE, ACCOUNTS), (BARE_IMAGE, BARE_ACCOUNTS)):
        done = subprocess.run(
            [*command, "import", "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "-", name],
            input=base_rootfs(passwd),
            env=env,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise EngineUnavailable(f"{command[-1]} cannot import an image: {done.stderr.decode()[-500:]}")


def base_rootfs(passwd: str = ACCOUNTS) -> bytes:
    """A root file system as a tar archive: busybox with all its names, the users of `passwd`, a few files."""
    busybox = shutil.which("busybox") or "busybox"
    names = subprocess.run([busybox, "--list"], capture_output=True, check=True, text=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, mode, owner in (
            *(
                (name, 0o755, 0)
                for name in ("bin", "etc", "root", "home", "usr", "usr/bin", "var", "opt", "srv", "run", "srv/work")
            ),
            ("tmp", 0o1777, 0),
            *([("home/agent", 0o755, 1000)] if "/home/agent" in passwd else []),
        ):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
            archive.addfile(entry)
        archive.add(busybox, "bin/busybox", recursive=False)
        for name in names:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        for path, text in (
            ("etc/passwd", passwd),
            ("etc/group", "".join(f"{line.split(':')[0]}:x:{line.split(':')[3]}:\n" for line in passwd.splitlines())),
            ("srv/work/given.txt", "given\n"),
            ("opt/built.txt", "from the image\n"),
            ("opt/doomed.txt", "to be deleted\n"),
        ):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
