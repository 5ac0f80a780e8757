"""The JSON files that evidence refers to: read with a size limit and compared with the claims of the package.

Every function reports to an `EvidenceReader`; missing and malformed claims are reported elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue
from benchflow.task.config.evidence_config import Calibration, JudgeAgreement, OracleRuns, Review, VerifierStability

MAX_EVIDENCE_BYTES: Final = 4 << 20
TOLERANCE: Final = 1e-9
CALIBRATION_TYPES: Final = ("no-op", "known-bad", "partial", "reference")


class EvidenceReader:
    """Reads the evidence files of one package and collects their problems."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        self.root = root
        self.files = files
        """SHA-256 of every regular file of the package, by relative path."""
        self.issues: list[Issue] = []

    def read(self, name: str, claim: str, *, kind: str | None = None) -> Mapping[str, Any] | None:
        """The JSON object in a file that `claim` (a dotted path) refers to; None if unusable, which is reported."""
        if name not in self.files:
            self.report("evidence-file-missing", claim, f"{claim} names {name}, which is not a file of the package")
            return None
        try:
            with (self.root / name).open("rb") as stream:
                data = stream.read(MAX_EVIDENCE_BYTES + 1)
            if len(data) > MAX_EVIDENCE_BYTES:
                raise ValueError(f"it is larger than {MAX_EVIDENCE_BYTES >> 20} MB")
            parsed = json.loads(data, parse_constant=_refuse_constant)
        except (OSError, ValueError, RecursionError) as error:
            line = error.lineno if isinstance(error, json.JSONDecodeError) else None
            reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
            self.wrong(name, "", f"{name} cannot be read as JSON: {reason}", line=line)
            return None
        if not isinstance(parsed, dict):
            self.wrong(name, "", f"{name} must contain a JSON object")
            return None
        if kind is not None and parsed.get("kind") != kind:
            self.wrong(name, "kind", f"{name}: kind must be '{kind}'")
            return None
        return parsed

    def report(self, code: str, path: str, message: str, *, file: str = "task.md", line: int | None = None) -> None:
        self.issues.append(Issue(code, "error", path, message, file, line))

    def wrong(self, name: str, path: str, message: str, *, line: int | None = None) -> None:
        """The file itself is malformed."""
        self.report("evidence-file-invalid", path, message, file=name, line=line)

    def disagrees(self, name: str, path: str, message: str) -> None:
        """The file is well formed but contradicts the claim."""
        self.report("evidence-disagrees", path, message, file=name)


def check_oracle_run(reader: EvidenceReader, claim: OracleRuns, path: str) -> None:
    """The recorded oracle run reached the required reward."""
    if claim.artifact is None:
        return
    found = reader.read(claim.artifact, f"{path}.artifact")
    if found is None:
        return
    reward = recorded_reward(reader, claim.artifact, found)
    if reward is not None and claim.required_reward is not None and reward < claim.required_reward - TOLERANCE:
        reader.disagrees(
            claim.artifact,
            "reward",
            f"{claim.artifact}: the oracle scored {reward:g}, but {claim.required_reward:g} is required",
        )
    if found.get("status", "passed") != "passed":
        reader.disagrees(claim.artifact, "status", f"{claim.artifact}: status is not 'passed'")


def check_review(reader: EvidenceReader, claim: Review, path: str) -> None:
    """The review file agrees with the package."""
    if claim.artifact is None:
        return
    found = reader.read(claim.artifact, f"{path}.artifact")
    if found is None:
        return
    if found.get("kind") not in (None, "acceptance-review"):
        reader.wrong(claim.artifact, "kind", f"{claim.artifact}: kind must be 'acceptance-review'")
    for key in ("anti_cheat", "instruction_alignment"):
        declared = getattr(claim, key)
        if declared is not None and found.get(key) != declared:
            reader.disagrees(claim.artifact, key, f"{claim.artifact}: {key} is not '{declared}' as declared")


def check_stability(reader: EvidenceReader, claim: VerifierStability, path: str) -> None:
    """The recorded reruns of the verifier are as many as claimed, with at most the claimed flake rate."""
    if claim.report is None:
        return
    name = claim.report
    found = reader.read(name, f"{path}.report", kind="verifier-stability-report")
    if found is None:
        return
    reruns, least = found.get("reruns"), unit_number(found.get("min_reward"))
    flake, runs = unit_number(found.get("flake_rate")), found.get("runs")
    if least is None:
        reader.wrong(name, "min_reward", f"{name}: min_reward must be a number from 0 to 1")
    if flake is None:
        reader.wrong(name, "flake_rate", f"{name}: flake_rate must be a number from 0 to 1")
    if not isinstance(runs, list) or not runs:
        reader.wrong(name, "runs", f"{name}: runs must be a list with one record per run")
        return
    if type(reruns) is not int or reruns != len(runs):
        reader.disagrees(name, "reruns", f"{name}: reruns must be the number of recorded runs, {len(runs)}")
    if claim.reruns is not None and len(runs) < claim.reruns:
        reader.disagrees(name, "runs", f"{name}: {len(runs)} runs are recorded, but {claim.reruns} are declared")
    failures = _count_failures(reader, name, runs, least)
    observed = failures / len(runs)
    if claim.flake_rate is not None and max(observed, flake or 0.0) > claim.flake_rate + TOLERANCE:
        worst = max(observed, flake or 0.0)
        reader.disagrees(
            name, "flake_rate", f"{name}: the flake rate is {worst:g}, but {claim.flake_rate:g} is declared"
        )
    if flake is not None and flake < observed - TOLERANCE:
        reader.disagrees(
            name,
            "flake_rate",
            f"{name}: {failures} of {len(runs)} runs failed, which exceeds the flake rate of {flake:g}",
        )


def _count_failures(reader: EvidenceReader, name: str, runs: list[Any], least: float | None) -> int:
    failures = 0
    for index, run in enumerate(runs):
        where = f"runs[{index}]"
        status = run.get("status") if isinstance(run, dict) else None
        reward = unit_number(run.get("reward")) if isinstance(run, dict) else None
        if status not in ("passed", "failed") or reward is None:
            reader.wrong(name, where, f"{name}: {where} needs a status (passed or failed) and a reward from 0 to 1")
        elif status == "passed" and least is not None and reward < least - TOLERANCE:
            reader.disagrees(name, where, f"{name}: {where} passed with {reward:g}, below min_reward {least:g}")
        failures += status != "passed"
    return failures


def check_calibration(reader: EvidenceReader, claim: Calibration, path: str) -> None:
    """Solutions of known quality scored within the declared bounds, and there is a case of each type."""
    for index, example in enumerate(claim.human_or_reference_examples):
        if example.artifact is None:
            continue
        found = reader.read(example.artifact, f"{path}.human_or_reference_examples[{index}].artifact")
        reward = None if found is None else recorded_reward(reader, example.artifact, found)
        if reward is not None and not _agrees(reward, example.expected_reward):
            message = f"{example.artifact}: the recorded reward {reward:g} is not the declared one"
            reader.disagrees(example.artifact, "expected_reward", message)
    if claim.report is None:
        return
    found = reader.read(claim.report, f"{path}.report", kind="calibration-report")
    cases = None if found is None else found.get("cases")
    if found is None:
        return
    if not isinstance(cases, list) or not cases:
        reader.wrong(claim.report, "cases", f"{claim.report}: cases must be a list with one record per case")
        return
    if claim.judge_agreement is not None and claim.judge_agreement.required:
        _check_agreement(reader, claim.judge_agreement, claim.report, found.get("judge_agreement"), path)
    seen = {_check_case(reader, claim, claim.report, index, case) for index, case in enumerate(cases)}
    for missing in (kind for kind in CALIBRATION_TYPES if kind not in seen):
        reader.disagrees(claim.report, "cases", f"{claim.report}: there is no case of type {missing}")


def _check_agreement(reader: EvidenceReader, claim: JudgeAgreement, name: str, found: Any, path: str) -> None:
    """The agreement of the judge that a package requires was measured, on enough verdicts, and is high enough."""
    where = f"{path}.judge_agreement"
    if not isinstance(found, Mapping):
        missing = f"{name} has no judge_agreement, which {where} requires; `bench tasks prove` measures it"
        reader.report("evidence-missing", where, missing)
        return
    samples, measured = found.get("sample_count"), unit_number(found.get("pairwise_agreement"))
    if type(samples) is not int or measured is None:
        need = "needs a sample_count and a pairwise_agreement from 0 to 1"
        reader.wrong(name, "judge_agreement", f"{name}: judge_agreement {need}")
        return
    if claim.sample_count is not None and samples < claim.sample_count:
        few = f"{samples} verdicts of the judge were compared, but {claim.sample_count} are declared"
        reader.disagrees(name, "judge_agreement.sample_count", f"{name}: {few}")
    least = claim.min_pairwise_agreement
    if least is not None and measured < least - TOLERANCE:
        low = f"the verdicts of the judge agree at {measured:g}, but {least:g} is declared"
        reader.disagrees(name, "judge_agreement.pairwise_agreement", f"{name}: {low}")


def _check_case(reader: EvidenceReader, claim: Calibration, name: str, index: int, case: Any) -> str | None:
    where = f"cases[{index}]"
    kind = case.get("type") if isinstance(case, dict) else None
    reward = unit_number(case.get("reward")) if isinstance(case, dict) else None
    if kind not in CALIBRATION_TYPES or reward is None:
        types = ", ".join(CALIBRATION_TYPES)
        reader.wrong(name, where, f"{name}: {where} needs a type ({types}) and a reward from 0 to 1")
        return None
    low, high = _allowed(claim, kind)
    if kind == "reference":
        if not any(_agrees(reward, example.expected_reward) for example in claim.human_or_reference_examples):
            reader.disagrees(name, where, f"{name}: {where} scored {reward:g}, which no declared example expects")
    elif not low - TOLERANCE <= reward <= high + TOLERANCE:
        reader.disagrees(name, where, f"{name}: {where} ({kind}) scored {reward:g}, outside {low:g} to {high:g}")
    return str(kind)


def _allowed(claim: Calibration, kind: str) -> tuple[float, float]:
    if kind == "partial":
        return claim.partial_solution_range or (0.0, 1.0)
    bound = claim.no_op_reward_max if kind == "no-op" else claim.known_bad_reward_max
    return 0.0, 1.0 if bound is None else bound


def recorded_reward(reader: EvidenceReader, name: str, found: Mapping[str, Any]) -> float | None:
    """`reward`, or `expected_reward` instead."""
    key = "reward" if "reward" in found else "expected_reward"
    reward = unit_number(found.get(key))
    if reward is None:
        reader.wrong(name, key, f"{name}: {key} must be a number from 0 to 1")
    return reward


def unit_number(value: Any) -> float | None:
    """A number from 0 to 1, or None for anything else, including NaN and booleans."""
    return float(value) if type(value) in (int, float) and 0 <= value <= 1 else None


def within_bounds(reward: Any, expect: Any) -> bool:
    """Whether a reward is what a report expects of its case; bounds that cannot be read allow nothing."""
    if not isinstance(expect, Mapping):
        return False
    span = expect.get("reward_range")
    low, high = span if isinstance(span, list) and len(span) == 2 else (None, None)  # a pair
    equal = expect.get("reward_equals")
    least = [bound for bound in (expect.get("reward_min"), low, equal) if bound is not None]
    most = [bound for bound in (expect.get("reward_max"), high, equal) if bound is not None]
    if not all(type(number) in (int, float) for number in (reward, *least, *most)):
        return False
    return all(reward >= bound - TOLERANCE for bound in least) and all(reward <= bound + TOLERANCE for bound in most)


def _agrees(reward: float, expected: float | None) -> bool:
    return expected is not None and abs(reward - expected) <= TOLERANCE


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
