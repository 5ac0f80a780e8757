"""Packages made of a few lines, and sandboxes in memory; real ones for tests marked `sandbox`."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchflow.environment import Environment
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.verifier import Verification, Verifier

CHECK = """\
#!/bin/sh
if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


Package = Callable[..., Path]


@pytest.fixture
def backend(memory_or_local: SandboxBackend) -> SandboxBackend:
    return memory_or_local


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A package folder of the given frontmatter and files; without a verifier it checks `/app/answer.txt`."""

    def make(frontmatter: str = "", files: dict[str, str] | None = None, *, prompt: str = "Do it.") -> Path:
        folder = tmp_path / "task"
        written = files if files is not None else {"verifier/test.sh": CHECK}
        text = f"---\ntask:\n  name: acme/box\n{textwrap.dedent(frontmatter)}---\n{prompt}\n"
        for name, content in {"task.md": text, **written}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
        return folder

    return make


class Bench:
    """An environment with its verifier, and short ways to use both."""

    def __init__(self, environment: Environment, folder: Path, machine: dict[str, str], base_image: str | None) -> None:
        self.environment = environment
        self.sandbox = environment.sandbox
        self.folder = folder
        self.verifier = Verifier(environment, machine=machine, cache=folder / "cache", base_image=base_image)
        self._count = 0

    async def agent(self, script: str, user: str | None = None) -> None:
        """Do something as the agent would."""
        result = await self.sandbox.exec(textwrap.dedent(script), user=user, timeout=60)
        assert result.ok, result.stderr.decode()

    async def verify(self, **options: object) -> Verification:
        self._count += 1
        return await self.verifier.verify(self.folder / f"verifier-{self._count}", **options)  # type: ignore[arg-type]

    @property
    def output(self) -> Path:
        """Where the last verification left its files."""
        return self.folder / f"verifier-{self._count}"


@pytest.fixture
def bench(backend: SandboxBackend, tmp_path: Path) -> Callable[..., object]:
    """Opens environments of packages: `async with bench(folder) as it`."""

    @asynccontextmanager
    async def opened(folder: Path, *, base_image: str | None = None, **machine: str) -> AsyncIterator[Bench]:
        environment = await Environment.from_task(folder, sandbox=backend, machine=machine, base_image=base_image)
        async with environment:
            yield Bench(environment, tmp_path, machine, base_image)

    return opened
