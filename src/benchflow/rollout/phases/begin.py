"""Begin: prepares an environment for a step.

`for_agents` gives the sandbox what belongs to its scope only; `begin` places the files and the prompt of a step, runs
its set-up, waits for its healthcheck and sets its network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure
from benchflow.rollout.plan import StepPlan
from benchflow.rollout.policies import Secrets, hidden_folders
from benchflow.sandbox.factory import Preparation
from benchflow.sandbox.healthcheck import wait_healthy
from benchflow.sandbox.protocol import Mount, Sandbox
from benchflow.sandbox.task_policy import healthcheck_of
from benchflow.task.runtime_view import TaskRuntimeView

SETUP_SEC: Final = 600.0
_LOGS: Final = "mkdir -p /logs/agent /logs/artifacts && chmod 777 /logs/agent /logs/artifacts"


def for_agents(
    preparation: Preparation, steps: Iterable[StepPlan], secrets: Secrets, nothing: Callable[[], Path]
) -> Preparation:
    """What the sandbox is made from: with the secrets of the environment, without skills that are not allowed.

    `nothing` gives an empty folder, to be there as long as the sandbox, and is called when one is needed.
    """
    spec, view = preparation.spec, preparation.view
    folders = [turn.role.skills_dir for step in steps for turn in step.turns]
    hidden = hidden_folders(view, [view.config.environment.skills_dir, *folders])
    empty = nothing() if hidden else Path()
    mounts = (*spec.mounts, *(Mount(empty, folder) for folder in hidden))
    return replace(preparation, spec=replace(spec, mounts=mounts, env={**spec.env, **secrets.of("environment")}))


def is_imported(view: TaskRuntimeView) -> bool:
    """Whether the package has the split layout, with its conventional folders."""
    return view.entrypoint != "task.md"


async def begin(environment: Environment, step: StepPlan) -> None:
    """Make a started environment ready for a step."""
    sandbox, view = environment.sandbox, environment.preparation.view
    await sandbox.write_file("/instruction.md", f"{step.prompt}\n".encode())
    if is_imported(view) and step.index == 0:
        await sandbox.exec(_LOGS, user="root", cwd="/", timeout=60)
    if step.view is not None:
        await _set_up(sandbox, step)
        check = healthcheck_of(step.view.config.healthcheck)
        if check is not None:
            await wait_healthy(sandbox, check, user="root")
    await environment.set_network(step.network)


async def _set_up(sandbox: Sandbox, step: StepPlan) -> None:
    """The step's own files go into the working folder, then its `setup.sh` runs there as the agent."""
    folder = step.view.workdir_dir if step.view is not None else None
    if folder is None:
        return
    workdir = sandbox.spec.workdir
    user = str(step.agent.user) if step.agent.user is not None else None
    who = await sandbox.exec(["id", "-un"], user=user, cwd="/", timeout=60)
    await sandbox.upload(folder, workdir, owner=who.stdout.decode().strip() or None)
    if not (folder / "setup.sh").is_file():
        return
    done = await sandbox.exec(["sh", "setup.sh"], user=user, cwd=workdir, timeout=SETUP_SEC)
    if not done.ok:
        lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        how = "took too long" if done.timed_out else f"ended with {done.exit_code}"
        message = f"steps/{step.name}/workdir/setup.sh {how}. {lines[-1][:300] if lines else ''}".strip()
        raise EnvironmentFailure(message, code="setup-failed", file=f"steps/{step.name}/workdir/setup.sh")
