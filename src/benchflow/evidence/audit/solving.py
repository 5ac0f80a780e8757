"""What a solution leaves: the package's oracle is run once, and the files that it created or changed are listed.

These are the outputs that an attacker would forge; texts name only some of them. In: a stage. Out: `Solved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from benchflow.agents.oracle_agent import OracleAgent
from benchflow.agents.protocol import Agent, AgentContext, AgentRequest, TurnResult
from benchflow.errors import SandboxFailure
from benchflow.evidence.trial_stage import Stage
from benchflow.rollout.plan import ORACLE

MAX_WRITTEN: Final = 200
_LIST_SEC: Final = 60.0
_STAMP: Final = "/tmp/.audit-stamp"  # noqa: S108 - inside the sandbox, where only the oracle runs
_LIST: Final = f"""\
skip='-path /proc -o -path /sys -o -path /dev -o -path /run -o -path /logs -o -path /usr/lib -o -path /usr/share'
skip="$skip -o -path /var/lib -o -path /var/cache -o -path /var/log -o -name .git -o -name node_modules"
skip="$skip -o -name __pycache__ -o -name .cache -o -name site-packages -o -name .npm -o -name .pytest_cache"
newer=-cnewer; find {_STAMP} -cnewer {_STAMP} >/dev/null 2>&1 || newer=-newer
find / "$PWD" -xdev \\( $skip \\) -prune -o -type f $newer {_STAMP} -size -4096k -print 2>/dev/null |
  grep -v '^{_STAMP}$' | sort -u | head -n {MAX_WRITTEN} |
  while IFS= read -r path; do sha256sum "$path" 2>/dev/null || printf '%64s  %s\\n' '' "$path"; done
rm -f {_STAMP}
"""
"""By the time of the change, which copied files cannot keep as they keep that of their content."""
_WAIT: Final = f"touch {_STAMP}; sleep 0.02"
"""Kernels stamp files with the time of the last tick: what follows must not have the stamp's own time."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What the oracle achieved and left."""

    reward: float | None = None
    """None if there is no oracle, or if it was not scored."""
    written: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files that it created or changed, by absolute path; empty where the environment cannot tell."""


async def solve(stage: Stage) -> Solved:
    """Run the oracle of a stage's package, if it has one."""
    if not any(path.endswith("/solve.sh") for path in stage.package.files.files):
        return Solved()
    witnesses: list[_Witness] = []

    def witness() -> Agent:
        witnesses.append(_Witness())
        return witnesses[-1]

    trial = await stage.run(witness, name=ORACLE)
    written: dict[str, str] = {}
    for one in witnesses:
        written |= one.written
    return Solved(trial.reward, written)


class _Witness(Agent):
    """The oracle, and a look at what it has written after each prompt."""

    name = ORACLE

    def __init__(self) -> None:
        self._oracle: Final = OracleAgent(AgentRequest(ORACLE))
        self._context: AgentContext | None = None
        self.written: dict[str, str] = {}

    async def start(self, context: AgentContext) -> None:
        self._context = context
        await self._oracle.start(context)

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        await self._run(_WAIT)
        turn = await self._oracle.prompt(text, timeout=timeout)
        for line in await self._run(_LIST):
            digest, path = line[:64].strip(), line[66:]
            if PurePosixPath(path).is_absolute():
                self.written[path] = digest
        return turn

    async def close(self) -> None:
        await self._oracle.close()

    async def _run(self, script: str) -> list[str]:
        """The lines that a script prints; none where the oracle, which may do anything, has left nothing to run it."""
        context = self._context
        if context is None:
            return []
        command = ["sh", "-c", script]
        try:
            found = await context.sandbox.exec(command, user="root", cwd=context.workdir, timeout=_LIST_SEC)
        except SandboxFailure:
            return []
        return found.stdout.decode(errors="replace").splitlines()
