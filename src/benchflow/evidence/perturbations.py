"""What a verifier must withstand: the perturbations by name, and the verification of the oracle's result under each.

A perturbation is a case of its own. It passes if the reward is the same as without it; a reward that differs must do so
twice. One that could not be applied is reported with the reason and never as passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchflow.evidence.trial_stage import NOT_THE_PACKAGE, Stage, Trial, total
from benchflow.record.evidence import TOLERANCE, CaseReport, Expected
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


@dataclass(frozen=True, slots=True)
class Perturbed:
    """The cases that were run, and why others could not be applied, by name."""

    cases: tuple[CaseReport, ...] = ()
    not_applied: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Run:
    usual: float | None
    """The reward without the perturbation."""
    reward: float | None
    error: str = ""
    undecided: bool = False
    """Whether it has no reward for a reason that is not the package's."""
    not_applied: str = ""

    @property
    def same(self) -> bool:
        return self.usual is not None and self.reward is not None and abs(self.usual - self.reward) <= TOLERANCE


async def perturb(
    stage: Stage, usual: float, wanted: Mapping[str, Perturbation] = PERTURBATIONS, agent: str = "oracle"
) -> Perturbed:
    """Verify what an agent leaves, whose reward is `usual`, under each perturbation.

    Where verification is pure, all of them see one state; otherwise each has a run of the agent to itself.
    """
    seen: dict[str, list[_Run]] = {name: [] for name in wanted}
    left = wanted
    for _ in range(_TRIES):
        runs = await (_on_one_state(stage, agent, left) if stage.is_pure else _each(stage, agent, left, usual))
        for name, run in runs.items():
            seen[name].append(run)
        left = {name: wanted[name] for name, run in runs.items() if not run.same and not run.not_applied}
        if not left:
            break
    return Perturbed(
        tuple(_case(wanted[name], runs) for name, runs in seen.items() if not runs[-1].not_applied),
        {name: runs[-1].not_applied for name, runs in seen.items() if runs[-1].not_applied},
    )


async def _on_one_state(stage: Stage, agent: str, wanted: Mapping[str, Perturbation]) -> dict[str, _Run]:
    trial = await stage.run(agent, again=[{"perturbation": item} for item in wanted.values()])
    rounds = len(trial.again) // len(wanted)
    return {
        name: _run(stage, trial.reward, trial.again[number :: len(wanted)] if rounds else (), trial)
        for number, name in enumerate(wanted)
    }


async def _each(stage: Stage, agent: str, wanted: Mapping[str, Perturbation], usual: float) -> dict[str, _Run]:
    found: dict[str, _Run] = {}
    for name, item in wanted.items():
        trial = await stage.run(agent, perturbation=item)
        found[name] = _run(stage, usual, trial.verified, trial)
    return found


def _run(stage: Stage, usual: float | None, found: Sequence[Verification], trial: Trial) -> _Run:
    """One verification, which has a part for each step; it counts as applied if it was in one of them."""
    if not found or usual is None:
        error = trial.result.error
        return _Run(usual, None, error.message if error is not None else "the agent's result was not verified", True)
    if all(part.not_applied for part in found):
        return _Run(
            usual, None, not_applied="; ".join(dict.fromkeys(why for part in found for why in part.not_applied))
        )
    verdict = total(stage.package.view, [part.verdict for part in found])
    if isinstance(verdict, Unscored):
        return _Run(usual, None, verdict.reason, verdict.category in NOT_THE_PACKAGE)
    return _Run(usual, verdict.reward)


def _case(wanted: Perturbation, runs: Sequence[_Run]) -> CaseReport:
    last = runs[-1]
    reasons: tuple[str, ...] = ()
    if not last.same:
        scored = f"the reward is {last.reward:g}" if last.reward is not None else f"not scored ({last.error})"
        usual = f", and {last.usual:g} otherwise" if last.usual is not None else ""
        key = _DECLARED_BY.get(wanted.name)
        remedy = f"; a verifier that needs it declares {key}" if key is not None and not last.undecided else ""
        reasons = (f"{scored} {wanted.label}{usual}{remedy}",)
    return CaseReport(
        name=wanted.name,
        type="perturbation",
        runs=len(runs),
        rewards=tuple(run.reward for run in runs),
        expect=Expected(reward_equals=last.usual),
        passed=last.same,
        reasons=reasons,
        undecided=last.undecided,
    )
