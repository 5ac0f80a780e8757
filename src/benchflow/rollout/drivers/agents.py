"""`AgentDriver`: agents take the steps of a rollout in turns; their work is frozen, kept and verified.

begin ──> turns (and branches) ──> freeze, keep, audit ──> verify
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from benchflow.errors import InfrastructureFailure
from benchflow.record import AgentEnd, Artifact, Workspace
from benchflow.record.trajectory import write_rewards
from benchflow.rewards import Verdict, attributed
from benchflow.rollout.course import Checkpoint, Course, Past
from benchflow.rollout.drivers.conversation import Conversation
from benchflow.rollout.drivers.turns import AgentTally, Gatekeeper, OpenAgents, TurnContext, confirms
from benchflow.rollout.lifecycle import Draft, Driver
from benchflow.rollout.phases.keep import keep
from benchflow.rollout.phases.step_bounds import begin, collect, end_processes, is_imported
from benchflow.rollout.plan import HandoffPlan, StepPlan, make_user
from benchflow.rollout.policies import audit, forbidden_tools

if TYPE_CHECKING:
    from benchflow.models.gateway import Access
    from benchflow.rollout.drivers.branches import BranchTree
    from benchflow.rollout.user_tools import UserTools


class AgentDriver(Driver):
    """The steps of one rollout, in order, in one environment."""

    def __init__(self, context: TurnContext, draft: Draft) -> None:
        super().__init__(Course.of(context.plan.view))
        self._context: Final = context
        self._draft: Final = draft
        self._branches: BranchTree | None = None
        if context.plan.branches:
            from benchflow.rollout.drivers.branches import BranchTree

            self._branches = BranchTree(context, self._gatekeeper)

    async def walk(self) -> Verdict:
        try:
            verdict = await super().walk()
        finally:
            if self._branches is not None:
                self._draft.note(branches=tuple(self._branches.nodes))
        self._log_reward(verdict)
        return verdict

    async def take_step(self, step: Checkpoint) -> Past:
        context, draft, name = self._context, self._draft, step.name
        plan = context.plan.steps[self.course.number]
        with draft.timed("environment"), attributed("environment", "environment"):
            await begin(context.environment, plan)
        with draft.timed("agent"), attributed("agent", "agent"):
            end = await self._interact(plan)
            with attributed("sandbox", "agent"):
                artifacts = await self._freeze(plan)
            await self._audit()
        with draft.timed("verify"), attributed("verifier", "verify"):
            context.trajectory("verification", step=name)
            place = context.folder.step(name).verifier
            checked = await context.verifier.verify(place, rollout=context.folder.path, step=name)
        if name is not None:
            self._log_reward(checked.verdict, name)
        return Past(checked.verdict, checked.record(), end, artifacts)

    async def _interact(self, step: StepPlan) -> AgentEnd:
        context = self._context
        if context.plan.handoff is not None and context.plan.handoff.apart:
            return await self._work_apart(step, context.plan.handoff)
        place = context.folder.step(step.name).agent
        agents = OpenAgents(context, step, context.environment.sandbox, place, self._gatekeeper())
        tools = await self._user_tools(step)
        user = make_user(context.package, context.plan, context.config, context.machine, self._heard(step), tools)
        conversation = Conversation(context, agents, user, user_tools=tools)
        try:
            try:
                await conversation.run()
            finally:
                await agents.close()
                end = agents.tally.end()
                self._draft.add_agent(end, agents.tally.usage)
                self._draft.note_calls(context.grant)
            if context.tools is not None:
                context.tools.require_intact()
            if self._branches is not None:
                await self._branches.grow(step, conversation.points)
        finally:
            if conversation.points:
                with anyio.CancelScope(shield=True):
                    for point in conversation.points:
                        await point.base.stop()
        return end

    async def _user_tools(self, step: StepPlan) -> UserTools | None:
        """The tools of the document's user, if it has any and plays."""
        document, contract = self._context.package.document, self._context.plan.user
        if document is None or document.user is None or not contract.tools:
            return None
        from benchflow.rollout.user_tools import UserTools

        tools = UserTools(document.user, self._context.environment.sandbox)
        with attributed("environment", "environment"):
            await tools.check(str(step.agent.user) if step.agent.user is not None else None)
        return tools

    async def _work_apart(self, step: StepPlan, handoff: HandoffPlan) -> AgentEnd:
        """The roles of a team, each in a line of its own."""
        from benchflow.rollout.drivers.team import Team

        context, total = self._context, AgentTally()
        team = Team(context, step, handoff, self._gatekeeper)
        try:
            await team.run()
        finally:
            for agents in team.agents.values():
                total.join(agents.tally)
            self._draft.add_agent(total.end(), total.usage)
            self._draft.note_calls(context.grant)
        reached = (*self._draft.notes.limits_reached, *team.limits_reached)
        self._draft.note(limits_reached=tuple(dict.fromkeys(reached)))
        if context.tools is not None:
            context.tools.require_intact()
        return total.end()

    def _heard(self, step: StepPlan) -> Access | None:
        """The way to models of a user."""
        if self._context.grant is None:
            return None
        from benchflow.record.model_calls import CallPlace

        return self._context.grant.seat(CallPlace("user", "user", step.name))

    def _gatekeeper(self) -> Gatekeeper:
        context = self._context
        declared = context.plan.view.prompt_plan.user_runtime.confirmation_policy
        return Gatekeeper(context.config.on_ask_user, needs_human=confirms(declared))

    async def _freeze(self, step: StepPlan) -> tuple[Artifact, ...]:
        """End the agents' processes, copy out artifacts, and keep the workspace."""
        environment, draft = self._context.environment, self._draft
        await end_processes(environment, step.name)
        reached = await environment.sandbox.limits_reached()
        draft.note(limits_reached=tuple(dict.fromkeys(draft.notes.limits_reached + reached)))
        target = self._context.folder.step(step.name).artifacts
        conventional = is_imported(self._context.plan.view)
        found = await collect(environment.sandbox, step.artifacts, target, conventional=conventional)
        artifacts = tuple(replace(item, step=step.name) for item in found)
        draft.note(artifacts=draft.notes.artifacts + artifacts)
        await self._keep(step)
        return artifacts

    async def _keep(self, step: StepPlan) -> None:
        """Keep the workspace, if that is wanted. Of several steps the first that was not kept counts, else the sum."""
        context, known = self._context, self._draft.notes.workspace
        found = Workspace(kept=False, reason="It was not asked for.")
        if context.config.keep_workspace:
            place = context.folder.step(step.name).workspace
            found = await keep(context.environment, step.name, place, context.redactor, without=context.installed)
        if known is not None and not known.kept:
            return
        if not found.kept and step.name is not None:
            found = replace(found, reason=f"step {step.name}: {found.reason}")
        elif found.kept and known is not None:
            entries, size = (found.entries or 0) + (known.entries or 0), (found.bytes or 0) + (known.bytes or 0)
            found = replace(found, entries=entries, bytes=size)
        self._draft.note(workspace=found)

    async def _audit(self) -> None:
        context, policy = self._context, self._context.plan.view.namespace.agent_policy
        if policy is None:
            return
        wire = None
        if context.grant is not None and (forbidden := forbidden_tools(policy)):
            from benchflow.models.called_tools import read_wire_tools

            try:  # in a thread: records of thousands of calls take seconds, and other rollouts share this loop
                wire = await anyio.to_thread.run_sync(read_wire_tools, context.folder, forbidden)
            except (OSError, ValueError) as error:
                message = f"The model calls of the rollout cannot be audited: {error}."
                raise InfrastructureFailure(message, code="calls-unreadable") from error
        found = audit(policy, context.trajectory.calls, wire)
        if found is not None:
            self._draft.note(audit=found.record())
            found.enforce()

    def _log_reward(self, verdict: Verdict, step: str | None = None) -> None:
        context = self._context
        write_rewards(context.folder.rewards, verdict, context.redactor, step=step, final=step is None)
