"""Package folders as a source of tasks: one rollout per item, all on shared backends.

Planning needs nothing of what runs rollouts; that is imported when the first one begins.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.agents.protocol import AgentLimits
from benchflow.agents.registry import create_agent
from benchflow.agents.running import Installations
from benchflow.errors import PackageError
from benchflow.evaluation.job_models import JobModels
from benchflow.evaluation.work import LineUp, TaskRef, WorkItem, numbered
from benchflow.plugins import SANDBOXES
from benchflow.record import JobRequest, Player, RescoreNote, Result, RolloutFolder, TaskId, outcome_of
from benchflow.rewards import attribute
from benchflow.sandbox.backends import ENGINES, LOCAL
from benchflow.sandbox.factory import AUTO, choose_backend, compose_file, needs_image, prepare
from benchflow.sandbox.protocol import SandboxBackend
from benchflow.sandbox.pulling import OnPull, PullSettings, pull_policy
from benchflow.sandbox.task_policy import needed_capabilities
from benchflow.task.config.interaction import ARENA
from benchflow.task.discovery import NOT_TEXT, FoundPackage, find_packages
from benchflow.task.package import VERIFIER_PART, TaskPackage, load_package, package_parts
from benchflow.task.runtime_capabilities import validate_task_runtime_support

if TYPE_CHECKING:
    from benchflow.rollout.policies import Chosen
    from benchflow.rollout.proving import Proofs


class PackageRunner:
    """Runs packages below paths as they were given. An invalid one is run too: its rollout reports why."""

    def __init__(
        self,
        paths: Sequence[Path],
        request: JobRequest,
        on_pull: OnPull | None = None,
        models: JobModels | None = None,
    ) -> None:
        """`models` is shared with others, and theirs to close."""
        self._given: Final[dict[Path, Path]] = {}
        """The paths as given, by where they are; of two spellings the first."""
        for path in paths:
            self._given.setdefault(Path(request.directory, path), path)
        self._request: Final = request
        self._pull: Final = PullSettings(pull_policy(request.pull), on_progress=on_pull, ask_again_sec=None)
        self._backends: dict[tuple[object, ...], SandboxBackend] = {}
        self._installations: dict[str, Installations] = {}
        """Environments with agents installed, by the name of their backend."""
        self._machine: Final = dict(os.environ)
        """The variables of the machine are the same for all rollouts of a job."""
        self._models: Final = models or JobModels(request, self._machine)
        self._owns_models: Final = models is None
        self._choosing: Final = anyio.Lock()
        """One backend of a kind is created, even for concurrent requests."""

    @cached_property
    def _proofs(self) -> Proofs:
        """What all rollouts of the job know about isolation."""
        from benchflow.rollout.proving import Proofs

        return Proofs()

    def tasks(self, *, agents_here: bool = True) -> list[TaskRef]:
        """Every package below the paths, valid or not.

        An unknown agent or sandbox, and an agent that runs here and cannot start, are a `UsageError`.
        """
        if not self._given:
            return []
        others = [player for player in self._request.participants.values() if player.url is None]
        agents = [create_agent(player.agent, player.model) for player in (*self._request.agents, *others)]
        if self._request.sandbox != AUTO:
            SANDBOXES.load(self._request.sandbox)
        tasks = self.packages()
        if agents_here and any(_plays(task.payload) for task in tasks):
            for agent in agents:
                agent.check({})
        return tasks

    def packages(self) -> list[TaskRef]:
        """Every package below the paths, regardless of the agent.

        The path of a task is spelled as given, so that it is the same when the job is resumed from another folder.
        """
        found = find_packages(self._given)
        for one in found:
            if one.problem is not None and one.problem.code == NOT_TEXT:
                raise PackageError(f"{one.path}: {one.problem.message}", code=NOT_TEXT)
        return numbered([_task(one.path, self._spelled(one)) for one in found])

    def _spelled(self, found: FoundPackage) -> str:
        """Its path, as the source was given."""
        given = self._given[found.root]
        if found.inside is None:
            return str(given / found.path.relative_to(found.root))
        file, inside = found.inside
        return f"{str(given).removesuffix(str(found.root)[len(file) :])}:{inside}"

    async def prepare(self, task: TaskRef) -> None:
        """Build the environment; a failure recurs in the rollout, which reports it."""
        package: TaskPackage = task.payload
        try:
            await prepare(package, await self.backend(package), base_image=self._request.base_image)
        except Exception:  # noqa: BLE001  # any failure recurs in the rollout, which attributes it
            return

    async def run(self, item: WorkItem, folder: Path) -> Result:
        from benchflow.rollout import RolloutConfig, run_rollout

        package: TaskPackage = item.task.payload
        request = self._request
        backend: str | SandboxBackend = request.sandbox
        if package.valid:
            with suppress(Exception):  # the rollout then looks for a backend itself and attributes the failure
                backend = await self.backend(package)
        line_up = item.line_up or LineUp(Player(request.agent, request.model))
        config = RolloutConfig(
            task=package,
            agent=line_up.agent.agent,
            model=line_up.agent.model,
            participants=line_up.others,
            seed=line_up.seed,
            sandbox=backend,
            base_image=request.base_image,
            attempt=item.attempt,
            key=item.key,
            ordinal=item.task.id.ordinal,
            limits=AgentLimits(max_steps=request.max_steps, max_cost_usd=request.max_cost_usd),
            call_limits=self._models.limits,
            token_ids=request.token_ids,
            gateway=self._models.gateway_for(_agents(package, line_up)),
            agent_timeout_sec=request.agent_timeout_sec,
            timeout_sec=request.timeout_sec,
            task_path=item.task.path,
            machine=self._machine,
            keep_workspace=request.keep_workspace,
            durable=False,
            isolation=request.isolation,
            proofs=self._proofs,
            installations=None if isinstance(backend, str) else self._installations.get(backend.name),
        )
        return await run_rollout(config, folder)

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        from benchflow.rollout.drivers.replay import why_not

        package: TaskPackage = item.task.payload
        return package.valid and why_not(folder, result, package) is None

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        """Score the kept workspace; a failure before the verifier runs is the result of this try."""
        from benchflow.rollout.drivers.replay import NotRescoredError, counts

        package: TaskPackage = item.task.payload
        note = RescoreNote(package_parts(package)[VERIFIER_PART], package.digest)
        try:
            again = await self.rescore(package, folder, result, note)
        except NotRescoredError:
            return None
        return again if counts(again) else replace(again, notes=replace(again.notes, rescore=note))

    async def rescore(self, package: TaskPackage, folder: RolloutFolder, result: Result, note: RescoreNote) -> Result:
        """Score a rollout again. Raises `NotRescoredError`; any other failure is a result that does not count."""
        from benchflow.rollout.drivers.replay import NotRescoredError, Rescore, rescore_rollout

        try:
            chosen = await self.isolation(package)
            backend = await self.backend(package)
            rescore = Rescore(folder, result, package, backend, note, self._request.base_image, chosen)
            return await rescore_rollout(rescore)
        except NotRescoredError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: one rollout keeps its verdict, the others continue
            return replace(result, outcome=outcome_of(attribute(error, "infrastructure", "verify")))

    async def isolation(self, package: TaskPackage) -> Chosen:
        """How the verifiers of a package are isolated here, where the user or a proof chooses it."""
        from benchflow.rollout import RolloutConfig
        from benchflow.rollout.plan import ORACLE
        from benchflow.rollout.rollout import chosen_isolation

        request = self._request
        config = RolloutConfig(
            package, ORACLE, base_image=request.base_image, isolation=request.isolation, proofs=self._proofs
        )
        return await chosen_isolation(package, await self.backend(package), config, self._machine)

    async def backend(self, package: TaskPackage) -> SandboxBackend:
        """The backend for a package; all for which the choice is the same share one."""
        kind = self._kind(package)
        async with self._choosing:
            if kind not in self._backends:
                chosen = await choose_backend(
                    package,
                    self._request.sandbox,
                    base_image=self._request.base_image,
                    pull=self._pull,
                )
                known = next((backend for backend in self._backends.values() if backend.name == chosen.name), None)
                if known is not None:
                    await chosen.close()
                self._backends[kind] = known or chosen
                self._installations.setdefault(chosen.name, Installations(self._backends[kind]))
        return self._backends[kind]

    def _kind(self, package: TaskPackage) -> tuple[object, ...]:
        """Everything that `choose_backend` considers in a package."""
        if self._request.sandbox != AUTO or not needs_image(package):
            return ()
        names = (LOCAL.name, *ENGINES)
        refused = (bool(validate_task_runtime_support(package, sandbox=name)) for name in names)
        return (compose_file(package) is not None, tuple(needed_capabilities(package.view)), *refused)

    async def close(self) -> None:
        """End the backends."""
        with anyio.CancelScope(shield=True):
            if self._owns_models:
                await self._models.close()
            for installations in self._installations.values():
                await installations.close()
            for backend in {id(backend): backend for backend in self._backends.values()}.values():
                await backend.close()
        self._backends.clear()
        self._installations.clear()


def _task(folder: Path, path: str) -> TaskRef:
    package = load_package(folder)
    identity = TaskId(package.name, package.content_digest)
    return TaskRef(identity, path, package.digest, _environment_key(package), _roles(package), payload=package)


def _roles(package: TaskPackage) -> tuple[str, ...]:
    """The roles of an arena."""
    if not package.valid or package.document is None or package.document.mode != ARENA:
        return ()
    interaction = package.document.namespace.interaction
    return interaction.participants if interaction is not None else ()


def _agents(package: TaskPackage, line_up: LineUp) -> Iterator[str]:
    """The agents that may call models in a rollout: those of the line-up, and of an arena those of its document."""
    yield from (player.agent for player in (line_up.agent, *line_up.others.values()))
    declared = package.document.roles if package.document is not None else {}
    for role in _roles(package)[1:]:
        if role not in line_up.others:
            yield declared[role].agent or ""


def _plays(package: TaskPackage) -> bool:
    """Whether the agent of the job is used in a package, because it declares no roles."""
    return package.valid and (package.document is None or not package.document.scenes)


def _environment_key(package: TaskPackage) -> str | None:
    """What has to be built, by content: the environment's files and the image it names."""
    if not package.valid or not needs_image(package) or package.config is None:
        return None
    files = sorted(f"{name} {digest}" for name, digest in package.files.hashes("environment").items())
    named = package.config.environment.docker_image or ""
    return hashlib.sha256("\n".join([named, *files]).encode()).hexdigest()
