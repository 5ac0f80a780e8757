"""`Watching`: watches the verifiers of one environment, and gives their scopes what their programs look for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from benchflow.environment import Environment
from benchflow.errors import Issue
from benchflow.record.proof import rules
from benchflow.sandbox.protocol import Sandbox
from benchflow.verifier.scope import Scope
from benchflow.verifier.watched import learned_lookups
from benchflow.verifier.watched.learned_lookups import ORACLE, LookupsKey, Subject
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

    async def knowing(self, scope: Scope, name: str, rollout: Path | None) -> tuple[Scope, str | None]:
        """The same, for which the verifier is watched if it never was; and why that is not all, if so."""
        subject = await self._subject(scope, name)
        scope = await learned_lookups.knowing(scope, subject, lambda watched: self.on_fresh(watched, name, rollout))
        return scope, learned_lookups.KNOWN.problems.get(subject.key)

    async def without_found(
        self, scope: Scope, name: str, sandbox: Sandbox | None, rollout: Path | None, *, soft: bool
    ) -> tuple[Scope | None, str | None]:
        """A scope without what programs find in the agent's system and would look for in its work alone, None if there
        is nothing of that kind; and why that is not fully known, if so.

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
        missed = learned_lookups.more_missed(known, await self._subject(scope, name), watch)
        more = missed.answers_more(known.missed, changes)
        return (replace(known, missed=missed) if more else None), watch.problem

    async def learn(self, scope: Scope, name: str, sandbox: Sandbox) -> None:
        """Learn from a state that solves the task what its verifier looks for."""
        added = (change.path for change in await sandbox.changes() if change.kind == "added")

        async def attempt(watched: Scope) -> None:
            await self.attempt(watched, name, None, sandbox, None, soft=False)

        await learned_lookups.learn(scope, await self._subject(scope, name), ORACLE, attempt, added)

    async def _subject(self, scope: Scope, name: str) -> Subject:
        backend, preparation = self.environment.backend.name, self.environment.preparation
        variables = tuple(sorted(self.variables(scope).items()))
        content = scope.view.content_digest
        key = LookupsKey(content, preparation.digest, backend, rules(), scope.step, name, variables)
        return Subject(key, await self.programs(), preparation.spec.workdir)


def lookups_unknown(problem: str) -> Issue:
    """That not all is known of what a verifier looks for, and why."""
    message = f"Only general rules apply to some of what the verifier's programs look for: {problem}."
    return Issue("lookups-unknown", "warning", "verifier.isolation", message)
