"""Begin and freeze: an environment before and after the work on a step.

`for_agents` gives the sandbox what belongs to its scope only; `begin` places the files and the prompt of a step, runs
its set-up, waits for its healthcheck and sets its network. When the work is over, its processes end (`end_processes`),
and declared artifacts are copied out as plain files (`collect`). Collection never fails a rollout: what is missing,
unsafe or too large is recorded as such. A path that was collected already, as itself or within another, is skipped.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.record import Artifact
from benchflow.rollout.plan import StepPlan
from benchflow.rollout.policies import Secrets, hidden_folders
from benchflow.sandbox.factory import Preparation
from benchflow.sandbox.inside.script_shell import starter
from benchflow.sandbox.protocol import Mount, Sandbox
from benchflow.sandbox.task_policy import agent_users, healthcheck_of
from benchflow.task.config.task_config import ArtifactConfig
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.task.taken import require_intact
from benchflow.verifier.agent_processes import end_agent
from benchflow.verifier.scope import isolation_of

if TYPE_CHECKING:
    from benchflow.models.gateway import Gateway

SETUP_SEC: Final = 600.0
_LOGS: Final = 'mkdir -p "$@" && chmod 777 "$@" && { chown "$0" "$@" 2>/dev/null || true; }'
_LOG_FOLDERS: Final = ("/logs/agent", "/logs/artifacts", "/logs/verifier")
"""Folders that solutions and agents may write to. What a verifier finds at `/logs/verifier` is its own, and empty."""
MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 50_000
CONVENTIONAL: Final = "/logs/artifacts"
"""Where imported packages leave what is always kept."""
KEPT_KEY: Final = "kept-by-the-model-gateway"
"""What an environment gets for a provider's key that the package names: the same in all rollouts, so that they share
what was installed for one of them."""
_EXISTS: Final = 'for path in "$@"; do if [ -e "$path" ]; then echo 1; else echo 0; fi; done'


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


def without_provider_keys(preparation: Preparation, models: Gateway) -> Preparation:
    """The environment without keys of providers: agents get a token in their place, services beside them nothing."""
    from benchflow.models.gateway import without_keys

    spec, services = preparation.spec, preparation.services
    if services is not None:
        services = replace(services, env=without_keys(services.env, models.keys, KEPT_KEY))
    env = without_keys(spec.env, models.keys, KEPT_KEY)
    return replace(preparation, spec=replace(spec, env=env), services=services)


def is_imported(view: TaskRuntimeView) -> bool:
    """Whether the package has the split layout, with its conventional folders."""
    return view.entrypoint != "task.md"


async def begin(environment: Environment, step: StepPlan) -> None:
    """Make a started environment ready for a step."""
    sandbox, view = environment.sandbox, environment.preparation.view
    await sandbox.write_file("/instruction.md", f"{step.prompt}\n".encode())
    await _make_log_folders(sandbox, view)
    if step.view is not None:
        require_intact(view.files)
        await _set_up(sandbox, step)
        check = healthcheck_of(step.view.config.healthcheck)
        if check is not None:
            from benchflow.sandbox.healthcheck import wait_healthy

            await wait_healthy(sandbox, check, user="root")
    await environment.set_network(step.network)


async def _make_log_folders(sandbox: Sandbox, view: TaskRuntimeView) -> None:
    """Anybody may write there, since the users of steps and the oracle's root do; the agent owns them."""
    owner = agent_users(sandbox.spec, view)[0]
    done = await sandbox.exec(["sh", "-c", _LOGS, owner, *_LOG_FOLDERS], user="root", cwd="/", timeout=60)
    if not done.ok:
        reason = (done.stdout + done.stderr).decode(errors="replace").strip()[-300:]
        raise EnvironmentFailure(f"The folders below /logs could not be made. {reason}".strip(), code="setup-failed")


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
    command = f"[ -x setup.sh ] || chmod u+x setup.sh; {starter(folder / 'setup.sh')}./setup.sh"
    done = await sandbox.exec(command, user=user, cwd=workdir, timeout=SETUP_SEC)
    if not done.ok:
        lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        how = "exceeded its time limit" if done.timed_out else f"exited with code {done.exit_code}"
        message = f"steps/{step.name}/workdir/setup.sh {how}. {lines[-1][:300] if lines else ''}".strip()
        raise EnvironmentFailure(message, code="setup-failed", file=f"steps/{step.name}/workdir/setup.sh")


def keeps_processes(preparation: Preparation, step: str | None) -> bool:
    """Whether the agent's processes keep running during verification."""
    return isolation_of(preparation, step).keeps_processes


async def end_processes(environment: Environment, step: str | None) -> None:
    """End the agent's processes, unless they are part of the solution; services of the environment keep running."""
    sandbox, view = environment.sandbox, environment.preparation.view
    if keeps_processes(environment.preparation, step):
        return
    if environment.services is None:
        await sandbox.kill_processes()
    else:
        await end_agent(sandbox, agent_users(sandbox.spec, view), environment.services)


async def collect(
    sandbox: Sandbox, artifacts: Sequence[ArtifactConfig], target: Path, *, conventional: bool = False
) -> list[Artifact]:
    """Copy artifacts below `target`, each from its service to its destination, else to its own path without the slash.

    With `conventional` the folder `/logs/artifacts` is taken as well when it is there.
    """
    wanted = [(_absolute(item.source, sandbox.spec.workdir), item) for item in artifacts]
    if conventional:
        wanted.append((CONVENTIONAL, ArtifactConfig(source=CONVENTIONAL)))
    if not wanted:
        return []
    there: set[tuple[str, str]] = set()
    for service in dict.fromkeys(item.service for _, item in wanted):
        sources = [source for source, item in wanted if item.service == service]
        there |= {(service, source) for source in await _existing(sandbox.service(service), sources)}
    done: list[Artifact] = []
    taken: list[tuple[str, str]] = []
    for source, item in wanted:
        destination = item.destination or source.lstrip("/")
        if (item.service, source) not in there:
            if item.source != CONVENTIONAL or item in artifacts:
                done.append(Artifact(source, destination, "missing"))
            continue
        if any(
            item.service == service and (_within(source, other) or _within(other, source)) for service, other in taken
        ):
            done.append(Artifact(source, destination, "skipped", reason="collected already"))
            continue
        found = await _take(sandbox.service(item.service), source, target, destination, item.exclude)
        if found.status == "collected":
            taken.append((item.service, source))
        if found.files or item.source != CONVENTIONAL:
            done.append(found)
    return done


async def _existing(sandbox: Sandbox, sources: list[str]) -> list[str]:
    """The paths that exist; all of them if that cannot be determined."""
    result = await sandbox.exec(["sh", "-c", _EXISTS, "sh", *sources], user="root", cwd="/", timeout=60)
    answers = result.stdout.decode(errors="replace").split()
    if len(answers) != len(sources):
        return sources
    return [source for source, answer in zip(sources, answers, strict=True) if answer == "1"]


async def _take(sandbox: Sandbox, source: str, target: Path, destination: str, exclude: Sequence[str]) -> Artifact:
    place = target / destination
    try:
        if not _free(place):
            return Artifact(source, destination, "skipped", reason="another artifact has this destination")
        await sandbox.download(source, place, max_bytes=MAX_BYTES, max_files=MAX_FILES)
    except SandboxFailure as error:
        return Artifact(source, destination, "refused", reason=str(error)[:300])
    except (FileExistsError, NotADirectoryError):
        return Artifact(source, destination, "skipped", reason="another artifact has this destination")
    if exclude:
        await anyio.to_thread.run_sync(_prune, place, tuple(exclude))
    files, size = await anyio.to_thread.run_sync(_measure, place)
    return Artifact(source, destination, "collected", files, size)


def _free(place: Path) -> bool:
    """Whether the path is free; its parent folders are created."""
    place.parent.mkdir(parents=True, exist_ok=True)
    return not os.path.lexists(place)


def _prune(root: Path, patterns: tuple[str, ...]) -> None:
    """Remove what matches a pattern by its name or by its path below the artifact."""
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(relative, p.rstrip("/")) for p in patterns):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _measure(root: Path) -> tuple[int, int]:
    if not root.is_dir():
        return 1, root.lstat().st_size
    sizes = [Path(folder, name).lstat().st_size for folder, _, files in os.walk(root) for name in files]
    return len(sizes), sum(sizes)


def _absolute(source: str, workdir: str) -> str:
    path = source if source.startswith("/") else f"{workdir.rstrip('/')}/{source}"
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
