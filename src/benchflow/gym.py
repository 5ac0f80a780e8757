"""Packages as gym tasks: a folder of packages is a cube benchmark, each package one of its tasks.

`reset()` starts the package's sandbox and returns its instruction; the tool is a terminal in it; `evaluate()` verifies
on a fork and changes nothing, so that rewards can be had after every step; `fork()` gives an independent copy of a
running task. A verification without a score is an `UnscoredError`, never a number.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr

import cube
from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.environment import Environment
from benchflow.errors import BenchflowError, PackageError, RuntimeFailure
from benchflow.files.scratch import scratch
from benchflow.rewards import Scored, Unscored
from benchflow.sandbox.backends import load_backend
from benchflow.sandbox.container import LOOP
from benchflow.sandbox.factory import AUTO, choose_backend, prepare, task_package
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.task.discovery import find_packages
from benchflow.task.package import TaskPackage, load_package
from benchflow.verifier import Verifier
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.container import Container, ContainerBackend
from cube.core import Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata
from cube.tool import Tool, ToolConfig, tool_action


class UnscoredError(RuntimeFailure):
    """A verification that ended without a score: no reward exists, and none is invented."""

    def __init__(self, verdict: Unscored) -> None:
        super().__init__(
            f"{verdict.category}/{verdict.code} in phase {verdict.phase}: {verdict.reason}", code=verdict.code
        )
        self.verdict = verdict


class PackageToolConfig(ToolConfig):
    """A terminal; `timeout_sec` bounds one command."""

    timeout_sec: float = 600.0

    def make(self, container: Container | None = None) -> PackageTool:
        del container  # the task connects it when it starts its sandbox
        return PackageTool(self.timeout_sec)


class PackageTool(Tool):
    """What an agent can do in a package's sandbox: run commands, read, write and edit files.

    What cannot be had (a file that is missing, text that is not there) is told as an observation and ends nothing.
    """

    def __init__(self, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self.workspace: Workspace | None = None

    def _do(self, action: Callable[[Workspace], Awaitable[Any]]) -> Any:
        workspace = self.workspace
        if workspace is None:
            raise RuntimeError("The task has not been reset: there is no sandbox yet.")
        try:
            return LOOP.run(lambda: action(workspace))
        except WorkspaceError as error:
            return {"error": str(error)}

    @tool_action
    def bash(self, command: str) -> Any:
        """Run a shell command in the working folder and see its output and exit code.

        Args:
            command: the command line
        """
        return self._do(self._bash(command))

    def _bash(self, command: str) -> Callable[[Workspace], Awaitable[dict[str, Any]]]:
        async def run(workspace: Workspace) -> dict[str, Any]:
            result = await workspace.bash(command, timeout=self.timeout_sec)
            return {
                "stdout": result.stdout.decode(errors="replace"),
                "stderr": result.stderr.decode(errors="replace"),
                "exit_code": result.exit_code,
                **({"timed_out": True} if result.timed_out else {}),
            }

        return run

    @tool_action
    def read_file(self, path: str) -> Any:
        """Read a text file.

        Args:
            path: absolute, or relative to the working folder
        """
        return self._do(lambda workspace: workspace.read_text(path))

    @tool_action
    def write_file(self, path: str, text: str) -> Any:
        """Write a text file, replacing what was there.

        Args:
            path: absolute, or relative to the working folder
            text: the whole new content
        """
        return self._do(lambda workspace: workspace.write_text(path, text))

    @tool_action
    def edit_file(self, path: str, old: str, new: str) -> Any:
        """Replace a piece of text that occurs exactly once in a file.

        Args:
            path: absolute, or relative to the working folder
            old: the text as it is in the file
            new: the text that takes its place
        """
        return self._do(lambda workspace: workspace.edit_text(path, old, new))


class PackageTaskMetadata(TaskMetadata):
    """Where a package is, and what it was when it was listed."""

    path: str
    digest: str


class PackageTask(Task[PackageTaskMetadata]):
    """A package, driven step by step."""

    sandbox: str = AUTO
    base_image: str | None = None

    _environment: Environment | None = PrivateAttr(default=None)
    _verifier: Verifier | None = PrivateAttr(default=None)

    @property
    def environment(self) -> Environment:
        """The running sandbox with its services."""
        if self._environment is None:
            raise RuntimeError(f"Task '{self.id}' has not been reset: there is no sandbox yet.")
        return self._environment

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Start a new sandbox; the first observation is the package's prompt."""
        self._stop()
        package = _package(self.metadata)
        self._connect(LOOP.run(lambda: _start(package, self.sandbox, self.base_image)))
        self.tool.reset()
        turns = package.prompt_plan.turns
        prompt = turns[0].prompt if turns else package.view.prompt
        return Observation.from_text(prompt), {"sandbox": self.environment.record()}

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        """Verify on a fork; raises `UnscoredError` when that gives no score."""
        del obs
        environment = self.environment
        verifier = self._verifier = self._verifier or Verifier(environment, base_image=self.base_image)
        with scratch("gym-") as folder:
            verification = LOOP.run(lambda: verifier.verify(folder / "verifier", soft=True))
        verdict = verification.verdict
        if not isinstance(verdict, Scored):
            raise UnscoredError(verdict)
        return verdict.reward, {"rewards": dict(verdict.metrics), "verifier": verification.record()}

    def get_privileged_info(self) -> Content:
        """The oracle's files, for debug agents."""
        folder = _package(self.metadata).view.oracle_dir
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
        texts = {str(path.relative_to(folder or path)): path.read_text(errors="replace") for path in files}
        return StructuredContent(data={"oracle": texts})

    def get_status(self) -> str:
        return "not started" if self._environment is None else f"running in {self._environment.backend.name}"

    def fork(self) -> Self:
        """An independent copy of the task as it is now; processes are not copied."""
        copy = type(self)(**{name: getattr(self, name) for name in type(self).model_fields})
        copy._connect(LOOP.run(self.environment.fork))
        return copy

    def close(self) -> None:
        try:
            self._stop()
        finally:
            super().close()

    def _connect(self, environment: Environment) -> None:
        self._environment = environment
        spec = environment.preparation.spec
        tool = self.tool
        if isinstance(tool, PackageTool):
            tool.workspace = Workspace(environment.sandbox, spec.workdir, spec.user)

    def _stop(self) -> None:
        environment, self._environment = self._environment, None
        verifier, self._verifier = self._verifier, None
        if verifier is not None:
            verifier.close()
        if isinstance(self.tool, PackageTool):
            self.tool.workspace = None
        if environment is not None:
            LOOP.run(environment.stop)


class PackageTaskConfig(TaskConfig[PackageTaskMetadata]):
    """A package on the way to a worker, which has the folder too."""

    sandbox: str = AUTO
    base_image: str | None = None
    validate_per_step: bool = False

    def verify_installed(self) -> None:
        """The folder must be there and hold what it held when the task was listed."""
        _package(self.metadata)

    def make(
        self,
        runtime_context: RuntimeContext | None = None,
        container_backend: ContainerBackend | None = None,
    ) -> PackageTask:
        self.verify_installed()
        return PackageTask(
            metadata=self.metadata,
            tool_config=self.tool_config or PackageToolConfig(),
            runtime_context=runtime_context,
            container_backend=container_backend,
            sandbox=self.sandbox,
            base_image=self.base_image,
            validate_per_step=self.validate_per_step,
        )


class PackageBenchmark(Benchmark["PackageBenchmarkConfig"]):
    """Packages share nothing but the backend of this process."""

    def _setup(self) -> None:
        """Nothing to start before the first reset."""

    def close(self) -> None:
        """Tasks end their own sandboxes."""


class PackageBenchmarkConfig(BenchmarkConfig[PackageTaskMetadata]):
    """Folders of packages as one benchmark. A package that is invalid is an error, unless `skip_invalid`."""

    paths: list[str]
    benchmark_name: str = "packages"
    sandbox: str = AUTO
    base_image: str | None = None
    validate_per_step: bool = False
    skip_invalid: bool = False

    task_config_class: ClassVar[type[TaskConfig[Any]]] = PackageTaskConfig
    benchmark_class: ClassVar[type[Benchmark[Any]]] = PackageBenchmark

    _listed: dict[str, PackageTaskMetadata] | None = PrivateAttr(default=None)

    @property
    def benchmark_metadata(self) -> BenchmarkMetadata:  # type: ignore[override]  # of the instance, not of the class
        return BenchmarkMetadata(
            name=self.benchmark_name,
            version="0",
            description=f"Task packages in {', '.join(self.paths)}",
            num_tasks=len(self.task_metadata),
        )

    @property
    def task_metadata(self) -> dict[str, PackageTaskMetadata]:  # type: ignore[override]  # of the instance
        """The packages by name, found when first asked for."""
        if self._listed is None:
            self._listed = _list_packages(self.paths, skip_invalid=self.skip_invalid)
        return self._listed

    def get_task_configs(self) -> Iterator[TaskConfig[Any]]:
        """A config for every package of this view, with this benchmark's sandbox settings."""
        settings = {
            "sandbox": self.sandbox,
            "base_image": self.base_image,
            "validate_per_step": self.validate_per_step,
        }
        for config in super().get_task_configs():
            yield config.model_copy(update=settings)

    def named_subsets(self) -> list[str]:  # type: ignore[override]  # of the instance, not of the class
        return []

    def cache_dir(self) -> Path:  # type: ignore[override]  # of the instance, not of the class
        return cube.get_cache_dir(self.benchmark_name)


def _list_packages(paths: list[str], *, skip_invalid: bool) -> dict[str, PackageTaskMetadata]:
    listed: dict[str, PackageTaskMetadata] = {}
    for found in find_packages([Path(path) for path in paths]):
        package = load_package(found.path)
        if not package.valid:
            if skip_invalid:
                continue
            task_package(package)
        if package.name in listed:
            raise PackageError(
                f"Two packages are called '{package.name}': {listed[package.name].path} and {found.path}."
            )
        config = package.view.config
        listed[package.name] = PackageTaskMetadata(
            id=package.name,
            abstract_description=config.task.description if config.task else "",
            path=str(found.path.absolute()),
            digest=package.digest,
        )
    return listed


def _package(metadata: PackageTaskMetadata) -> TaskPackage:
    package = task_package(Path(metadata.path))
    if package.digest != metadata.digest:
        raise PackageError(
            f"The package at {metadata.path} has changed since the task was listed: list it again.",
            code="digest-changed",
        )
    return package


async def _start(package: TaskPackage, sandbox: str, base_image: str | None) -> Environment:
    backend = await _BACKENDS.get(package, sandbox, base_image)
    environment = Environment(backend, await prepare(package, backend, base_image=base_image))
    await environment.start()
    return environment


class _Backends:
    """The backends of this process, which all tasks share: starting one costs more than starting a sandbox."""

    def __init__(self) -> None:
        self._known: dict[str, SandboxBackend] = {}
        self._lock = threading.Lock()
        """Guards the registration of the clean-up."""
        self._registered = False

    async def get(self, package: TaskPackage, sandbox: str, base_image: str | None) -> SandboxBackend:
        name = sandbox
        if sandbox == AUTO:
            chosen = await choose_backend(package, sandbox, base_image=base_image)
            name = chosen.name
            self._known.setdefault(name, chosen)
        if name not in self._known:
            self._known[name] = load_backend(name)
        with self._lock:
            if not self._registered:
                atexit.register(self.close)
                self._registered = True
        return self._known[name]

    def close(self) -> None:
        for backend in self._known.values():
            try:
                LOOP.run(backend.close)
            except (BenchflowError, RuntimeError):  # the interpreter is ending; whatever is left ends with it
                continue
        self._known.clear()


_BACKENDS = _Backends()
