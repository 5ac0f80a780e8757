"""`script`: a command of the verifier leaves the reward in `/logs/verifier`."""

from __future__ import annotations

import re
import shlex
from typing import Final

import anyio.to_thread

from benchflow.errors import PackageError
from benchflow.rewards import Scored, read_reward
from benchflow.sandbox.inside.beneath import is_plain
from benchflow.sandbox.inside.script_shell import starter
from benchflow.sandbox.protocol import ExecResult
from benchflow.task.verifier.declared_strategies import ScriptStrategy
from benchflow.verifier.boxes import keep_output, timed_out
from benchflow.verifier.kit import FOLDER, kit_files
from benchflow.verifier.scope import VERIFIER
from benchflow.verifier.strategy_run import Run, declared_policy, keep_artifacts, missing_reward

_COMPOUND: Final = re.compile(r"[;&|<>()`\n]")


async def score(run: Run) -> Scored:
    """Run the command and read the reward that it left."""
    strategy = run.strategy
    if not isinstance(strategy, ScriptStrategy):
        raise TypeError(f"{run.name} is not a script")
    declared = run.scope.document is not None
    if declared:
        _require_safe(strategy.command)
    kit = _uses_kit(run, strategy.command)
    files = await anyio.to_thread.run_sync(kit_files, run.scope.folders, run.rollout) if kit else None
    async with run.box(files) as box:
        timeout = run.scope.config.timeout_sec
        cwd = VERIFIER if declared else box.sandbox.spec.workdir
        result = await box.run(_command(run, strategy.command, declared=declared, kit=kit), cwd=cwd, timeout=timeout)
        await finish(run, result)
        if result.timed_out:
            raise timed_out(timeout)
        await box.collect(run.output)
        await keep_artifacts(run, box)
    with missing_reward(run, result):
        return read_reward(run.output, reward_range=run.scope.reward_range, policy=declared_policy(run))


def _command(run: Run, command: str, *, declared: bool, kit: bool) -> str | list[str]:
    """The command: a declared one runs in the shell; otherwise it is the path of the test script.

    A script of the verifier that names no interpreter runs in bash if there is one.
    """
    program = shlex.split(command)[0] if declared else command
    script = run.scope.file(program.removeprefix(f"{run.scope.mount}/").removeprefix("./"))
    is_path = not declared or "/" in program
    start = starter(script) if script is not None and is_path else ""
    if not kit and not declared and not start:
        return [command]
    path = f'PATH="$PATH:{run.scope.mount}/{FOLDER}/bin"\n' if kit else ""
    # No shell stays between the script and its starter, which has to see who ended the script.
    start = f"exec {start}" if not declared or (start and not _COMPOUND.search(command)) else start
    return f"{path}{start}{command if declared else shlex.quote(command)}"


def _uses_kit(run: Run, command: str) -> bool:
    """Whether the command, or the script it names, calls `rewardkit`; an installed one takes precedence."""
    words = dict.fromkeys([command, *(word for word in command.split() if not word.startswith("-"))])
    scripts = (run.scope.file(word.removeprefix(f"{run.scope.mount}/").removeprefix("./")) for word in words)
    texts = [command, *(path.read_text(errors="replace") for path in scripts if path is not None)]
    return any("rewardkit" in text for text in texts)


async def finish(run: Run, result: ExecResult) -> None:
    """Keep the output and the exit code of a verifier command."""
    run.findings.exit_code = result.exit_code
    keep_output(result, run.output, run.variables.redact)


def _require_safe(command: str) -> None:
    """Check that the first word is a program of the environment or a file of the verifier folder."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PackageError(f"The command of the verifier cannot be parsed: {error}.", code="invalid-command") from error
    if not words or words[0].startswith("/") or not is_plain(words[0]):
        message = f"The command of the verifier must be a file of its folder or a program of the environment: {command}"
        raise PackageError(message, code="invalid-command")
