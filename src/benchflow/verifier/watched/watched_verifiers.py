"""`Watching`: watches the verifiers of one environment, and gives their scopes what their programs look for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

import anyio

from benchflow.environment import Environment
from benchflow.errors import Issue
from benchflow.record.proof import rules
from benchflow.record.result import Rung
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import Change, Sandbox
from benchflow.verifier.scope import Scope, names_in, paths_asked_for, words_of
from benchflow.verifier.surviving.made_places import MadeByVerifier, MadePlaces
from benchflow.verifier.watched import learned_lookups, making
from benchflow.verifier.watched.learned_lookups import ORACLE, Subject
from benchflow.verifier.watched.remembered import VerifierKey
from benchflow.verifier.watched.watch import Watch


class Attempt(Protocol):
    """Verifies a sandbox of the environment once, in a scope."""

    async def __call__(
        self, scope: Scope, name: str, output: None, sandbox: Sandbox | None, rollout: Path | None, *, soft: bool
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class Watching:
    """Watches by verifying: `on_fresh` the environment as built, by `attempt` a sandbox of it."""

    environment: Environment
    variables: Callable[[Scope], Mapping[str, str]]
    """Those of the verifier."""
    programs: Callable[[], Awaitable[Container[str]]]
    """Names of programs that the environment was built with."""
    on_fresh: Callable[[Scope, str, Path | None], Awaitable[object]]
    attempt: Attempt

    async def recalled(self, scope: Scope, name: str) -> Scope | None:
        """The scope with what its programs look for in vain where no agent was, if all of that is known already."""
        subject = await self._subject(scope, name)
        if subject.key in learned_lookups.KNOWN.problems:
            return None
        return await learned_lookups.recalled(scope, subject)

    async def knowing(self, scope: Scope, name: str, rollout: Path | None) -> tuple[Scope, Issue | None]:
        """The same, for which the verifier is watched if it never was; and a note if that is not all."""
        subject = await self._subject(scope, name)
        scope = await learned_lookups.knowing(scope, subject, lambda watched: self.on_fresh(watched, name, rollout))
        return scope, lookups_unknown(learned_lookups.KNOWN.problems.get(subject.key))

    async def without_found(
        self, scope: Scope, name: str, sandbox: Sandbox | None, rollout: Path | None, *, soft: bool
    ) -> tuple[Scope | None, Issue | None]:
        """A scope without what programs find in the agent's system and would look for in its work alone, None if there
        is nothing of that kind; and a note if that is not fully known.

        A verifier may stop early on the environment as built, or choose its programs by the agent's data. So a state
        that scores is verified once more, watched, with the agent's work and data and the system as built.
        """
        known, _ = await self.knowing(scope, name, rollout)
        changes = await (sandbox or self.environment.sandbox).changes()
        if known.missed is None or not known.missed.leaves(changes):
            return None, None
        watch = Watch()
        watched = replace(known, watch=watch, system_as_built=True)
        await self.attempt(watched, name, None, sandbox, rollout, soft=soft)
        missed = await learned_lookups.more_missed(known, await self._subject(scope, name), watch)
        more = missed.answers_more(known.missed, changes)
        return (replace(known, missed=missed) if more else None), lookups_unknown(watch.problem)

    async def with_made(self, scope: Scope, name: str) -> tuple[Scope, bool]:
        """The scope with what its verifier makes where no agent was, and whether that is known already."""
        places = await making.recalled((await self._subject(scope, name)).key)
        return replace(scope, made=self._made(scope, places or MadePlaces())), places is not None

    async def without_made(
        self, name: str, rollout: Path | None, scope: Scope, changes: Sequence[Change]
    ) -> tuple[Scope | None, Issue | None]:
        """A scope without what the agent put where its verifier makes something itself, None if there is nothing of
        that kind; and a note if that is not known. For that the environment as built is verified, once."""
        rung: Rung = "separate" if scope.isolation.rung == "separate" else "shared"
        plain = replace(scope, isolation=replace(scope.isolation, rung=rung), perturbation=None, missed=None, made=None)
        limit = min(scope.config.timeout_sec, (anyio.current_effective_deadline() - anyio.current_time()) / 2)
        places, problem = await making.made_by(
            (await self._subject(scope, name)).key, plain, limit, lambda fresh: self.on_fresh(fresh, name, rollout)
        )
        return _without(scope, self._made(scope, places), changes), made_unknown(problem)

    async def without_suspects(
        self, scope: Scope, changes: Sequence[Change], attempt: Callable[[Scope], Awaitable[bool]]
    ) -> tuple[Scope | None, None]:
        """The same for what the verifier makes only if there is work. `attempt` verifies the state in a scope, and says
        whether it scores less."""
        made = scope.made or MadeByVerifier()
        places = MadePlaces()
        for suspected in made.suspects(changes):
            seen = making.Making()
            if await attempt(replace(scope, made=replace(made, suspected=suspected), making=seen)):
                places |= seen.places
        return _without(scope, replace(made, places=made.places | places), changes) if places.files else None, None

    def _made(self, scope: Scope, places: MadePlaces) -> MadeByVerifier:
        workdir = self.environment.preparation.spec.workdir
        return MadeByVerifier(
            places,
            own=names_in(scope.folders),
            asked=paths_asked_for(scope.prompt, workdir) - {workdir, *map(str, PurePosixPath(workdir).parents)},
            words=words_of(scope.prompt),
            used=learned_lookups.named_by(scope.folders, scope.prompt)[1],
            as_root=is_root(scope.user),
            workdir=workdir,
        )

    async def learn(self, scope: Scope, name: str, sandbox: Sandbox) -> None:
        """Learn from a state that solves the task what its verifier looks for."""
        given = [change.path for change in await sandbox.changes()]

        async def attempt(watched: Scope) -> None:
            await self.attempt(watched, name, None, sandbox, None, soft=False)

        await learned_lookups.learn(scope, await self._subject(scope, name), ORACLE, attempt, given)

    async def _subject(self, scope: Scope, name: str) -> Subject:
        backend, preparation = self.environment.backend.name, self.environment.preparation
        variables = tuple(sorted(self.variables(scope).items()))
        content = scope.view.content_digest
        key = VerifierKey(content, preparation.digest, backend, rules(), scope.step, name, variables)
        return Subject(key, await self.programs(), preparation.spec.workdir)


def _without(scope: Scope, made: MadeByVerifier, changes: Sequence[Change]) -> Scope | None:
    return replace(scope, made=made) if any(made.takes(change) for change in changes) else None


def made_unknown(problem: str | None) -> Issue | None:
    """That it is not known what a verifier makes, and why."""
    if problem is None:
        return None
    message = f"Files of the agent where the verifier makes its own may count: {problem}."
    return Issue("made-unknown", "warning", "verifier.isolation", message)


def lookups_unknown(problem: str | None) -> Issue | None:
    """That not all is known of what a verifier looks for, and why."""
    if problem is None:
        return None
    message = f"Only general rules apply to some of what the verifier's programs look for: {problem}."
    return Issue("lookups-unknown", "warning", "verifier.isolation", message)
