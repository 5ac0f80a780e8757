"""`InMemorySandbox`: files in a dictionary and a small shell, without process and disk. For tests; isolates nothing."""

from __future__ import annotations

import os
import posixpath
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.errors import EnvironmentFailure, SandboxFailure, UnsupportedError, UsageError
from benchflow.sandbox.bounded_output import BoundedOutput
from benchflow.sandbox.inside.beneath import is_plain
from benchflow.sandbox.protocol import (
    NO_SUCH_FILE,
    Change,
    ExecResult,
    FailedRequest,
    Mount,
    NetworkPolicy,
    OutputSink,
    Revert,
    Sandbox,
    SandboxProcess,
    SandboxSpec,
    Snapshot,
)
from benchflow.testing.memory.memory_jobs import Job, Machine, Pipe
from benchflow.testing.memory.node_tree import Node, NodeTree, from_host
from benchflow.testing.memory.shell import Shell

if TYPE_CHECKING:
    from benchflow.testing.memory.memory_backend import InMemoryBackend

AGENT: Final = "agent"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_LIMITS: Final = {"cpus": "limits.cpu", "memory_mb": "limits.memory", "pids": "limits.pids", "gpus": "gpu"}


class InMemoryProcess(SandboxProcess):
    """A job with open streams."""

    def __init__(self, machine: Machine, job: Job) -> None:
        self.stdin_pipe: Final = Pipe()
        self.outputs: Final = (Pipe(), Pipe())
        self._machine = machine
        self._job = job

    async def send(self, data: bytes) -> None:
        self.stdin_pipe.write(data)

    async def close_stdin(self) -> None:
        self.stdin_pipe.close()

    async def stdout(self) -> AsyncIterator[bytes]:
        while chunk := await self.outputs[0].chunk():
            yield chunk

    async def stderr(self) -> AsyncIterator[bytes]:
        while chunk := await self.outputs[1].chunk():
            yield chunk

    async def wait(self) -> int:
        await self._job.ended.wait()
        return self._job.code if self._job.code is not None else 0

    async def kill(self) -> None:
        self._machine.kill(leader=self._job.pid)
        await self._job.ended.wait()


class InMemorySandbox(Sandbox):
    """One box of an `InMemoryBackend`; scripted failures of the backend happen here."""

    def __init__(self, backend: InMemoryBackend, spec: SandboxSpec, built: NodeTree, tree: NodeTree) -> None:
        self.backend: Final = backend
        self.id = f"memory-{id(self):x}"
        self.spec = spec
        self.network = spec.network
        """The current policy."""
        self._built = built
        self._machine = Machine(tree, backend.programs, spec.hostname)
        self._running = False

    @property
    def capabilities(self) -> frozenset[str]:
        return self.backend.declared

    @property
    def files(self) -> dict[str, bytes]:
        """The regular files as they are now, by path, for assertions."""
        nodes = self._machine.tree.nodes
        return {path: node.data for path, node in nodes.items() if node.kind == "file"}

    async def start(self) -> None:
        self.backend.record("start")
        for name, capability in _LIMITS.items():
            if getattr(self.spec.limits, name) is not None:
                self._require(capability)
        if self.spec.limits.storage_mb is not None or self.spec.limits.inodes is not None:
            self._require("limits.disk")
        self._require(f"network.{self.spec.network.mode}")
        self._mount(self.spec.mounts)
        self._running = True
        self.backend.started.append(self)

    def _require(self, capability: str) -> None:
        if capability not in self.backend.declared:
            raise UnsupportedError(f"The sandbox '{self.backend.name}' does not have {capability}.", path=capability)

    def _mount(self, mounts: Sequence[Mount]) -> None:
        tree = self._machine.tree
        for mount in mounts:
            if not mount.source.exists():
                raise EnvironmentFailure(f"The mount {mount.source} does not exist.", code="mount-missing")
            if tree.find(mount.target, follow=False) is not None:
                tree.remove(mount.target, tree=True)
            tree.make_folder(posixpath.dirname(mount.target), parents=True)
            for name, node in from_host(mount.source):
                tree.put(mount.target + name, node)
            tree.read_only = (*tree.read_only, mount.target)

    async def stand_in(self, place: str, program: bytes, kept: str) -> None:
        """Its programs are functions: none is replaced."""

    # --- commands ---

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | None = None,
        on_output: OutputSink | None = None,
        max_output: int = 8 << 20,
    ) -> ExecResult:
        self._require_running("exec", command)
        kept = BoundedOutput(max_output)

        def out(data: bytes) -> None:
            kept.add("stdout", data)
            if on_output is not None and data:
                on_output("stdout", data)

        def err(data: bytes) -> None:
            kept.add("stderr", data)
            if on_output is not None and data:
                on_output("stderr", data)

        began = time.monotonic()
        job, shell = self._shell(user, env, cwd, Pipe(stdin or b""))
        shell.outputs = {1: out, 2: err}
        finished = False
        try:
            with anyio.move_on_after(timeout):
                await self._machine.follow(job, shell.execute(_words(command)))
                finished = True
        finally:
            if not finished:
                self._machine.kill(leader=job.pid)
        code = job.code if job.code is not None and finished else 137
        spent = max(time.monotonic() - began, 1e-6)
        return ExecResult(code, kept.kept("stdout"), kept.kept("stderr"), spent, not finished, kept.dropped)

    async def process(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> SandboxProcess:
        self._require_running("process", command)
        job, shell = self._shell(user, env, cwd, Pipe())
        made = InMemoryProcess(self._machine, job)
        shell.stdin = made.stdin_pipe
        shell.outputs = {1: made.outputs[0].write, 2: made.outputs[1].write}

        async def work() -> int:
            try:
                return await shell.execute(_words(command))
            finally:
                for pipe in made.outputs:
                    pipe.close()

        self._machine.background(job, work())
        return made

    def _shell(
        self, user: str | None, env: Mapping[str, str] | None, cwd: str | None, stdin: Pipe
    ) -> tuple[Job, Shell]:
        image = self.spec.image
        name = user or self.spec.user or (image.user if image is not None else None) or AGENT
        uid = self._user(name)
        folder = cwd or self.spec.workdir
        node = self._machine.tree.find(folder)
        if not folder.startswith("/") or node is None or node.kind != "directory":
            raise SandboxFailure(f"The working folder {folder} is not there.", code="workdir-missing")
        account, home = self._machine.account(uid)
        own = image.env if image is not None else {}
        variables = {"PATH": _PATH, "HOME": home, "USER": account, **own, **self.spec.env, **(env or {})}
        job = self._machine.job(uid)
        return job, Shell(
            self._machine,
            job,
            uid,
            self._machine.tree.resolve(folder),
            variables,
            stdin,
            {},
            set(variables),
            pid=job.pid,
        )

    def _user(self, name: str) -> int:
        uid = self._machine.user_id(name.partition(":")[0])
        if uid is None:
            raise SandboxFailure(f"The environment has no user '{name}'.", code="unknown-user")
        return uid

    def _require_running(self, verb: str, what: str | Sequence[str] = "") -> None:
        if not self._running:
            raise SandboxFailure("The sandbox does not run.", code="sandbox-gone")
        self.backend.record(verb, what if isinstance(what, str) else " ".join(what))

    # --- files ---

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        self._require_running("upload", target)
        uid = self._user(owner) if owner is not None else 0
        place, tree = _safe(target), self._machine.tree
        self._clear_way(place)
        tree.make_folder(posixpath.dirname(place), parents=True)
        for name, node in from_host(source):
            path = (place.rstrip("/") if name else place) + name
            there = tree.find(path, follow=False)
            if there is not None and there.kind == "directory" and node.kind == "directory":
                continue
            if there is not None:
                tree.remove(path, tree=True)
            tree.put(path, replace(node, uid=uid, gid=uid))

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        self._require_running("write_file", path)
        uid = self._user(owner) if owner is not None else 0
        place, tree = _safe(path), self._machine.tree
        self._clear_way(place)
        tree.make_folder(posixpath.dirname(place), parents=True)
        tree.put(place, Node("file", data, mode, uid, uid, int(time.time())))

    def _clear_way(self, place: str) -> None:
        """Remove links and files in the place of a folder: planted links are not followed."""
        way = place.split("/")[1:]
        for depth in range(1, len(way) + 1):
            path = "/" + "/".join(way[:depth])
            node = self._machine.tree.nodes.get(path)
            if node is not None and (node.kind == "symlink" or (node.kind != "directory" and path != place)):
                self._machine.tree.remove(path)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        self._require_running("download", source)
        place = _safe(source)
        found = list(self._machine.tree.walk(self._without_links(place)))
        self._require_plain(place, found)
        if sum(len(node.data) for _, node in found) > max_bytes or len(found) > max_files:
            raise SandboxFailure(f"{source} is more than may be taken out.", code="too-large")
        for path, node in found:
            goal = target / path[len(place) :].lstrip("/") if path != place else target
            if node.kind == "directory":
                goal.mkdir(parents=True, exist_ok=True)
            elif node.kind == "symlink":
                goal.symlink_to(node.target)
            else:
                goal.parent.mkdir(parents=True, exist_ok=True)
                goal.write_bytes(node.data)
                goal.chmod(node.mode & 0o777 | 0o600)
                os.utime(goal, (node.time, node.time))

    def _require_plain(self, place: str, found: list[tuple[str, Node]]) -> None:
        if not found:
            raise SandboxFailure(f"{place} does not exist.", code=NO_SUCH_FILE)
        for path, node in found:
            leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), node.target))
            leaves = node.kind == "symlink" and not (leads + "/").startswith(place.rstrip("/") + "/")
            if node.kind == "special" or leaves or (path == place and node.kind == "symlink"):
                raise SandboxFailure(f"{path} is a special file or a link that leaves the folder.", code="refused")

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        self._require_running("read_file", path)
        node = self._machine.tree.nodes.get(self._without_links(_safe(path)))
        if node is None:
            raise SandboxFailure(f"{path} does not exist.", code=NO_SUCH_FILE)
        if node.kind != "file":
            raise SandboxFailure(f"{path} is not a regular file.", code="refused-file")
        if len(node.data) > max_bytes:
            raise SandboxFailure(f"{path} is larger than {max_bytes} bytes.", code="too-large")
        return node.data

    def _without_links(self, path: str) -> str:
        """The path itself; a link on the way to it is refused."""
        for above in [path[:at] for at, mark in enumerate(path) if mark == "/" and at]:
            node = self._machine.tree.nodes.get(above)
            if node is not None and node.kind == "symlink":
                raise SandboxFailure(f"{above} is a link, which is not followed.", code="refused")
        return path

    # --- states ---

    async def changes(self) -> list[Change]:
        self._require_running("changes")
        return self._machine.tree.changes(self._built)

    async def kill_processes(self) -> None:
        self._require_running("kill_processes")
        await self._end_jobs()

    async def _end_jobs(self) -> None:
        jobs = list(self._machine.jobs.values())
        self._machine.kill()
        for job in jobs:
            await job.ended.wait()

    async def has_processes(self) -> bool:
        return bool(self._machine.jobs)

    async def failed_requests(self) -> tuple[FailedRequest, ...]:
        return tuple(dict.fromkeys(self._machine.unreached)) if self.network.mode != "none" else ()

    async def set_network(self, policy: NetworkPolicy) -> None:
        self._require_running("set_network", policy.mode)
        self._require(f"network.{policy.mode}")
        self.network = policy
        self._machine.unreached.clear()

    async def listen(self, port: int) -> socket.socket:
        """A socket of this machine's own loopback, for there is no other here."""
        self._require_running("listen", str(port))
        opened = socket.socket()
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        return opened

    async def fork(
        self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None, revert: Revert | None = None
    ) -> Sandbox:
        self._require_running("fork")
        self._require("fork")
        tree = self._machine.tree.copy()
        if revert is not None:
            tree.revert(self._built, revert(tree.changes(self._built)))
        spec = replace(self.spec, network=network or self.network, mounts=tuple(mounts))
        copy = InMemorySandbox(self.backend, spec, self._built, tree)
        await copy.start()
        copy.spec = replace(spec, mounts=(*self.spec.mounts, *mounts))
        return copy

    async def fork_beside(
        self,
        *,
        mounts: Sequence[Mount] = (),
        network: NetworkPolicy | None = None,
        revert: Revert | None = None,
        closed: Sequence[str] = (),
    ) -> Sandbox:
        """A fork: programs of this shell listen on nothing that could be forwarded."""
        del closed
        self._require("forward")
        return await self.fork(mounts=mounts, network=network, revert=revert)

    async def snapshot(self) -> Snapshot:
        self._require_running("snapshot")
        self._require("snapshot")
        return self.backend.keep(self._machine.tree.copy(), self._built, self.spec)

    async def stop(self) -> None:
        if not self._running:
            return
        self.backend.record("stop")
        self._running = False
        self.backend.started.remove(self)
        await self._end_jobs()


def _words(command: str | Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def _safe(path: str) -> str:
    """The path, if it is absolute and plain."""
    if not path.startswith("/") or not is_plain(path):
        raise UsageError(f"{path!r} is not an absolute path without '..'.", code="path-invalid")
    return posixpath.normpath(path)
