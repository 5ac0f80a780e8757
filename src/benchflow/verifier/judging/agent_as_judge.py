"""An agent that judges: it examines the evidence in a box of its own and leaves one verdict.

Whatever goes wrong with it is a `JudgeFailure`, never a score: it cannot start, ends without a verdict, exceeds its
time, gives two verdicts that differ, or loses its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.agents.protocol import Agent, TurnResult
from benchflow.agents.registry import create_agent
from benchflow.agents.script_agent import ScriptAgent
from benchflow.errors import (
    AgentFailure,
    InfrastructureFailure,
    Issue,
    JudgeFailure,
    PackageError,
    SandboxFailure,
    UsageError,
)
from benchflow.files.redaction import Redactor
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record import Trajectory
from benchflow.sandbox.protocol import NO_SUCH_FILE, OF_THE_FILE, Sandbox
from benchflow.task.verifier.declared_strategies import AgentJudgeStrategy
from benchflow.verifier.judging.answers import parse_verdict
from benchflow.verifier.judging.judge_box import box_context, judge_box
from benchflow.verifier.scope import Scope
from benchflow.verifier.strategy_run import Run

if TYPE_CHECKING:
    from benchflow.models.gateway import Grant

MAX_VERDICT: Final = 1 << 20
_ENDED: Final = frozenset({"end_turn", "exited"})
_GRACE_SEC: Final = 30.0
_CLOSE_SEC: Final = 30.0


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge left."""

    verdict: Mapping[str, Any]
    said: str
    """Its verdict as it stood in the file or the message."""
    usage: Mapping[str, float]


def make_judge(scope: Scope, strategy: AgentJudgeStrategy, model: str | None, variables: Mapping[str, str]) -> Agent:
    """The agent of a judge, not started: a script of the verifier, or any other agent by name."""
    if strategy.agent is None:
        raise TypeError("the strategy names no agent")
    if strategy.script is None:
        return create_agent(strategy.agent, model, environ=variables)
    file = scope.file(strategy.script)
    if file is None:
        message = f"The script of the judge, {strategy.script}, is not in the verifier folder."
        raise PackageError(message, code="missing-file", file="verifier.md")
    return ScriptAgent(strategy.agent, file.read_bytes())


async def ask_agent(
    run: Run, strategy: AgentJudgeStrategy, prompt: str, files: Path, trajectory: Path, variables: Mapping[str, str]
) -> Judged:
    """Let the agent judge the evidence in `files`; what it does is recorded in `trajectory`."""
    limit = run.scope.config.timeout_sec
    try:
        agent = make_judge(run.scope, strategy, strategy.model, variables)
        secrets = [variables[name] for name in agent.variables() if variables.get(name)]
        redactor = Redactor((*run.variables.secret.values(), *secrets))
        async with judge_box(run, agent, files) as sandbox:
            with Trajectory(trajectory, redactor) as events:
                logs = run.output / "judge"
                async with box_context(run, agent, sandbox, variables, events, redactor, logs, strategy.model) as (
                    context,
                    grant,
                ):
                    events("user_message", text=prompt)
                    try:
                        with anyio.fail_after(limit + _GRACE_SEC):
                            await agent.start(context)
                            result = await agent.prompt(prompt, timeout=limit)
                    finally:
                        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SEC):
                            await agent.close()
                    _require_ended(result, grant, limit)
            # Nothing in the box runs any more: what is read now is what it left.
            await sandbox.kill_processes()
            said = context.redactor.text(await _verdict_of(sandbox, strategy, result))
    except TimeoutError:
        raise _too_slow(limit) from None
    except (AgentFailure, InfrastructureFailure, UsageError) as error:
        raise JudgeFailure(f"The judge '{strategy.agent}' failed: {error}", code="judge-failed") from error
    if result.exit_code:
        message = f"The judge left a verdict but exited with code {result.exit_code}."
        run.findings.add(Issue("verifier-exit", "warning", "", message))
    return Judged(_parsed(strategy, said), said, result.usage)


def _require_ended(result: TurnResult, grant: Grant, limit: float) -> None:
    """Only a judge that ended by itself, with every call of a model answered at last, has a verdict."""
    if grant.limit is not None:
        raise JudgeFailure(f"The judge could not finish. {grant.limit}", code="judge-unavailable")
    unreached = grant.failure_of("judge", "judge")
    if unreached is not None:
        raise JudgeFailure(f"The judge lost its model: {unreached.error()}", code="judge-unavailable")
    if result.timed_out:
        raise _too_slow(limit)
    if result.stop_reason not in _ENDED:
        raise JudgeFailure(f"The judge ended without finishing: {result.stop_reason}.", code="judge-failed")


def _too_slow(limit: float) -> JudgeFailure:
    return JudgeFailure(f"The judge exceeded its limit of {limit:g} s.", code="judge-timeout")


async def _verdict_of(sandbox: Sandbox, strategy: AgentJudgeStrategy, result: TurnResult) -> str:
    """The text with the verdict, from where the package declares it, and from nowhere else."""
    place = strategy.verdict_file
    if place is None:
        if not result.text.strip():
            raise JudgeFailure("The judge ended without a message, which is its verdict.", code="judge-no-verdict")
        return result.text
    try:
        return (await sandbox.read_file(place, max_bytes=MAX_VERDICT)).decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise JudgeFailure(f"The verdict in {place} is not text.", code="judge-answer-invalid") from None
    except SandboxFailure as error:
        if error.code not in OF_THE_FILE:
            raise
        if error.code == NO_SUCH_FILE:
            raise JudgeFailure(f"The judge ended without its verdict, {place}.", code="judge-no-verdict") from error
        raise JudgeFailure(f"The verdict in {place} cannot be used: {error}", code="judge-answer-invalid") from error


def _parsed(strategy: AgentJudgeStrategy, said: str) -> Mapping[str, Any]:
    """The verdict: a file is one JSON object and nothing else, a message contains one."""
    if strategy.verdict_file is None:
        return parse_verdict(said)
    try:
        found = parse_json(said.encode())
    except StrictJSONError as error:
        message = f"The verdict in {strategy.verdict_file} is not valid JSON: {error}"
        raise JudgeFailure(message, code="judge-answer-invalid") from error
    if not isinstance(found, dict):
        raise JudgeFailure(f"The verdict in {strategy.verdict_file} is not a JSON object.", code="judge-answer-invalid")
    return found
