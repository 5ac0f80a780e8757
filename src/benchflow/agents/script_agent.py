"""`script:FILE`: a script of this machine, run inside the sandbox; the simplest agent.

Each prompt runs the script once, by the interpreter it names, else in bash or sh, as the agent's user, in the working
folder, with closed input; in an arena, with the message as its input. The script and the prompt are in the sandbox only
while the agent is open.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Final

from benchflow.agents.protocol import Agent, AgentContext, AgentInfo, AgentKind, AgentRequest, TurnResult
from benchflow.agents.running import NOT_REMOVED, OutputLog, run_as_root, run_to_end
from benchflow.errors import AgentFailure, SandboxFailure, UsageError
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.sandbox.inside.script_shell import script_command

MAX_SCRIPT: Final = 8 << 20


class ScriptAgent(Agent):
    """Runs a script, given as its bytes."""

    asks_inside = True

    def __init__(self, name: str, script: bytes) -> None:
        self.name = name
        self._script = script
        self._context: AgentContext | None = None
        self._folder = f"/tmp/.agent-{secrets.token_hex(8)}"  # noqa: S108 - inside the sandbox, in a folder of root's

    async def start(self, context: AgentContext) -> None:
        await context.sandbox.write_file(f"{self._folder}/script.sh", self._script, mode=0o755)
        self._context = context

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        context = self._context
        if context is None:
            raise AgentFailure(f"The agent '{self.name}' is not running.", code="not-started")
        prompt_file = f"{self._folder}/prompt.md"
        await context.sandbox.write_file(prompt_file, text.encode())
        models = context.models.variables() if context.models is not None else {}
        env = {**models, **context.env, "BENCHFLOW_PROMPT_FILE": prompt_file}
        context.events("agent_started", agent=self.name)
        log = OutputLog(context.log_folder / "script.txt", context.redactor)
        try:
            ended = await run_to_end(
                context,
                script_command(self._script, f"{self._folder}/script.sh"),
                log,
                user=context.user,
                env=env,
                timeout=timeout,
                given=text.encode(errors="replace") if context.peer else b"",
            )
        finally:
            log.close()
        if ended.timed_out:
            context.events("agent_timeout", reason="the time limit was reached", timeout_sec=timeout)
        context.events("agent_ended", exit_code=ended.exit_code, timed_out=ended.timed_out)
        return ended.turn()

    async def close(self) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        try:
            await run_as_root(context.sandbox, ["rm", "-rf", "--", self._folder], self._folder)
        except SandboxFailure as error:
            # The agent can break what removes its script (rm, libc, all of its memory), and the script is no secret:
            # such a failure must not spare the agent its score.
            if error.code != NOT_REMOVED:
                raise


def _from_file(request: AgentRequest) -> ScriptAgent:
    if not request.argument:
        raise UsageError("The agent 'script' needs a file: script:FILE.", code="agent-argument")
    return ScriptAgent(request.name, _read(Path(request.argument)))


def script_digest(agent: str) -> str | None:
    """The digest of the file of an agent that is a script; None for another one, or if it cannot be read."""
    kind, _, file = agent.partition(":")
    if kind != KIND.info.name:
        return None
    try:
        return hashlib.sha256(_read(Path(file))).hexdigest()
    except UsageError:
        return None


def _read(path: Path) -> bytes:
    try:
        return read_regular(path.resolve(strict=True), max_bytes=MAX_SCRIPT)
    except FileNotFoundError:
        raise UsageError(f"The script '{path}' does not exist.", code="script-missing") from None
    except RefusedFileError as error:
        raise UsageError(f"The script '{path}' {error}.", code="script-refused") from error
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"The script '{path}' cannot be read: {reason}.", code="script-refused") from error


KIND: Final = AgentKind(
    AgentInfo(
        "script",
        "Runs a local shell script inside the sandbox.",
        "process",
        argument="FILE",
        needs=("sh in the environment",),
        models="variables",
    ),
    agent=_from_file,
)
