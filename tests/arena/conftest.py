"""Games in real sandboxes: a function that plays one and gives its result."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow.record import ArenaMessage, Player, Result, RolloutFolder, read_messages
from benchflow.rollout import Rollout, RolloutConfig
from benchflow.sandbox.protocol import SandboxBackend


@dataclass(frozen=True)
class Played:
    """A game that was played."""

    result: Result
    folder: RolloutFolder

    @property
    def messages(self) -> list[ArenaMessage]:
        return list(read_messages(self.folder.a2a_messages))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.folder.trajectory.read_text().splitlines()]

    @property
    def why(self) -> tuple[str, str] | None:
        """Category and code of an unscored game."""
        error = self.result.error
        return None if error is None else (error.category, error.code)


Play = Callable[..., Awaitable[Played]]


@pytest.fixture
def play(tmp_path: Path, backend: SandboxBackend) -> Play:
    """Plays a package: the agent, other participants by role, further settings of the rollout."""

    async def run(package: Path, agent: str = "oracle", *, others: dict[str, str] | None = None, **more: Any) -> Played:
        players = {role: Player(name) for role, name in (others or {}).items()}
        folder = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        config = RolloutConfig(package, agent, participants=players, sandbox=backend, durable=False, **more)
        return Played(await Rollout(config, folder).run(), RolloutFolder(folder))

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A participant that answers as a shell script does."""

    def make(text: str) -> str:
        path = tmp_path / f"player-{len(list(tmp_path.iterdir()))}.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        return f"script:{path}"

    return make
