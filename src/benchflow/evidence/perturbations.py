"""What a verifier must withstand: the perturbations by name, and the verification of the oracle's result under each.

A perturbation is a case of its own. It passes if the reward is one that the result gets without it; a reward that
differs must do so twice. One that could not be applied is reported with the reason and never as passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from benchflow.errors import Category
from benchflow.evidence.reuse import Perturbed
from benchflow.evidence.trial_stage import NOT_THE_PACKAGE, Stage, Trial, total
from benchflow.record.evidence import CaseReport, Expected
from benchflow.rewards import Unscored
from benchflow.verifier import Verification
from benchflow.verifier.perturbation import Perturbation

_DAY: Final = 24 * 60 * 60
_SEED: Final = "4711"
_ALL: Final = (
    Perturbation("time-zone", "in another time zone", time_zone=True),
    Perturbation("locale", "in another locale", locale=True),
    Perturbation("clock", "a day later", clock_offset_sec=_DAY),
    Perturbation("seed", "with another random seed", {"PYTHONHASHSEED": _SEED, "PERL_HASH_SEED": _SEED, "SEED": _SEED}),
    Perturbation("processors", "on one processor", {"PYTHON_CPU_COUNT": "1"}, one_processor=True),
    Perturbation("network", "without a network", offline=True),
    Perturbation("user", "as another user", other_user=True),
)
PERTURBATIONS: Final[Mapping[str, Perturbation]] = {item.name: item for item in _ALL}
_DECLARED_BY: Final = {
    "time-zone": "TZ in verifier.env",
    "locale": "LC_ALL in verifier.env",
    "seed": "the seed in verifier.env",
    "network": "verifier.network_mode",
    "user": "verifier.user",
}
"""How a package declares what its verifier needs; such a perturbation is not applied."""
_TRIES: Final = 2
_ONE_OF_TWO: Final = 0.5
"""The rate of rewards that may differ: one that differs must do so twice."""
_OF_THE_BOX: Final[frozenset[Category]] = frozenset({"infrastructure", "sandbox", "environment"})
"""Failures that a perturbation can cause itself, where the box cannot be made as it asks."""


@dataclass(frozen=True, slots=True)
class _Run:
    reward: float | None
    error: str = ""
    undecided: bool = False
    """Whether it has no reward for a reason that is not the package's."""
    of_the_box: bool = False
    """Whether the perturbation itself may be that reason."""
    not_applied: str = ""


async def perturb(
    stage: Stage, usual: Iterable[float], wanted: Mapping[str, Perturbation] = PERTURBATIONS, agent: str = "oracle"
) -> Perturbed:
    """Verify what an agent leaves, whose rewards are the `usual` ones, under each perturbation.

    Where verification is pure, all of them see one state; otherwise each has a run of the agent to itself.
    """
    expect = _expected(usual)
    seen: dict[str, list[_Run]] = {name: [] for name in wanted}
    left = wanted
    for _ in range(_TRIES if wanted else 0):
        runs = await (_on_one_state(stage, agent, left) if stage.is_pure else _each(stage, agent, left))
        for name, run in runs.items():
            seen[name].append(run)
        left = {name: wanted[name] for name, run in runs.items() if not run.not_applied and not _is_usual(run, expect)}
        if not left:
            break
    why = {name: _not_applied(wanted[name], runs[-1]) for name, runs in seen.items()}
    return Perturbed(
        {name: _case(wanted[name], runs, expect) for name, runs in seen.items() if not why[name]},
        {name: reason for name, reason in why.items() if reason},
    )


def _expected(usual: Iterable[float]) -> Expected:
    """What the result gets without a perturbation: one reward, or a range where verdicts differ anyway."""
    rewards = sorted(usual)
    if rewards[0] == rewards[-1]:
        return Expected(reward_equals=rewards[0], flake_rate_max=_ONE_OF_TWO)
    return Expected(reward_range=(rewards[0], rewards[-1]), flake_rate_max=_ONE_OF_TWO)


async def _on_one_state(stage: Stage, agent: str, wanted: Mapping[str, Perturbation]) -> dict[str, _Run]:
    trial = await stage.run(agent, again=[{"perturbation": item} for item in wanted.values()])
    each = enumerate(wanted)
    return {name: _run(stage, trial.again[number :: len(wanted)], trial) for number, name in each}


async def _each(stage: Stage, agent: str, wanted: Mapping[str, Perturbation]) -> dict[str, _Run]:
    found: dict[str, _Run] = {}

    async def one(name: str) -> None:
        trial = await stage.run(agent, perturbation=wanted[name])
        found[name] = _run(stage, trial.verified, trial)

    async with anyio.create_task_group() as group:
        for name in wanted:
            group.start_soon(one, name)
    return {name: found[name] for name in wanted}


def _run(stage: Stage, found: Sequence[Verification], trial: Trial) -> _Run:
    """One verification, which has a part for each step; it counts as applied if it was in one of them."""
    if not found:
        error = trial.result.error
        return _Run(None, error.message if error is not None else "the agent's result was not verified", True)
    if all(part.not_applied for part in found):
        return _Run(None, not_applied="; ".join(dict.fromkeys(why for part in found for why in part.not_applied)))
    verdict = total(stage.package.view, [part.verdict for part in found])
    if isinstance(verdict, Unscored):
        return _Run(None, verdict.reason, verdict.category in NOT_THE_PACKAGE, verdict.category in _OF_THE_BOX)
    return _Run(verdict.reward)


def _is_usual(run: _Run, expect: Expected) -> bool:
    return run.reward is not None and not expect.missed(run.reward)


def _not_applied(wanted: Perturbation, last: _Run) -> str:
    if last.of_the_box:
        return f"no verification {wanted.label} was possible: {last.error}"
    return last.not_applied


def _case(wanted: Perturbation, runs: Sequence[_Run], expect: Expected) -> CaseReport:
    last = runs[-1]
    passed = _is_usual(last, expect)
    return CaseReport(
        name=wanted.name,
        type="perturbation",
        runs=len(runs),
        rewards=tuple(run.reward for run in runs),
        expect=expect,
        passed=passed,
        reasons=() if passed else (_reason(wanted, last, expect),),
        undecided=last.undecided,
    )


def _reason(wanted: Perturbation, last: _Run, expect: Expected) -> str:
    scored = f"the reward is {last.reward:g}" if last.reward is not None else f"not scored ({last.error})"
    low, high = expect.reward_range or (expect.reward_equals, None)
    usual = f"{low:g}" if high is None else f"{low:g} to {high:g}"
    found = f"{scored} {wanted.label}, and {usual} otherwise"
    if last.undecided:
        return found
    key = _DECLARED_BY.get(wanted.name)
    named = f"{key}, or " if key is not None else ""
    return f"{found}; a verifier that needs it declares {named}{wanted.name} in benchflow.evidence.verifier.depends_on"
