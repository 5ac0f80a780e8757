"""Tasks, tools and rewards: each rollout has one session, whose id is in the state that host and tools share."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from benchcube_packages.served import client_of, oracle_reward, package_folders, served
from benchflow.trainers.client import CallRefused, Session, Task


class PackageData(vf.TaskData):
    """A package as a server names it."""

    url: str
    environment: str
    split: str
    index: int
    digest: str

    @property
    def task(self) -> Task:
        return Task(self.environment, self.split, self.index, str(self.id), self.digest)


class PackageState(vf.State):
    session: str = ""
    """The id of the rollout's session."""


class PackageToolsConfig(vf.ToolsetConfig):
    pass


class PackageTaskConfig(vf.TaskConfig):
    tools: PackageToolsConfig = PackageToolsConfig()


class PackagesConfig(vf.TasksetConfig):
    root: Path | None = None
    """A folder or a bundle of packages, for which a server is started."""
    url: str | None = None
    """A server that offers packages; its token is in `BENCHCUBE_TOKEN`."""
    environment: str | None = None
    """An environment of the server; its default without one."""
    split: str | None = None
    """A split; all without one."""
    sandbox: str = "auto"
    base_image: str | None = None
    bench: str = "bench"
    """The command of benchcube, which may be in an environment of its own."""
    task: PackageTaskConfig = PackageTaskConfig()


class PackageTools(vf.Toolset[PackageToolsConfig, PackageState]):
    """The tools of an agent, in the sandbox of the package."""

    TOOL_PREFIX = None

    async def setup_task(self, task: Any) -> None:
        self.task = task

    async def _call(self, name: str, **arguments: Any) -> str:
        session = client_of(self.task.url).attach(self.task.task, self.state.session)
        try:
            return (await asyncio.to_thread(session.call, name, **arguments)).text
        except CallRefused as refused:
            return f"error: {refused}"

    @vf.tool
    async def bash(self, command: str) -> str:
        """Run a command in a new shell in the working folder; returns its output and exit code."""
        return await self._call("bash", command=command)

    @vf.tool
    async def read_file(self, path: str) -> str:
        """Read a text file."""
        return await self._call("read_file", path=path)

    @vf.tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a text to a file, replacing what was there."""
        return await self._call("write_file", path=path, text=text)

    @vf.tool
    async def submit(self) -> str:
        """Say that you are done: your work is then scored. Another instruction may follow as the result."""
        return await self._call("submit")


class PackageTask(vf.Task[PackageData, PackageState, PackageTaskConfig]):
    """One package."""

    def __init__(
        self, data: PackageData, config: PackageTaskConfig | None = None, source: PackagesConfig | None = None
    ) -> None:
        super().__init__(data, config)
        self._source = source
        self._opened: set[str] = set()
        """Sessions that were opened and not scored."""

    @property
    def key(self) -> str:
        """The content of the package and its name: the same wherever it is served."""
        return f"{self.data.id}@{self.data.digest}"

    @classmethod
    def toolsets(cls, config: PackageTaskConfig) -> list[vf.Toolset]:
        return [PackageTools(config.tools)]

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Open the session; a package that cannot start is an error of the rollout."""
        del runtime
        session = await asyncio.to_thread(client_of(self.data.url).open, self.data.task)
        trace.state.session = session.id
        self._opened.add(session.id)

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """The package's reward for what is there. Without a score it raises, so that the trace has an error."""
        self._opened.discard(trace.state.session)
        session = client_of(self.data.url).attach(self.data.task, trace.state.session)
        return await asyncio.to_thread(_scored, session)

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        """Whether the package's own oracle gets full reward in a rollout; None for packages of others' servers."""
        del runtime
        while self._opened:  # the set-up opened one, which nobody plays
            await asyncio.to_thread(client_of(self.data.url).attach(self.data.task, self._opened.pop()).close)
        source = self._source
        if source is None or source.root is None:
            return None
        return await asyncio.to_thread(_oracle_passes, source, self.data.digest)


class PackagesTaskset(vf.Taskset[PackageTask, PackagesConfig]):
    """The packages of a folder or of a server."""

    def load(self) -> Iterator[PackageTask]:
        config = self.config
        if (config.root is None) == (config.url is None):
            raise ValueError("Name either `root`, a folder of packages, or `url`, a server of packages.")
        url = config.url
        if config.root is not None:
            url = served(config.root, config.bench, config.sandbox, config.base_image)
        client = client_of(str(url))
        for task in client.tasks(config.split, config.environment):
            with client.open(task) as session:  # only a running task knows its prompt
                prompt = session.prompt
            data = PackageData(name=task.id, prompt=prompt, url=str(url), **task.row())
            yield PackageTask(data, config.task, config)


def _scored(session: Session) -> float:
    try:
        return session.score()
    finally:
        session.close()


def _oracle_passes(source: PackagesConfig, digest: str) -> bool:
    folder = package_folders(Path(str(source.root)), source.bench)[digest]
    with tempfile.TemporaryDirectory() as out:
        reward = oracle_reward(folder, source.bench, source.sandbox, source.base_image, Path(out))
    if reward is None:
        raise RuntimeError("The oracle's work has no score.")
    return reward >= 1.0
