"""The box of an agent that acts for a verifier: fresh, of the verifier's environment, without anything an agent under
test could have planted.

`judge_box` opens one with the verifier's files and the evidence in it; `box_context` gives what an agent needs there:
a token of its own for the model gateway, and no key. Everything ends with the block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from benchflow.agents.protocol import Agent, AgentContext, EventSink
from benchflow.agents.running import Installations
from benchflow.errors import SandboxFailure, UnsupportedError
from benchflow.files.redaction import Redactor
from benchflow.record import CallPlace
from benchflow.sandbox.protocol import Sandbox
from benchflow.verifier.boxes import stopping
from benchflow.verifier.scope import LOGS, assemble_tree
from benchflow.verifier.separate_box import verifier_spec
from benchflow.verifier.strategy_run import Run

if TYPE_CHECKING:
    from benchflow.models.gateway import Access, Grant

WORKDIR: Final = "/judge"
_PLACES: Final = f"mkdir -p {WORKDIR} {LOGS} && chmod 1777 {WORKDIR} {LOGS}"
_SETUP_SEC: Final = 60.0


@asynccontextmanager
async def judge_box(run: Run, agent: Agent, files: Path) -> AsyncIterator[Sandbox]:
    """A started box of the verifier's environment with the agent, the verifier's files, and `files` in `WORKDIR`.

    No service runs in it, and none of the agent's processes or changes are there but the evidence in `files`.
    """
    backend = run.environment.backend
    spec = await verifier_spec(run.environment, run.scope, run.machine, run.maker.base_image)
    spec = replace(spec, composition=None)
    installations = run.installations or Installations(backend)
    try:
        sandbox = backend.create(spec, snapshot=await installations.prepare(agent, spec))
        await sandbox.start()
        async with stopping(sandbox):
            tree = await anyio.to_thread.run_sync(assemble_tree, run.scope, {})
            await sandbox.upload(tree, "/")
            await sandbox.upload(files, WORKDIR)
            made = await sandbox.exec(_PLACES, user="root", cwd="/", timeout=_SETUP_SEC)
            if not made.ok:
                raise SandboxFailure(
                    f"The folders of the judge could not be created in its sandbox: {WORKDIR}, {LOGS}."
                )
            yield sandbox
    finally:
        if run.installations is None:
            with anyio.CancelScope(shield=True):
                await installations.close()


@asynccontextmanager
async def box_context(
    run: Run,
    agent: Agent,
    sandbox: Sandbox,
    variables: Mapping[str, str],
    events: EventSink,
    redactor: Redactor,
    logs: Path,
    model: str | None,
) -> AsyncIterator[tuple[AgentContext, Grant]]:
    """What the agent gets in its box, and the calls of models that it makes; they are recorded with the rollout's.

    `variables` hold the keys, which stay outside: the box has the verifier's own variables without them.
    """
    from benchflow.models.gateway import Gateway, Grant, GrantRequest

    given = run.models
    asked = given.grant.request if given is not None else GrantRequest()
    async with Gateway(variables) as gateway:
        above = given.grant.meter.above if given is not None else None
        request = GrantRequest(asked.calls, replay=asked.replay, token_ids=asked.token_ids)
        grant = Grant(gateway, request, above or gateway.meter)
        try:
            place = given.place if given is not None else CallPlace("judge", "judge", run.scope.step)
            access = await _admitted(grant, agent, sandbox, place)
            config = run.scope.config
            inside = access is not None and access.listening is not None
            env = access.without_keys(run.variables.values) if access is not None and inside else run.variables.values
            yield (
                AgentContext(
                    sandbox=sandbox,
                    workdir=WORKDIR,
                    user=str(config.user) if config.user is not None else None,
                    env={name: value for name, value in env.items() if not _has_key(value, grant.keys)},
                    events=events,
                    log_folder=logs,
                    model=model,
                    redactor=redactor.with_values([access.token] if access is not None else []),
                    models=access,
                ),
                grant,
            )
        finally:
            if given is not None and grant.limit is not None:
                given.grant.reach(grant.limit)
            with anyio.CancelScope(shield=True):
                await grant.close()


def _has_key(value: str, keys: frozenset[str]) -> bool:
    return any(key in value for key in keys if key)


async def _admitted(grant: Grant, agent: Agent, sandbox: Sandbox, place: CallPlace) -> Access | None:
    from benchflow.models.gateway import PORT

    if not agent.asks_inside:
        return grant.seat(place)
    if not grant.upstreams:
        return None
    try:
        return grant.admit(place, await sandbox.listen(PORT))
    except UnsupportedError:  # agents that need it refuse to start
        return None
