"""The life of a rollout without any sandbox: one step loop, one boundary for failures, one record."""

import json
from dataclasses import replace

import anyio
import pytest

from benchflow.errors import SandboxFailure, UnsupportedError
from benchflow.files.redaction import Redactor
from benchflow.record import AgentEnd, AgentPart, RescoreNote, Result, RolloutFolder, SandboxPart, TaskPart, WorkKey
from benchflow.rewards import Attributed, Scored, Unscored, attributed
from benchflow.rollout.course import Checkpoint, Course, Past
from benchflow.rollout.lifecycle import Draft, Driver, carry_out, rescored

pytestmark = pytest.mark.anyio

STEPS = (Checkpoint("one", 0.5), Checkpoint("two"))


class Scripted(Driver):
    """Each step ends as the script says: a verdict, or something that is raised."""

    def __init__(self, *script, steps=STEPS):
        super().__init__(Course(steps))
        self.script = list(script)
        self.taken = []

    async def take_step(self, step):
        self.taken.append(step.name)
        end = self.script.pop(0)
        if isinstance(end, BaseException):
            with attributed("agent", "agent"):
                raise end
        return Past(end)


@pytest.fixture
def draft():
    task = TaskPart("acme/t", "t", "sha256:0", "sha256:0")
    agent = AgentPart("oracle", None, exit_code=None, timed_out=False)
    return Draft(task, agent, SandboxPart(None, None, None), WorkKey("key"), 1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return RolloutFolder(tmp_path / "out")


@pytest.fixture
def run(draft, folder):
    async def carry(driver, **options):
        draft.driver = driver
        return await carry_out(draft, folder, driver.walk, **options)

    return carry


async def test_steps_are_taken_until_the_course_is_over(run):
    driver = Scripted(Scored(1.0), Scored(0.0))
    result = await run(driver)
    assert (driver.taken, result.reward, [step.status for step in result.steps]) == (
        ["one", "two"], 0.5, ["scored", "scored"],
    )  # fmt: skip


async def test_no_step_is_taken_after_one_that_reached_too_little(run):
    driver = Scripted(Scored(0.4))
    result = await run(driver)
    assert (driver.taken, result.reward) == (["one"], 0.2)
    assert [step.status for step in result.steps] == ["scored", "not-reached"]


async def test_a_step_that_fails_is_the_verdict_on_the_whole_and_in_its_own_record(run, folder):
    driver = Scripted(Scored(1.0), SandboxFailure("It is gone.", code="sandbox-lost"))
    result = await run(driver)
    assert (result.error.category, result.error.code, result.error.message) == (
        "sandbox", "sandbox-lost", "step two: It is gone.",
    )  # fmt: skip
    assert [(step.status, step.error and step.error.message) for step in result.steps] == [
        ("scored", None), ("unscored", "It is gone."),
    ]  # fmt: skip
    assert Result.from_dict(json.loads(folder.result.read_text())).error == result.error


async def test_a_failure_that_nobody_attributed_is_infrastructure_of_the_phase(draft, folder):
    async def work():
        with draft.timed("verify"):
            return {}["nothing"]

    result = await carry_out(draft, folder, work)
    assert (result.error.category, result.error.code, result.error.phase) == ("infrastructure", "crashed", "verify")


async def test_a_deadline_is_infrastructure_of_the_phase_under_way(draft, folder):
    async def work():
        with draft.timed("agent"):
            await anyio.sleep(60)

    result = await carry_out(draft, folder, work, timeout_sec=0.01)
    assert (result.error.code, result.error.phase) == ("deadline", "agent")
    assert result.error.message == "The rollout exceeded its limit of 0.01 s."


async def test_cancelling_leaves_a_record_and_continues(draft, folder):
    with anyio.CancelScope() as scope:

        async def work():
            scope.cancel()
            await anyio.sleep(60)

        await carry_out(draft, folder, work)
    assert scope.cancelled_caught
    assert json.loads(folder.result.read_text())["error"]["category"] == "cancelled"


async def test_a_refusal_is_raised_for_whoever_asks_and_recorded_otherwise(draft, folder):
    async def work():
        with attributed("package", "plan"):
            raise UnsupportedError("Not here.", code="no")

    with pytest.raises(UnsupportedError, match=r"Not here\."):
        await carry_out(draft, folder, work, raise_refusals=True)
    assert not folder.result.exists()
    result = await carry_out(draft, folder, work)
    assert (result.error.category, result.error.code) == ("unsupported", "no")


async def test_a_record_that_cannot_be_written_is_the_result(draft, tmp_path):
    (tmp_path / "file").write_text("")
    result = await carry_out(draft, RolloutFolder(tmp_path / "file" / "out"), Scripted(Scored(1.0)).walk)
    assert (result.error.category, result.error.phase) == ("infrastructure", "record")


async def test_what_fails_while_something_ends_is_noted_beside_the_verdict(draft, folder):
    async def end():
        raise SandboxFailure("It hangs.", code="stuck")

    async def work():
        await draft.clean_up("environment", end)
        return Scored(1.0)

    result = await carry_out(draft, folder, work)
    assert (result.reward, [note.code for note in result.notes.cleanup]) == (1.0, ["stuck"])


async def test_times_add_up_per_phase_and_agents_over_the_steps(draft, folder):
    async def work():
        for timed_out in (True, False):
            with draft.timed("agent"):
                draft.add_agent(AgentEnd(3, timed_out=timed_out), {"input_tokens": 2})
        return Scored(1.0)

    result = await carry_out(draft, folder, work)
    assert (result.agent.exit_code, result.agent.timed_out, result.usage) == (3, True, {"input_tokens": 4})
    assert set(result.timing) == {"agent", "total"}


async def test_secrets_are_taken_out_of_the_record_and_of_what_sandboxes_left(draft, folder):
    draft.redactor = Redactor(["a-secret"])
    folder.verifier.mkdir()
    (folder.verifier / "log.txt").write_text("it is a-secret")

    async def work():
        raise Attributed(Unscored("verifier", "verify", "bad", "it said a-secret"))

    result = await carry_out(draft, folder, work)
    assert "a-secret" not in result.error.message + folder.result.read_text()
    assert "a-secret" not in (folder.verifier / "log.txt").read_text()


async def test_a_rollout_that_is_scored_again_keeps_everything_but_its_score(run):
    old = await run(Scripted(Scored(1.0), Scored(0.0)))
    again = Scripted(Scored(1.0), Scored(1.0))
    verdict = await again.walk()
    new = rescored(old, again.course, verdict, RescoreNote("sha256:v", "sha256:p", number=1), Redactor([]))
    assert (new.reward, new.notes.rescore.before.reward, new.steps[1].reward) == (1.0, 0.5, 1.0)
    kept = {"outcome": old.outcome, "steps": old.steps, "verifier": old.verifier, "notes": old.notes}
    assert replace(new, **kept) == old
    failed = rescored(old, Course(STEPS), Unscored("package", "plan", "no", "No."), new.notes.rescore, Redactor([]))
    assert (failed.error.code, failed.steps) == ("no", old.steps)
