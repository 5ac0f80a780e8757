"""The boxes that verifiers run in: opened by the isolation that the package declares.

A `Box` is a sandbox in verifier scope: commands of the verifier, what they print, and the files they leave.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import Issue, SandboxFailure, UnsupportedError, VerifierFailure
from benchflow.files.atomic import write_unseen
from benchflow.rewards import RewardError
from benchflow.rewards.reward_files import MAX_BYTES, REWARD_DETAILS, REWARD_JSON, REWARD_TEXT
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.machine_settings.allowance import phase_settings
from benchflow.sandbox.protocol import (
    NO_SUCH_FILE,
    OF_THE_FILE,
    Change,
    ExecResult,
    FailedRequest,
    NetworkPolicy,
    Sandbox,
)
from benchflow.sandbox.task_policy import agent_users, asset_mounts, in_step, network_policy
from benchflow.task.config.task_config import MAIN_SERVICE
from benchflow.verifier.agent_processes import end_agent
from benchflow.verifier.ground import Ground, common_files
from benchflow.verifier.lookups import OWNERS, git_variables, pinned_variables, with_hook
from benchflow.verifier.scope import LOGS, Scope, VerifierVariables, assemble_tree, made_tree, place_of_trees
from benchflow.verifier.shared_box import CLOSED, Survivors, as_built, fork_for_verification, ground_of
from benchflow.verifier.surviving.path_patterns import fixed_part
from benchflow.verifier.surviving.survival import Withheld, below

if TYPE_CHECKING:
    from benchflow.verifier.perturbation import Applied, Perturbation
    from benchflow.verifier.separate_box import Transfer

MAX_STDOUT: Final = 4 << 20
MAX_LOG_BYTES: Final = 64 << 20
MAX_LOG_FILES: Final = 10_000
STDOUT: Final = "test-stdout.txt"


@dataclass(frozen=True, slots=True)
class Box:
    """Where a verifier runs. `live`: among processes that continue, of the agent's own box or of a service."""

    sandbox: Sandbox
    user: str
    env: Mapping[str, str] = field(repr=False)
    live: bool = False
    ground: Ground | None = None
    """From where interpreters take the hook that they start with."""
    start: tuple[str, ...] = ()
    """The words before every command."""

    async def run(
        self, command: str | Sequence[str], *, cwd: str, timeout: float, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        """Run a command of the verifier to its end, both of its outputs as one.

        Nothing it started outlives it, unless the box is live. A string is for the environment's shell.
        """
        words = () if isinstance(command, str) else command
        shell = command if isinstance(command, str) else 'exec "$@"'
        argv = [*self.start, "/bin/sh", "-c", f"exec 2>&1\n{shell}", "sh", *words]
        variables = {**self.env, **(env or {})}
        if self.ground is not None:
            phony = bool(self.ground.phony)
            ground = self.ground
            variables = with_hook(
                variables,
                self.sandbox.spec,
                node_hook=ground.node_hook,
                misleads_node=ground.misleads_node,
                phony=phony,
            )
        result = await self.sandbox.exec(
            argv, user=self.user, env=variables, cwd=cwd, timeout=timeout, max_output=MAX_STDOUT
        )
        if not self.live:
            await self.sandbox.kill_processes()
        return result

    async def collect(self, target: Path) -> None:
        """Copy `/logs/verifier` to a host folder. If it is too large, only the reward files are copied.

        An invalid reward file raises `RewardError` (`reward-invalid`), an unreadable box `SandboxFailure`.
        """
        try:
            await self.sandbox.download(LOGS, target, max_bytes=MAX_LOG_BYTES, max_files=MAX_LOG_FILES)
        except SandboxFailure as error:
            if error.code not in OF_THE_FILE:
                raise
            for name in (REWARD_TEXT, REWARD_JSON, REWARD_DETAILS):
                await self._collect_file(name, target / name)

    async def _collect_file(self, name: str, target: Path) -> None:
        try:
            data = await self.sandbox.read_file(f"{LOGS}/{name}", max_bytes=MAX_BYTES)
        except SandboxFailure as error:
            if error.code not in OF_THE_FILE:
                raise
            if error.code == NO_SUCH_FILE or name == REWARD_DETAILS:
                return
            raise RewardError(f"{name} cannot be used: {error}", code="reward-invalid", file=name) from error
        await anyio.to_thread.run_sync(write_unseen, target, data)


def timed_out(timeout: float) -> VerifierFailure:
    """The verifier exceeded its time limit."""
    return VerifierFailure(f"the verifier exceeded its limit of {timeout:g} s and was stopped", code="timeout")


def keep_output(result: ExecResult, folder: Path, redact: Callable[[str], str]) -> None:
    """Write the output of a verifier to `test-stdout.txt`, without secrets."""
    text = redact(result.stdout.decode(errors="replace"))
    if result.dropped_bytes:
        text += f"\n[{result.dropped_bytes:,} bytes from the middle were dropped]\n"
    write_unseen(folder / STDOUT, text)


_OPEN_THE_WAY: Final = 'chmod a+rx / /logs "$1"; chmod 1777 /tmp; true'
"""For a verifier that is not root: an agent may have made parent folders unreadable, the working folder too."""
_TIMEOUT_SEC: Final = 60.0


@dataclass(slots=True)
class Findings:
    """Observations made while a box was created and used; part of the record of a verification."""

    exit_code: int | None = None
    notes: list[Issue] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    unreached: list[FailedRequest] = field(default_factory=list)
    """What the verifier asked for outside and did not reach."""
    not_applied: list[str] = field(default_factory=list)
    """Why parts of the perturbation could not be applied."""
    reachable: bool = False
    """Whether the verifier's programs may have found something that the agent changed in the system."""
    changes: Sequence[Change] = ()
    """All changes of the agent."""

    def add(self, *notes: Issue) -> None:
        """Add notes that are not there yet."""
        self.notes.extend(note for note in notes if note not in self.notes)

    def withhold(self, items: list[Withheld]) -> None:
        known = frozenset(self.withheld)
        self.withheld.extend(item for item in items if item not in known)


@dataclass(frozen=True, slots=True)
class BoxMaker:
    """Everything needed to create the boxes of one verification."""

    environment: Environment
    sandbox: Sandbox
    scope: Scope
    variables: VerifierVariables
    machine: Mapping[str, str] = field(repr=False)
    findings: Findings
    soft: bool = False
    base_image: str | None = None
    know: Callable[[], Awaitable[Scope]] | None = None
    """Gives the scope with what the verifier's programs look for. That takes time, so it is called only if they may
    find something of the agent's."""

    @asynccontextmanager
    async def open(self, extra: dict[str, bytes] | None = None) -> AsyncIterator[Box]:
        """A box in verifier scope, removed at the end of the block. `extra` are more files of the verifier.

        It is a box of its own at every rung but `open`. There it is the agent's own if its processes share it, or if a
        step follows, which may need what this verifier leaves.
        """
        async with self._opened(extra) as box:
            making = self.scope.making
            if making is not None:
                await making.begin(box.sandbox)
            try:
                yield box
            finally:
                if self.scope.watch is not None:
                    await self.scope.watch.end(box.sandbox, box.user)
                if making is not None:
                    await making.end(box.sandbox)
                self.findings.unreached += await box.sandbox.failed_requests()
                self._note_forwarding(box.sandbox)

    @asynccontextmanager
    async def _opened(self, extra: dict[str, bytes] | None) -> AsyncIterator[Box]:
        service = self.scope.config.service
        if self.scope.isolation.rung == "separate":
            async with self._separate() as (sandbox, ground):
                own = service == MAIN_SERVICE
                yield await self._placed(sandbox.service(service), extra, ground if own else None, live_box=not own)
        elif await self._is_live(service):
            if self.soft:
                message = (
                    "The verifier runs in the agent's own sandbox (verifier.isolation: open), where a running agent "
                    "would see its files; verify after the agent has ended, or declare a stricter isolation."
                )
                raise UnsupportedError(message, code="live-state")
            async with self._live(service) as sandbox:
                yield await self._placed(sandbox, extra, live_box=True)
        elif service != MAIN_SERVICE:
            async with self._beside_service(service) as sandbox:
                yield await self._placed(sandbox, extra)
        else:
            tree = await self._tree_to_lay(extra or {})
            async with self._fork(tree) as (sandbox, ground):
                yield await self._placed(sandbox, extra, ground, laid=tree is not None)

    @property
    def _user(self) -> str:
        wanted = self.scope.perturbation
        if wanted is None or not wanted.other_user:
            return self.scope.user
        from benchflow.verifier.perturbation import OTHER_USER

        return OTHER_USER

    @property
    def _in_the_open(self) -> bool:
        """The verifier finds what the agent left, as in Harbor."""
        return self.scope.isolation.rung == "open"

    async def _tree_to_lay(self, extra: Mapping[str, bytes]) -> Path | None:
        """The verifier's files, for a fork that has them from its start; None where they are copied into a running box:
        for another owner than root, and for backends that can only do that."""
        if not is_root(self._user) or not await self.sandbox.lays(place_of_trees(self.scope)):
            return None
        built = await as_built(self.environment)
        common = {} if self._in_the_open else common_files(built.stdlibs, built.gems, built.settings)
        return await self._tree({**extra, **common})

    async def _tree(self, files: Mapping[str, bytes]) -> Path:
        tree = made_tree(self.scope, files)
        return tree if tree is not None else await anyio.to_thread.run_sync(assemble_tree, self.scope, files)

    async def _placed(
        self,
        sandbox: Sandbox,
        extra: dict[str, bytes] | None,
        ground: Ground | None = None,
        *,
        laid: bool = False,
        live_box: bool = False,
    ) -> Box:
        """Copy in the verifier's files, if the box was not made with them: from here on hidden fixtures and keys are
        present."""
        config = self.scope.config
        user = self._user
        ground = None if self._in_the_open else ground
        if not laid:
            files = {**(extra or {}), **(ground.files if ground is not None and is_root(user) else {})}
            await sandbox.upload(await self._tree(files), "/", owner=user)
        if not live_box and not is_root(user):
            words = ["/bin/sh", "-c", _OPEN_THE_WAY, "sh", sandbox.spec.workdir]
            await sandbox.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC)
        if ground is not None:
            for place in await ground.lay(sandbox, whole=not is_root(user)):
                message = f"{place} could not be replaced: a verifier that sets NODE_OPTIONS itself is not protected."
                self.findings.add(Issue("node-unprotected", "warning", "verifier", message))
        pinned = git_variables(OWNERS) if self._in_the_open else pinned_variables(config.pytest_plugins)
        pinned |= ground.variables if ground is not None else {}
        env = {**self._machine_settings(sandbox), **pinned, **self.variables.values}
        if self.scope.watch is not None:
            return Box(sandbox, user, env, live_box, ground, await self.scope.watch.begin(sandbox))
        if self.scope.perturbation is None:
            return Box(sandbox, user, env, live_box, ground)
        applied = await self._perturbed(self.scope.perturbation, sandbox, user)
        return Box(sandbox, user, {**env, **applied.env}, live_box, ground, applied.start)

    async def _perturbed(self, wanted: Perturbation, sandbox: Sandbox, user: str) -> Applied:
        from benchflow.verifier.perturbation import apply

        declared = {**self.environment.preparation.spec.env, **self.variables.values}
        applied = await apply(wanted, sandbox, user, declared)
        self.findings.not_applied += [why for why in applied.not_applied if why not in self.findings.not_applied]
        return applied

    def _machine_settings(self, sandbox: Sandbox) -> Mapping[str, str]:
        """Variables for the settings of this machine; a box that existed before may lack the files that they name."""
        network = self.scope.network(network_policy(self.scope.view, "verifier"))
        given = phase_settings("verify", network.mode, self.machine)
        if {mount.target for mount in given.mounts} <= {mount.target for mount in sandbox.spec.mounts}:
            return given.env
        message = "The verifier runs in a sandbox without this machine's settings; use --machine-settings all."
        self.findings.add(Issue("no-machine-settings", "warning", "verifier.isolation", message))
        return {}

    @asynccontextmanager
    async def _fork(self, tree: Path | None) -> AsyncIterator[tuple[Sandbox, Ground]]:
        await self._end_agent()
        forked, survivors = await self._forked(self.scope, tree)
        if survivors.reachable and self.know is not None:
            with anyio.CancelScope(shield=True):
                await forked.stop()
            forked, survivors = await self._forked(await self.know(), tree)
        self.findings.reachable |= survivors.reachable
        self.findings.withhold(survivors.withheld)
        self.findings.changes = survivors.all_changes
        async with stopping(forked):
            yield forked, await ground_of(self.environment, survivors)

    async def _forked(self, scope: Scope, tree: Path | None) -> tuple[Sandbox, Survivors]:
        beside = self._has_services()
        place = self.environment, self.sandbox, scope
        return await fork_for_verification(*place, machine=self.machine, tree=tree, beside=beside)

    @asynccontextmanager
    async def _beside_service(self, name: str) -> AsyncIterator[Sandbox]:
        """A copy of the files of a service, beside all services, which keep running."""
        await self._end_agent()
        network = self.scope.network(network_policy(self.scope.view, "verifier"))
        given = phase_settings("verify", network.mode, self.machine)
        mounts = (*asset_mounts(self.scope.view, "verifier"), *given.mounts)
        forked = await self.sandbox.service(name).fork_beside(mounts=mounts, network=network, closed=CLOSED)
        async with stopping(forked):
            yield forked

    async def _end_agent(self) -> None:
        """End the agent's processes, unless they are part of its solution or it is still at work."""
        if self.soft or self.scope.isolation.keeps_processes:
            return
        if not self._has_manifest_services():
            await self.sandbox.kill_processes()
            return
        users = agent_users(self.sandbox.spec, self.scope.view)
        note = await end_agent(self.sandbox, users, self.environment.services)
        self.findings.add(*([note] if note is not None else []))

    def _has_manifest_services(self) -> bool:
        return self.environment.services is not None and self.sandbox is self.environment.sandbox

    def _has_services(self) -> bool:
        """Whether something keeps running that the verifier may use."""
        composition = self.sandbox.spec.composition
        composed = composition is not None and bool(composition.services)
        return composed or self._has_manifest_services() or self.scope.isolation.rung == "services"

    def _note_forwarding(self, forked: Sandbox) -> None:
        if forked.not_forwarded:
            message = f"Offered by services and not forwarded to the verifier: {', '.join(forked.not_forwarded[:20])}."
            self.findings.add(Issue("not-forwarded", "warning", "verifier.isolation", message))

    @asynccontextmanager
    async def _separate(self) -> AsyncIterator[tuple[Sandbox, Ground]]:
        from benchflow.sandbox.entrypoint import start_entrypoint
        from benchflow.verifier import separate_box as separate

        declared = separate.transfers(self.scope, self.sandbox.spec.workdir)
        spec = await separate.verifier_spec(self.environment, self.scope, self.machine, self.base_image)
        source, survivors = await fork_for_verification(
            self.environment,
            self.sandbox,
            self.scope,
            tuple(fixed_part(path.source) for path in declared if path.service == MAIN_SERVICE),
            machine=self.machine,
            beside=self._has_services(),
        )
        async with stopping(source):
            ground = await ground_of(self.environment, survivors)
            await self._collect(source, ground, declared)
            paths = await separate.expanded(source, declared)
            self.findings.add(*paths.notes)
            fresh = self.environment.backend.create(spec)
            await fresh.start()
            async with stopping(fresh):
                await start_entrypoint(fresh, spec.image)
                built = survivors.rules.built
                await separate.remove_unmatched(fresh, paths, built)
                notes = await separate.carry_over(source, fresh, paths.items, services=self.sandbox, built=built)
                self.findings.add(*notes)
                self.findings.withhold(survivors.withheld)
                self.findings.changes = survivors.all_changes
                yield fresh, ground

    async def _collect(self, source: Sandbox, ground: Ground, declared: Iterable[Transfer]) -> None:
        """Run the commands that come before the transfer, on the ground of the verifier: they read what an agent left.

        They get none of the verifier's own variables, which may be secrets.
        """
        from benchflow.verifier import separate_box as separate

        box = None
        for number, hook in enumerate(self.scope.config.collect):
            timeout = hook.timeout_sec or self.scope.config.timeout_sec
            if hook.service != MAIN_SERVICE:
                result = await self.sandbox.service(hook.service).exec(hook.command, user="root", timeout=timeout)
            else:
                box = box or await self._collecting(source, ground, declared)
                result = await box.run(hook.command, cwd=source.spec.workdir, timeout=timeout)
            self.findings.add(*separate.collected(result, f"verifier.collect[{number}]", timeout))

    async def _collecting(self, source: Sandbox, ground: Ground, declared: Iterable[Transfer]) -> Box:
        # What stands in the place of a program must not be transferred as if it were the program.
        moved = [fixed_part(path.source) for path in declared]
        kept = replace(ground, nodes=tuple(node for node in ground.nodes if not below(node, *moved)))
        await kept.lay(source, whole=True)
        env = {**pinned_variables(self.scope.config.pytest_plugins), **ground.variables}
        return Box(source, "root", env, live=True, ground=ground)

    async def _is_live(self, service: str) -> bool:
        if self.scope.isolation.rung != "open":
            return False
        if self.scope.prepares_next and not self.soft:
            return True
        return service != MAIN_SERVICE or self._has_manifest_services() or await self.sandbox.has_processes()

    @asynccontextmanager
    async def _live(self, service: str) -> AsyncIterator[Sandbox]:
        box = self.sandbox.service(service)
        message = "Verified in the agent's own sandbox, where its processes and files can affect the verifier."
        self.findings.add(Issue("live-box", "warning", "verifier.isolation", message))
        async with self._phase(box):
            yield box

    @asynccontextmanager
    async def _phase(self, place: Sandbox) -> AsyncIterator[None]:
        """Set the verifier's network, and remove its files from a place before and after."""
        from benchflow.verifier.live_box import clear_place

        before, now = self._networks()
        await clear_place(place, self.scope.places)
        if now != before:
            await self.sandbox.set_network(now)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await clear_place(place, self.scope.places)
                if now != before:
                    await self.sandbox.set_network(before)

    def _networks(self) -> tuple[NetworkPolicy, NetworkPolicy]:
        """The network policies of the agent and of the verifier."""
        view = self.scope.view
        step = next((item for item in view.steps if item.config.name == self.scope.step), None)
        return network_policy(in_step(view, step), "agent"), self.scope.network(network_policy(view, "verifier"))


@asynccontextmanager
async def stopping(sandbox: Sandbox) -> AsyncIterator[None]:
    """Stop a started sandbox at the end of the block, whatever happens in it."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.stop()
