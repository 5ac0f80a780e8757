"""A conversation: declared turns in order, then free rounds as long as the user has something to say.

Between rounds the workspace may be verified on a fork for the user (soft verification); the agent continues in
its own sandbox and sees nothing of it. Each round is a line of `user_rounds.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.rewards import Scored, attributed
from benchflow.rollout.drivers.turns import Asked, OpenAgents, TurnContext, log_round
from benchflow.rollout.plan import PlannedTurn
from benchflow.rollout.users import BaseUser, RoundResult, next_prompt, user_boundary
from benchflow.sandbox.protocol import Sandbox

if TYPE_CHECKING:
    from benchflow.models.gateway import Grant
    from benchflow.rollout.phases.team_memory import TeamMemory
    from benchflow.rollout.user_tools import UserTools

MAX_VERIFIER_OUTPUT: Final = 6_000


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """A turn in which the agent asked, and the state it began from."""

    position: int
    """Which round it was."""
    prompt: str
    base: Sandbox
    """A fork of the sandbox as it was before the turn."""
    asked: tuple[Asked, ...]
    user: BaseUser | None
    last: RoundResult | None


@dataclass(slots=True)
class Conversation:
    """One line of conversation with the agents of a sandbox."""

    context: TurnContext
    agents: OpenAgents
    user: BaseUser | None
    branch: str | None = None
    """Id of the branch this is; None for the main line."""
    points: list[BranchPoint] = field(default_factory=list)
    """The points where it could branch; the caller that takes them stops their sandboxes."""
    user_tools: UserTools | None = None
    """What the user can do itself."""
    _memory: TeamMemory | None = field(init=False, default=None)
    """What roles learn of each other; None if they learn nothing."""

    def __post_init__(self) -> None:
        handoff = self.context.plan.handoff
        if handoff is not None and handoff.trajectory != "none":
            from benchflow.rollout.phases.team_memory import TeamMemory

            self._memory = TeamMemory(handoff.trajectory)

    async def run(self, *, start: int = 0, prompt: str | None = None, last: RoundResult | None = None) -> None:
        """Play from round `start` on; `prompt` is the prompt there, if already known."""
        await self._play(start, prompt, last)
        if self._memory is not None:
            with attributed("sandbox", "agent"):
                await self._memory.forget([self.agents.sandbox])

    async def _play(self, start: int, prompt: str | None, last: RoundResult | None) -> None:
        if self.user is not None and start == 0 and self.branch is None:
            with user_boundary():
                await self.user.setup(self.agents.step.prompt, self._solution())
        for number, turn, declared in self._schedule(start):
            said = prompt if prompt is not None else await self._next_prompt(number, turn, last, declared=declared)
            prompt = None
            if said is None:
                self._log_silence(number)
                return
            last = await self._round(number, turn, said, last)
            if self.agents.exhausted:
                return

    def _solution(self) -> str | None:
        return self.context.solution(self.agents.step) if self.context.config.oracle_access else None

    def _schedule(self, start: int) -> Iterator[tuple[int, PlannedTurn, bool]]:
        """Declared turns, then rounds with the role that came last, as many as the user may take."""
        turns = self.agents.step.turns
        for number in range(start, len(turns)):
            yield number, turns[number], True
        if self.user is not None:
            for number in range(max(start, len(turns)), self.context.plan.max_rounds):
                yield number, turns[-1], False

    async def _next_prompt(
        self, number: int, turn: PlannedTurn, last: RoundResult | None, *, declared: bool
    ) -> str | None:
        prompt = turn.prompt if declared else None
        if self.user is None:
            return prompt
        return await next_prompt(self.user, number, prompt, self.agents.step.prompt, last)

    async def _round(self, number: int, turn: PlannedTurn, said: str, last: RoundResult | None) -> RoundResult:
        role = turn.role.name if turn.scene is not None else None
        previous = last.role if last is not None else None
        handed = previous is not None and role is not None and previous != role
        prompt = said
        if self._memory is not None and handed and role is not None and last is not None:
            prompt += await self._memory.brief(role, self.agents.sandbox, [last])
        base = await self.agents.sandbox.fork() if self.context.plan.branches else None
        user = self.user.branch() if self.user is not None and base is not None else None
        kept = False
        try:
            where: dict[str, Any] = {"branch": self.branch, "step": self.agents.step.name}
            if self.user is not None or len(self.agents.step.turns) > 1:
                where["round"] = number
            outcome = await self.agents.take_turn(turn, prompt, **where)
            if base is not None and outcome.asked:
                self.points.append(BranchPoint(number, said, base, outcome.asked, user, last))
                kept = True
        finally:
            if base is not None and not kept:
                with anyio.CancelScope(shield=True):
                    await base.stop()
        result = RoundResult(
            round=number,
            trajectory=outcome.events,
            n_tool_calls=outcome.tool_calls,
            scene=turn.scene,
            role=role,
            handoff_from=previous if handed else None,
            handoff_to=role if handed else None,
            **(await self._soft_verified(number)),
        )
        if self.user is not None or len(self.agents.step.turns) > 1:
            used = self.user_tools.used() if self.user_tools is not None else None
            log_round(self.context, self.agents.step, result, prompt, outcome, branch=self.branch, user_tools=used)
        if self._memory is not None:
            self._memory.add(result)
        return result

    def _log_silence(self, number: int) -> None:
        """What the user did before it ended the conversation without a word."""
        used = self.user_tools.used() if self.user_tools is not None else None
        if used is not None:
            step = {"step": self.agents.step.name} if self.agents.step.name is not None else {}
            line = {"round": number, **step, "prompt": None, "stop_reason": "user_silent", "user_tools": used}
            self.context.rounds.append(self.context.redactor.data(line))

    async def _soft_verified(self, number: int) -> dict[str, Any]:
        """The verification of the current state, for a user that has another round."""
        context, step = self.context, self.agents.step
        last_round = number + 1 >= max(context.plan.max_rounds, len(step.turns))
        if self.user is None or not self.user.wants_rewards or last_round or self.agents.exhausted:
            return {}
        if context.environment.services is not None:
            return {"verifier_error": "rounds are not verified while services of the environment are running"}
        place = context.folder.round(number, step=step.name, branch=self.branch)
        copy = await self.agents.sandbox.fork()
        try:
            with _suspended(context.grant):
                checked = await context.verifier.verify(
                    place, rollout=context.folder.path, step=step.name, sandbox=copy, soft=True
                )
        finally:
            with anyio.CancelScope(shield=True):
                await copy.stop()
        output = place / "test-stdout.txt"
        text = output.read_text(errors="replace")[-MAX_VERIFIER_OUTPUT:] if output.is_file() else None
        if isinstance(checked.verdict, Scored):
            return {"rewards": checked.verdict.record()["rewards"], "verifier_output": text}
        return {"verifier_error": checked.verdict.reason, "verifier_output": text}


@contextmanager
def _suspended(grant: Grant | None) -> Iterator[None]:
    """No model can be called by what the agent left running, while a verifier works."""
    if grant is None:
        yield
        return
    grant.suspended = True
    try:
        yield
    finally:
        grant.suspended = False
