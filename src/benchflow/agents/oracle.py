"""`oracle`: the package's own solution, which proves that the task can be solved.

Its files are inside the sandbox, at `/oracle` and through a link at `/solution`, only while the agent is open;
`solve.sh` runs as root in the working folder, with the variables of `oracle.env`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchflow.agents.log import OutputLog
from benchflow.agents.placement import claim_folder, remove_inside
from benchflow.agents.protocol import Agent, AgentContext, AgentInfo, AgentKind, AgentRequest, TurnResult
from benchflow.agents.running import run_to_end
from benchflow.errors import AgentFailure, PackageError

FOLDER: Final = "/oracle"
ALIAS: Final = "/solution"
SCRIPT: Final = "solve.sh"
_RUN: Final = ("sh", "-c", 'chmod a+rx "$1" && exec "$1"', "sh", f"{FOLDER}/{SCRIPT}")


class OracleAgent(Agent):
    def __init__(self, request: AgentRequest) -> None:
        self.name = request.name
        self._context: AgentContext | None = None

    async def start(self, context: AgentContext) -> None:
        source = oracle_folder(context)
        await claim_folder(context.sandbox, FOLDER, ALIAS)
        self._context = context
        await context.sandbox.upload(source, FOLDER)

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        del text
        context = self._context
        if context is None:
            raise AgentFailure("The oracle is not running.", code="not-started")
        env = {"DEBIAN_FRONTEND": "noninteractive", **context.env, **context.oracle_env}
        log = OutputLog(context.log_folder / "oracle.txt", context.redactor)
        try:
            ended = await run_to_end(context, _RUN, log, user="root", env=env, timeout=timeout)
        finally:
            log.close()
        context.events("oracle", command=f"{FOLDER}/{SCRIPT}", return_code=ended.exit_code, stdout=log.tail)
        if ended.timed_out:
            context.events("agent_timeout", reason="time is over", timeout_sec=timeout)
        return ended.turn()

    async def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            await remove_inside(context.sandbox, FOLDER, ALIAS)


def oracle_folder(context: AgentContext) -> Path:
    """The folder with the solution on this machine; a package without one cannot be run with `oracle`."""
    if context.oracle_dir is not None:
        candidates = [context.oracle_dir]
    elif context.package_dir is not None:
        candidates = [context.package_dir / name for name in ("oracle", "solution")]
    else:
        candidates = []
    folder = next((path for path in candidates if path.is_dir()), None)
    if folder is None or not (folder / SCRIPT).is_file():
        name = folder.name if folder is not None else "oracle"
        raise PackageError(
            f"The package has no {name}/{SCRIPT}, so the agent 'oracle' has nothing to run.",
            code="oracle-missing",
            file=f"{name}/{SCRIPT}",
        )
    return folder


KIND: Final = AgentKind(
    AgentInfo(
        "oracle",
        "Runs the package's own solution.",
        "process",
        needs=("oracle/solve.sh or solution/solve.sh in the package",),
    ),
    agent=OracleAgent,
)
