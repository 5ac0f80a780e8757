"""The boxes that verifiers run in: opened by the isolation that the package declares.

A `Box` is a sandbox in verifier scope: commands of the verifier, what they print, and the files they leave.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import Issue, SandboxFailure, UnsupportedError, VerifierFailure
from benchflow.files.atomic import write_unseen
from benchflow.rewards import RewardError
from benchflow.rewards.reward_files import MAX_BYTES, REWARD_DETAILS, REWARD_JSON, REWARD_TEXT
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import NO_SUCH_FILE, OF_THE_FILE, ExecResult, FailedRequest, NetworkPolicy, Sandbox
from benchflow.sandbox.task_policy import in_step, network_policy
from benchflow.task.config.task_config import MAIN_SERVICE
from benchflow.verifier import live_box as live
from benchflow.verifier import separate_box as separate
from benchflow.verifier.ground import Ground
from benchflow.verifier.lookups import pinned_variables, with_hook
from benchflow.verifier.scope import LOGS, Scope, VerifierVariables, assemble_tree, made_tree
from benchflow.verifier.shared_box import fork_for_verification, ground_beside, ground_of, survival_rules
from benchflow.verifier.survival import Withheld

MAX_STDOUT: Final = 4 << 20
MAX_LOG_BYTES: Final = 64 << 20
MAX_LOG_FILES: Final = 10_000
STDOUT: Final = "test-stdout.txt"


@dataclass(frozen=True, slots=True)
class Box:
    """Where a verifier runs. `live`: in the agent's own box, whose other processes continue."""

    sandbox: Sandbox
    user: str
    env: Mapping[str, str] = field(repr=False)
    live: bool = False
    hooked: bool = False
    """Whether interpreters start with the hook of the ground folder."""

    async def run(
        self, command: str | Sequence[str], *, cwd: str, timeout: float, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        """Run a command of the verifier to its end, both of its outputs as one.

        Nothing it started outlives it, unless the box is live. A string is for the environment's shell.
        """
        words = () if isinstance(command, str) else command
        shell = command if isinstance(command, str) else 'exec "$@"'
        argv = ["/bin/sh", "-c", f"exec 2>&1\n{shell}", "sh", *words]
        variables = {**self.env, **(env or {})}
        if self.hooked:
            variables = with_hook(variables, self.sandbox.spec)
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

    @asynccontextmanager
    async def open(self, extra: dict[str, bytes] | None = None) -> AsyncIterator[Box]:
        """A box in verifier scope, removed at the end of the block. `extra` are more files of the verifier."""
        async with self._opened(extra) as box:
            try:
                yield box
            finally:
                self.findings.unreached += await box.sandbox.failed_requests()

    @asynccontextmanager
    async def _opened(self, extra: dict[str, bytes] | None) -> AsyncIterator[Box]:
        service = self.scope.config.service
        if self.scope.isolation.rung == "separate":
            async with self._separate() as (sandbox, ground):
                own = service == MAIN_SERVICE
                yield await self._placed(sandbox.service(service), extra, ground if own else None, live_box=not own)
        elif service != MAIN_SERVICE:
            async with self._in_service(service) as sandbox:
                yield await self._placed(sandbox, extra, live_box=True)
        elif await self._must_be_live():
            if self.soft:
                message = (
                    "The verifier needs the processes in the agent's box and runs there, so a running agent would see "
                    "its files; verify after the agent has ended."
                )
                raise UnsupportedError(message, code="live-state")
            async with self._live() as ground:
                yield await self._placed(self.sandbox, extra, ground, live_box=True)
        else:
            async with self._fork() as (sandbox, ground):
                yield await self._placed(sandbox, extra, ground)

    async def _placed(
        self, sandbox: Sandbox, extra: dict[str, bytes] | None, ground: Ground | None = None, *, live_box: bool = False
    ) -> Box:
        """Copy in the verifier's files: from here on hidden fixtures and keys are present."""
        config = self.scope.config
        user = str(config.user) if config.user is not None else "root"
        files = {**(extra or {}), **(ground.files if ground is not None and is_root(user) else {})}
        tree = made_tree(self.scope, files)
        if tree is None:
            tree = await anyio.to_thread.run_sync(assemble_tree, self.scope, files)
        await sandbox.upload(tree, "/", owner=user)
        if not live_box and not is_root(user):
            words = ["/bin/sh", "-c", _OPEN_THE_WAY, "sh", sandbox.spec.workdir]
            await sandbox.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC)
        if ground is not None:
            await ground.lay(sandbox, whole=not is_root(user))
        pinned = {**pinned_variables(config.pytest_plugins), **(ground.variables if ground is not None else {})}
        return Box(sandbox, user, {**pinned, **self.variables.values}, live=live_box, hooked=ground is not None)

    @asynccontextmanager
    async def _fork(self) -> AsyncIterator[tuple[Sandbox, Ground]]:
        if not self.soft:
            await self.sandbox.kill_processes()
        forked, survivors = await fork_for_verification(
            self.environment, self.sandbox, self.scope, beside=self._may_share_network()
        )
        self.findings.withhold(survivors.withheld)
        async with stopping(forked):
            yield forked, await ground_of(self.environment, survivors)

    @asynccontextmanager
    async def _separate(self) -> AsyncIterator[tuple[Sandbox, Ground]]:
        paths = separate.transfers(self.scope, self.sandbox.spec.workdir)
        spec = await separate.verifier_spec(self.environment, self.scope, self.machine, self.base_image)
        source, survivors = await fork_for_verification(
            self.environment,
            self.sandbox,
            self.scope,
            tuple(path.source for path in paths if path.service == MAIN_SERVICE),
            beside=self._may_share_network(),
        )
        async with stopping(source):
            for number, hook in enumerate(self.scope.config.collect):
                place = source if hook.service == MAIN_SERVICE else self.sandbox.service(hook.service)
                timeout = hook.timeout_sec or self.scope.config.timeout_sec
                result = await place.exec(hook.command, user="root", timeout=timeout)
                self.findings.add(*separate.collected(result, f"verifier.collect[{number}]", timeout))
            fresh = self.environment.backend.create(spec)
            await fresh.start()
            async with stopping(fresh):
                built = survivors.rules.built
                notes = await separate.carry_over(source, fresh, paths, services=self.sandbox, built=built)
                self.findings.add(*notes)
                self.findings.withhold(survivors.withheld)
                yield fresh, await ground_of(self.environment, survivors)

    async def _must_be_live(self) -> bool:
        if self.environment.services is not None and self.sandbox is self.environment.sandbox:
            return True
        return self.scope.isolation.keeps_processes and await self.sandbox.has_processes()

    @asynccontextmanager
    async def _live(self) -> AsyncIterator[Ground | None]:
        box = self.sandbox
        message = "Verified in the agent's own box, whose processes keep running and can act on the verifier."
        self.findings.add(Issue("live-box", "warning", "verifier.isolation", message))
        if not self.scope.isolation.keeps_processes:
            note = await live.end_agent(box, live.agent_users(box, self.scope.view))
            self.findings.add(*([note] if note is not None else []))
        rules = await survival_rules(self.environment, box, self.scope)
        planted, notes = await live.remove_hooks(box, rules, contested=self.scope.isolation.keeps_processes)
        self.findings.withhold(planted)
        self.findings.add(*notes)
        ground = ground_beside(await box.changes(), rules) if self.scope.isolation.rung != "open" else None
        async with self._phase(box):
            yield ground

    @asynccontextmanager
    async def _in_service(self, name: str) -> AsyncIterator[Sandbox]:
        """The container of a service, which keeps running; the agent has no shell there."""
        if not self.soft and not self.scope.isolation.keeps_processes:
            await self.sandbox.kill_processes()
        service = self.sandbox.service(name)
        async with self._phase(service):
            yield service

    @asynccontextmanager
    async def _phase(self, place: Sandbox) -> AsyncIterator[None]:
        """Set the verifier's network, and remove its files from a place before and after."""
        before, now = self._networks()
        await live.clear_place(place)
        if now != before:
            await self.sandbox.set_network(now)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await live.clear_place(place)
                if now != before:
                    await self.sandbox.set_network(before)

    def _networks(self) -> tuple[NetworkPolicy, NetworkPolicy]:
        """The network policies of the agent and of the verifier."""
        view = self.scope.view
        step = next((item for item in view.steps if item.config.name == self.scope.step), None)
        return network_policy(in_step(view, step), "agent"), self.scope.network(network_policy(view, "verifier"))

    def _may_share_network(self) -> bool:
        """Whether services may use the verifier's network: a running agent must not get it."""
        before, now = self._networks()
        return not self.soft or now == before


@asynccontextmanager
async def stopping(sandbox: Sandbox) -> AsyncIterator[None]:
    """Stop a started sandbox at the end of the block, whatever happens in it."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.stop()
