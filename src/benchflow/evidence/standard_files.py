"""The standard's evidence files, made from a proof; pure.

Every file says what it is about (`benchcube`), so that a check notices when the package has changed. The author's part
of a review is kept as it is: nobody's judgement is made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from benchflow.record.codec import plain
from benchflow.record.evidence import PROOF_REPORT, Binding, CaseReport, ProofReport
from benchflow.task.config.evidence_config import Evidence
from benchflow.task.package import TaskPackage

FOLDER: Final = "evidence/acceptance"
ORACLE_RUN: Final = f"{FOLDER}/oracle-run.json"
STABILITY: Final = f"{FOLDER}/verifier-stability-report.json"
CALIBRATION: Final = f"{FOLDER}/calibration-report.json"
GOLD_RESULT: Final = f"{FOLDER}/gold-result.json"
REVIEW: Final = f"{FOLDER}/review.json"
AUDIT_REPORT: Final = f"{FOLDER}/audit-report.json"
PROOF: Final = f"{FOLDER}/{PROOF_REPORT}"
_KINDS: Final = {
    ORACLE_RUN: "oracle_run",
    STABILITY: "verifier_stability",
    CALIBRATION: "calibration_report",
    GOLD_RESULT: "reference_result",
    REVIEW: "acceptance_review",
    AUDIT_REPORT: "verifier_artifact",
}
_CALIBRATED: Final = ("no-op", "known-bad", "partial", "reference")
_ALIGNMENT: Final = "instruction_alignment"


def standard_files(report: ProofReport, review: Mapping[str, Any] | None) -> dict[str, str]:
    """The text of each file by its path; `review` is the review that is there, of which the author's part is kept."""
    bound = report.bound
    if bound is None:
        return {}
    documents = dict(_documents(report, bound, review or {}))
    written = {path: _text({**document, "benchcube": plain(bound)}) for path, document in documents.items()}
    hashes = {path.removeprefix(f"{FOLDER}/"): _sha256(text) for path, text in written.items()}
    return {**written, PROOF: _text(replace(report, files=hashes).to_dict())}


def review_of(package: TaskPackage) -> Mapping[str, Any] | None:
    """The review that a package has; one that cannot be read is none."""
    evidence = package.document.namespace.evidence if package.document is not None else None
    name = evidence.review.artifact if evidence is not None and evidence.review is not None else None
    for path in (REVIEW, name):
        try:
            found = json.loads(package.files.read(path)) if path is not None and path in package.files else None
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def evidence_block(
    report: ProofReport, files: Mapping[str, str], review: Mapping[str, Any] | None, before: Evidence
) -> dict[str, Any]:
    """What `benchflow.evidence` says of these files; what the author declares beside them is kept."""
    block: dict[str, Any] = {}
    oracle = _case(report, "oracle")
    declared = before.to_declared_dict()
    if oracle is not None and ORACLE_RUN in files:
        block["oracle_runs"] = {**declared.get("oracle_runs", {}), "artifact": ORACLE_RUN}
        block["oracle_runs"].setdefault("required_reward", oracle.expect.reward_min)
    if report.flake is not None and STABILITY in files:
        stable = declared.get("verifier", {})
        block["verifier"] = {
            "reruns": report.flake.runs,
            "flake_rate": stable.get("flake_rate", 0.0),
            "report": STABILITY,
            **{key: stable[key] for key in ("depends_on",) if key in stable},
        }
    if REVIEW in files:
        found = json.loads(files[REVIEW])
        block["review"] = {key: found[key] for key in ("anti_cheat", _ALIGNMENT, "reviewer") if key in found}
        block["review"]["artifact"] = REVIEW
    elif review is not None and "review" in declared:
        block["review"] = declared["review"]
    if CALIBRATION in files:
        block["calibration"] = _calibration_block(report, files, declared.get("calibration", {}))
    ours = [
        {"path": path, "kind": _KINDS[path], "sha256": _sha256(text), "visibility": "evidence_only"}
        for path, text in files.items()
        if path in _KINDS
    ]
    named = {entry["path"] for entry in ours}
    kept = [entry for entry in declared.get("artifacts", ()) if entry["path"] not in named | {PROOF}]
    rest = {key: value for key, value in declared.items() if key not in block and key != "artifacts"}
    return {**block, **rest, "artifacts": [*ours, *kept]}


def _documents(report: ProofReport, bound: Binding, review: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    oracle = _case(report, "oracle")
    if oracle is not None and report.flake is not None:
        yield ORACLE_RUN, _oracle_run(report, oracle)
        yield STABILITY, _stability(report, oracle)
    calibrated = [case for case in report.cases if case.type in _CALIBRATED]
    agreement = {"judge_agreement": plain(report.judge_agreement)} if report.judge_agreement is not None else {}
    yield CALIBRATION, {"kind": "calibration-report", "cases": [_calibrated(case) for case in calibrated], **agreement}
    gold = next((case for case in calibrated if case.type == "reference" and case.source == "found"), None)
    if gold is not None and gold.rewards[0] is not None:
        yield GOLD_RESULT, {"expected_reward": gold.rewards[0], "solution": "oracle"}
    audit = report.audit
    if audit is not None:
        yield AUDIT_REPORT, {"kind": "audit-report", **plain(audit)}
        yield REVIEW, _review(review, bound, sound=audit.sound)


def _oracle_run(report: ProofReport, oracle: CaseReport) -> dict[str, Any]:
    rewards = [reward for reward in oracle.rewards if reward is not None]
    return {
        "kind": "oracle-run",
        "reward": oracle.rewards[0] if oracle.passed else min(rewards, default=None),
        "required_reward": oracle.expect.reward_min,
        "status": "passed" if oracle.passed else "failed",
        "isolation": plain(report.isolation),
        **({"judges": list(report.judges)} if report.judges else {}),
    }


def _stability(report: ProofReport, oracle: CaseReport) -> dict[str, Any]:
    flake = report.flake
    least = oracle.expect.reward_min
    runs = [
        {"status": "passed" if reward is not None and not oracle.expect.missed(reward) else "failed", "reward": reward}
        for reward in oracle.rewards
    ]
    failures = sum(run["status"] == "failed" for run in runs)
    return {
        "kind": "verifier-stability-report",
        "reruns": len(runs),
        "flake_rate": failures / len(runs),
        "flake_rate_upper_95": flake.upper_95 if flake is not None else 1.0,
        "min_reward": least,
        "runs": runs,
        "perturbations": [
            {"name": case.name, "status": "passed" if case.passed else "failed", "rewards": list(case.rewards)}
            for case in report.cases
            if case.type == "perturbation"
        ],
    }


def _calibrated(case: CaseReport) -> dict[str, Any]:
    """The reward that is hardest to defend: the highest where little is allowed, else the lowest."""
    scored = [reward for reward in case.rewards if reward is not None]
    worst = max if case.type in ("no-op", "known-bad") else min
    reward = worst(scored) if len(scored) == len(case.rewards) and scored else None
    command = case.command if case.command is not None else "true" if case.type == "no-op" else None
    return {
        "name": case.name,
        "type": case.type,
        "reward": reward,
        **({"command": command} if command is not None else {}),
        "source": case.source,
    }


def _review(review: Mapping[str, Any], bound: Binding, *, sound: bool) -> dict[str, Any]:
    tool = f"benchcube {bound.benchcube}"
    reviewers = review.get("reviewers") if isinstance(review.get("reviewers"), dict) else {}
    author = (reviewers or {}).get(_ALIGNMENT) or (review.get("reviewer") if "benchcube" not in review else None)
    made: dict[str, Any] = {"kind": "acceptance-review", "anti_cheat": "passed" if sound else "failed"}
    who = {"anti_cheat": tool}
    if _ALIGNMENT in review:
        made[_ALIGNMENT] = review[_ALIGNMENT]
        who |= {_ALIGNMENT: author} if author else {}
    notes = {key: review[key] for key in ("notes",) if key in review}
    return {**made, "reviewer": ", ".join(dict.fromkeys(who.values())), "reviewers": who, **notes}


def _calibration_block(report: ProofReport, files: Mapping[str, str], declared: Mapping[str, Any]) -> dict[str, Any]:
    block = dict(declared)
    for key, kind in (("no_op_reward_max", "no-op"), ("known_bad_reward_max", "known-bad")):
        rewards = [
            reward for case in report.cases if case.type == kind for reward in case.rewards if reward is not None
        ]
        if rewards:
            block.setdefault(key, max(rewards))
    partial = [
        reward for case in report.cases if case.type == "partial" for reward in case.rewards if reward is not None
    ]
    if partial:
        block.setdefault("partial_solution_range", [min(partial), max(partial)])
    block["report"] = CALIBRATION
    if GOLD_RESULT in files:
        examples = list(block.get("human_or_reference_examples", ()))
        if not any(example.get("artifact") == GOLD_RESULT for example in examples):
            gold = json.loads(files[GOLD_RESULT])["expected_reward"]
            examples.append({"name": "gold", "expected_reward": gold, "artifact": GOLD_RESULT})
        block["human_or_reference_examples"] = examples
    return block


def _case(report: ProofReport, kind: str) -> CaseReport | None:
    return next((case for case in report.cases if case.type == kind and case.source == "found"), None)


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()
