"""Verdicts of the audit: what the trick adds, again and again, and nothing else."""

import pytest

from benchflow.evidence.audit.battery import POINTLESS, Battery, Bounds
from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.outputs import DO_NOTHING, EMPTY_OUTPUT
from benchflow.evidence.trial_stage import StageOptions, open_stage

pytestmark = pytest.mark.anyio
EXISTS = "if [ -e /app/answer.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


async def tried(folder, backend, family, **bounds):
    async with open_stage(folder, StageOptions(sandbox=backend)) as stage:
        seen = Seen(
            stage.package,
            stage.isolation.rung,
            "/app",
            "root",
            "/root",
            "Write answer.txt",
            files=(),
            programs=frozenset(),
            outputs=("/app/answer.txt",),
            read=(),
        )
        return await Battery(stage, seen, Bounds(**bounds)).try_family(family)


async def test_a_verifier_that_checks_the_content_holds(make_package, backend):
    found = await tried(make_package(), backend, EMPTY_OUTPUT)
    assert (found.verdict, found.attempts, found.best_reward, found.baseline) == ("held", 1, 0.0, 0.0)


async def test_a_verifier_that_only_looks_for_a_file_is_broken_by_an_empty_one(make_package, backend):
    found = await tried(make_package(verifier=EXISTS), backend, EMPTY_OUTPUT)
    assert (found.verdict, found.best_reward) == ("broken", 1.0)
    assert "empty file" in found.evidence
    assert found.remedy == EMPTY_OUTPUT.remedy


async def test_a_task_that_is_solved_already_is_found(make_package, backend):
    found = await tried(make_package(verifier="echo 1 > /logs/verifier/reward.txt\n"), backend, DO_NOTHING)
    assert found.verdict == "broken"


async def test_tricks_are_not_tried_where_doing_nothing_gets_everything(make_package, backend):
    package = make_package(verifier="echo 1 > /logs/verifier/reward.txt\n")
    found = await tried(package, backend, EMPTY_OUTPUT)
    assert (found.verdict, found.attempts, found.baseline) == ("not-applicable", 0, 1.0)
    assert found.evidence == POINTLESS
    assert (await tried(package, backend, EMPTY_OUTPUT, most=2.0)).verdict == "held"


async def test_what_the_state_earns_without_the_trick_does_not_count(make_package, backend):
    honest = "echo done > answer.txt"
    family = Family("beside", "", "", lambda _: [Attempt("leaves a hook", f"{honest}; echo > hook", without=honest)])
    found = await tried(make_package(), backend, family)
    assert (found.verdict, found.best_reward, found.baseline) == ("held", 1.0, 1.0)


@pytest.mark.parametrize(
    ("bound", "reward", "baseline", "broken"),
    [
        ("baseline", 0.2, 0.1, True),
        ("baseline", 0.2, 0.2, False),
        ("baseline", 1.0, None, True),
        ("baseline", 0.9, None, False),
        ("known-bad", 0.9, 0.0, False),
        ("known-bad", 1.0, 0.0, True),
        ("known-bad", 1.0, 1.0, False),
        ("no-op", 0.2, 0.2, True),
        ("no-op", 0.1, 0.1, False),
    ],
)
async def test_a_reward_is_compared_with_the_state_without_the_trick_and_with_what_is_allowed(
    bound, reward, baseline, broken
):
    assert Bounds().exceeded(Attempt("tries", "true", bound=bound), reward, baseline) is broken


async def test_a_family_that_cannot_be_tried_says_why(make_package, backend):
    family = Family("none", "", "", lambda _: NotApplicable("There is no git."))
    found = await tried(make_package(), backend, family)
    assert (found.verdict, found.attempts, found.evidence) == ("not-applicable", 0, "There is no git.")
