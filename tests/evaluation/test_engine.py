"""Many rollouts: concurrency, building once, retries, cancelling, resuming."""

from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from benchflow.evaluation.engine import Engine, Observer, last_results, remaining, unjudged
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.summary import job_summary
from benchflow.evaluation.work import TaskRef, plan_items
from benchflow.record import ErrorRecord, Result

SETTINGS = {"agent": "oracle", "model": None}


def tasks(count, environment=None):
    return [TaskRef(f"t{number}", f"p/t{number}", f"sha256:{number}", environment) for number in range(count)]


class NullRunner:
    """Rollouts that do nothing but yield once; scripted to fail by task name."""

    def __init__(self, failures=None):
        self.failures = failures or {}
        self.running = self.most = 0
        self.prepared = []
        self.ran = []
        self.scored_again = []
        self.keeps = True
        self.gate = None

    async def prepare(self, task):
        self.prepared.append(task.environment)
        await anyio.sleep(0.01)

    def can_score_again(self, item, folder, result):
        return self.keeps

    async def score_again(self, item, folder, result):
        """Scripted like a run, without one."""
        self.scored_again.append((item.task.name, folder.name))
        pending = self.failures.get(item.task.name, [])
        category = pending.pop(0) if pending else None
        if category == "not-kept":
            return None
        error = category and ErrorRecord(category, "x", "verify", "m")
        return replace(
            result,
            status="unscored" if error else "scored",
            reward=None if error else 0.5,
            error=error or None,
            extra={"rescore": {}},
        )

    async def run(self, item, folder):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.gate:
                await self.gate.wait()
            await anyio.lowlevel.checkpoint()
            self.ran.append((item.task.name, item.attempt))
            pending = self.failures.get(item.task.name, [])
            category = pending.pop(0) if pending else None
            error = category and ErrorRecord(category, "x", "agent", "m")
            return Result(
                task={"name": item.task.name, "path": item.task.path, "digest": item.task.digest},
                agent={"name": "oracle", "model": None, "exit_code": 0, "timed_out": False},
                sandbox={"name": "local", "base": "host", "fidelity": "exact"},
                attempt=item.attempt,
                key=item.key,
                status="unscored" if error else "scored",
                reward=None if error else 1.0,
                error=error or None,
                started_at="2026-01-01T00:00:00Z",
                finished_at="2026-01-01T00:00:00Z",
            )
        finally:
            self.running -= 1


@pytest.fixture
def store(tmp_path):
    made = JobStore.create(tmp_path, "job", {})
    yield made
    made.close()


def run(store, runner, items, **options):
    engine = Engine(store, runner, backoff=lambda attempt: 0.0, **options)
    anyio.run(engine.run, items)


def test_every_item_runs_once_and_is_recorded(store):
    runner = NullRunner()
    run(store, runner, plan_items(tasks(5), 3, SETTINGS), concurrency=2)
    assert sorted(runner.ran) == [(f"t{n}", a) for n in range(5) for a in (1, 2, 3)]
    assert runner.most <= 2
    summary = job_summary(store)
    assert (summary["total"], summary["scored"], summary["mean_reward"]["value"]) == (15, 15, 1.0)
    assert len({result["rollout"] for result in summary["results"]}) == 15


def test_an_environment_is_built_once_before_anything_runs_in_it(store):
    runner = NullRunner()
    work = [*tasks(4, "env-a"), TaskRef("other", "p", "d", "env-b"), TaskRef("none", "p", "e", None)]
    run(store, runner, plan_items(work, 2, SETTINGS), concurrency=3)
    assert sorted(runner.prepared) == ["env-a", "env-b"]
    assert len(runner.ran) == 12


def test_trouble_is_retried_by_its_category_and_every_try_is_kept(store):
    runner = NullRunner({"t0": ["infrastructure", "sandbox"], "t1": ["verifier"], "t2": ["infrastructure"] * 9})
    retried = []

    class Watching(Observer):
        def retrying(self, item, result, delay):
            retried.append(item.task.name)

    run(store, runner, plan_items(tasks(3), 1, SETTINGS), observer=Watching())
    lines = [(result.task["name"], result.status) for _, result in store.results()]
    assert (
        sorted(lines) == [("t0", "scored")] + [("t0", "unscored")] * 2 + [("t1", "unscored")] + [("t2", "unscored")] * 3
    )
    assert sorted(retried) == ["t0", "t0", "t2", "t2"]
    summary = job_summary(store)
    assert (summary["total"], summary["scored"]) == (3, 1)
    assert summary["unscored_by"] == {"infrastructure": 1, "verifier": 1}


def test_the_work_of_an_agent_is_scored_again_when_its_judge_fails_and_not_done_again(store):
    runner = NullRunner({"t0": ["judge", "sandbox"], "t1": ["judge", "not-kept"], "t2": ["judge"] * 9})
    run(store, runner, plan_items(tasks(3), 1, SETTINGS))
    assert sorted(name for name, _ in runner.ran) == ["t0", "t1", "t2"]
    assert sorted(name for name, _ in runner.scored_again) == ["t0", "t0", "t1", "t2", "t2"]
    lines = [(rollout, result.task["name"], result.status) for rollout, result in store.results()]
    assert len({rollout for rollout, _, _ in lines}) == 3, "a rollout is one however often it is scored"
    assert sorted(line[1:] for line in lines) == [("t0", "scored")] + [("t0", "unscored")] * 2 + [
        ("t1", "unscored"),
        *[("t2", "unscored")] * 3,
    ]
    assert {result["task"]["name"]: result["reward"] for result in job_summary(store)["results"]} == {
        "t0": 0.5,
        "t1": None,
        "t2": None,
    }


def test_an_agent_does_not_make_good_for_a_judge_when_its_work_was_not_kept(store):
    runner = NullRunner({"t0": ["judge"]})
    runner.keeps = False
    run(store, runner, plan_items(tasks(1), 1, SETTINGS))
    assert (len(runner.ran), len(runner.scored_again), len(list(store.results()))) == (1, 0, 1)


@pytest.mark.parametrize(("keeps", "ran", "scored_again"), [(True, 0, 1), (False, 1, 0)])
def test_resume_scores_what_only_wants_a_judge_and_runs_it_where_it_was_not_kept(store, keeps, ran, scored_again):
    items = list(plan_items(tasks(1), 1, SETTINGS))
    run(store, NullRunner({"t0": ["judge"] * 9}), iter(items))
    again = NullRunner()
    again.keeps = keeps
    latest = last_results(store)
    run(store, again, remaining(iter(items), store), unjudged=unjudged(latest))
    assert (len(again.ran), len(again.scored_again)) == (ran, scored_again)
    assert [result.status for _, result in last_results(store).values()] == ["scored"]


def test_resume_runs_what_is_missing_and_what_may_have_passed(store):
    items = list(plan_items(tasks(5), 1, SETTINGS))
    run(store, NullRunner({"t1": ["judge"] * 9, "t2": ["package"], "t3": ["agent"]}), iter(items[:4]))
    again = NullRunner()
    run(store, again, remaining(iter(items), store))
    assert sorted(name for name, _ in again.ran) == ["t1", "t3", "t4"]
    assert {result.status for _, result in last_results(store).values()} == {"scored", "unscored"}
    finished = NullRunner()
    run(store, finished, remaining(iter(items), store))
    assert finished.ran == []


def test_work_is_known_by_content_and_not_by_folder():
    first = next(plan_items([TaskRef("t", "here/t", "sha256:1")], 1, SETTINGS))
    moved = next(plan_items([TaskRef("t", "there/t", "sha256:1")], 1, dict(reversed(SETTINGS.items()))))
    assert first.key == moved.key
    others = [
        next(plan_items([TaskRef("t", "here/t", "sha256:2")], 1, SETTINGS)),
        next(plan_items([TaskRef("t", "here/t", "sha256:1")], 1, SETTINGS | {"model": "m"})),
        list(plan_items([TaskRef("t", "here/t", "sha256:1")], 2, SETTINGS))[1],
        next(plan_items([TaskRef("t", "here/t", None)], 1, SETTINGS)),
    ]
    assert len({first.key, *(item.key for item in others)}) == 5


def test_what_is_cancelled_leaves_no_line_and_runs_again(store):
    runner = NullRunner()
    items = list(plan_items(tasks(4), 1, SETTINGS))

    async def cut_short():
        runner.gate = anyio.Event()
        with anyio.move_on_after(0.05):
            await Engine(store, runner, concurrency=2).run(iter(items))

    anyio.run(cut_short)
    assert runner.running == 0
    assert list(store.results()) == []
    again = NullRunner()
    run(store, again, remaining(iter(items), store))
    assert len(again.ran) == 4


def test_a_broken_runner_stops_the_job_with_its_error(store):
    class Broken(NullRunner):
        async def run(self, item, folder):
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        run(store, Broken(), plan_items(tasks(2), 1, SETTINGS))


@pytest.mark.parametrize("name", ["acme/some task", "../../etc", "", "x" * 300, "ünïcode"])
def test_a_rollouts_folder_is_a_plain_name(name):
    folder = next(plan_items([TaskRef(name, "p", "d")], 1, SETTINGS)).folder_name()
    assert "/" not in folder
    assert not folder.startswith(".")
    assert len(folder) < 120
    assert folder.endswith(folder[-8:])
    assert "__1__" in folder
