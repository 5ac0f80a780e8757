"""Checks of packages before a run: placeholders left in the text, judges without a key."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchflow.cli.terminal import warn
from benchflow.errors import BenchflowError, JudgeFailure, UsageError

if TYPE_CHECKING:
    from benchflow.task.package import TaskPackage


def note_markers(package: TaskPackage, path: str, agent: str) -> None:
    """Warn on stderr about an unfinished package, for agents that are allowed to run on it."""
    from benchflow.record import always_wins
    from benchflow.rollout.policies import markers_left

    found = markers_left(package) if always_wins(agent) else []
    if found:
        more = f" (and {len(found) - 1} more: bench tasks check {path})" if len(found) > 1 else ""
        warn([f"{path}/{found[0].file}:{found[0].line}: {found[0].message}{more}"])


def require_base_image(name: str | None, sandbox: str, pull: str = "missing") -> None:
    """Refuse a substitute for base images that does not exist, before anything is started."""
    if name is None:
        return
    import anyio

    from benchflow.cli.pull_lines import PullLines
    from benchflow.sandbox.backends import load_backend
    from benchflow.sandbox.factory import AUTO, HOST
    from benchflow.sandbox.factory import require_base_image as require
    from benchflow.sandbox.pulling import PullSettings, pull_policy

    if name == HOST:
        return

    async def look() -> None:
        backend = load_backend("local" if sandbox == AUTO else sandbox)
        backend.pulling = PullSettings(pull_policy(pull), on_progress=PullLines(live=False).show, ask_again_sec=None)
        try:
            await require(name, backend)
        finally:
            await backend.close()

    anyio.run(look)


def require_judges(package: TaskPackage, step: str | None, strategy: str | None) -> None:
    """Refuse as wrong usage, before anything is started, if a judge that will be called has no key."""
    refusal = _refusal(package, [step], strategy)
    if refusal is not None:
        raise UsageError(str(refusal), code=refusal.code)


def note_judges(packages: Sequence[TaskPackage], total: int) -> None:
    """Warn about packages that cannot be scored because a judge has no key; refuse a job in which all are affected."""
    refusals = [_refusal(package, [item.config.name for item in package.view.steps] or [None]) for package in packages]
    missing = [refusal for refusal in refusals if refusal is not None]
    if missing and len(missing) == total:
        raise UsageError(str(missing[0]), code=missing[0].code)
    for sentence, count in Counter(map(str, missing)).items():
        warn([f"{count} package{'s' if count > 1 else ''} cannot be scored. {sentence}"])


def _refusal(package: TaskPackage, steps: Sequence[str | None], strategy: str | None = None) -> JudgeFailure | None:
    """Why the judges of a package cannot be called; other problems are reported by the run."""
    from benchflow.rollout import policies as readiness

    try:
        readiness.require_judges(readiness.judges(package.view, os.environ, steps, strategy=strategy))
    except JudgeFailure as failure:
        return failure
    except UsageError:
        raise
    except BenchflowError:
        return None
    return None
