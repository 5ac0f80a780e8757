"""The engine as this process uses it: what it can do, who we are on it, and what crashed owners left behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio

from benchflow.errors import RuntimeFailure
from benchflow.sandbox.engine.box.container_arguments import Launch, run_arguments
from benchflow.sandbox.engine.machine.engine_client import EngineClient
from benchflow.sandbox.engine.machine.engine_facts import EngineFacts, parse_info, read_docker, read_podman
from benchflow.sandbox.engine.machine.gate import EngineGate
from benchflow.sandbox.engine.machine.ownership import OWNED, PURPOSE, Owner, dead_owners
from benchflow.sandbox.engine.user_layer import Home, prepare_home

_ENDS_WITH_OWNER: Final = ("fork", "prepared")
"""Purposes of images that end with their owner; a snapshot stays until it is discarded."""


class EngineHost:
    """A connection to an engine for the life of a backend."""

    def __init__(self, client: EngineClient, gate: EngineGate, state: Path, facts: EngineFacts, owner: Owner) -> None:
        self.client: Final = client
        self.gate: Final = gate
        self.state: Final = state
        self.facts: Final = facts
        self.owner: Final = owner
        self._homes: dict[tuple[str, str | None, str], Home] = {}
        self._preparing: dict[tuple[str, str | None, str], anyio.Lock] = {}

    @classmethod
    async def connect(cls, client: EngineClient, gate: EngineGate, state: Path) -> EngineHost:
        """Find out what the engine is, register with it, and clear away what dead owners left."""
        facts = await find_facts(client)
        owner = await anyio.to_thread.run_sync(Owner.register, state, client.endpoint, facts.machine)
        host = cls(client, gate, state, facts, owner)
        await host.reap()
        return host

    def run_arguments(self, launch: Launch) -> list[str]:
        """What starts a container that belongs to this process."""
        lease, ulimits = self.facts.same_kernel, self.client.ulimits()
        return run_arguments(self.client.dialect, self.owner, launch, lease=lease, ulimits=ulimits)

    async def reap(self) -> None:
        """Remove containers and fork images of owners whose processes are gone; failures are left for the next time."""
        for dead in await anyio.to_thread.run_sync(lambda: list(dead_owners(self.state, self.client.endpoint))):
            try:
                await self.remove_owned(dead.id)
            except RuntimeFailure:
                dead.keep()
            else:
                dead.release()

    async def remove_owned(self, owner: str) -> None:
        """Remove what ends with an owner: its containers and all images but snapshots."""
        # One filter only: podman takes images that match any of several labels, and those of others are among them.
        mine = ("--filter", f"label={OWNED}={owner}")
        for container in await self._listed("ps", "--all", "--quiet", "--no-trunc", *mine):
            await self.remove_container(container)
        await self._remove_images(mine)

    async def _remove_images(self, mine: Sequence[str]) -> None:
        """Remove those that end with their owner. One that another was made from can only go after it, so again while
        it helps."""
        left: list[str] | None = None
        while True:
            found = [
                image
                for image in await self._listed("images", "--all", "--quiet", "--no-trunc", *mine)
                if await self._purpose(image) in _ENDS_WITH_OWNER
            ]
            if not found or found == left:
                return
            left = found
            for image in found:
                await self.remove_image(image)

    async def _purpose(self, image: str) -> str:
        """What an image was made for; nothing when it is gone meanwhile."""
        done = await self.client.run("image", "inspect", "--format", f'{{{{index .Config.Labels "{PURPOSE}"}}}}', image)
        return done.stdout.decode(errors="replace").strip() if done.exit_code == 0 else ""

    async def commit(self, container: str, purpose: str, *, name: str | None = None) -> str:
        """An image of a container's files. One without a name goes when the last image that was made from it goes."""
        labels = {OWNED: self.owner.id, PURPOSE: purpose}
        changes = [part for label, value in labels.items() for part in ("--change", f"LABEL {label}={value}")]
        answer = await self.client.ask(*self.client.dialect.commit, *changes, container, *([name] if name else []))
        return answer.split()[-1].removeprefix("sha256:")

    async def remove_container(self, name: str) -> None:
        """Remove a container with its anonymous volumes; it may already be gone."""
        done = await self.client.run(*self.client.dialect.remove, name)
        words = done.stderr.decode(errors="replace")
        if done.exit_code != 0 and "no such container" not in words.lower() and "already in progress" not in words:
            raise self.client.refusal("rm", done)

    async def remove_image(self, image: str) -> None:
        """Remove an image; it may already be gone, or still be in use by another sandbox."""
        done = await self.client.run("rmi", image)
        words = done.stderr.decode(errors="replace").lower()
        expected = ("no such image", "image not known", "dependent child", "in use", "being used")
        if done.exit_code != 0 and not any(text in words for text in expected):
            raise self.client.refusal("rmi", done)

    async def first_process(self, container: str) -> int:
        """The process id, on this machine, of a container's anchor."""
        return int(await self.client.ask("inspect", "--format", "{{.State.Pid}}", container))

    async def home(self, image: str, user: str | None, workdir: str) -> Home:
        """The user of commands in sandboxes of an image, determined and prepared once."""
        key = (image, user, workdir)
        async with self._preparing.setdefault(key, anyio.Lock()):
            if key not in self._homes:
                self._homes[key] = await prepare_home(self, image, user, workdir)
            return self._homes[key]

    async def _listed(self, *args: str) -> list[str]:
        return list(dict.fromkeys((await self.client.ask(*args)).split()))

    def close(self) -> None:
        self.owner.release()


async def find_facts(client: EngineClient) -> EngineFacts:
    """Ask the engine what it is."""
    text = await client.ask(*client.dialect.info)
    info = parse_info(text, client.dialect.name)
    read = read_podman if client.dialect.name == "podman" else read_docker
    mounts = await anyio.to_thread.run_sync(_mounts)
    root = os.geteuid() == 0
    return read(info, kernel=os.uname().release, root=root, local=client.on_this_machine, mounts=mounts)


def _mounts() -> str:
    """The mounts of this machine; none are known where there is no `/proc`."""
    table = Path("/proc/self/mounts")
    return table.read_text(encoding="utf-8", errors="replace") if table.exists() else ""
