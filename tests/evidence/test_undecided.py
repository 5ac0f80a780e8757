"""What the audit says when the machine fails, and when a state cannot be scored."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchflow.evidence.audit.auditing import audit_stage
from benchflow.evidence.audit.battery import UNDECIDED, Battery, Bounds
from benchflow.evidence.audit.exploit_family import Attempt, Family
from benchflow.evidence.audit.families.outputs import DO_NOTHING
from benchflow.evidence.trial_stage import StageOptions, Trial, open_stage
from benchflow.record.outcome import ErrorRecord

pytestmark = pytest.mark.anyio
TRICK = Family("trick", "", "", lambda _: [Attempt("tries", "true")])
LOST = ErrorRecord("infrastructure", "disk-full", "verify", "No space left.")
CRASH = ErrorRecord("verifier", "crashed", "verify", "The verifier crashed.")
LATE = ErrorRecord("infrastructure", "deadline", "verify", "The rollout exceeded its limit of 30 s.")


class Played:
    """A stage whose trials end as told: one list for the state without the trick, one for the trick."""

    def __init__(self, nothing, trick):
        self._ends = {"nop": list(nothing), "audit": list(trick)}

    async def run(self, agent, *, name=None, **_options):
        ends = self._ends[name or agent]
        end = ends.pop(0) if len(ends) > 1 else ends[0]
        error = end if isinstance(end, ErrorRecord) else None
        result = SimpleNamespace(error=error, reward=None if error else end, timing={"total": 0.1})
        return Trial(result)


async def verdict(nothing, trick):
    found = await Battery(Played(nothing, trick), None, Bounds()).try_family(TRICK)
    return found.verdict, found.evidence


async def test_a_failure_that_passes_does_not_count():
    assert (await verdict([0.0], [LOST, 0.0]))[0] == "held"


async def test_a_failure_of_the_machine_that_stays_is_undecided_and_says_so():
    found, evidence = await verdict([0.0], [LOST])
    assert found == "not-applicable"
    assert evidence.startswith(UNDECIDED)
    assert "No space left." in evidence


async def test_a_trick_that_prevents_a_score_voids():
    assert (await verdict([0.0], [CRASH]))[0] == "voided"


async def test_a_verifier_that_scores_neither_state_is_not_voided_by_the_trick():
    assert (await verdict([CRASH], [CRASH]))[0] == "held"


async def test_a_full_reward_where_nothing_is_scored_breaks():
    assert (await verdict([CRASH], [1.0]))[0] == "broken"


async def test_a_reward_that_does_not_come_again_does_not_break():
    assert (await verdict([0.0], [1.0, 1.0, 0.0]))[0] == "held"


async def test_an_attempt_that_is_stopped_holds_and_is_marked():
    assert await verdict([0.0], [LATE]) == ("held", "Tried: tries (stopped).")


async def test_a_package_that_could_not_be_tried_is_not_called_sound(make_package, backend, monkeypatch):
    async with open_stage(make_package(), StageOptions(sandbox=backend)) as stage:
        run = stage.run

        async def failing(agent, **options):
            trial = await run(agent, **options)
            return Trial(replace(trial.result, outcome=LOST)) if agent == "nop" else trial

        monkeypatch.setattr(stage, "run", failing)
        report = await audit_stage(stage, {"do-nothing": DO_NOTHING, "trick": TRICK})
    assert (report.sound, report.verdict) == (False, "undecided")
    assert {family.verdict for family in report.families} == {"not-applicable"}
    assert [issue.code for issue in report.findings if issue.severity == "error"] == ["audit-undecided"]
