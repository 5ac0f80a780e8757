"""The breaker: when starts keep failing nothing new starts but a trial, and in the end the job is left for resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import InfrastructureFailure
from benchflow.evaluation.breaker import Breaker, BreakerRules, evidence_of
from benchflow.evaluation.engine import Engine, Observer, remaining
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.work import TaskRef, WorkItem, plan_items
from benchflow.record import ErrorRecord, JobRecord, JobRequest, Result, RolloutFolder, Settings, TaskId

RULES = BreakerRules(failures=3, first_pause_sec=5, longest_pause_sec=15, trials=3, trial_sec=60)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    for item in range(RULES.failures):
        assert breaker.may_start(now, item)
        breaker.failed(now, item)
    assert breaker.state == "open"
    return breaker


def test_different_items_that_fail_in_a_row_open_it_and_one_trial_closes_it() -> None:
    breaker = opened(100.0)
    assert not breaker.may_start(104.9, "next")
    assert breaker.wait_sec(101.0) == pytest.approx(4.0)
    assert breaker.may_start(105.0, "next")
    assert breaker.state == "half-open"
    assert not breaker.may_start(105.0, "another"), "one trial at a time"
    breaker.succeeded("next")
    assert breaker.state == "closed"
    assert breaker.may_start(105.0, "another")


def test_retries_of_one_item_and_failures_around_a_success_do_not_open_it() -> None:
    breaker = Breaker(RULES)
    for _ in range(20):
        breaker.failed(0.0, "one")
    breaker.failed(0.0, "two")
    breaker.succeeded("three")
    breaker.failed(0.0, "four")
    breaker.failed(0.0, "five")
    assert breaker.state == "closed"


def test_pauses_grow_to_their_limit_and_after_enough_trials_it_gives_up() -> None:
    breaker, now, pauses = opened(), 0.0, []
    while breaker.state != "given-up":
        pauses.append(breaker.wait_sec(now))
        now += pauses[-1]
        assert breaker.may_start(now, now)
        breaker.failed(now, now)
    assert pauses == [5, 10, 15]
    assert not breaker.may_start(now + 1e6, "any")


def test_what_began_before_it_opened_decides_nothing_and_a_trial_that_shows_nothing_is_replaced() -> None:
    breaker = opened()
    breaker.succeeded("older")
    breaker.failed(1.0, "older")
    assert (breaker.state, breaker.wait_sec(0.0)) == ("open", 5.0)
    assert breaker.may_start(5.0, "trial")
    breaker.failed(6.0, "older")
    breaker.succeeded("older")
    assert breaker.state == "half-open"
    breaker.set_aside(7.0, "trial")
    assert breaker.may_start(7.0, "second trial")
    assert not breaker.may_start(7.0, "trial")


def test_a_trial_that_runs_for_long_enough_has_started_but_only_a_success_makes_pauses_short_again() -> None:
    breaker = opened()
    assert breaker.may_start(5.0, "slow")
    assert not breaker.may_start(64.9, "other")
    assert breaker.may_start(65.0, "other")
    assert breaker.state == "closed"
    for item in ("a", "b", "c"):
        breaker.failed(70.0, item)
    assert breaker.wait_sec(70.0) == 10.0, "nothing had succeeded in the meantime"
    assert breaker.may_start(80.0, "good")
    breaker.succeeded("good")
    for item in ("a", "b", "c"):
        breaker.failed(90.0, item)
    assert breaker.wait_sec(90.0) == 5.0


@given(st.lists(st.tuples(st.sampled_from(["failed", "succeeded", "nothing"]), st.integers(0, 5)), max_size=60))
def test_it_never_hangs_and_only_one_trial_runs(outcomes) -> None:
    """Whatever happens, after the time that it names something may start, unless it has given up."""
    breaker, now = Breaker(RULES), 0.0
    for evidence, item in outcomes:
        now += breaker.wait_sec(now)
        if breaker.state == "given-up":
            assert not breaker.may_start(now, item)
            return
        assert breaker.may_start(now, item)
        if breaker.state == "half-open":
            assert not breaker.may_start(now, "other")
        breaker.report(now, item, evidence)


@pytest.mark.parametrize(
    ("category", "code", "shown"),
    [
        ("sandbox", "start-failed", "failed"),
        ("infrastructure", "disk-full", "failed"),
        ("infrastructure", "deadline", "nothing"),
        ("package", "unknown-key", "nothing"),
        ("unsupported", "gpus", "nothing"),
        ("environment", "healthcheck", "nothing"),
        ("cancelled", "job-limit", "nothing"),
        ("agent", "exit-code", "succeeded"),
        ("verifier", "no-reward", "succeeded"),
        ("judge", "timeout", "succeeded"),
    ],
)
def test_only_the_machine_counts_against_the_machine(make_result, category, code, shown) -> None:
    assert evidence_of(make_result(error=ErrorRecord(category, code, "environment", "m"))) == shown
    assert evidence_of(make_result()) == "succeeded"


class Machine:
    """Runs nothing; fails while `broken` says so of the number of the try."""

    def __init__(self, make_result: Callable[..., Result], broken: Callable[[WorkItem, int], str | None]) -> None:
        self.make_result = make_result
        self.broken = broken
        self.ran: list[str] = []

    async def prepare(self, task: TaskRef) -> None:
        del task

    async def run(self, item: WorkItem, folder: Path) -> Result:
        del folder
        self.ran.append(item.task.name)
        category = self.broken(item, len(self.ran))
        await anyio.lowlevel.checkpoint()
        error = ErrorRecord(category, "x", "environment", "No space for boxes.") if category else None  # type: ignore[arg-type]
        made: Result = self.make_result(item.task.name, 1.0, error, attempt=item.attempt, key=item.key)
        return made

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        del item, folder, result
        return False

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        del item, folder, result
        return None


class Seen(Observer):
    def __init__(self) -> None:
        self.told: list[str] = []

    def paused(self, result: Result, delay: float) -> None:
        assert result.error is not None
        self.told.append(f"paused {result.error.message}")
        assert delay > 0

    def continued(self) -> None:
        self.told.append("continued")


@pytest.fixture
def store(tmp_path):
    made = JobStore.create(tmp_path / "jobs", JobRecord("job", JobRequest(("tasks",), "oracle"), 0, ""))
    yield made
    made.close()


def items(count: int) -> list[WorkItem]:
    tasks = [TaskRef(TaskId(f"t{number}", f"sha256:{number}"), "p", None) for number in range(count)]
    return list(plan_items(tasks, 1, Settings("oracle")))


QUICK = BreakerRules(failures=5, first_pause_sec=0.01, longest_pause_sec=0.01, trials=3)


def run(store, machine, work, **options) -> Seen:
    seen = Seen()
    engine = Engine(
        store, machine, backoff=lambda _: 0.0, observer=seen, breaker=Breaker(QUICK), **{"concurrency": 2, **options}
    )
    anyio.run(engine.run, iter(work))
    return seen


def test_a_machine_that_stays_broken_stops_the_job_and_the_rest_is_left_for_resume(store, make_result) -> None:
    machine, work = Machine(make_result, lambda _item, _number: "sandbox"), items(200)
    with pytest.raises(
        InfrastructureFailure, match=r"keeps failing: No space for boxes\. Fix.*eval resume .*job$"
    ) as it:
        run(store, machine, work)
    assert it.value.code == "starts-failing"
    assert len(set(machine.ran)) < 12, "work was spent on a machine that cannot do it"
    left = list(remaining(iter(work), store.results))
    assert len(left) == 200, "every item is still to be run"
    again = Machine(make_result, lambda _item, _number: None)
    run(store, again, left)
    assert len(again.ran) == 200


def test_a_machine_that_recovers_goes_on_and_every_item_is_scored(store, make_result) -> None:
    """Items that failed before and during the pause still have the retries that are theirs."""
    machine = Machine(make_result, lambda _item, number: "infrastructure" if 10 < number <= 17 else None)
    seen = run(store, machine, items(60), concurrency=8)
    assert [told.split()[0] for told in seen.told[:1] + seen.told[-1:]] == ["paused", "continued"]
    assert {result.status for _, result in store.results} == {"scored"}
    assert len(store.results.latest) == 60


@pytest.mark.parametrize("category", ["agent", "verifier", "package", "environment"])
def test_failures_that_are_not_the_machines_never_pause_a_job(store, make_result, category) -> None:
    machine = Machine(make_result, lambda _item, _number: category)
    assert run(store, machine, items(40)).told == []
    assert len(machine.ran) == 40


def test_broken_packages_among_good_ones_never_pause_a_job(store, make_result) -> None:
    broken = {f"t{number}" for number in range(0, 40, 4)}
    machine = Machine(make_result, lambda item, _number: "sandbox" if item.task.name in broken else None)
    assert run(store, machine, items(40)).told == []
    assert sum(result.error is not None for _, result in store.results) == 10


def test_running_work_is_finished_when_the_machine_is_given_up(store, make_result) -> None:
    class Mixed(Machine):
        async def run(self, item: WorkItem, folder: Path) -> Result:
            if item.task.name == "t0":
                await last_pause.wait()
                await anyio.sleep(QUICK.first_pause_sec * 5)  # by now the last trial has failed
            return await super().run(item, folder)

    class Pauses(Seen):
        def paused(self, result: Result, delay: float) -> None:
            super().paused(result, delay)
            if len(self.told) == QUICK.trials:
                last_pause.set()

    async def main() -> None:
        engine = Engine(store, machine, 3, backoff=lambda _: 0.0, observer=Pauses(), breaker=Breaker(QUICK))
        await engine.run(iter(items(50)))

    last_pause = anyio.Event()
    machine = Mixed(make_result, lambda item, _number: None if item.task.name == "t0" else "sandbox")
    with pytest.raises(InfrastructureFailure):
        anyio.run(main)
    assert [result.task.name for _, result in store.results if result.error is None] == ["t0"]
