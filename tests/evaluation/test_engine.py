"""Many rollouts: concurrency, building once, retries, cancelling, resuming."""

from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from benchflow.evaluation.engine import Engine, Observer, remaining, unjudged
from benchflow.evaluation.store import JobStore
from benchflow.evaluation.summary import job_summary
from benchflow.evaluation.work import TaskRef, plan_items
from benchflow.record import (
    ErrorRecord,
    JobRecord,
    JobRequest,
    Notes,
    RescoreNote,
    Score,
    Settings,
    TaskId,
    read_lines,
)

SETTINGS = Settings("oracle")


def task(name, path="p", digest="sha256:0", environment=None):
    return TaskRef(TaskId(name, digest), path, digest, environment)


def tasks(count, environment=None):
    return [task(f"t{number}", f"p/t{number}", f"sha256:{number}", environment) for number in range(count)]


def lines(store):
    """Every line of a job, also those that no longer count."""
    documents = read_lines(store.places.results)
    return [(document["rollout"], document["task"]["name"], document["status"]) for document in documents]


class NullRunner:
    """Rollouts that do nothing but yield once; scripted to fail by task name."""

    def __init__(self, failures=None, *, make_result):
        self.make_result = make_result
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
        self.scored_again.append((item.task.name, folder.path.name))
        pending = self.failures.get(item.task.name, [])
        category = pending.pop(0) if pending else None
        if category == "not-kept":
            return None
        error = category and ErrorRecord(category, "x", "verify", "m")
        again = replace(result, outcome=error or Score(0.5))
        return replace(again, notes=Notes(rescore=RescoreNote("sha256:v", None)))

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
            made = self.make_result(item.task.name, 1.0, error or None, attempt=item.attempt, key=item.key)
            return replace(made, task=item.task.record())
        finally:
            self.running -= 1


@pytest.fixture
def new_runner(make_result):
    return partial(NullRunner, make_result=make_result)


@pytest.fixture
def store(tmp_path):
    made = JobStore.create(tmp_path, JobRecord("job", JobRequest(("tasks",), "oracle"), 0, ""))
    yield made
    made.close()


def run(store, runner, items, **options):
    engine = Engine(store, runner, backoff=lambda attempt: 0.0, **options)
    anyio.run(engine.run, items)


def test_every_item_runs_once_and_is_recorded(store, new_runner):
    runner = new_runner()
    run(store, runner, plan_items(tasks(5), 3, SETTINGS), concurrency=2)
    assert sorted(runner.ran) == [(f"t{n}", a) for n in range(5) for a in (1, 2, 3)]
    assert runner.most <= 2
    summary = job_summary(store).to_dict()
    assert (summary["total"], summary["scored"], summary["mean_reward"]["value"]) == (15, 15, 1.0)
    assert len({result["rollout"] for result in summary["results"]}) == 15


def test_an_environment_is_built_once_before_anything_runs_in_it(store, new_runner):
    runner = new_runner()
    work = [*tasks(4, "env-a"), task("other", "p", "d", "env-b"), task("none", "p", "e")]
    run(store, runner, plan_items(work, 2, SETTINGS), concurrency=3)
    assert sorted(runner.prepared) == ["env-a", "env-b"]
    assert len(runner.ran) == 12


def test_trouble_is_retried_by_its_category_and_every_try_is_kept(store, new_runner):
    runner = new_runner({"t0": ["infrastructure", "sandbox"], "t1": ["verifier"], "t2": ["infrastructure"] * 9})
    retried = []

    class Watching(Observer):
        def retrying(self, item, result, delay):
            retried.append(item.task.name)

    run(store, runner, plan_items(tasks(3), 1, SETTINGS), observer=Watching())
    assert (
        sorted(line[1:] for line in lines(store))
        == [("t0", "scored")] + [("t0", "unscored")] * 2 + [("t1", "unscored")] + [("t2", "unscored")] * 3
    )
    assert sorted(retried) == ["t0", "t0", "t2", "t2"]
    summary = job_summary(store).to_dict()
    assert (summary["total"], summary["scored"]) == (3, 1)
    assert summary["unscored_by"] == {"infrastructure": 1, "verifier": 1}


def test_the_work_of_an_agent_is_scored_again_when_its_judge_fails_and_not_done_again(store, new_runner):
    runner = new_runner({"t0": ["judge", "sandbox"], "t1": ["judge", "not-kept"], "t2": ["judge"] * 9})
    run(store, runner, plan_items(tasks(3), 1, SETTINGS))
    assert sorted(name for name, _ in runner.ran) == ["t0", "t1", "t2"]
    assert sorted(name for name, _ in runner.scored_again) == ["t0", "t0", "t1", "t2", "t2"]
    assert len({rollout for rollout, _, _ in lines(store)}) == 3, "a rollout is one however often it is scored"
    assert sorted(line[1:] for line in lines(store)) == [("t0", "scored")] + [("t0", "unscored")] * 2 + [
        ("t1", "unscored"),
        *[("t2", "unscored")] * 3,
    ]
    assert {result["task"]["name"]: result["reward"] for result in job_summary(store).to_dict()["results"]} == {
        "t0": 0.5,
        "t1": None,
        "t2": None,
    }


def test_an_agent_does_not_make_good_for_a_judge_when_its_work_was_not_kept(store, new_runner):
    runner = new_runner({"t0": ["judge"]})
    runner.keeps = False
    run(store, runner, plan_items(tasks(1), 1, SETTINGS))
    assert (len(runner.ran), len(runner.scored_again), len(lines(store))) == (1, 0, 1)


@pytest.mark.parametrize(("keeps", "ran", "scored_again"), [(True, 0, 1), (False, 1, 0)])
def test_resume_scores_what_only_wants_a_judge_and_runs_it_where_it_was_not_kept(
    store, new_runner, keeps, ran, scored_again
):
    items = list(plan_items(tasks(1), 1, SETTINGS))
    run(store, new_runner({"t0": ["judge"] * 9}), iter(items))
    again = new_runner()
    again.keeps = keeps
    run(store, again, remaining(iter(items), store.results), unjudged=unjudged(store.results))
    assert (len(again.ran), len(again.scored_again)) == (ran, scored_again)
    assert [result.status for _, result in store.results] == ["scored"]


def test_resume_runs_what_is_missing_and_what_may_have_passed(store, new_runner):
    items = list(plan_items(tasks(5), 1, SETTINGS))
    run(store, new_runner({"t1": ["judge"] * 9, "t2": ["package"], "t3": ["agent"]}), iter(items[:4]))
    again = new_runner()
    run(store, again, remaining(iter(items), store.results))
    assert sorted(name for name, _ in again.ran) == ["t1", "t3", "t4"]
    assert {result.status for _, result in store.results} == {"scored", "unscored"}
    finished = new_runner()
    run(store, finished, remaining(iter(items), store.results))
    assert finished.ran == []


def test_work_is_known_by_content_and_not_by_folder():
    first = next(plan_items([task("t", "here/t", "sha256:1")], 1, SETTINGS))
    moved = next(plan_items([task("t", "there/t", "sha256:1")], 1, SETTINGS))
    assert first.key == moved.key
    others = [
        next(plan_items([task("t", "here/t", "sha256:2")], 1, SETTINGS)),
        next(plan_items([task("t", "here/t", "sha256:1")], 1, replace(SETTINGS, model="m"))),
        list(plan_items([task("t", "here/t", "sha256:1")], 2, SETTINGS))[1],
        next(plan_items([task("t", "here/t", None)], 1, SETTINGS)),
    ]
    assert len({first.key, *(item.key for item in others)}) == 5


def test_what_is_cancelled_leaves_no_line_and_runs_again(store, new_runner):
    runner = new_runner()
    items = list(plan_items(tasks(4), 1, SETTINGS))

    async def cut_short():
        runner.gate = anyio.Event()
        with anyio.move_on_after(0.05):
            await Engine(store, runner, concurrency=2).run(iter(items))

    anyio.run(cut_short)
    assert runner.running == 0
    assert lines(store) == []
    again = new_runner()
    run(store, again, remaining(iter(items), store.results))
    assert len(again.ran) == 4


def test_a_broken_runner_stops_the_job_with_its_error(store, make_result):
    class Broken(NullRunner):
        async def run(self, item, folder):
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        run(store, Broken(make_result=make_result), plan_items(tasks(2), 1, SETTINGS))


@pytest.mark.parametrize("name", ["acme/some task", "../../etc", "", "x" * 300, "ünïcode"])
def test_a_rollouts_folder_is_a_plain_name(name):
    folder = next(plan_items([task(name)], 1, SETTINGS)).folder_name()
    assert "/" not in folder
    assert not folder.startswith(".")
    assert len(folder) < 120
    assert folder.endswith(folder[-8:])
    assert "__1__" in folder
