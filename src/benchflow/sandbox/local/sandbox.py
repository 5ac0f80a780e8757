"""One sandbox of the local backend."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from benchflow.errors import SandboxFailure
from benchflow.sandbox.local import hostprofile, transfer
from benchflow.sandbox.local.execution import LocalProcess, run_command
from benchflow.sandbox.local.launcher import Launcher
from benchflow.sandbox.local.link import Link
from benchflow.sandbox.local.plan import AGENT, Attachment, Overlay, Plan
from benchflow.sandbox.local.store import Owner, Store
from benchflow.sandbox.protocol import (
    Change,
    ExecResult,
    Mount,
    NetworkPolicy,
    OutputSink,
    Sandbox,
    SandboxProcess,
    SandboxSpec,
    Snapshot,
)

if TYPE_CHECKING:
    from benchflow.sandbox.local.backend import LocalBackend

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a running backend offers to its sandboxes."""

    store: Store
    owner: Owner
    launcher: Launcher


class LocalSandbox(Sandbox):
    def __init__(self, backend: LocalBackend, spec: SandboxSpec, *, upper: Path | None = None) -> None:
        self.id = secrets.token_hex(6)
        self.spec = spec
        self._backend = backend
        self._upper = upper
        self._link: Link | None = None
        self._folder: Path | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset()

    async def start(self) -> None:
        runtime = await self._backend.runtime()
        store = runtime.store
        image = self.spec.image
        self._folder = store.owners / runtime.owner.name / self.id
        upper = self._upper or self._folder / "u"
        work = self._folder / "w"
        for folder in (upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        layers = [store.location(path) for path in reversed(image.layers)] if image else []
        overlays = []
        targets: tuple[str, ...] = ("/",)
        if image is None or image.base == "host":
            targets = ("/", *hostprofile.IN_PLACE)
            host = await self._backend.host_layer()
        for number, target in enumerate(targets):
            (work / str(number)).mkdir()
            below = upper / target.lstrip("/")
            below.mkdir(parents=True, exist_ok=True)
            lowers = [f"{layer}{target.rstrip('/')}" for layer in layers]
            if target != "/":
                lowers = [
                    item for item in lowers if (store.path(item) if item.startswith("store:") else Path(item)).is_dir()
                ]
                lowers.append(target)
            elif len(targets) > 1:
                lowers.append(host)
            overlays.append(Overlay(target, tuple(lowers), store.location(below), store.location(work / str(number))))
        plan = Plan(
            hostname=self.spec.hostname,
            identity=runtime.launcher.identity,
            overlays=tuple(overlays),
            attachments=tuple(
                Attachment(str(m.source.absolute()), m.target, m.source.is_dir()) for m in self.spec.mounts
            ),
            environment={"PATH": PATH, "LANG": "C.UTF-8", **(image.env if image else {}), **self.spec.env},
            workdir=self.spec.workdir,
            user=self.spec.user or (image.user if image else None) or AGENT,
        )
        self._link = await Link.open(runtime.launcher, plan, ())

    @property
    def link(self) -> Link:
        if self._link is None:
            raise SandboxFailure("The sandbox is not running.", code="sandbox-gone")
        return self._link

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
        return await run_command(
            self.link,
            command,
            user=user,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            on_output=on_output,
            max_output=max_output,
        )

    async def process(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> SandboxProcess:
        return await LocalProcess.start(self.link, command, user=user, env=env, cwd=cwd)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        await transfer.upload(self.link, source, target, owner)

    async def write_file(self, path: str, data: bytes, *, owner: str | None = None, mode: int = 0o644) -> None:
        await transfer.write_file(self.link, path, data, owner, mode)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000) -> None:
        await transfer.download(self.link, source, target, max_bytes, max_files)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return await transfer.read_file(self.link, path, max_bytes)

    async def changes(self) -> list[Change]:
        raise NotImplementedError

    async def kill_processes(self) -> None:
        await self.link.call({"op": "kill-all"})

    async def set_network(self, policy: NetworkPolicy) -> None:
        raise NotImplementedError

    async def fork(self, *, mounts: Sequence[Mount] = (), network: NetworkPolicy | None = None) -> Sandbox:
        raise NotImplementedError

    async def snapshot(self) -> Snapshot:
        raise NotImplementedError

    async def stop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            runtime = await self._backend.runtime()
            await runtime.launcher.task({"op": "remove", "locations": [runtime.store.location(folder)]})
