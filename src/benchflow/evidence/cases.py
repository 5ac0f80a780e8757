"""The cases of a package: what is run to prove it, and which rewards each run may have; pure.

Declared ones come from `acceptance_live.cases`, generated ones from a calibration report that the author wrote, and
found ones are there without a word: the oracle, doing nothing, the shipped cheats, an oracle that stops after some
steps, and the oracle's result as a reference.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast, get_args

from benchflow.errors import Issue
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.evidence import TOLERANCE, CaseSource, CaseType, Expected, Reference
from benchflow.task.checks.worth import download_of_tests
from benchflow.task.config.evidence_config import Calibration, Evidence, Expectation, LiveCase
from benchflow.task.package import TaskPackage

CHEATS: Final = "evidence/cheats/"
NO_OP_MAX: Final = 0.1
KNOWN_BAD_MAX: Final = 1.0 - 2 * TOLERANCE
"""Anything below full."""
CALIBRATION: Final = "evidence/acceptance/calibration-report.json"
KINDS: Final[tuple[CaseType, ...]] = ("oracle", "no-op", "known-bad", "partial", "reference")
"""The kinds that the standard wants to see; `acceptance` demands the last four."""
GOLD: Final = "gold"
DECLARED: Final = "the package declares that its verdict depends on it"
_BY_ORACLE: Final = frozenset({"oracle", "reference"})
_UNTOUCHED: Final = frozenset({"no-op", "verifier"})
_SYSTEM_INSTALLERS: Final = ("apt", "apk", "dnf", "yum")
_RUN_PLANES: Final = frozenset({"task", "environment", "verifier"})


@dataclass(frozen=True, slots=True)
class Case:
    """One case: who plays, and what may come out."""

    name: str
    type: CaseType
    expect: Expected
    source: CaseSource = "found"
    command: str | None = None
    """Run once per prompt as root in the working folder; without one the oracle plays, or nobody."""
    script: bytes | None = field(default=None, repr=False)
    """Of a cheat: what the agent's user runs; the command does the same."""
    steps: int | None = None
    """Of the oracle: how many steps it takes before it stops."""
    reruns: int = 1

    @property
    def by_oracle(self) -> bool:
        return self.command is None and (self.steps is not None or self.type in _BY_ORACLE)

    @property
    def planes(self) -> frozenset[str]:
        """The parts of the package that its rewards depend on."""
        return _RUN_PLANES | {"oracle"} if self.by_oracle else _RUN_PLANES


@dataclass(frozen=True, slots=True)
class Cases:
    """All cases of a package, and what prevents others."""

    cases: tuple[Case, ...]
    references: tuple[Reference, ...] = ()
    issues: tuple[Issue, ...] = ()

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The kinds of cases that the package does not have."""
        there = {case.type for case in self.cases}
        return tuple(kind for kind in KINDS if kind not in there)


def cases_of(package: TaskPackage) -> Cases:
    """The cases of a valid package."""
    evidence = package.view.namespace.evidence or Evidence()
    calibration = evidence.calibration or Calibration()
    issues: list[Issue] = []
    found: dict[str, Case] = {}
    for case in (
        *_declared(evidence, issues),
        *_generated(package, evidence, calibration, issues),
        *_found(package, evidence, calibration),
    ):
        if case.name not in found:
            found[case.name] = case
        elif case.source == "found":
            name = f"{case.name} (found)"
            found[name] = replace(case, name=name)
    references = [
        Reference(item.name or f"example {number}", item.expected_reward, item.artifact)
        for number, item in enumerate(calibration.human_or_reference_examples, 1)
    ]
    return Cases(tuple(found.values()), tuple(references), tuple(issues))


def not_perturbed(package: TaskPackage) -> dict[str, str]:
    """The perturbations that say nothing about a package, by name, and why: it declares or shows what it needs."""
    evidence = package.view.namespace.evidence or Evidence()
    declared = evidence.verifier.depends_on if evidence.verifier is not None else ()
    found = dict.fromkeys(declared, DECLARED)
    wiring = package.view.namespace.verifier
    if wiring is not None and "downloads" in wiring.declared:
        found.setdefault("network", "the package declares that its verifier downloads")
    download = download_of_tests(package)
    if download is not None:
        at = f"{download.file}:{download.line} ({download.word})"
        found.setdefault("network", f"the verifier downloads: {at}")
        if download.word.startswith(_SYSTEM_INSTALLERS):
            found.setdefault("user", f"the verifier installs packages, as only root can: {at}")
    return found


def expected_of(case_type: CaseType, calibration: Calibration, reward: float | None = None) -> Expected:
    """What a case of a kind may score: as declared, else the default; `reward` is that of a reference."""
    if case_type == "no-op":
        return Expected(reward_max=_or(calibration.no_op_reward_max, NO_OP_MAX))
    if case_type == "known-bad":
        return Expected(reward_max=_or(calibration.known_bad_reward_max, KNOWN_BAD_MAX))
    if case_type == "partial":
        return Expected(reward_range=calibration.partial_solution_range or (0.0, 1.0))
    return Expected(reward_equals=reward)


def one_line(script: str) -> str:
    """A shell script as a command on one line, as reports hold it."""
    lines = [line for line in script.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) == 1 and lines[0].isprintable() and (script[:2] != "#!" or script.startswith("#!/bin/sh")):
        return lines[0].strip()
    packed = base64.b64encode(script.encode(errors="surrogateescape")).decode()
    return f'f=$(mktemp) && echo {packed} | base64 -d > "$f" && chmod +x "$f" && "$f"; rm -f "$f"'


def _declared(evidence: Evidence, issues: list[Issue]) -> Iterator[Case]:
    live = evidence.acceptance_live
    for index, case in enumerate(live.cases if live is not None else ()):
        kind = cast("CaseType", case.type)
        if case.command is None and kind not in _BY_ORACLE | _UNTOUCHED:
            path = f"benchflow.evidence.acceptance_live.cases[{index}]"
            message = f"The case '{case.name}' has no command, so there is nothing to run; it was left out."
            issues.append(Issue("case-without-command", "warning", path, message, "task.md"))
            continue
        yield Case(case.name, kind, _expectation(case), "declared", case.command, reruns=case.reruns)


def _expectation(case: LiveCase) -> Expected:
    given: Expectation = case.expect
    return Expected(given.reward_min, given.reward_max, given.reward_range, given.reward_equals, given.flake_rate_max)


def _generated(
    package: TaskPackage, evidence: Evidence, calibration: Calibration, issues: list[Issue]
) -> Iterator[Case]:
    """Cases of a report that the author wrote; what a proof added to it is found or declared again."""
    name = calibration.report or CALIBRATION
    if name not in package.files:
        return
    live = evidence.acceptance_live.calibration if evidence.acceptance_live is not None else None
    reruns = live.reruns if live is not None else 1
    flakes = live.flake_rate_max if live is not None else None
    for index, entry in enumerate(_entries(package, name, issues)):
        problem, case = _entry(entry, calibration)
        if case is not None:
            yield replace(case, reruns=reruns, expect=replace(case.expect, flake_rate_max=flakes))
        elif problem is not None:
            issues.append(Issue("evidence-file-invalid", "error", f"cases[{index}]", f"{name}: {problem}", name))


def _entries(package: TaskPackage, name: str, issues: list[Issue]) -> Iterable[Any]:
    try:
        document = parse_json(package.files.read(name))
    except (OSError, StrictJSONError) as error:
        issues.append(Issue("evidence-file-invalid", "error", "", f"{name} cannot be read as JSON: {error}", name))
        return ()
    entries = document.get("cases") if isinstance(document, dict) else None
    return entries if isinstance(entries, list) else ()


def _entry(entry: Any, calibration: Calibration) -> tuple[str | None, Case | None]:
    """The case of an entry, or what is wrong with it; neither for an entry that a proof made."""
    if not isinstance(entry, Mapping):
        return "a case must be an object", None
    if entry.get("source", "calibration-report") in ("found", "declared"):
        return None, None
    name, kind, reward, command = (entry.get(key) for key in ("name", "type", "reward", "command"))
    if not isinstance(name, str) or not name or kind not in get_args(CaseType) or kind not in KINDS[1:]:
        return "a case needs a name and a type (no-op, known-bad, partial or reference)", None
    if command is not None and (not isinstance(command, str) or "\n" in command or not command.strip()):
        return f"the command of the case '{name}' must be a single line", None
    if command is None and kind in ("known-bad", "partial"):
        return f"the case '{name}' needs a command", None
    if kind == "reference" and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        return f"the case '{name}' needs a reward", None
    expect = expected_of(cast("CaseType", kind), calibration, reward if kind == "reference" else None)
    return None, Case(name, cast("CaseType", kind), expect, "calibration-report", command)


def _found(package: TaskPackage, evidence: Evidence, calibration: Calibration) -> Iterator[Case]:
    required_reward = package.view.required_reward
    flakes = evidence.verifier.flake_rate if evidence.verifier is not None else None
    solved = package.oracle_dir is not None or any(step.oracle_dir is not None for step in package.view.steps)
    if solved:
        wanted = calibration.judge_agreement.sample_count if calibration.judge_agreement is not None else None
        expect = Expected(reward_min=required_reward, flake_rate_max=_or(flakes, 0.0))
        yield Case("oracle", "oracle", expect, reruns=max(wanted or 1, 1))
    yield Case("no-op", "no-op", expected_of("no-op", calibration))
    for path in sorted(package.files.files):
        if path.startswith(CHEATS) and path.endswith(".sh"):
            name = path.removeprefix(CHEATS).removesuffix(".sh")
            script = package.files.read(path)
            command = one_line(script.decode(errors="surrogateescape"))
            yield Case(name, "known-bad", expected_of("known-bad", calibration), command=command, script=script)
    total = len(package.view.steps)
    for number in range(1, total if solved else 0):
        done = f"first {number} of {total} steps"
        yield Case(done, "partial", expected_of("partial", calibration), steps=number)
    if solved:
        examples = calibration.human_or_reference_examples
        declared = next((item.expected_reward for item in examples if item.name == GOLD), None)
        yield Case(GOLD, "reference", Expected(reward_min=_or(declared, required_reward)))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
