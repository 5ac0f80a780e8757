"""`Rollout`: one agent on one task, from the plan to the record, with nothing left behind.

plan ──> backend ──> environment ──> driver walks the course ──> clean up ──> record
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from benchflow.agents.protocol import Agent
from benchflow.agents.running import Installations
from benchflow.arena.needed_libraries import require_arena
from benchflow.environment import Environment
from benchflow.errors import JudgeFailure, UnsupportedError, UsageError
from benchflow.files.atomic import write_unseen
from benchflow.files.redaction import SHORTEST_GUESSED, make_redactor
from benchflow.files.scratch import scratch
from benchflow.record import (
    JsonLines,
    Result,
    RolloutFolder,
    Trajectory,
    always_wins,
    write_document,
)
from benchflow.record.codec import plain
from benchflow.rewards import Attributed, Unscored, Verdict, attribute, attributed
from benchflow.rollout.config import Role, RolloutConfig
from benchflow.rollout.drivers.agents import AgentDriver
from benchflow.rollout.drivers.turns import TurnContext, make_agent
from benchflow.rollout.lifecycle import Draft, OnPhase, carry_out, first_draft, task_part_of
from benchflow.rollout.phases.step_bounds import for_agents, without_provider_keys
from benchflow.rollout.plan import NOP, ORACLE, RolloutPlan, plan_rollout, time_for_agents
from benchflow.rollout.policies import Chosen, chosen_without_proof, judges, require_judges
from benchflow.sandbox.factory import Preparation, choose_backend, prepare, taken_package, task_package
from benchflow.sandbox.protocol import Change, SandboxBackend
from benchflow.sandbox.task_policy import asset_mounts, resolve_variables
from benchflow.task.config.interaction import ARENA
from benchflow.task.config.task_config import OPEN
from benchflow.task.package import TaskPackage, package_parts
from benchflow.verifier import Verifier

if TYPE_CHECKING:
    from benchflow.models.gateway import Access, Gateway, Grant
    from benchflow.rollout.ors_tools import OrsTools
    from benchflow.rollout.proving import MakeVerifier

START_SEC: Final = 900.0
"""Time limit of an environment after its build until it is ready."""


@dataclass(frozen=True, slots=True)
class _Planned:
    package: TaskPackage
    plan: RolloutPlan
    agents: tuple[tuple[Agent, Role], ...]
    """One agent of each kind, to install and to check; the ones that work are created when they start."""


class Rollout:
    """One rollout into one folder. `run` may be called once."""

    def __init__(
        self,
        config: RolloutConfig,
        folder: Path,
        *,
        on_phase: OnPhase | None = None,
        make_verifier: MakeVerifier = Verifier,
        started: SandboxBackend | None = None,
    ) -> None:
        """`folder` is created when there is something to write; `on_phase` is called when a phase begins.

        `started` is the backend that `config.sandbox` names, started ahead; it ends with the rollout.
        """
        self.config: Final = config
        self.folder: Final = folder
        self._places: Final = RolloutFolder(folder)
        self._machine: Final[Mapping[str, str]] = config.variables()
        self._on_phase: Final = on_phase
        self._draft: Draft
        self._installed: frozenset[Change] = frozenset()
        self._make_verifier: Final = make_verifier
        self._early: SandboxBackend | None = started
        """A backend that was started ahead or that a proof needed, until the rollout takes it over."""
        self._chosen: Chosen = {}
        self._judged = False
        """Whether a verifier asks a model."""
        self._asks_nobody = False
        """Whether no agent asks a model."""
        self._began = 0.0

    async def run(self, *, raise_refusals: bool = False) -> Result:
        """Carry it out and write its record. Raises only when it is cancelled.

        With `raise_refusals` wrong usage and unsupported features are raised instead of recorded, and
        nothing is written.
        """
        config = self.config
        try:
            with suppress(Exception):  # it recurs in the rollout, which attributes it
                await self._choose_isolation()
            # A proof is shared by many rollouts: their time begins after it.
            self._draft = first_draft(config, self._on_phase)
            self._began = anyio.current_time()
            return await carry_out(
                self._draft,
                self._places,
                self._work,
                timeout_sec=config.timeout_sec,
                durable=config.durable,
                raise_refusals=raise_refusals,
            )
        finally:
            if self._early is not None:
                with anyio.CancelScope(shield=True):
                    await self._early.close()

    async def _choose_isolation(self) -> None:
        """What the user or a proof chooses; a backend that a proof needs stays for the rollout."""
        config = self.config
        package = task_package(config.task)
        if package.view.mode == ARENA:  # what participants leave is not verified
            return
        chosen = chosen_without_proof(package.view, config.isolation)
        if chosen is None:
            if self._on_phase is not None:
                self._on_phase("proof")
            backend = config.sandbox
            if isinstance(backend, str):
                if self._early is None:
                    self._early = await choose_backend(package, backend, base_image=config.base_image, pull=config.pull)
                backend = self._early
            chosen = await proven_isolation(package, backend, config, self._machine)
        self._chosen = chosen

    async def _work(self) -> Verdict:
        with self._draft.timed("plan"):
            with attributed("package", "plan"):
                planned = await self._plan()
            with attributed("agent", "plan"):
                await self._check_agents(planned)
            with attributed("judge", "plan"):
                await self._check_judges(planned.plan)
        async with (
            self._models() as models,
            self._backend(planned.package) as backend,
            self._environment(planned, backend, models) as environment,
        ):
            return await self._drive(planned, environment, models)

    @asynccontextmanager
    async def _models(self) -> AsyncIterator[Gateway | None]:
        """The model gateway: the caller's, or a new one that ends with the rollout; None where nobody asks a model."""
        config = self.config
        if self._asks_nobody and not self._judged:
            yield None
            return
        if config.gateway is not None:
            config.gateway.require_room()
            yield config.gateway
            return
        from benchflow.models.gateway import Gateway

        with attributed("agent", "plan"):
            gateway = Gateway(self._machine)
        try:
            yield gateway
        finally:
            await gateway.close()

    @contextmanager
    def _grant(self, gateway: Gateway | None, plan: RolloutPlan) -> Iterator[Grant | None]:
        """What the agents of this rollout may ask of models, and its record."""
        if gateway is None:
            yield None
            return
        from benchflow.models.gateway import NO_CALL_LIMITS, GrantRequest
        from benchflow.record.model_calls import ModelCalls

        config = self.config
        with closing(ModelCalls(self._places, self._draft.redactor)) as calls:
            # The participants of an arena have a share of their own each, and no common limit to use up.
            limits = NO_CALL_LIMITS if plan.seats else config.call_limits or NO_CALL_LIMITS
            replay = config.replay.fresh() if config.replay is not None else None
            yield gateway.open(GrantRequest(calls, limits, plan.forbidden_tools, replay, config.token_ids))

    async def _drive(self, planned: _Planned, environment: Environment, models: Gateway | None) -> Verdict:
        config, draft = self.config, self._draft
        with (
            closing(JsonLines(self._places.user_rounds)) as rounds,
            Trajectory(self._places.trajectory, draft.redactor) as trajectory,
            self._grant(models, planned.plan) as grant,
        ):
            verifier = self._make_verifier(
                environment,
                machine=self._machine,
                cache=config.judge_cache,
                base_image=config.base_image,
                blames=config.agent not in (ORACLE, NOP),
                models=_seat_of_judges(grant),
                installations=config.installations,
            )
            async with self._tools(planned, environment) as tools:
                return await self._walk(planned, verifier, rounds, trajectory, tools, grant)

    @asynccontextmanager
    async def _tools(self, planned: _Planned, environment: Environment) -> AsyncIterator[OrsTools | None]:
        """The tools of an environment outside the sandbox, if the package declares one."""
        declared = planned.plan.view.namespace.ors
        if declared is None or self.config.agent in (ORACLE, NOP):
            yield None
            return
        from benchflow.rollout.ors_tools import ors_tools

        async with ors_tools(declared, self._machine, self.folder, environment.sandbox) as tools:
            yield tools

    async def _walk(
        self,
        planned: _Planned,
        verifier: Verifier,
        rounds: JsonLines,
        trajectory: Trajectory,
        tools: OrsTools | None,
        grant: Grant | None,
    ) -> Verdict:
        config, draft = self.config, self._draft
        context = TurnContext(
            config=config,
            package=planned.package,
            plan=planned.plan,
            environment=verifier.environment,
            verifier=verifier,
            folder=self._places,
            trajectory=trajectory,
            rounds=rounds,
            redactor=draft.redactor,
            machine=self._machine,
            installed=self._installed | verifier.environment.brought,
            agents_until=self._agents_until(planned.plan),
            tools=tools,
            grant=grant,
        )
        draft.driver = self._driver(context)
        try:
            return await draft.driver.walk()
        except Attributed as error:
            verdict = error.verdict
            trajectory("error", category=verdict.category, code=verdict.code, message=verdict.reason)
            raise

    def _driver(self, context: TurnContext) -> AgentDriver:
        if not context.plan.seats:
            return AgentDriver(context, self._draft)
        from benchflow.rollout.drivers.arena import ArenaDriver  # most rollouts have no peers

        return ArenaDriver(context, self._draft)

    def _agents_until(self, plan: RolloutPlan) -> float | None:
        """When agents have to end, so that the deadline of the rollout leaves time for verification."""
        whole = self.config.timeout_sec
        if whole is None:
            return None
        return self._began + time_for_agents(whole, plan.view.config.verifier.timeout_sec)

    async def _plan(self) -> _Planned:
        config, draft = self.config, self._draft
        package = task_package(config.task)
        draft.task = task_part_of(package, draft.task)
        draft.key = config.work_key(draft.task.id)
        with attributed("agent", "plan"):  # an agent that does not exist is wrong usage, whatever the package is like
            make_agent(config, config.agent, config.model, self._machine)
        package = await taken_package(package)
        plan = plan_rollout(package, config, self._machine)
        self._asks_nobody = all(turn.role.agent in (ORACLE, NOP) for step in plan.steps for turn in step.turns)
        roles = {(turn.role.agent, turn.role.model): turn.role for step in plan.steps for turn in step.turns}
        with attributed("agent", "plan"):
            agents = tuple(
                (make_agent(config, name, model, self._machine), role) for (name, model), role in roles.items()
            )
        names = (name for agent, _ in agents for name in agent.variables())
        own = [self._machine.get(name, "") for name in names] + list(config.agent_env.values())
        guessed = {value for value in own if len(value) >= SHORTEST_GUESSED}
        draft.redactor = make_redactor(plan.secrets.redacted | guessed)
        return _Planned(package, plan, agents)

    async def _check_agents(self, planned: _Planned) -> None:
        """Refuse an agent that cannot start, before anything is started."""
        secrets = planned.plan.secrets.of("agent")
        if planned.plan.seats:
            require_arena()
        for agent, role in planned.agents:
            if always_wins(role.agent):
                continue
            own = resolve_variables(role.env, self._machine, path="agents.roles.env")
            try:
                await anyio.to_thread.run_sync(agent.check, {**secrets, **self.config.agent_env, **own})
            except UsageError as error:
                raise Attributed(Unscored("agent", "plan", error.code, str(error))) from error

    async def _check_judges(self, plan: RolloutPlan) -> None:
        """Refuse a judge that cannot be called, before the agent works in vain."""
        asked = judges(plan.view, self._machine, [step.name for step in plan.steps])
        self._judged = bool(asked)
        try:
            if asked:
                await anyio.to_thread.run_sync(require_judges, asked)
        except JudgeFailure as error:
            refused = UsageError(str(error), code=error.code)
            raise Attributed(Unscored("judge", "plan", error.code, str(error))) from refused

    @asynccontextmanager
    async def _backend(self, package: TaskPackage) -> AsyncIterator[SandboxBackend]:
        """The caller's backend, or a new one that ends with the rollout."""
        given = self.config.sandbox
        if not isinstance(given, str):
            yield given
            return
        backend, self._early = self._early, None
        if backend is None:
            with self._draft.timed("plan"), attributed("infrastructure", "plan"):
                backend = await choose_backend(package, given, base_image=self.config.base_image, pull=self.config.pull)
        try:
            yield backend
        finally:
            with anyio.CancelScope(shield=True):
                await self._draft.clean_up("backend", backend.close)

    @asynccontextmanager
    async def _environment(
        self, planned: _Planned, backend: SandboxBackend, models: Gateway | None
    ) -> AsyncIterator[Environment]:
        """The started environment; it is always removed at the end of the block."""
        draft, config = self._draft, self.config
        environment: Environment | None = None
        installations = config.installations or Installations(backend)
        limit = config.environment_timeout_sec
        if limit is None:
            limit = planned.plan.view.config.environment.build_timeout_sec + START_SEC
        with ExitStack() as stack:
            try:
                with draft.timed("environment"), attributed("environment", "environment"), anyio.fail_after(limit):
                    preparation = await self._prepared(planned, backend, stack)
                    if models is not None and (planned.plan.seats or config.agent not in (ORACLE, NOP)):
                        preparation = without_provider_keys(preparation, models)
                    state = await installations.prepare_all((agent for agent, _ in planned.agents), preparation.spec)
                    self._installed = installations.brought(state)
                    environment = Environment(backend, preparation, snapshot=state)
                    draft.sandbox = environment.record()
                    self._open_folder(planned)
                    await environment.start()
                    draft.sandbox = environment.record()
                yield environment
            finally:
                with anyio.CancelScope(shield=True):
                    if environment is not None:
                        await draft.clean_up("log of the entry point", partial(self._keep_log, environment))
                        await draft.clean_up("environment", environment.stop)
                    if config.installations is None:
                        await draft.clean_up("installations", installations.close)

    async def _prepared(self, planned: _Planned, backend: SandboxBackend, stack: ExitStack) -> Preparation:
        """What the sandbox is made from: with the secrets of the environment, without skills that are not allowed."""
        plan = planned.plan
        try:
            preparation = await prepare(
                planned.package, backend, base_image=self.config.base_image, machine=self._machine
            )
        except UnsupportedError as error:
            raise Attributed(attribute(error, "unsupported", "plan")) from error
        preparation = for_agents(
            replace(preparation, chosen=self._chosen),
            plan.steps,
            plan.secrets,
            lambda: stack.enter_context(scratch("nothing-")),
        )
        if self.config.agent != ORACLE or plan.seats:  # the boxes of an arena are alike, and the oracle has only one
            return preparation
        spec = preparation.spec
        own = [mount for mount in asset_mounts(plan.view, "oracle") if mount not in spec.mounts]
        return replace(preparation, spec=replace(spec, mounts=(*spec.mounts, *own)))

    async def _keep_log(self, environment: Environment) -> None:
        """Keep what the entry point of the image printed."""
        entrypoint = environment.entrypoint
        if entrypoint is not None and self.folder.is_dir() and (text := await entrypoint.output()):
            self._places.entrypoint_log.parent.mkdir(exist_ok=True)
            await anyio.to_thread.run_sync(write_unseen, self._places.entrypoint_log, text)

    def _open_folder(self, planned: _Planned) -> None:
        """The folder appears with `config.json`: what runs, without anything secret."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config, draft = self.config, self._draft
        document = {
            "task": plain(draft.task),
            "agent": config.agent,
            "model": config.model,
            "attempt": config.attempt,
            "sandbox": plain(draft.sandbox),
            "settings": plain(config.settings()),
            "plan": planned.plan.record(),
            "parts": package_parts(planned.package),
            "started_at": draft.started_at,
        }
        write_document(self._places.config, draft.redactor.data(document))


def _seat_of_judges(grant: Grant | None) -> Access | None:
    if grant is None:
        return None
    from benchflow.record.model_calls import CallPlace

    return grant.seat(CallPlace("judge", "judge"))


async def proven_isolation(
    package: TaskPackage, backend: SandboxBackend, config: RolloutConfig, machine: Mapping[str, str]
) -> Chosen:
    """The isolation of a package's verifiers on a backend by proof, for which its oracle may have to run."""
    from benchflow.rollout.proving import Proofs, find_proof  # most packages need no proof

    preparation = await prepare(package, backend, base_image=config.base_image, machine=machine)

    async def run_oracle(make_verifier: MakeVerifier) -> Result:
        oracle = RolloutConfig(
            package,
            ORACLE,
            sandbox=backend,
            base_image=config.base_image,
            environment_timeout_sec=config.environment_timeout_sec,
            machine=machine,
            judge_cache=config.judge_cache,
            durable=False,
            isolation=OPEN,
            keep_workspace=False,
        )
        with scratch("oracle-") as folder:
            return await Rollout(oracle, folder / "rollout", make_verifier=make_verifier).run()

    return await find_proof(preparation, backend.name, config.isolation, config.proofs or Proofs(), run_oracle)


async def chosen_isolation(
    package: TaskPackage, backend: SandboxBackend, config: RolloutConfig, machine: Mapping[str, str] | None = None
) -> Chosen:
    """The isolation of a package's verifiers on a backend, where the user or a proof chooses it."""
    chosen = chosen_without_proof(package.view, config.isolation)
    known = os.environ if machine is None else machine
    return await proven_isolation(package, backend, config, known) if chosen is None else chosen


async def run_rollout(config: RolloutConfig, folder: Path, *, on_phase: OnPhase | None = None) -> Result:
    """One rollout, its folder written as the run directory says. Raises only when it is cancelled."""
    return await Rollout(config, folder, on_phase=on_phase).run()
