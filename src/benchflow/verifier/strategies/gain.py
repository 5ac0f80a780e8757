"""`gain`: another strategy's score relative to a live baseline and ceiling, measured in the same environment."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import anyio
import anyio.to_thread

from benchflow.environment import Environment
from benchflow.errors import InfrastructureFailure, Issue, PackageError, VerifierFailure
from benchflow.files.atomic import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.rewards import Scored, Unscored, Verdict, gain_verdict, verdict_from_dict
from benchflow.sandbox.envvars import resolve_variables
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.evidence_config import LiveCase
from benchflow.task.strategies import GainStrategy
from benchflow.verifier.run import Run

NO_OP = "no-op"
ORACLE = "oracle"
_MAX_RECORD = 16 << 20


async def score(run: Run) -> Verdict:
    """Score the agent, measure both ends (or take them from the cache), and relate them."""
    strategy = run.strategy
    if not isinstance(strategy, GainStrategy):
        raise TypeError(f"{run.name} is no gain")
    scored = await run.again(strategy.strategy, run.output / "score", None)
    if isinstance(scored, Unscored):
        return scored
    baseline = await _measured(run, strategy, "baseline", strategy.baseline)
    ceiling = await _measured(run, strategy, "ceiling", strategy.ceiling)
    sources = ("agent", strategy.baseline, strategy.ceiling)
    return gain_verdict(scored, baseline, ceiling, sources=sources, reward_range=run.scope.reward_range)


async def _measured(run: Run, strategy: GainStrategy, end: str, case: str) -> Verdict:
    place = run.cache / f"{_key(run, strategy, case)}.json" if run.cache is not None else None
    if place is not None:
        known = await anyio.to_thread.run_sync(_recall, place)
        if known is not None:
            run.findings.add(Issue("gain-cached", "warning", end, f"The {end} ({case}) was measured before."))
            return known
    verdict = await _measure(run, strategy, end, case)
    if place is not None and isinstance(verdict, Scored):
        await anyio.to_thread.run_sync(_remember, place, verdict)
    return verdict


async def _measure(run: Run, strategy: GainStrategy, end: str, case: str) -> Verdict:
    """Bring up the task's environment afresh, do what the case does, and verify it as the agent was."""
    from benchflow.verifier.verifier import Verifier

    fresh = Environment(run.environment.backend, run.environment.preparation)
    await fresh.start()
    async with fresh:
        await _perform(run, fresh.sandbox, case)
        verifier = Verifier(fresh, machine=run.machine, cache=run.cache)
        found = await verifier.verify(run.output / end, step=run.scope.step, strategy=strategy.strategy)
    return found.verdict


async def _perform(run: Run, sandbox: Sandbox, case: str) -> None:
    if case == NO_OP:
        return
    declared = None if case == ORACLE else _live_case(run, case)
    if declared is not None and declared.type != ORACLE:
        if declared.command is not None:
            result = await sandbox.exec(declared.command, timeout=run.scope.view.config.agent.timeout_sec or 600)
            if result.timed_out:
                raise VerifierFailure(f"The case {case!r} took too long.", code="timeout", path=case)
        return
    await run_oracle(run, sandbox)


async def run_oracle(run: Run, sandbox: Sandbox) -> None:
    """Solve the task with its oracle; the oracle's files are there for this alone."""
    view = run.scope.view
    if view.oracle_dir is None or not await anyio.Path(view.oracle_dir / "solve.sh").is_file():
        raise PackageError("The ceiling needs oracle/solve.sh, which the package lacks.", code="missing-oracle")
    mount = view.oracle_mount or "/oracle"
    await sandbox.upload(view.oracle_dir, mount)
    env = resolve_variables(view.config.oracle.env, run.machine, path="oracle.env")
    timeout = view.config.oracle.timeout_sec or view.config.agent.timeout_sec or 600.0
    result = await sandbox.exec(["/bin/sh", f"{mount}/solve.sh"], user="root", env=env, timeout=timeout)
    if not result.ok:
        how = f"took longer than {timeout:g} s" if result.timed_out else f"ended with exit code {result.exit_code}"
        raise VerifierFailure(f"The oracle {how}, so the ceiling cannot be measured.", code="oracle-failed")


def _live_case(run: Run, name: str) -> LiveCase:
    evidence = run.scope.view.namespace.evidence
    live = evidence.acceptance_live if evidence is not None else None
    found = next((case for case in live.cases if case.name == name), None) if live is not None else None
    if found is None:
        message = f"{name!r} is neither {NO_OP}, {ORACLE} nor a case of benchflow.evidence.acceptance_live."
        raise PackageError(message, code="unknown-case", path=f"verifier.strategies.{run.name}")
    return found


def _key(run: Run, strategy: GainStrategy, case: str) -> str:
    """All that a measured end depends on."""
    image = run.environment.preparation.spec.image
    parts = {
        "task": run.scope.view.digest,
        "step": run.scope.step,
        "strategy": strategy.strategy,
        "case": case,
        "backend": run.environment.backend.name,
        "image": image.digest if image is not None else "host",
        "range": [run.scope.reward_range.low, run.scope.reward_range.high],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _recall(place: Path) -> Verdict | None:
    """What was remembered; a record that cannot be read counts as none."""
    try:
        return verdict_from_dict(json.loads(read_regular(place, max_bytes=_MAX_RECORD)))
    except (OSError, RefusedFileError, ValueError, InfrastructureFailure):
        return None


def _remember(place: Path, verdict: Scored) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, json.dumps(verdict.to_dict()))
