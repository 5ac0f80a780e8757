"""`Verifier`: from the state an agent left to a verdict, without changing that state.

scope (task or step) ── strategy ──> box in verifier scope ──> reward files, answers ──> verdict and record
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.environment import Environment
from benchflow.errors import BenchflowError, Issue, UsageError
from benchflow.files import staged_folder
from benchflow.files.scratch import scratch
from benchflow.record import Isolation, NotCarriedOver, VerifierPart, WiderCheck, WithheldChange
from benchflow.rewards import Attributed, Scored, Unscored, Verdict, attribute, attributed, write_reward
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import Change, FailedRequest, Sandbox
from benchflow.task.config.task_config import MAIN_SERVICE
from benchflow.task.taken import require_intact
from benchflow.verifier.agent_processes import check_services, judge_ended
from benchflow.verifier.boxes import BoxMaker, Findings
from benchflow.verifier.inputs import NotDelivered
from benchflow.verifier.scope import Scope, VerifierVariables, isolation_of, scope_of, verifier_variables
from benchflow.verifier.shared_box import as_built
from benchflow.verifier.strategy_run import Run, Score, keep_declared, load_strategy
from benchflow.verifier.surviving.survival import Withheld
from benchflow.verifier.watched.narrowing import Narrowing, settled

if TYPE_CHECKING:
    from benchflow.agents.running import Installations
    from benchflow.models.gateway import Access
    from benchflow.verifier.blame import Pristine
    from benchflow.verifier.perturbation import Perturbation
    from benchflow.verifier.watched.watched_verifiers import Watching

_KEEP_THEMSELVES: Final = frozenset({"script", "reward-kit", "hybrid", "gain"})
"""Strategies that keep declared artifacts from the box they ran in, or leave that to the strategies they combine."""
_WITHOUT_PROGRAMS: Final = frozenset({"llm-judge", "agent-judge", "ors-episode"})
_NOT_WATCHED: Final = _WITHOUT_PROGRAMS | {"assessor", "gain", "hybrid"}
"""Strategies that run no program in a box of their own."""
MAX_LISTED: Final = 200
"""How many of the changes that were not carried over a record lists; it counts all."""


@dataclass(frozen=True, slots=True)
class Verification:
    """A verdict and how it was reached."""

    verdict: Verdict
    strategy: str
    """The type of the strategy."""
    name: str
    isolation: Isolation
    exit_code: int | None = None
    diagnostics: tuple[Issue, ...] = ()
    opt_outs: tuple[str, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    duration_sec: float = 0.0
    step: str | None = None
    wider: WiderCheck | None = None
    unreached: tuple[FailedRequest, ...] = ()
    """What was asked for outside during the verification and not reached."""
    not_applied: tuple[str, ...] = ()
    """Why the perturbation, or a part of it, could not be applied."""
    reachable: bool = False
    """Whether programs of the verifier may have found something that the agent changed in the system."""
    changes: Sequence[Change] = field(default=(), repr=False)
    """All changes of the agent, for as long as it is not decided what they may do."""

    @property
    def reward(self) -> float:
        """0 without a score."""
        return self.verdict.reward if isinstance(self.verdict, Scored) else 0.0

    def record(self) -> VerifierPart:
        """The `verifier` part of a result."""
        listed = tuple(WithheldChange(item.path, item.kind, item.reason) for item in self.withheld[:MAX_LISTED])
        return VerifierPart(
            strategy=self.strategy,
            name=self.name,
            isolation=self.isolation,
            exit_code=self.exit_code,
            diagnostics=self.diagnostics,
            opt_outs=self.opt_outs,
            not_carried_over=NotCarriedOver(len(self.withheld), listed),
            wider=self.wider,
        )

    def noting(self, note: Issue | None) -> Verification:
        """The same with a note, unless it has it already."""
        if note is None or note in self.diagnostics:
            return self
        return replace(self, diagnostics=(*self.diagnostics, note))

    @classmethod
    def refused(cls, verdict: Verdict, isolation: Isolation, step: str | None) -> Verification:
        """A verdict that was reached before any verifier ran."""
        return cls(verdict, "none", "", isolation, step=step)


class Verifier:
    """Verifies states of one environment, any number of times, also concurrently."""

    def __init__(
        self,
        environment: Environment,
        *,
        machine: Mapping[str, str] | None = None,
        cache: Path | None = None,
        base_image: str | None = None,
        blames: bool = True,
        given: Mapping[str, str] | None = None,
        models: Access | None = None,
        installations: Installations | None = None,
    ) -> None:
        """`machine` holds the variables that `verifier.env` may use (default: those of this process). `cache` keeps
        baseline and ceiling scores (default: a folder of the user's cache). `base_image` is the substitute for an image
        that is not available.
        Without `blames` a failure is never the result of the state that was verified: for states that no agent made.
        `given` are variables of every verifier, beside and before those of the package.
        `models` is where calls of judges are recorded and counted; `installations` has the environments of judges that
        are agents.
        """
        self.environment: Final = environment
        self._machine: Final = os.environ if machine is None else machine
        self._cache: Final = cache
        self._base_image: Final = base_image
        self._blames: Final = blames
        self._given: Final = dict(given or {})
        self._models: Final = models
        self._installations: Final = installations
        self._scopes: Final[dict[str | None, Scope]] = {}
        self.assess: Score | None = None
        """Plays the game of an arena and scores it; set by its driver for as long as its participants are there."""

    async def verify(
        self,
        output: Path | None,
        *,
        rollout: Path | None = None,
        step: str | None = None,
        strategy: str | None = None,
        sandbox: Sandbox | None = None,
        soft: bool = False,
        isolation: Isolation | None = None,
        perturbation: Perturbation | None = None,
        leaves_nothing: bool = False,
    ) -> Verification:
        """Score the environment's sandbox, or another `sandbox` of it, by the declared strategy or the one named.

        `output` becomes a folder with everything the verifier left; an existing one is replaced. With None nothing is
        kept but the verdict. Declared evidence is read from `rollout`. A `soft` verification happens during the run:
        the agent's processes continue. `isolation` replaces that of the environment; with `leaves_nothing` no verifier
        prepares a next step, not even at `open`. Every failure becomes an unscored
        verdict, or reward 0 if only the state of the agent causes it (`blame`); only cancellation and wrong usage are
        raised. Under a `perturbation` no failure is attributed to the state, and `not_applied` says what of it could
        not be applied.
        """
        try:
            scope = self._scope(step)
            scope = replace(scope, isolation=isolation) if isolation is not None else scope
            name, declared = scope.strategy(strategy)
            refused = _not_applicable(scope, perturbation, declared.type) if perturbation is not None else None
            scope = replace(scope, perturbation=perturbation, leaves_nothing=leaves_nothing)
        except UsageError:
            raise
        except BenchflowError as error:
            seen = isolation or isolation_of(self.environment.preparation, step)
            return Verification.refused(attribute(error, "package", "verify"), seen, step)
        if refused is not None:
            nothing = Unscored("unsupported", "verify", "perturbation-not-applied", f"Not verified: {refused}.")
            return replace(Verification.refused(nothing, scope.isolation, step), not_applied=(refused,))
        found = await self._verified(scope, name, output, sandbox, rollout, soft=soft)
        chosen = self.environment.preparation.chosen.get(step) if isolation is None else None
        if chosen is None:
            return found
        notes = (chosen.note,) if chosen.note is not None else ()
        wider = None
        if not soft and chosen.full is not None and _lost_something(found, chosen.full):
            wider = await self._wider(scope, name, sandbox, rollout)
        return replace(found, diagnostics=(*found.diagnostics, *notes), wider=wider)

    async def _verified(
        self, scope: Scope, name: str, output: Path | None, sandbox: Sandbox | None, rollout: Path | None, *, soft: bool
    ) -> Verification:
        """Verify, and find out whose fault a failure is."""
        makes, known = self._makes(scope, name), True
        if makes:
            with suppress(BenchflowError):  # what is wrong with the scope is said when it is verified
                scope, known = await self._watching.with_made(scope, name)
        narrowing = self._narrowing(scope, name, sandbox, rollout, makes=makes, known=known, soft=soft)

        async def into(place: Path | None, seen: Scope) -> Verification:
            return await self._attempt(seen, name, place, sandbox, rollout, soft=soft)

        async def attempt() -> Verification:
            return await settled(scope, functools.partial(into, output), functools.partial(into, None), narrowing)

        async def pristine(lacking: Iterable[FailedRequest] = ()) -> Pristine:
            return await self._on_pristine(scope, name, rollout, lacking)

        first = found = await attempt()
        if scope.perturbation is not None or self.assess is not None:  # a game cannot be played again to compare
            return found
        if not self._blames and not found.unreached:
            return found
        from benchflow.verifier import blame

        if self._blames and blame.may_be_of_the_state(found.verdict):
            found = await blame.settle(found, attempt, pristine)
        if found.unreached:
            found = await blame.settle_downloads(
                found,
                scope.reward_range.high,
                lambda: pristine(found.unreached),
                required=scope.requires_downloads,
            )
        try:
            if output is not None and found.verdict != first.verdict:
                _replace_reward(output, found.verdict)
        except BenchflowError as error:
            return replace(found, verdict=attribute(error, "infrastructure", "verify"))
        return found

    def _narrowing(
        self,
        scope: Scope,
        name: str,
        sandbox: Sandbox | None,
        rollout: Path | None,
        *,
        makes: bool,
        known: bool,
        soft: bool,
    ) -> Narrowing:
        """What of the agent's may win by its place. What the verifier makes may be `known`, and is withheld then."""
        found = functools.partial(self._watching.without_found, name=name, sandbox=sandbox, rollout=rollout, soft=soft)
        made = functools.partial(self._watching.without_made, name, rollout)
        return Narrowing(
            found if self._is_watched(scope, name) else None,
            made if makes and not known else None,
            self._watching.without_suspects if makes else None,
        )

    def _makes(self, scope: Scope, name: str) -> bool:
        """Whether the verifier makes files in a box of its own."""
        own = scope.isolation.rung != "open" and scope.config.service == MAIN_SERVICE and self.assess is None
        return own and scope.strategy(name)[1].type not in _NOT_WATCHED

    async def _attempt(
        self, scope: Scope, name: str, output: Path | None, sandbox: Sandbox | None, rollout: Path | None, *, soft: bool
    ) -> Verification:
        """Verify once, into a new folder, which is removed if there is no `output`."""
        began = time.monotonic()
        _, declared = scope.strategy(name)
        findings = Findings()
        kept = output is not None
        with staged_folder(output, overwrite=True, sync=False) if output is not None else scratch("verdict-") as folder:
            verdict = await self._judge(scope, name, folder, findings, sandbox, rollout, soft=soft, kept=kept)
        if isinstance(verdict, Scored):
            findings.add(*verdict.diagnostics)
        return Verification(
            verdict=verdict,
            strategy=declared.type,
            name=name,
            isolation=scope.isolation,
            exit_code=findings.exit_code,
            diagnostics=tuple(findings.notes),
            opt_outs=scope.opt_outs,
            withheld=tuple(findings.withheld),
            duration_sec=time.monotonic() - began,
            step=scope.step,
            unreached=tuple(findings.unreached),
            not_applied=tuple(findings.not_applied),
            reachable=findings.reachable,
            changes=findings.changes,
        )

    async def _wider(self, scope: Scope, name: str, sandbox: Sandbox | None, rollout: Path | None) -> WiderCheck | None:
        """The same state at the next wider rung, so that an author sees whether an honest solution lost something."""
        from benchflow.verifier.ladder import wider

        rung = wider(scope.isolation.rung)
        if rung is None:
            return None
        more = replace(scope, isolation=replace(scope.isolation, rung=rung))
        with scratch("wider-") as folder:
            verdict = await self._judge(more, name, folder, Findings(), sandbox, rollout, soft=False, kept=False)
        return WiderCheck(rung, verdict.reward if isinstance(verdict, Scored) else None)

    def _judges_of(self, step: str | None) -> Access | None:
        if self._models is None:
            return None
        return replace(self._models, place=replace(self._models.place, step=step))

    async def _on_pristine(
        self, scope: Scope, name: str, rollout: Path | None, lacking: Iterable[FailedRequest]
    ) -> Pristine:
        """How the same verifier does on the environment as built, in which no agent was."""
        from benchflow.verifier.blame import Pristine, on_pristine

        backend, preparation = self.environment.backend, self.environment.preparation
        variables = self._variables(scope)

        async def verify() -> Pristine:
            try:
                found = await self._on_fresh(scope, name, rollout)
            except Exception as error:  # noqa: BLE001 - whatever stops this experiment, the first failure stands
                return Pristine(attribute(error, "infrastructure", "verify"))
            return Pristine(found.verdict, found.unreached)

        spec = preparation.spec
        image = spec.image.digest if spec.image is not None else preparation.base
        settings = (spec.limits, spec.network, spec.workdir, spec.user, frozenset(spec.env.items()))
        own = (scope.step, name, scope.isolation.rung, frozenset(variables.values.items()))
        key = (backend.name, scope.view.content_digest, image, *settings, *own)
        return await on_pristine(key, verify, lacking)

    async def _on_fresh(self, scope: Scope, name: str, rollout: Path | None) -> Verification:
        """Verify the environment as built, once."""
        fresh = Environment(self.environment.backend, self.environment.preparation)
        await fresh.start()
        async with fresh:
            verifier = Verifier(
                fresh,
                machine=self._machine,
                cache=self._cache,
                base_image=self._base_image,
                given=self._given,
                models=self._models,
                installations=self._installations,
            )
            return await verifier._attempt(scope, name, None, None, rollout, soft=False)

    async def _recalling(
        self, scope: Scope, name: str, findings: Findings, rollout: Path | None
    ) -> tuple[Scope, Callable[[], Awaitable[Scope]] | None]:
        """The scope with what is known of what its programs look for, or how to find that out if it may matter."""
        if scope.missed is not None or not self._is_watched(scope, name):
            return scope, None
        known = await self._watching.recalled(scope, name)
        if known is not None:
            return known, None
        return scope, functools.partial(self._knowing, scope, name, findings, rollout)

    async def _knowing(self, scope: Scope, name: str, findings: Findings, rollout: Path | None) -> Scope:
        """The scope with what its programs look for in vain where no agent was; what stays unknown is noted."""
        scope, note = await self._watching.knowing(scope, name, rollout)
        findings.add(*([note] if note is not None else []))
        return scope

    def _is_watched(self, scope: Scope, name: str) -> bool:
        kept = scope.isolation.keeps_system and scope.isolation.rung != "open"
        return kept and not scope.watch and not self.assess and scope.strategy(name)[1].type not in _NOT_WATCHED

    async def learn(self, sandbox: Sandbox, step: str | None = None) -> None:
        """Learn from a state that solves the task what its verifier looks for, before others are verified."""
        scope = replace(self._scope(step), isolation=Isolation("system", "proof", None))
        name, declared = scope.strategy()
        if declared.type not in _NOT_WATCHED:
            await self._watching.learn(scope, name, sandbox)

    @functools.cached_property
    def _watching(self) -> Watching:
        from benchflow.verifier.watched.watched_verifiers import Watching

        async def programs() -> frozenset[str]:
            return (await as_built(self.environment)).programs

        return Watching(
            self.environment, lambda scope: self._variables(scope).values, programs, self._on_fresh, self._attempt
        )

    def _variables(self, scope: Scope) -> VerifierVariables:
        found = verifier_variables(scope, self._machine)
        return replace(found, values={**found.values, **self._given}) if self._given else found

    def _scope(self, step: str | None) -> Scope:
        """The verifier of a step; its document is read once and reused."""
        found = self._scopes.get(step)
        if found is None:
            found = self._scopes[step] = _scope(self.environment, step)
        return found

    async def _judge(
        self,
        scope: Scope,
        name: str,
        folder: Path,
        findings: Findings,
        sandbox: Sandbox | None,
        rollout: Path | None,
        *,
        soft: bool,
        kept: bool = True,
    ) -> Verdict:
        """Run one strategy into one folder; every failure is attributed and none escapes.

        In one that is not `kept` no reward files are made for readers.
        """
        box = sandbox or self.environment.sandbox
        try:
            with attributed("verifier", "verify"):
                require_intact(scope.view.files)
                scope, know = await self._recalling(scope, name, findings, rollout)
                _, declared = scope.strategy(name)
                variables = self._variables(scope)
                maker = replace(self._maker(box, scope, variables, findings, soft=soft), know=know)

                async def again(other: str, place: Path, another: Sandbox | None) -> Verdict:
                    await anyio.Path(place).mkdir(parents=True)
                    return await self._judge(scope, other, place, findings, another or box, rollout, soft=soft)

                run = Run(
                    name=name,
                    strategy=declared,
                    scope=scope,
                    output=folder,
                    environment=self.environment,
                    sandbox=box,
                    findings=findings,
                    variables=variables,
                    maker=maker,
                    machine=self._machine,
                    again=again,
                    rollout=rollout,
                    cache=self._cache,
                    models=self._judges_of(scope.step),
                    assess=self.assess,
                    installations=self._installations,
                )
                if ended := await box.failed_services():
                    findings.add(*judge_ended(ended, scope))
                has_services = box is self.environment.sandbox and self.environment.services is not None
                if has_services:
                    findings.add(*await check_services(self.environment, scope))
                verdict = await _scored_by(load_strategy(declared.type), run)
                if declared.type not in _KEEP_THEMSELVES:
                    await keep_declared(run)
                if has_services:
                    findings.add(*await check_services(self.environment, scope, verified=True))
                if kept and isinstance(verdict, Scored):
                    write_reward(folder, verdict, unseen=True)
                elif kept:
                    _drop_rewards(folder)
                return verdict
        except Attributed as error:
            _drop_rewards(folder)
            return replace(error.verdict, reason=_without_secrets(error.verdict.reason, scope, self._machine))

    def _maker(
        self, box: Sandbox, scope: Scope, variables: VerifierVariables, findings: Findings, *, soft: bool
    ) -> BoxMaker:
        return BoxMaker(
            environment=self.environment,
            sandbox=box,
            scope=scope,
            variables=variables,
            machine=self._machine,
            findings=findings,
            soft=soft,
            base_image=self._base_image,
        )


def _scope(environment: Environment, step: str | None) -> Scope:
    return scope_of(environment.preparation.view, step, isolation_of(environment.preparation, step))


def _not_applicable(scope: Scope, wanted: Perturbation, strategy: str) -> str | None:
    """Why a perturbation says nothing about this verifier; None if it does."""
    if strategy in _WITHOUT_PROGRAMS:
        return f"a verifier of the type {strategy} runs no program in a sandbox"
    if wanted.offline and scope.declares_network:
        return "the verifier declares that it uses the network"
    if wanted.other_user and is_root(scope.user) and scope.config.user is not None:
        return "the verifier declares that it runs as root"
    if wanted.other_user and scope.isolation.rung == "open":
        return "the verifier runs in the agent's own sandbox"
    if wanted.other_user and scope.isolation.keeps_system:
        return "the verifier looks at the whole system, which belongs to root"
    return None


def _lost_something(found: Verification, full: float) -> bool:
    """Whether the work scored below full, and the verifier did not see all of it."""
    below = isinstance(found.verdict, Scored) and found.verdict.reward < full
    return below and (bool(found.withheld) or found.isolation.rung == "separate")


async def _scored_by(strategy: Score, run: Run) -> Verdict:
    """The verdict of a strategy, or that of a missing delivery."""
    try:
        return await strategy(run)
    except NotDelivered as nothing:
        return nothing.verdict(run)


def _without_secrets(text: str, scope: Scope, machine: Mapping[str, str]) -> str:
    """A message without secret values; used after failures, so it must not fail itself."""
    try:
        return verifier_variables(scope, machine).redact(text) or text
    except Exception:  # noqa: BLE001 - what cannot be resolved has no value that could appear
        return text


def _replace_reward(folder: Path, verdict: Verdict) -> None:
    """Make the reward files of a finished folder those of the verdict that counts."""
    if isinstance(verdict, Scored):
        write_reward(folder, verdict)
    else:
        _drop_rewards(folder)


def _drop_rewards(folder: Path) -> None:
    """Remove reward files that do not count, so that nobody reads them."""
    for name in ("reward.txt", "reward.json"):
        place = folder / name
        if place.is_symlink() or place.is_file():
            place.replace(folder / f"refused-{name}")
        elif place.exists():
            shutil.rmtree(place, ignore_errors=True)
