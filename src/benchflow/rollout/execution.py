"""What happens inside a started environment: step by step the agent works, is frozen, and its work is verified."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio

from benchflow.record import AgentEnd, StepRecord, Workspace, outcome_of
from benchflow.record.reward_log import write_rewards
from benchflow.rewards import Attributed, Verdict, attributed
from benchflow.rollout.branches import BranchTree
from benchflow.rollout.context import RolloutContext
from benchflow.rollout.draft import Draft
from benchflow.rollout.permissions import Gatekeeper, confirms
from benchflow.rollout.phases.begin import begin, is_imported
from benchflow.rollout.phases.freeze import collect, end_processes, keeps_processes
from benchflow.rollout.phases.keep import keep_workspace, not_kept
from benchflow.rollout.plan import StepPlan, make_user
from benchflow.rollout.policies import Audit, audit
from benchflow.rollout.rounds import Conversation
from benchflow.rollout.stage import Stage
from benchflow.rollout.steps import NOT_REACHED, ends_task, step_record, total
from benchflow.verifier import Verification


@dataclass(slots=True)
class Execution:
    """The steps of one rollout, in order, in one environment."""

    context: RolloutContext
    draft: Draft
    _branches: BranchTree | None = None
    _steps: list[StepRecord] = field(default_factory=list)
    _agent: AgentEnd | None = None
    """What the agent of the last step came to."""

    async def run(self) -> Verdict:
        """Carry out all steps; raises `Attributed` when one of them ends in anything but a verdict."""
        plan = self.context.plan
        if plan.branches:
            self._branches = BranchTree(self.context, self._gatekeeper)
        if plan.steps[0].name is None:
            return await self._single(plan.steps[0])
        return await self._several()

    async def _single(self, step: StepPlan) -> Verdict:
        try:
            checked = await self._step(step)
        finally:
            self._record_branches()
        self.draft.verifier = checked.record()
        self._reward_events(checked.verdict, None, final=True)
        return checked.verdict

    async def _several(self) -> Verdict:
        plan = self.context.plan
        names = [str(step.name) for step in plan.steps]
        try:
            for step in plan.steps:
                record = await self._recorded(step)
                self._steps.append(record)
                if ends_task(record):
                    break
        finally:
            missing = names[len(self._steps) :]
            self._steps += [StepRecord(name=name, outcome=NOT_REACHED) for name in missing]
            self.draft.steps = tuple(self._steps)
            self._record_branches()
        verdict = total(self._steps, plan.view.config.multi_step_reward_strategy)
        self._reward_events(verdict, None, final=True)
        return verdict

    async def _recorded(self, step: StepPlan) -> StepRecord:
        """One step as its record; trouble of the machine or the sandbox ends the rollout, and is its own record."""
        name = str(step.name)
        before = len(self.draft.notes.artifacts)
        try:
            checked = await self._step(step)
        except Attributed as error:
            self._steps.append(StepRecord(name=name, outcome=outcome_of(error.verdict)))
            reason = f"step {name}: {error.verdict.reason}"
            raise Attributed(replace(error.verdict, reason=reason)) from error
        self.draft.verifier = checked.record()
        verdict = checked.verdict
        self._reward_events(verdict, name, final=False)
        minimum = step.view.config.min_reward if step.view is not None else None
        artifacts = self.draft.notes.artifacts[before:]
        return step_record(name, checked, minimum, agent=self._agent, artifacts=artifacts)

    async def _step(self, step: StepPlan) -> Verification:
        context, draft = self.context, self.draft
        with draft.timed("environment"), attributed("environment", "environment"):
            await begin(context.environment, step)
        with draft.timed("agent"), attributed("agent", "agent"):
            await self._interact(step)
            with attributed("sandbox", "agent"):
                await self._freeze(step)
            self._audit()
        with draft.timed("verify"), attributed("verifier", "verify"):
            place = context.folder.step(step.name).verifier
            return await context.verifier.verify(place, rollout=context.folder.path, step=step.name)

    async def _interact(self, step: StepPlan) -> None:
        context = self.context
        sandbox = context.environment.sandbox
        stage = Stage(context, step, sandbox, context.folder.step(step.name).agent, self._gatekeeper())
        user = make_user(context.package, context.plan, context.config, context.machine)
        conversation = Conversation(context, stage, user)
        try:
            try:
                await conversation.run()
            finally:
                await stage.close()
                self._agent = stage.tally.end()
                self.draft.add_agent(self._agent, stage.tally.usage)
            if self._branches is not None:
                await self._branches.grow(step, conversation.points)
        finally:
            if conversation.points:
                with anyio.CancelScope(shield=True):
                    for point in conversation.points:
                        await point.base.stop()

    def _gatekeeper(self) -> Gatekeeper:
        context = self.context
        declared = context.plan.view.prompt_plan.user_runtime.confirmation_policy
        return Gatekeeper(context.config.on_ask_user, needs_human=confirms(declared))

    async def _freeze(self, step: StepPlan) -> None:
        """The agent is over: its processes end unless they are the solution, and what it made is collected."""
        context = self.context
        sandbox = context.environment.sandbox
        await end_processes(context.environment, step.name)
        target = context.folder.step(step.name).artifacts
        collected = await collect(sandbox, step.artifacts, target, conventional=is_imported(context.plan.view))
        named = tuple(replace(item, step=step.name) for item in collected)
        self.draft.note(artifacts=self.draft.notes.artifacts + named)
        self._record_workspace(await self._keep(step), step)

    async def _keep(self, step: StepPlan) -> Workspace:
        """Pack the workspace, so that it can be scored again, unless it would not say what the verifier sees now."""
        context = self.context
        sandbox = context.environment.sandbox
        if not context.config.keep_workspace:
            return not_kept("It was not asked for.")
        if context.environment.services is not None or sandbox.spec.composition is not None:
            return not_kept("Services of the environment have state that cannot be saved.")
        if keeps_processes(context.plan.view, step.name) and await sandbox.has_processes():
            return not_kept("The verifier needs running processes, which cannot be saved.")
        place = context.folder.step(step.name).workspace
        return await keep_workspace(sandbox, place, context.redactor, without=context.installed)

    def _record_workspace(self, found: Workspace, step: StepPlan) -> None:
        """Of several steps the first that was not kept counts, else the sum."""
        known = self.draft.notes.workspace
        if known is not None and not known.kept:
            return
        if not found.kept and step.name is not None:
            found = replace(found, reason=f"step {step.name}: {found.reason}")
        elif found.kept and known is not None:
            entries, size = (found.entries or 0) + (known.entries or 0), (found.bytes or 0) + (known.bytes or 0)
            found = replace(found, entries=entries, bytes=size)
        self.draft.note(workspace=found)

    def _audit(self) -> None:
        found: Audit | None = audit(self.context.plan.view.namespace.agent_policy, self.context.trajectory.calls)
        if found is not None:
            self.draft.note(audit=found.record())
            found.enforce()

    def _record_branches(self) -> None:
        if self._branches is not None:
            self.draft.note(branches=tuple(self._branches.nodes))

    def _reward_events(self, verdict: Verdict, step: str | None, *, final: bool) -> None:
        write_rewards(self.context.folder.rewards, verdict, self.context.redactor, step=step, final=final)
