"""`oracle`: the package's own solution, which proves that the task can be solved.

Its files are inside the sandbox, at `/oracle` and through a link at `/solution`, only while `solve.sh` runs, as root in
the working folder, with the variables of `oracle.env`. An environment with its own files there is refused: they would
be mixed with the oracle's and removed with them. Empty folders are replaced.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from benchflow.agents.protocol import Agent, AgentContext, AgentInfo, AgentKind, AgentRequest, TurnResult
from benchflow.agents.running import OutputLog, run_as_root, run_to_end
from benchflow.errors import AgentFailure, EnvironmentFailure, PackageError, SandboxFailure
from benchflow.sandbox.inside.script_shell import BASH_OR_SH, names_interpreter

FOLDER: Final = "/oracle"
ALIAS: Final = "/solution"
SCRIPT: Final = "solve.sh"
_TAKEN: Final = 119
_TAKEN_MARK: Final = ".taken"
_MESSAGE: Final = ".message"
_KILLED: Final = 128
"""Exit codes from here on mean a signal."""
_RUN: Final = f"""\
for path in {FOLDER} {ALIAS}; do
  if [ -d "$path" ] && [ ! -L "$path" ] && rmdir "$path" 2>/dev/null; then continue; fi
  if [ -e "$path" ] || [ -L "$path" ]; then echo "$path" > "$1/{_TAKEN_MARK}"; exit {_TAKEN}; fi
done
mv "$1" {FOLDER} && ln -s {FOLDER} {ALIAS} || exit {_TAKEN}
[ -x "{FOLDER}/$3" ] || chmod a+rx "{FOLDER}/$3"
if [ -n "$2" ]; then {BASH_OR_SH} "{FOLDER}/$3"; else "{FOLDER}/$3"; fi
code=$?
rm -rf {FOLDER} {ALIAS}
exit $code
"""
"""Moves the files into place, runs the solution, and removes them: one command, because each one costs time.

The second argument is not empty if the solution names no interpreter, the third is its name."""
_REMOVE: Final = f'if [ -e "$1" ]; then rm -rf "$1"; else rm -rf {FOLDER} {ALIAS}; fi'
"""The folder of the upload is gone exactly if it was moved to become the oracle's."""


class OracleAgent(Agent):
    def __init__(self, request: AgentRequest) -> None:
        self.name = request.name
        self._context: AgentContext | None = None
        self._uploaded: str | None = None
        """Where the files were uploaded to; None if none are inside."""

    async def start(self, context: AgentContext) -> None:
        oracle_folder(context)
        self._context = context

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        context = self._context
        if context is None:
            raise AgentFailure("The oracle is not running.", code="not-started")
        place = self._uploaded = f"/.oracle-{secrets.token_hex(8)}"
        folder = oracle_folder(context)
        await context.sandbox.upload(folder, place)
        env = {"DEBIAN_FRONTEND": "noninteractive", **context.env, **context.oracle_env}
        script = context.oracle_script
        if context.peer:
            await context.sandbox.write_file(f"{place}/{_MESSAGE}", text.encode(errors="replace"))
            env["BENCHFLOW_PROMPT_FILE"] = f"{FOLDER}/{_MESSAGE}"
        log = OutputLog(context.log_folder / "oracle.txt", context.redactor)
        in_shell = "" if names_interpreter(folder / script) else "yes"
        command = ("sh", "-c", _RUN, "sh", place, in_shell, script)
        try:
            given = text.encode(errors="replace") if context.peer else b""
            ended = await run_to_end(context, command, log, user="root", env=env, timeout=timeout, given=given)
        finally:
            log.close()
        if ended.exit_code == _TAKEN:
            await self._refuse_if_taken(context, place)
        if ended.exit_code is not None and ended.exit_code < _KILLED:
            self._uploaded = None  # the command has ended and removed them
        context.events("oracle", command=f"{FOLDER}/{script}", return_code=ended.exit_code, stdout=log.tail)
        if ended.timed_out:
            context.events("agent_timeout", reason="the time limit was reached", timeout_sec=timeout)
        return ended.turn()

    async def close(self) -> None:
        context, self._context = self._context, None
        place, self._uploaded = self._uploaded, None
        if context is not None and place is not None:
            await run_as_root(context.sandbox, ["sh", "-c", _REMOVE, "sh", place], "the oracle's files")

    async def _refuse_if_taken(self, context: AgentContext, place: str) -> None:
        try:
            taken = (await context.sandbox.read_file(f"{place}/{_TAKEN_MARK}")).decode(errors="replace").strip()
        except SandboxFailure:
            return  # the solution itself exited with this code
        raise EnvironmentFailure(
            f"The environment already has files at {taken}, where the oracle's files are placed during its phase.",
            code="path-taken",
        )


def oracle_folder(context: AgentContext) -> Path:
    """The folder with the solution on this machine; a package without one cannot be run with `oracle`."""
    if context.oracle_dir is not None:
        candidates = [context.oracle_dir]
    elif context.package_dir is not None:
        candidates = [context.package_dir / name for name in ("oracle", "solution")]
    else:
        candidates = []
    folder = next((path for path in candidates if path.is_dir()), None)
    script = context.oracle_script
    if folder is None or not (folder / script).is_file():
        name = folder.name if folder is not None else "oracle"
        raise PackageError(
            f"The package has no {name}/{script}, so the agent 'oracle' has nothing to run.",
            code="oracle-missing",
            file=f"{name}/{script}",
        )
    return folder


KIND: Final = AgentKind(
    AgentInfo(
        "oracle",
        "Runs the package's own solution.",
        "process",
        needs=("oracle/solve.sh or solution/solve.sh in the package",),
        models="none",
    ),
    agent=OracleAgent,
)
