"""`gain`: another strategy's score relative to a live baseline and ceiling, measured in the same environment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import InfrastructureFailure, Issue, PackageError, VerifierFailure
from benchflow.files.atomic import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.user_store import default_store
from benchflow.rewards import Scored, Unscored, Verdict, gain_verdict, verdict_from_dict
from benchflow.sandbox.inside.script_shell import starter
from benchflow.sandbox.protocol import Sandbox
from benchflow.sandbox.task_policy import resolve_variables
from benchflow.task.config.evidence_config import LiveCase
from benchflow.task.verifier.declared_strategies import GainStrategy
from benchflow.verifier.strategy_run import Run

NO_OP = "no-op"
ORACLE = "oracle"


async def score(run: Run) -> Verdict:
    """Score the agent, measure baseline and ceiling (or take them from the cache), and compute the gain."""
    strategy = run.strategy
    if not isinstance(strategy, GainStrategy):
        raise TypeError(f"{run.name} is not a gain")
    scored = await run.again(strategy.strategy, run.output / "score", None)
    if isinstance(scored, Unscored):
        return scored
    baseline = await _measured(run, strategy, "baseline", strategy.baseline)
    ceiling = await _measured(run, strategy, "ceiling", strategy.ceiling)
    sources = ("agent", strategy.baseline, strategy.ceiling)
    return gain_verdict(scored, baseline, ceiling, sources=sources, reward_range=run.scope.reward_range)


async def _measured(run: Run, strategy: GainStrategy, end: str, case: str) -> Verdict:
    place = place_of(run.cache or default_cache(), _parts(run, strategy, case))
    known = await anyio.to_thread.run_sync(recall, place)
    if known is not None:
        message = f"The {end} ({case}) was measured at {known.at} and is cached in {place}."
        run.findings.add(Issue("gain-cached", "warning", end, message))
        return known.verdict
    verdict = await _measure(run, strategy, end, case)
    if isinstance(verdict, Scored):
        try:
            await anyio.to_thread.run_sync(remember, place, verdict)
        except OSError as error:
            message = f"The {end} ({case}) could not be cached in {place.parent}: {error.strerror or error}."
            run.findings.add(Issue("gain-not-cached", "warning", end, message))
    return verdict


async def _measure(run: Run, strategy: GainStrategy, end: str, case: str) -> Verdict:
    """Start a fresh environment of the task, run the case, and verify it like the agent's work."""
    from benchflow.verifier.verifier import Verifier

    fresh = Environment(run.environment.backend, run.environment.preparation)
    await fresh.start()
    async with fresh:
        await _perform(run, fresh.sandbox, case)
        verifier = Verifier(
            fresh,
            machine=run.machine,
            cache=run.cache,
            base_image=run.maker.base_image,
            blames=False,
            models=run.models,
            installations=run.installations,
        )
        found = await verifier.verify(
            run.output / end, step=run.scope.step, strategy=strategy.strategy, isolation=run.scope.isolation
        )
    return found.verdict


async def _perform(run: Run, sandbox: Sandbox, case: str) -> None:
    if case == NO_OP:
        return
    declared = None if case == ORACLE else _live_case(run, case)
    if declared is not None and declared.type != ORACLE:
        if declared.command is not None:
            result = await sandbox.exec(declared.command, timeout=run.scope.view.config.agent.timeout_sec or 600)
            if result.timed_out:
                raise VerifierFailure(f"The case {case!r} exceeded its time limit.", code="timeout", path=case)
        return
    await run_oracle(run, sandbox)


async def run_oracle(run: Run, sandbox: Sandbox) -> None:
    """Solve the task with its oracle, whose files are present only for this run."""
    view = run.scope.view
    if view.oracle_dir is None or not await anyio.Path(view.oracle_dir / "solve.sh").is_file():
        raise PackageError("The ceiling needs oracle/solve.sh, which the package does not have.", code="missing-oracle")
    mount = view.oracle_mount or "/oracle"
    await sandbox.upload(view.oracle_dir, mount)
    env = resolve_variables(view.config.oracle.env, run.machine, path="oracle.env")
    timeout = view.config.oracle.timeout_sec or view.config.agent.timeout_sec or 600.0
    script = f"{mount}/solve.sh"
    command = f"chmod a+rx {script}; {starter(view.oracle_dir / 'solve.sh')}{script}"
    result = await sandbox.exec(command, user="root", env=env, timeout=timeout)
    if not result.ok:
        how = f"exceeded its limit of {timeout:g} s" if result.timed_out else f"exited with code {result.exit_code}"
        raise VerifierFailure(f"The oracle {how}, so the ceiling cannot be measured.", code="oracle-failed")


def _live_case(run: Run, name: str) -> LiveCase:
    evidence = run.scope.view.namespace.evidence
    live = evidence.acceptance_live if evidence is not None else None
    found = next((case for case in live.cases if case.name == name), None) if live is not None else None
    if found is None:
        message = f"{name!r} is neither {NO_OP}, {ORACLE} nor a case of benchflow.evidence.acceptance_live."
        raise PackageError(message, code="unknown-case", path=f"verifier.strategies.{run.name}")
    return found


def _parts(run: Run, strategy: GainStrategy, case: str) -> dict[str, Any]:
    """Everything that a baseline or ceiling depends on: package, environment, case, and verifier inputs."""
    values = json.dumps(dict(run.variables.values), sort_keys=True)
    return {
        "task": run.scope.view.digest,
        "step": run.scope.step,
        "strategy": strategy.strategy,
        "case": case,
        "isolation": run.scope.isolation.rung,
        "backend": run.environment.backend.name,
        "image": run.environment.preparation.digest,
        "base_image": run.maker.base_image,
        "variables": hashlib.sha256(values.encode()).hexdigest(),
        "judges": run.machine.get("OPENAI_BASE_URL"),
        "range": [run.scope.reward_range.low, run.scope.reward_range.high],
    }


SCHEMA: Final = "benchcube.measured.v1"
_MAX_RECORD: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """A baseline or ceiling score, and when it was measured (ISO 8601, UTC)."""

    verdict: Scored
    at: str


def default_cache() -> Path:
    """The folder of cached scores in the user's cache."""
    return default_store() / "measured"


def place_of(folder: Path, parts: Mapping[str, Any]) -> Path:
    """The file of a score that depends on `parts`."""
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return folder / f"{key}.json"


def recall(place: Path) -> Measured | None:
    """The cached score, if there is one."""
    try:
        record = json.loads(read_regular(place, max_bytes=_MAX_RECORD))
        if record["schema"] != SCHEMA:
            return None
        verdict = verdict_from_dict(record["verdict"])
        with contextlib.suppress(OSError):  # `bench cache prune` goes by the last use
            os.utime(place)
        return Measured(verdict, str(record["measured_at"])) if isinstance(verdict, Scored) else None
    except (OSError, RefusedFileError, ValueError, KeyError, TypeError, InfrastructureFailure):
        return None


def remember(place: Path, verdict: Scored) -> None:
    """Store a score; raises `OSError` if nothing can be written."""
    place.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_atomic(place, json.dumps({"schema": SCHEMA, "measured_at": now, "verdict": verdict.to_dict()}))
