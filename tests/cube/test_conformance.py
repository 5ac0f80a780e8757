"""Authors are told which rule their task breaks, and nothing raises for it."""

import os
import types

import pytest

import archive_cube.debug
import counter_cube.debug
from archive_cube.task import ArchiveTaskConfig
from counter_cube.benchmark import CounterBenchmark, CounterBenchmarkConfig
from counter_cube.task import CounterTask, CounterTaskConfig
from counter_cube.tool import CounterTool
from cube.benchmark import BenchmarkConfig
from cube.core import Action, Observation
from cube.resource import InfraConfig, ResourceHandle, VMResourceConfig
from cube.testing import (
    CHECKS,
    aggregate_profiling,
    assert_debug_tasks_reward_one,
    check_benchmark,
    check_reset_reproducibility,
    check_task,
    run_debug_episode,
    run_debug_suite,
)
from cube.tool import tool_action


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(ArchiveTaskConfig, "_benchmark_cache_dir", tmp_path)


@pytest.mark.parametrize("module", [counter_cube.debug, archive_cube.debug])
def test_a_good_cube_has_no_findings_and_every_rule_was_looked_at(module):
    findings = check_benchmark(module)
    assert findings == []
    assert findings.checked == set(CHECKS)


def config():
    return next(iter(CounterBenchmarkConfig().get_task_configs()))


def checks(findings):
    return [finding.check for finding in findings]


COUNTER = iter(range(1000))


@pytest.mark.parametrize(
    ("method", "replacement", "check", "message"),
    [
        ("reset", lambda self: Observation.from_text("x"), "reset", "must return (Observation, dict)"),
        ("reset", lambda self: ("x", {}), "reset", "not an Observation"),
        ("reset", lambda self: (Observation(), {}), "reset", "must state the objective"),
        ("reset", lambda self: (Observation.from_text(" "), {}), "reset", "has no text"),
        ("reset", lambda self: (Observation.from_text(str(next(COUNTER))), {}), "reset", "contents[0].data: '"),
        ("evaluate", lambda self, obs=None: 1.0, "evaluate", "must return (float, dict)"),
        ("evaluate", lambda self, obs=None: (float("nan"), {}), "evaluate", "not a finite number"),
        ("evaluate", lambda self, obs=None: (0.0, None), "evaluate", "not a dict"),
        ("evaluate", lambda self, obs=None: (next(COUNTER) / 1000, {}), "evaluate", "a second evaluate()"),
        ("evaluate", lambda self, obs=None: 1 / 0, "evaluate", "ZeroDivisionError"),
        ("filter_actions", lambda self, actions: [], "actions", "the action set is empty"),
        ("filter_actions", lambda self, actions: actions * 2, "actions", "names are not unique"),
        ("get_status", lambda self: None, "info", "not a str"),
        ("get_privileged_info", lambda self: {}, "info", "not a Content"),
        ("close", lambda self: self._closed.append(1) or 1 / (2 - len(self._closed)), "close", "ZeroDivisionError"),
        ("step", lambda self, action: None, "step", "step() is overridden"),
    ],
)
def test_a_broken_rule_is_found(monkeypatch, method, replacement, check, message):
    monkeypatch.setattr(CounterTask, "_closed", [], raising=False)
    monkeypatch.setattr(CounterTask, method, replacement)
    findings = [finding for finding in check_task(config()) if finding.check == check]
    assert findings, "nothing was found"
    assert message in str(findings[0])
    assert str(findings[0]).startswith(f"{check} [up-1]: ")


def test_an_action_without_parameter_descriptions_is_found(monkeypatch):
    @tool_action
    def jump(self, far: int) -> None:
        """Jump."""

    monkeypatch.setattr(CounterTool, "_class_actions", {})
    monkeypatch.delattr(CounterTool, "_class_actions")
    monkeypatch.setattr(CounterTool, "jump", jump, raising=False)
    findings = check_task(config())
    monkeypatch.undo()
    if "_class_actions" in CounterTool.__dict__:
        del CounterTool._class_actions
    assert checks(findings) == ["actions"]
    assert "'jump': parameter 'far' missing description" in findings[0].message


def test_a_config_that_cannot_make_its_task_is_found_and_the_rest_is_not_run(monkeypatch):
    monkeypatch.setattr(CounterTaskConfig, "make", lambda self, runtime_context=None, container_backend=None: 1 / 0)
    findings = check_task(config())
    assert checks(findings) == ["make"]
    assert "reset" not in findings.checked


def test_an_agent_that_misses_the_goal_is_found():
    findings = check_task(config(), agent=lambda obs, actions: Action(name="decrement"), max_steps=3)
    assert [str(f) for f in findings] == [
        "episode [up-1]: Episode did not complete in 3 steps: the last observation is '-3'"
    ]


def test_a_benchmark_whose_numbers_do_not_agree_is_found(monkeypatch):
    monkeypatch.setattr(CounterBenchmarkConfig.benchmark_metadata, "num_tasks", 9)
    monkeypatch.setattr(CounterBenchmarkConfig.benchmark_metadata, "named_subsets", {})
    assert [str(f) for f in check_benchmark(CounterBenchmarkConfig())] == [
        "metadata: num_tasks is 9, but 4 tasks exist: leave it out, and they are counted"
    ]


def test_a_named_subset_of_nothing_is_found(monkeypatch):
    monkeypatch.setattr(CounterBenchmarkConfig.benchmark_metadata, "named_subsets", {"none": ("id", "zz*")})
    assert "named subset 'none'" in check_benchmark(CounterBenchmarkConfig())[0].message


def test_a_module_without_the_debug_functions_is_found():
    findings = check_benchmark(types.ModuleType("empty"))
    assert [str(f) for f in findings] == ["debug-module: 'empty' has no get_debug_benchmark()"]


def test_an_install_or_set_up_that_fails_is_found(monkeypatch):
    monkeypatch.setattr(CounterBenchmarkConfig, "install", classmethod(lambda cls: 1 / 0))
    monkeypatch.setattr(BenchmarkConfig, "make", lambda self: 1 / 0)
    assert checks(check_benchmark(counter_cube.debug)) == ["install", "setup"]


def test_a_benchmark_that_cannot_be_closed_is_found(monkeypatch):
    monkeypatch.setattr(CounterBenchmark, "close", lambda self: 1 / 0)
    assert [str(f) for f in check_benchmark(counter_cube.debug)] == ["setup: ZeroDivisionError: division by zero"]


def test_an_agent_that_cannot_be_made_is_found_and_the_task_is_checked_all_the_same(monkeypatch):
    make = counter_cube.debug.make_debug_agent
    monkeypatch.setattr(
        counter_cube.debug, "make_debug_agent", lambda task_id: make({"up-3": "gone"}.get(task_id, task_id))
    )
    findings = check_benchmark(counter_cube.debug)
    assert [str(f) for f in findings] == ["debug-module [up-3]: KeyError: 'gone'"]
    assert [played.task_id for played in findings.played] == ["up-1", "down-2", "far-100"]


def test_what_was_not_played_is_not_said_to_have_passed(monkeypatch):
    monkeypatch.setattr(CounterTaskConfig, "make", lambda self, runtime_context=None, container_backend=None: 1 / 0)
    findings = check_benchmark(counter_cube.debug)
    assert checks(findings) == ["make"]
    assert not findings.checked & {"reset", "evaluate", "step", "reproducible", "isolated", "episode", "close"}


def test_tasks_that_start_differently_are_found(monkeypatch):
    goals = {}

    def reset(self):
        self.tool.reset()
        return Observation.from_text(goals.setdefault(id(self.tool), f"{len(goals)}")), {}

    monkeypatch.setattr(CounterTask, "reset", reset)
    findings = check_task(config())
    assert checks(findings) == ["reproducible"]
    assert "starts differently: contents[0].data: '0' != '1'" in findings[0].message


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("method", ["reset", "evaluate"])
def test_whatever_happens_every_task_is_closed(monkeypatch, method):
    made, closed = [], []
    post_init = CounterTask.model_post_init

    def interrupt(self, obs=None):
        raise Interrupted

    def close(self):
        closed.append(self)

    monkeypatch.setattr(
        CounterTask, "model_post_init", lambda self, context: made.append(1) or post_init(self, context)
    )
    monkeypatch.setattr(CounterTask, "close", close)
    monkeypatch.setattr(CounterTask, method, interrupt)
    with pytest.raises(Interrupted):
        check_task(config())
    with pytest.raises(Interrupted):
        run_debug_episode(config().make(), counter_cube.debug.make_debug_agent("up-1"))
    assert len(made) == len({id(task) for task in closed}) == 2


# -- episodes and suites ------------------------------------------------------------------------------------------


def test_an_episode_reports_what_happened():
    report = run_debug_episode(config().make(), counter_cube.debug.make_debug_agent("up-1"))
    assert (report["done"], report["reward"], report["steps"], report["error"]) == (True, 1.0, 1, None)
    assert report["tools_list_ok"]
    assert report["close_idempotent_ok"]
    assert len(report["step_times_s"]) == 1


def test_an_episode_never_raises():
    report = run_debug_episode(config().make(), lambda obs, actions: 1 / 0)
    assert report["error"] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_suite_reports_in_the_order_of_the_tasks(workers, capsys):
    started = []
    reports = run_debug_suite("counter", counter_cube.debug, workers=workers, on_episode_start=started.append)
    assert [report["task_id"] for report in reports] == ["up-1", "up-3", "down-2", "far-100"]
    assert sorted(started) == sorted(report["task_id"] for report in reports)
    assert '"benchmark": "counter"' in capsys.readouterr().out
    assert aggregate_profiling(reports)["step/tool_execute/n_actions"] == 1.0


def test_a_task_that_cannot_be_spawned_does_not_hide_the_others(monkeypatch, capsys):
    make = CounterTaskConfig.make
    monkeypatch.setattr(
        CounterTaskConfig, "make", lambda self, **kw: 1 / 0 if self.task_id == "up-3" else make(self, **kw)
    )
    reports = run_debug_suite("counter", counter_cube.debug, workers=1, print_json=False)
    assert [report["error"] is None for report in reports] == [True, False, True, True]


def test_a_suite_with_a_negative_number_of_workers_is_refused():
    with pytest.raises(ValueError, match="workers must be >= 0"):
        run_debug_suite("counter", counter_cube.debug, workers=-1)


def test_pytest_authors_can_assert_reward_one(monkeypatch):
    assert_debug_tasks_reward_one(counter_cube.debug)
    monkeypatch.setattr(
        counter_cube.debug, "make_debug_agent", lambda task_id: lambda obs, a: Action(name="final_step")
    )
    with pytest.raises(AssertionError, match=r"'up-1': Expected reward=1.0, got 0.0"):
        assert_debug_tasks_reward_one(counter_cube.debug)


def test_resets_that_differ_between_two_tasks_are_shown(monkeypatch):
    assert check_reset_reproducibility(counter_cube.debug) == (True, "", "")
    monkeypatch.setattr(CounterTask, "reset", lambda self: (Observation.from_text(f"goal {next(COUNTER)}"), {}))
    ok, message, difference = check_reset_reproducibility(counter_cube.debug)
    assert (ok, "different observations" in message) == (False, True)
    assert difference.startswith("contents[0].data: 'goal ")


class Machine(ResourceHandle):
    def close(self):
        self.infra.running.pop(self.run_id, None)


class Place(InfraConfig):
    """Launches nothing real, and knows what was not closed."""

    running: dict[str, str] = {}

    def fingerprint(self):
        return "place"

    def capabilities(self):
        return {"kvm"}

    def provision(self, resource):
        self.register(resource, {})

    def launch(self, resource):
        self.running[f"run-{len(self.running)}"] = resource.name
        return Machine(run_id=f"run-{len(self.running) - 1}", resource=resource, infra=self)

    def list_active(self, run_id=None):
        return [{"run_id": run, "resource": name, "owner": (os.getpid(), "")} for run, name in self.running.items()]

    def cleanup(self, run_id):
        del self.running[run_id]

    def cleanup_stale(self, max_age_seconds=None):
        return []


class Desktop(CounterBenchmark):
    def _setup(self):
        self.machine = self._infra.launch(self.config.resources[0])

    def close(self):
        if self.config.closes:
            self.machine.close()


class DesktopConfig(CounterBenchmarkConfig):
    benchmark_class = Desktop
    closes: bool = True


@pytest.mark.parametrize("closes", [True, False])
def test_a_resource_that_a_benchmark_does_not_close_is_found_and_ended(closes, tmp_path, monkeypatch):
    monkeypatch.setattr("cube.provision_store._DEFAULT_STORE_DIR", tmp_path)
    config = DesktopConfig(closes=closes, resources=[VMResourceConfig(name="desktop", scope="benchmark")])
    place = Place(running={"run-0": "of somebody else"})
    findings = check_benchmark(config, infra=place)
    assert place.running == {"run-0": "of somebody else"}
    assert checks(findings) == ([] if closes else ["containers"])
    assert closes or "resources are still running after everything was closed: desktop" in findings[0].message
