"""`PackageEpisode`: a package as an episode, on the course that a rollout takes, in the event loop of the server.

`submit` ends a turn. What comes next is the course's to say: the next declared turn, a word of the package's user, the
next step, or the end. It is verified as a rollout is, on a copy.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.agents.workspace import Workspace
from benchflow.gym.driver import ActionDriver
from benchflow.record import Event
from benchflow.rewards import Attributed, Scored, Verdict, attribute, attributed
from benchflow.rollout.config import DEFAULT_ROUNDS
from benchflow.rollout.plan import PlannedTurn, document_user
from benchflow.rollout.policies import normal_tool
from benchflow.rollout.users import BaseUser, RoundResult, handoff_note, next_prompt, user_boundary
from benchflow.serve.discretion import Discretion
from benchflow.serve.environment_tools import EnvironmentTools
from benchflow.serve.episode import (
    SUBMIT,
    Block,
    Call,
    CallResult,
    Episode,
    ToolSpec,
    limits_metadata,
    text_blocks,
)
from benchflow.serve.tool_arguments import wrong_arguments
from benchflow.serve.workspace_tools import TOOLS, run_workspace_tool, submit_tool
from benchflow.task.package import TaskPackage

if TYPE_CHECKING:
    from benchflow.rollout.user_tools import UserTools
    from benchflow.task.document.prompt_plan import UserContract

Start = Callable[[], Awaitable[tuple[TaskPackage, ActionDriver]]]
"""Loads the package and starts it in its sandbox."""
PACKAGE_TOOLS: Final = (*TOOLS, submit_tool(goes_on=False))
"""The tools of a package of which nothing is known yet."""
STEP_REWARDS: Final = "step_rewards"
"""The key of `metadata` with which a package wants a reward after every call."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What ends an episode besides its agent; None: what the package says."""

    agent_timeout_sec: float | None = None
    max_calls: int | None = None


@dataclass(slots=True)
class Rounds:
    """The conversation of one step."""

    user: BaseUser | None
    most: int
    """How many rounds there may be."""
    number: int = 0
    calls: int = 0
    """Calls in the current round."""
    last: RoundResult | None = None
    deadline: float | None = None
    """On the clock of the event loop."""


def wants_step_rewards(package: TaskPackage) -> bool:
    """Whether the package declares a reward for every call: `metadata.step_rewards: true`."""
    return package.view.config.metadata.get(STEP_REWARDS) is True


class PackageEpisode(Episode):
    """One session with a package."""

    def __init__(self, start: Start, limits: EpisodeLimits | None = None, discretion: Discretion | None = None) -> None:
        super().__init__(discretion)
        self._start: Final = start
        self._limits: Final = limits or EpisodeLimits()
        self._known: TaskPackage | None = None
        self._driver: ActionDriver | None = None
        self._workspace: Workspace | None = None
        self._own_tools: EnvironmentTools | None = None
        self._rounds = Rounds(None, 1)
        self._tools: tuple[ToolSpec, ...] = PACKAGE_TOOLS

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    @property
    def _running(self) -> ActionDriver:
        if self._driver is None:
            raise RuntimeError("The episode has no sandbox.")
        return self._driver

    @property
    def _package(self) -> TaskPackage:
        if self._known is None:
            raise RuntimeError("The episode has not begun.")
        return self._known

    async def _begin(self) -> tuple[Block, ...]:
        self._known, self._driver = await self._start()
        return text_blocks(await self._begin_step())

    async def _begin_step(self) -> str:
        """The first prompt of the current step."""
        driver = self._running
        workspace = self._workspace = driver.workspace()
        self._own_tools = None
        if self._package.view.config.environment.mcp_servers:
            taken = [tool.name for tool in PACKAGE_TOOLS]
            self._own_tools = await EnvironmentTools.start(self._package.view, workspace, os.environ, taken)
        self._tools = _offered(self._package, driver.forbidden, self._own_tools)
        step, contract = driver.step, self._package.view.prompt_plan.user_runtime
        asks, tools = driver.calls.user(step.name), await self._user_tools(contract)
        user = document_user(self._package, contract, os.environ, asks, tools=tools)
        limit = self._limits.agent_timeout_sec or step.timeout_sec
        deadline = None if limit is None else anyio.current_time() + limit
        most = max(len(step.turns), contract.max_rounds or DEFAULT_ROUNDS if user is not None else 1)
        self._rounds = Rounds(user, most, deadline=deadline)
        if user is not None:
            with user_boundary():
                await user.setup(step.prompt, None)
        said = await next_prompt(user, 0, step.turns[0].prompt, step.prompt, None)
        return said if said is not None else step.prompt

    async def _user_tools(self, contract: UserContract) -> UserTools | None:
        """What the simulated user can do itself, if anything."""
        document, driver = self._package.document, self._running
        if document is None or document.user is None or not contract.tools:
            return None
        from benchflow.rollout.user_tools import UserTools

        tools = UserTools(document.user, driver.environment.sandbox)
        agent = driver.step.agent.user
        await tools.check(str(agent) if agent is not None else None)
        return tools

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        if name == SUBMIT:
            return await self._submit(str(arguments.get("message") or ""))
        rounds, workspace = self._rounds, self._workspace
        if workspace is None:
            raise RuntimeError("The episode has no sandbox.")
        rounds.calls += 1
        left = None if rounds.deadline is None else rounds.deadline - anyio.current_time()
        own = self._own_tools
        if own is not None and name in own:
            result = await own.call(name, arguments, seconds=left)
        else:
            result = await run_workspace_tool(workspace, name, arguments, seconds=left)
        reached = self._reached()
        if reached is not None:
            return await self._score(result.text, ended_by=reached)
        if wants_step_rewards(self._package):
            result = self._with_reward(result, (await self._running.evaluate()).total())
        return result

    def _reached(self) -> str | None:
        """The limit that has been reached."""
        deadline, most = self._rounds.deadline, self._limits.max_calls
        if deadline is not None and anyio.current_time() >= deadline:
            return "time_limit"
        return "call_limit" if most is not None and self.progress.calls >= most else None

    async def _submit(self, message: str) -> CallResult:
        reached = self._reached()
        said = None if reached is not None else await self._next_round(message)
        if reached is None and self._running.calls.user_limited:
            said, reached = None, "model_limit"  # as in a rollout, what the agent left is verified
        if said is not None:
            return CallResult(text_blocks(said), metadata=self._where())
        return await self._score("", **({} if reached is None else {"ended_by": reached}))

    async def _next_round(self, message: str) -> str | None:
        """The prompt of the next round of the step; None if there is none."""
        rounds, step = self._rounds, self._running.step
        ended, number = self._turn(), rounds.number + 1
        if number >= rounds.most:
            return None
        declared = step.turns[number] if number < len(step.turns) else None
        following = (declared or step.turns[-1]).role.name
        role = ended.role.name if ended.scene is not None else None
        handed = declared is not None and role is not None and following != role
        last = RoundResult(
            round=rounds.number,
            trajectory=[_said(message)] if message else [],
            rewards=await self._rewards_for(rounds.user),
            n_tool_calls=rounds.calls,
            scene=ended.scene,
            role=role,
        )
        prompt = None if declared is None else declared.prompt
        said = await next_prompt(rounds.user, number, prompt, step.prompt, last)
        if said is None:
            return None
        rounds.number, rounds.calls, rounds.last = number, 0, last
        contract = self._package.view.prompt_plan.user_runtime
        tells = contract.handoff_kind != "none" and contract.handoff_trajectory_visibility != "none"
        return said + handoff_note(last) if handed and tells else said

    async def _rewards_for(self, user: BaseUser | None) -> Mapping[str, float] | None:
        """The rewards of the current state for a user that looks at them."""
        if user is None or not user.wants_rewards:
            return None
        verdict = (await self._running.evaluate(for_user=True)).total()
        return verdict.record()["rewards"] if isinstance(verdict, Scored) else None

    def _turn(self) -> PlannedTurn:
        turns = self._running.step.turns
        return turns[min(self._rounds.number, len(turns) - 1)]

    def _where(self) -> dict[str, Any]:
        """Which step, scene and role the prompt is for."""
        turn, step = self._turn(), self._running.step.name
        found = {"step": step, "scene": turn.scene, "role": turn.role.name if turn.scene is not None else None}
        return {"round": self._rounds.number, **{key: value for key, value in found.items() if value is not None}}

    async def _score(self, text: str, **more: Any) -> CallResult:
        """End the step: its verdict ends the episode, or the next step begins."""
        driver = self._running
        before = driver.step.name
        try:
            with attributed("sandbox", "verify"):
                await driver.advance()
        except Attributed as error:
            return self._end(error.verdict, _joined(text, _closing(error.verdict)), **more)
        self.progress.limits_reached = driver.calls.limits_reached
        more |= limits_metadata(self.progress)
        course = driver.course
        if course.over:
            verdict = course.total()
            return self._end(verdict, _joined(text, _closing(verdict)), **more)
        result = CallResult(text_blocks(_joined(text, await self._begin_step())), metadata={**self._where(), **more})
        if wants_step_rewards(self._package):
            result = self._with_reward(result, course.past[-1].verdict)
        return CallResult(result.blocks, result.reward, False, {**result.metadata, "ended_step": before})

    async def _finish(self) -> Verdict:
        while self.progress.verdict is None:  # steps that are left are scored as they are
            await self._score("")
        return self.progress.verdict

    @property
    def scores_groups(self) -> bool:
        """One step and one turn of which a copy can be made: there, verification is pure."""
        driver = self._driver
        if driver is None or driver.environment.services is not None or self._rounds.user or self._own_tools:
            return False
        return driver.step.name is None and len(driver.step.turns) == 1

    async def scored_copy(self, calls: Sequence[Call]) -> Verdict:
        """Calls that cannot be made change nothing, as in an episode; those after `submit` do not count."""
        driver = await self._running.fork()
        try:
            workspace = driver.workspace()
            known = {tool.name: tool for tool in self._tools}
            for name, arguments in calls:
                if name == SUBMIT:
                    break
                if name in known and wrong_arguments(known[name].input_schema, arguments) is None:
                    await run_workspace_tool(workspace, name, arguments, seconds=driver.step.timeout_sec)
            return self._discretion.told((await driver.evaluate()).total())
        except Exception as error:  # noqa: BLE001 - one candidate of several; it has no score
            return self._discretion.told(attribute(error, "sandbox", "verify"))
        finally:
            with anyio.CancelScope(shield=True):
                await driver.stop()

    async def _release(self) -> None:
        driver, self._driver, self._workspace = self._driver, None, None
        if driver is not None:
            with anyio.CancelScope(shield=True):
                await driver.stop()


def _offered(package: TaskPackage, forbidden: frozenset[str], own: EnvironmentTools | None) -> tuple[ToolSpec, ...]:
    view = package.view
    goes_on = bool(view.steps) or view.mode != "single-shot"
    known = (*TOOLS, *(own.specs if own is not None else ()))
    allowed = (tool for tool in known if normal_tool(tool.name) not in forbidden)
    return (*allowed, submit_tool(goes_on=goes_on))


def _said(message: str) -> Event:
    return {"seq": 0, "time": datetime.now(UTC).isoformat(), "type": "agent_message", "text": message}


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _closing(verdict: Verdict) -> str:
    return "The episode is over." if isinstance(verdict, Scored) else "The episode is over without a score."
