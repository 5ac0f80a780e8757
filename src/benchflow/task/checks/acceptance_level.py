"""Level `acceptance`, static part: the evidence is declared, present, consistent and pinned.

Nothing is run. Claims in `benchflow.evidence` are compared with the JSON files they refer to, and every file they
depend on must still have its pinned SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchflow.errors import Issue
from benchflow.task.checks.evidence_files import (
    EvidenceReader,
    check_calibration,
    check_oracle_run,
    check_review,
    check_stability,
)
from benchflow.task.checks.pins import check_declared_pins, check_pins_file, pins_file, primary_files
from benchflow.task.config.evidence_config import Calibration, Evidence, OracleRuns, Review, VerifierStability

LEAST_ORACLE_REWARD: Final = 0.99
LEAST_RERUNS: Final = 3
MOST_FLAKE_RATE: Final = 0.05
MOST_NO_OP_REWARD: Final = 0.1
BASE: Final = "benchflow.evidence"
CONVENTIONAL: Final = {
    "oracle_runs": "evidence/acceptance/oracle-run.json",
    "verifier": "evidence/acceptance/verifier-stability-report.json",
    "review": "evidence/acceptance/review.json",
    "calibration": "evidence/acceptance/calibration-report.json",
}
"""The sections of evidence, and the usual path of their files."""


def check_evidence(
    root: Path, evidence: Evidence | None, files: Mapping[str, str], *, with_pins_file: bool = True
) -> list[Issue]:
    """Every problem of the evidence; `files` maps the package's files to their SHA-256.

    `with_pins_file=False` is for `bench tasks pin`, which is about to write that file.
    """
    reader = EvidenceReader(root, files)
    if evidence is None:
        _missing(reader, BASE)
        return reader.issues
    for section, name in CONVENTIONAL.items():
        if getattr(evidence, section) is None:
            there = f"; {name} exists, but is not used until it is declared" if name in files else ""
            _missing(reader, f"{BASE}.{section}", there)
    if evidence.oracle_runs is not None:
        _check_oracle(reader, evidence.oracle_runs, f"{BASE}.oracle_runs")
    if evidence.verifier is not None:
        _check_stability(reader, evidence.verifier, f"{BASE}.verifier")
    if evidence.review is not None:
        _check_review(reader, evidence.review, f"{BASE}.review")
    if evidence.calibration is not None:
        _check_calibration(reader, evidence.calibration, f"{BASE}.calibration")
    check_declared_pins(reader, evidence)
    if with_pins_file:
        _check_pins(reader, evidence)
    return reader.issues


def _check_oracle(reader: EvidenceReader, claim: OracleRuns, path: str) -> None:
    _bounded(reader, claim.required_reward, f"{path}.required_reward", LEAST_ORACLE_REWARD, 1.0)
    if claim.last_job is None and claim.artifact is None:
        _missing(reader, f"{path}.artifact", "; name the job or the file that records the oracle run")
    check_oracle_run(reader, claim, path)


def _check_stability(reader: EvidenceReader, claim: VerifierStability, path: str) -> None:
    _bounded(reader, claim.reruns, f"{path}.reruns", LEAST_RERUNS, None)
    _bounded(reader, claim.flake_rate, f"{path}.flake_rate", 0.0, MOST_FLAKE_RATE)
    if claim.report is None:
        _missing(reader, f"{path}.report")
    check_stability(reader, claim, path)


def _check_review(reader: EvidenceReader, claim: Review, path: str) -> None:
    for key in ("anti_cheat", "instruction_alignment"):
        value = getattr(claim, key)
        if value is None:
            _missing(reader, f"{path}.{key}")
        elif value != "passed":
            reader.report("evidence-insufficient", f"{path}.{key}", f"{path}.{key} must be 'passed', not '{value}'")
    if claim.artifact is None:
        _missing(reader, f"{path}.artifact")
    check_review(reader, claim, path)


def _check_calibration(reader: EvidenceReader, claim: Calibration, path: str) -> None:
    _bounded(reader, claim.no_op_reward_max, f"{path}.no_op_reward_max", 0.0, MOST_NO_OP_REWARD)
    _bounded(reader, claim.known_bad_reward_max, f"{path}.known_bad_reward_max", 0.0, 1.0)
    if claim.known_bad_reward_max == 1.0:
        where = f"{path}.known_bad_reward_max"
        reader.report("evidence-insufficient", where, f"{where} must be below 1 to be a bound")
    for key in ("partial_solution_range", "report"):
        if getattr(claim, key) is None:
            _missing(reader, f"{path}.{key}")
    if not claim.human_or_reference_examples:
        _missing(reader, f"{path}.human_or_reference_examples")
    for index, example in enumerate(claim.human_or_reference_examples):
        where = f"{path}.human_or_reference_examples[{index}]"
        _bounded(reader, example.expected_reward, f"{where}.expected_reward", 0.0, 1.0)
        if example.artifact is None:
            _missing(reader, f"{where}.artifact")
    check_calibration(reader, claim, path)


def _check_pins(reader: EvidenceReader, evidence: Evidence) -> None:
    pinned = check_pins_file(reader, evidence)
    declared = {pin.path for pin in (*evidence.artifacts, *evidence.trajectories) if pin.sha256 is not None}
    wanted = {**primary_files(evidence)}
    for section in ("artifacts", "trajectories"):
        for index, pin in enumerate(getattr(evidence, section)):
            wanted.setdefault(pin.path, f"{BASE}.{section}[{index}]")
    for name, path in wanted.items():
        if name in reader.files and name not in declared | pinned | {pins_file(evidence)}:
            reader.report("evidence-unpinned", path, f"{name} has no SHA-256 pin, so changes to it would go unnoticed")


def _missing(reader: EvidenceReader, path: str, hint: str = "") -> None:
    reader.report("evidence-missing", path, f"{path} is missing{hint}")


def _bounded(reader: EvidenceReader, value: float | None, path: str, least: float, most: float | None) -> None:
    if value is None:
        _missing(reader, path)
    elif value < least or (most is not None and value > most):
        allowed = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
        reader.report("evidence-insufficient", path, f"{path} must be {allowed}, not {value:g}")
