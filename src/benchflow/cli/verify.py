"""`bench verify`: score an existing workspace, or complete a submission after its scorer has answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchflow.cli.arguments import PATH, isolation_option, json_option
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.preflight import require_judges
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.tasks.selection import one_package
from benchflow.cli.terminal import emit, emit_json, printable, style
from benchflow.errors import UsageError
from benchflow.record.codec import plain

if TYPE_CHECKING:
    from benchflow.environment import Environment
    from benchflow.rewards import Verdict
    from benchflow.task.discovery import FoundPackage
    from benchflow.task.package import TaskPackage
    from benchflow.verifier import Verification


@click.command()
@click.argument("package", metavar="PACKAGE", type=PATH)
@click.option("--workspace", metavar="DIR", type=PATH, help="Files to score, copied into the task's working folder.")
@click.option("--out", metavar="DIR", type=PATH, help="New folder for the verifier's output.")
@click.option("--rollout", metavar="DIR", type=PATH, help="Rollout folder with evidence that the verifier declares.")
@click.option("--strategy", metavar="NAME", help="Strategy of verifier.md to use instead of the default.")
@click.option("--step", metavar="NAME", help="Step of a multi-step task to score.")
@click.option(
    "--sandbox", metavar="NAME", default="auto", show_default=True, help="Sandbox to use; see `bench sandboxes`."
)
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@pull_option
@machine_settings_option
@isolation_option
@click.option(
    "--record", metavar="FILE", type=PATH, help="Answer of an external scorer; completes the submission in --out."
)
@json_option
def verify(package: Path, as_json: bool, record: Path | None, **options: Any) -> int:
    """Score a workspace with the verifier of PACKAGE.

    Exits with 0 if there is a reward, whatever its value, and with 1 if there is none.
    """
    task = _loaded(one_package(package), options["step"])
    if record is not None:
        return _complete(task, record, options["out"], options["step"], as_json=as_json)
    import anyio

    from benchflow.files.scratch import scratch

    workspace: Path | None = options["workspace"]
    if workspace is not None and not workspace.is_dir():
        raise UsageError(f"{workspace} is not a folder.", code="missing-path")
    out: Path | None = options["out"]
    if out is not None and out.exists():
        raise UsageError(f"{out} already exists.", code="output-exists")
    require_judges(task, options["step"], options["strategy"])
    with scratch("verify-") as place:
        found = anyio.run(_verify, task, out or place / "verifier", options)
    _show(found.verdict, {"verifier": plain(found.record()), "duration_sec": found.duration_sec}, as_json=as_json)
    if not as_json:
        _show_notes(found)
    return GOOD if found.verdict.status == "scored" else FAILED


def _loaded(found: FoundPackage, step: str | None) -> TaskPackage:
    """The package. A multi-step package needs a step, because it has no verdict as a whole without an agent."""
    from benchflow.sandbox.factory import task_package

    package = task_package(found.path)
    steps = [item.config.name for item in package.view.steps]
    if steps and step is None:
        message = f"{found.shown} has several steps; choose one with --step: {', '.join(steps)}."
        raise UsageError(message, code="missing-step")
    return package


async def _verify(package: TaskPackage, out: Path, options: dict[str, Any]) -> Verification:
    from benchflow.environment import Environment
    from benchflow.rollout.config import RolloutConfig
    from benchflow.rollout.rollout import chosen_isolation
    from benchflow.sandbox.pulling import PullSettings
    from benchflow.verifier import Verifier

    config = RolloutConfig(package, "oracle", base_image=options["base_image"], isolation=options["isolation"])
    environment = await Environment.from_task(
        package,
        sandbox=options["sandbox"],
        base_image=options["base_image"],
        pull=PullSettings(options["pull"], on_progress=PullLines().show, ask_again_sec=None),
        choose_isolation=lambda backend: chosen_isolation(package, backend, config),
    )
    async with environment:
        if options["workspace"] is not None:
            await _place(environment, options["workspace"])
        verifier = Verifier(environment, base_image=options["base_image"])
        return await verifier.verify(
            out, rollout=options["rollout"], step=options["step"], strategy=options["strategy"]
        )


async def _place(environment: Environment, workspace: Path) -> None:
    """Copy the files into the working folder, owned by the agent; existing files of the environment stay."""
    sandbox = environment.sandbox
    whoami = await sandbox.exec(["id", "-un"], timeout=60)
    owner = whoami.stdout.decode().strip() if whoami.ok else None
    await sandbox.upload(workspace, sandbox.spec.workdir, owner=owner or None)


def _complete(package: TaskPackage, record: Path, out: Path | None, step: str | None, *, as_json: bool) -> int:
    from benchflow.files.bounded import RefusedFileError, read_regular
    from benchflow.files.strict_json import StrictJSONError, parse_json
    from benchflow.verifier.scope import scope_of
    from benchflow.verifier.submission import MAX_RECORD, complete_submission

    if out is None or not out.is_dir():
        raise UsageError("--record needs --out, the folder of the submission.", code="missing-path")
    try:
        answer = parse_json(read_regular(record, max_bytes=MAX_RECORD))
    except (OSError, RefusedFileError, StrictJSONError) as error:
        raise UsageError(f"{record} cannot be used: {error}.", code="invalid-record") from error
    verdict = complete_submission(out, answer, scope_of(package.view, step).reward_range)
    _show(verdict, {}, as_json=as_json)
    return GOOD if verdict.status == "scored" else FAILED


def _show(verdict: Verdict, extra: dict[str, Any], *, as_json: bool) -> None:
    record = verdict.record()
    if as_json:
        emit_json({**record, **extra})
        return
    if record["error"] is None:
        reward = f"{record['reward']:g}"
        emit(f"reward {style(reward, 'bold')}")
        for name, value in record["rewards"].items():
            if name != "reward":
                emit(f"  {printable(name)} {value:g}")
    else:
        error = record["error"]
        emit(f"{style('unscored', 'yellow')} {error['category']}/{error['code']}: {printable(error['message'])}")


def _show_notes(found: Verification) -> None:
    emit(f"  {style('isolation', 'dim')} {found.isolation.rung}")
    for issue in found.diagnostics:
        emit(f"  {style('note', 'dim')} {printable(issue.message)}")
    if found.opt_outs:
        emit(f"  {style('opt-outs', 'dim')} {', '.join(found.opt_outs)}")
    for item in found.withheld[:20]:
        emit(f"  {style('not carried over', 'dim')} {printable(item.path)} ({item.reason})")
    if len(found.withheld) > 20:
        emit(f"  {style('not carried over', 'dim')} and {len(found.withheld) - 20} more")
