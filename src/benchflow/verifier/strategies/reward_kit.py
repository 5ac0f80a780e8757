"""`reward-kit`: a Python runner of the verifier's folder writes metrics; declared criteria make them one reward.

Without a runner the folder's modules of `rewardkit` checks are graded.
"""

from __future__ import annotations

import json
from typing import Any, Final

import anyio.to_thread

from benchflow.errors import PackageError
from benchflow.rewards import AggregatePolicy, Rubric, Scored, load_rubric, read_reward
from benchflow.rewards.reward_files import REWARD_DETAILS, REWARD_JSON, REWARD_TEXT
from benchflow.task.verifier.declared_strategies import RewardKitStrategy
from benchflow.verifier.boxes import timed_out
from benchflow.verifier.kit import FOLDER, kit_files
from benchflow.verifier.scope import LOGS, VERIFIER
from benchflow.verifier.strategies.script import finish
from benchflow.verifier.strategy_run import Run, declared_policy, keep_artifacts, missing_reward

MANIFEST: Final = "reward-kit-manifest.json"
_PYTHON: Final = 'if command -v python3 >/dev/null 2>&1; then exec python3 "$@"; else exec python "$@"; fi'


async def score(run: Run) -> Scored:
    """Write the manifest, run the runner, and combine its metrics by criteria and declared policy."""
    strategy = run.strategy
    if not isinstance(strategy, RewardKitStrategy):
        raise TypeError(f"{run.name} is not a reward kit")
    rubric = _criteria(run, strategy)
    manifest = _manifest(run, strategy, rubric)
    files = await anyio.to_thread.run_sync(kit_files, run.scope.folders, run.rollout)
    async with run.box(files) as box:
        await box.sandbox.write_file(f"{LOGS}/{MANIFEST}", json.dumps(manifest, indent=2).encode(), owner=box.user)
        timeout = run.scope.config.timeout_sec
        words = _words(run, strategy, box.sandbox.spec.workdir)
        command = ["/bin/sh", "-c", _PYTHON, "python3", *words]
        result = await box.run(command, cwd=VERIFIER, timeout=timeout, env=_variables(run, strategy))
        await finish(run, result)
        if result.timed_out:
            raise timed_out(timeout)
        await box.collect(run.output)
        await keep_artifacts(run, box)
    policy: AggregatePolicy | None = rubric.policy if rubric is not None else declared_policy(run)
    with missing_reward(run, result):
        return read_reward(run.output, reward_range=run.scope.reward_range, policy=policy)


def _words(run: Run, strategy: RewardKitStrategy, workdir: str) -> list[str]:
    """The runner, or the grading of the folder's checks if there is none."""
    runner = f"{strategy.root}/{strategy.entrypoint}"
    if run.scope.file(runner) is not None:
        return [runner]
    if "entrypoint" in strategy.declared or not _has_checks(run, strategy.root):
        message = f"The reward kit has no runner: {runner} does not exist."
        raise PackageError(message, code="missing-runner", file=runner)
    return ["-m", "rewardkit", strategy.root, "--workspace", workdir, "--output", f"{LOGS}/{REWARD_JSON}"]


def _has_checks(run: Run, root: str) -> bool:
    return any(next((folder / root).rglob("*.py"), None) is not None for folder in run.scope.folders)


def _criteria(run: Run, strategy: RewardKitStrategy) -> Rubric | None:
    """The declared criteria, read before anything starts."""
    if strategy.criteria is None:
        return None
    found = run.scope.file(strategy.criteria)
    if found is None:
        message = f"The criteria file {strategy.criteria} does not exist."
        raise PackageError(message, code="missing-rubric", file=strategy.criteria)
    return load_rubric(found, file=strategy.criteria)


def _variables(run: Run, strategy: RewardKitStrategy) -> dict[str, str]:
    paths = _paths(strategy)
    variables = {
        "BENCHFLOW_VERIFIER_DIR": paths["verifier_dir"],
        "BENCHFLOW_REWARD_KIT_ROOT": paths["reward_kit_root"],
        "BENCHFLOW_REWARD_TEXT": paths["reward_text"],
        "BENCHFLOW_REWARD_JSON": paths["reward_json"],
        "BENCHFLOW_REWARD_DETAILS_JSON": paths["reward_details_json"],
        "BENCHFLOW_REWARD_KIT_MANIFEST": f"{LOGS}/{MANIFEST}",
    }
    if strategy.criteria is not None:
        variables["BENCHFLOW_REWARD_KIT_CRITERIA"] = paths["criteria"]
    spec = run.sandbox.spec
    image = spec.image.env if spec.image is not None else {}
    own = run.variables.values.get("PYTHONPATH") or spec.env.get("PYTHONPATH") or image.get("PYTHONPATH", "")
    variables["PYTHONPATH"] = ":".join(filter(None, [f"{VERIFIER}/{FOLDER}", own]))
    return variables


def _paths(strategy: RewardKitStrategy) -> dict[str, Any]:
    return {
        "verifier_dir": VERIFIER,
        "reward_kit_root": f"{VERIFIER}/{strategy.root}",
        "criteria": f"{VERIFIER}/{strategy.criteria}" if strategy.criteria is not None else None,
        "reward_text": f"{LOGS}/{REWARD_TEXT}",
        "reward_json": f"{LOGS}/{REWARD_JSON}",
        "reward_details_json": f"{LOGS}/{REWARD_DETAILS}",
    }


def _manifest(run: Run, strategy: RewardKitStrategy, rubric: Rubric | None) -> dict[str, Any]:
    """The contract of the run, for the runner and for the record."""
    document = run.scope.document
    declared = document.outputs.declared if document is not None else frozenset()
    outputs = document.outputs.to_dict() if document is not None else {}
    return {
        "version": "benchflow.reward-kit.v1",
        "verifier": {
            "name": document.name if document is not None else "verifier",
            "document_version": document.document_version if document is not None else None,
            "default_strategy": document.default_strategy if document is not None else run.name,
        },
        "strategy": {
            "name": run.name,
            "type": strategy.type,
            "root": strategy.root,
            "entrypoint": strategy.entrypoint,
            "criteria": strategy.criteria,
            "config": dict(strategy.config),
        },
        "paths": _paths(strategy),
        "rubric": document.rubric.to_dict() if document is not None else {},
        "criteria_policy": {"field": "reward", **rubric.policy.to_dict()} if rubric is not None else None,
        "outputs": {
            **outputs,
            **{f"declared_{name}": name in declared for name in ("reward_text", "reward_json", "details_json")},
        },
    }
