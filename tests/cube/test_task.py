"""The task's dynamics: reset, step, evaluate, close, containers."""

import subprocess
from decimal import Decimal
from typing import Any

import pytest

from cube.container import Container, ContainerBackend, ContainerConfig, ContainerStatus, ExecResult
from cube.core import Action, ActionSchema, Observation, StepError, StructuredContent, TextContent
from cube.task import STOP_ACTION, Task, TaskConfig, TaskExecutionInfo, TaskMetadata, UnscoredError
from cube.tool import AbstractTool, Tool, ToolConfig, tool_action


class Ledger(Tool):
    def __init__(self, container=None):
        self.container = container
        self.entries: list[str] = []
        self.closed = 0

    @tool_action
    def write(self, text: str) -> str:
        """Write.

        Args:
            text: what
        """
        self.entries.append(text)
        return f"wrote {text}"

    @tool_action
    def fail(self) -> None:
        """Fail."""
        raise OSError("no ink")

    def reset(self):
        self.entries.clear()

    def close(self):
        self.closed += 1


class LedgerConfig(ToolConfig):
    broken: bool = False

    def make(self, container: Container | None = None) -> AbstractTool:
        if self.broken:
            raise RuntimeError("no ledger")
        return Ledger(container)


class LedgerTask(Task):
    """Bare generic form; finished once 'end' is written; the reward counts entries."""

    def reset(self):
        self.tool.reset()
        return Observation.from_text("Write 'end'."), {}

    def evaluate(self, obs=None):
        self.tool.entries  # noqa: B018  # reads the tool's state
        return len(self.tool.entries) / 10, {"seen": None if obs is None else len(obs.contents)}

    def finished(self, obs=None):
        return "end" in self.tool.entries

    def obs_postprocess(self, obs):
        return Observation(contents=[*obs.contents, TextContent(data="(seen)")])


def task(**values: Any) -> LedgerTask:
    made = LedgerTask(metadata=values.pop("metadata", TaskMetadata(id="t")), tool_config=LedgerConfig(), **values)
    made.reset()
    return made


def write(text: str) -> Action:
    return Action(name="write", arguments={"text": text})


def texts(output):
    return [content.data for content in output.obs.contents]


STOP = Action(name="final_step")


def test_one_action_is_executed_and_not_evaluated():
    output = task().step(write("a"))
    assert texts(output) == ["wrote a", "(seen)"]
    assert (output.reward, output.done, output.truncated, output.error) == (0.0, False, False, None)
    profiling = output.info["profiling"]
    assert set(profiling) == {"tool_execute", "obs_postprocess"}
    assert profiling["tool_execute"]["n_actions"] == 1
    assert profiling["tool_execute"]["avg_per_action"] == profiling["tool_execute"]["total"]


def test_a_list_of_actions_is_one_step():
    output = task().step([write("a"), write("b")])
    assert texts(output) == ["wrote a", "wrote b", "(seen)"]
    assert output.info["profiling"]["tool_execute"]["n_actions"] == 2


def test_finishing_evaluates_the_observation_before_it_is_postprocessed():
    output = task().step([write("a"), write("end")])
    assert (output.done, output.reward) == (True, 0.2)
    assert output.info["seen"] == 2
    assert "evaluate" in output.info["profiling"]


def test_the_agents_stop_ends_the_step_and_evaluates():
    live = task()
    output = live.step([write("a"), STOP, write("never")])
    assert texts(output) == ["wrote a", "Task finished by the agent.", "(seen)"]
    assert (output.done, output.reward) == (True, 0.1)
    assert live.tool.entries == ["a"]


def test_a_stop_alone_has_no_tool_time():
    assert set(task().step(STOP).info["profiling"]) == {"evaluate", "obs_postprocess"}


def test_a_task_that_does_not_accept_the_stop_says_so_and_goes_on():
    output = task(accept_agent_stop=False).step([STOP, write("a")])
    assert texts(output) == ["This task does not accept 'final_step': it ends by itself.", "wrote a", "(seen)"]
    assert (output.error, output.done) == (None, False)


def test_where_the_stop_is_not_accepted_a_tool_may_have_an_action_of_that_name():
    class Stopping(Ledger):
        @tool_action
        def final_step(self) -> str:
            """Sign."""
            return "signed"

    class StoppingConfig(ToolConfig):
        def make(self, container=None):
            return Stopping()

    live = LedgerTask(metadata=TaskMetadata(id="t"), tool_config=StoppingConfig(), accept_agent_stop=False)
    assert texts(live.step(STOP)) == ["signed", "(seen)"]
    assert "unknown argument" in texts(live.step(Action(name="final_step", arguments={"now": 1})))[0]


def test_an_error_of_the_tool_ends_the_task_and_is_still_evaluated():
    output = task().step([write("a"), Action(name="fail"), write("never")])
    assert isinstance(output.error, StepError)
    assert output.error.exception_str == "no ink"
    assert (output.done, output.reward) == (True, 0.1)
    assert texts(output) == ["wrote a", "(seen)"]


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (Action(name="fly"), "Unknown action 'fly'; available: fail, write."),
        (Action(name="wr\u0456te"), "Unknown action 'wr\\u0456te'; available: fail, write."),
        (Action(name="write"), "Action 'write' was not executed: 'text' is missing."),
        (
            Action(name="write", arguments={"text": 3}),
            "Action 'write' was not executed: 'text' must be a string, not 3.",
        ),
        (
            Action(name="write", arguments={"text": "a", "more": 1}),
            "Action 'write' was not executed: unknown argument \"more\"; it takes 'text'.",
        ),
    ],
)
def test_an_action_that_cannot_be_executed_is_answered_and_the_step_goes_on(action, answer):
    live = task()
    assert live.problem_of(action) == answer
    output = live.step([action, write("a")])
    assert texts(output) == [answer, "wrote a", "(seen)"]
    assert (output.error, output.done) == (None, False)
    assert live.tool.entries == ["a"]


def test_per_step_validation_evaluates_every_step():
    output = task(validate_per_step=True).step(write("a"))
    assert (output.done, output.reward, output.info["seen"]) == (False, 0.1, 1)


def test_an_empty_step_does_nothing():
    output = task().step([])
    assert (texts(output), output.done, output.reward) == (["(seen)"], False, 0.0)
    assert set(output.info["profiling"]) == {"obs_postprocess"}


def test_another_result_type_is_a_value_error():
    class Odd(AbstractTool):
        action_set: list[ActionSchema] = []  # satisfies the abstract property

        def execute_action(self, action):
            return "just text"

    class OddConfig(ToolConfig):
        def make(self, container=None):
            return Odd()

    with pytest.raises(ValueError, match="Unknown result type from calling action 'go' with args {'x': 1}"):
        LedgerTask(metadata=TaskMetadata(id="t"), tool_config=OddConfig()).step(Action(name="go", arguments={"x": 1}))


def test_the_info_that_evaluate_returns_is_not_changed():
    kept = {"mine": 1}

    class Keeping(LedgerTask):
        def evaluate(self, obs=None):
            return 1, kept

    output = Keeping(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig()).step(STOP)
    assert kept == {"mine": 1}
    assert output.info["mine"] == 1
    assert isinstance(output.reward, float)


def test_a_postprocess_that_returns_something_else_is_named():
    class Wrong(LedgerTask):
        def obs_postprocess(self, obs):
            return "text"

    with pytest.raises(TypeError, match=r"Wrong\.obs_postprocess\(\) returned str"):
        Wrong(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig()).step([])


@pytest.mark.parametrize("result", [1.0, (None, {}), (1.0, None), (1.0, {}, 3), "text", ("1.0", {})])
def test_an_evaluation_that_is_no_reward_with_info_is_named(result):
    class Wrong(LedgerTask):
        def evaluate(self, obs=None):
            return result

    with pytest.raises(TypeError, match=r"Wrong\.evaluate\(\) returned .*, not \(float, dict\)"):
        Wrong(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig()).step(STOP)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 10**400, Decimal("NaN")])
def test_a_reward_that_is_not_finite_is_a_value_error_and_no_score(reward):
    class Wrong(LedgerTask):
        def evaluate(self, obs=None):
            return reward, {}

    live = Wrong(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig())
    with pytest.raises(ValueError, match="The reward") as raised:
        live.step(STOP)
    assert isinstance(raised.value, UnscoredError)
    assert (raised.value.unscored["category"], raised.value.unscored["code"]) == ("verifier", "reward-invalid")


@pytest.mark.parametrize("wrong", [None, "write", {"name": "write"}, ["write"], [STOP, None], 3])
def test_a_step_takes_actions_and_executes_none_otherwise(wrong):
    live = task()
    with pytest.raises(TypeError, match=r"step\(\) takes an Action or a list of them, not"):
        live.step(wrong if not isinstance(wrong, list) else [write("a"), *wrong])
    assert live.tool.entries == []


def test_several_actions_may_come_in_any_iterable():
    assert texts(task().step((write("a"), write("b")))) == ["wrote a", "wrote b", "(seen)"]
    assert texts(task().step(write(text) for text in "ab")) == ["wrote a", "wrote b", "(seen)"]


def test_a_task_offers_what_its_filter_lets_through():
    class Filtered(LedgerTask):
        def filter_actions(self, actions):
            return [action for action in actions if action.name == "write"]

    assert [a.name for a in task().action_set] == ["fail", "write"]
    assert [a.name for a in Filtered(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig()).action_set] == ["write"]


@pytest.mark.parametrize("actions", [Action(name="fail"), [write("a"), Action(name="fail"), write("b")]])
def test_an_action_that_the_filter_leaves_out_is_refused_and_not_executed(actions):
    class Filtered(LedgerTask):
        def filter_actions(self, offered):
            return [action for action in offered if action.name == "write"]

    live = Filtered(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig())
    output = live.step(actions)
    assert "Action 'fail' is not offered by this task; available: write." in texts(output)
    assert (output.error, output.done) == (None, False)
    assert live.tool.entries == (["a", "b"] if isinstance(actions, list) else [])
    assert live.step(STOP).done


def test_a_filter_that_narrows_a_schema_is_what_arguments_must_fit():
    class Narrow(LedgerTask):
        def filter_actions(self, offered):
            for action in offered:
                if action.name == "write":
                    action.parameters["properties"]["text"]["enum"] = ["yes", "no"]
            return offered

    live = Narrow(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig())
    output = live.step([write("maybe"), write("no")])
    assert '\'text\' must be one of "yes", "no", not "maybe"' in texts(output)[0]
    assert live.tool.entries == ["no"]
    assert "enum" not in task().action_set[1].parameters["properties"]["text"]


def test_a_filter_that_changes_its_mind_is_asked_before_every_action():
    class Once(LedgerTask):
        def filter_actions(self, offered):
            return [] if self.tool.entries else offered

    live = Once(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig())
    assert "not offered" in texts(live.step([write("a"), write("b")]))[1]
    assert live.tool.entries == ["a"]


def test_defaults_and_stop_action_are_as_specified():
    live = task()
    assert (live.validate_per_step, live.accept_agent_stop, live.id) == (False, True, "t")
    assert live.get_privileged_info() == StructuredContent(data={})
    assert live.get_status() == ""
    assert (STOP_ACTION.name, STOP_ACTION.description) == ("final_step", "Stop the task execution.")
    assert list(TaskMetadata(id="x").model_dump()) == [
        "id", "split", "abstract_description", "recommended_max_steps", "container_config", "_type",
    ]  # fmt: skip
    assert list(live.model_dump()) == [
        "metadata", "execution_info", "tool_config", "container_backend", "runtime_context", "validate_per_step",
        "accept_agent_stop", "_type",
    ]  # fmt: skip


def test_metadata_accepts_only_its_own_fields():
    with pytest.raises(ValueError, match="extra_info"):
        TaskMetadata(id="a", extra_info={})


class RichMetadata(TaskMetadata):
    level: int


class RichInfo(TaskExecutionInfo):
    archive: dict[str, str]


class RichTask(Task[RichMetadata]):
    def reset(self):
        return Observation.from_text("x"), {}

    def evaluate(self, obs=None):
        return float(self.metadata.level), {}


def test_a_task_survives_json_with_all_its_subclasses_and_has_a_new_tool():
    live = RichTask(
        metadata=RichMetadata(id="r", level=3, container_config=RamConfig(image="i", swap_gb=2)),
        execution_info=RichInfo(archive={"a": "b"}),
        tool_config=LedgerConfig(),
        runtime_context={"url": "x"},
    )
    again = Task.model_validate_json(live.model_dump_json())
    assert type(again) is RichTask
    assert again.metadata == live.metadata
    assert again.metadata.container_config.swap_gb == 2
    assert again.execution_info == live.execution_info
    assert again.tool is not live.tool


def test_a_parametrised_task_refuses_other_metadata():
    with pytest.raises(ValueError, match="level"):
        RichTask(metadata={"id": "x"}, tool_config=LedgerConfig())


# -- containers ---------------------------------------------------------------------------------------------------


class RamConfig(ContainerConfig):
    swap_gb: int = 0


class ShellContainer(Container):
    """A 'container' that is a plain process on this machine: enough to prove when it is launched and stopped."""

    def __init__(self):
        self.process = subprocess.Popen(["sleep", "60"])
        self.stops = 0

    @property
    def id(self):
        return str(self.process.pid)

    def exec(self, command, timeout=None, workdir=None, env=None):
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, timeout=timeout, cwd=workdir, env=env
        )
        return ExecResult(done.stdout, done.stderr, done.returncode)

    def forward_port(self, port):
        return port

    def get_url(self, port):
        return f"http://127.0.0.1:{port}"

    def get_status(self):
        return ContainerStatus(running=self.process.poll() is None)

    def stop(self, timeout=10):
        self.stops += 1
        self.process.kill()
        self.process.wait()


LAUNCHED: list[ShellContainer] = []


class ShellBackend(ContainerBackend):
    shell: str = "sh"

    def launch(self, config):
        LAUNCHED.append(ShellContainer())
        return LAUNCHED[-1]


@pytest.fixture(autouse=True)
def _fresh_launches():
    LAUNCHED.clear()
    yield
    for container in LAUNCHED:
        container.process.kill()
        container.process.wait()


WITH_BOX = TaskMetadata(id="t", container_config=ContainerConfig(image="any"))


def test_a_container_is_up_once_the_task_is_constructed_and_stopped_once():
    live = task(metadata=WITH_BOX, container_backend=ShellBackend())
    assert live.container is LAUNCHED[0]
    assert live.tool.container is LAUNCHED[0]
    assert live.container.exec("echo hi").stdout == "hi\n"
    live.close()
    live.close()
    assert live.container is None
    assert LAUNCHED[0].stops == 1
    assert not LAUNCHED[0].get_status().running
    assert live.tool.closed == 2


@pytest.mark.parametrize(
    "values", [{"metadata": WITH_BOX}, {"container_backend": ShellBackend()}], ids=["no backend", "no config"]
)
def test_without_backend_or_config_there_is_no_container(values):
    assert task(**values).container is None
    assert LAUNCHED == []


def test_a_tool_that_cannot_be_made_leaves_no_container_behind():
    with pytest.raises(RuntimeError, match="no ledger"):
        LedgerTask(metadata=WITH_BOX, tool_config=LedgerConfig(broken=True), container_backend=ShellBackend())
    assert [container.stops for container in LAUNCHED] == [1]


def test_the_tools_failure_is_reported_also_when_the_container_cannot_be_stopped(monkeypatch):
    monkeypatch.setattr(ShellContainer, "stop", lambda self: 1 / 0)
    with pytest.raises(RuntimeError, match="no ledger"):
        LedgerTask(metadata=WITH_BOX, tool_config=LedgerConfig(broken=True), container_backend=ShellBackend())


def test_a_tool_that_cannot_be_closed_does_not_keep_the_container_up(monkeypatch):
    live = task(metadata=WITH_BOX, container_backend=ShellBackend())
    monkeypatch.setattr(Ledger, "close", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        live.close()
    assert LAUNCHED[0].stops == 1


def test_a_backend_travels_with_the_fields_of_its_class():
    live = task(container_backend=ShellBackend(shell="bash"))
    again = Task.model_validate_json(live.model_dump_json())
    assert again.container_backend == ShellBackend(shell="bash")


def test_an_overridden_post_init_that_forgets_super_is_told_so():
    class Forgetful(LedgerTask):
        def model_post_init(self, context, /):
            pass

    with pytest.raises(RuntimeError, match=r"must call super\(\)"):
        Forgetful(metadata=TaskMetadata(id="t"), tool_config=LedgerConfig()).step([])


# -- configs ------------------------------------------------------------------------------------------------------


class RichConfig(TaskConfig[RichMetadata]):
    def make(self, runtime_context=None, container_backend=None):
        return RichTask(metadata=self.metadata, tool_config=self.tool_config or LedgerConfig())


def test_a_config_is_self_contained_and_its_id_is_derived():
    config = RichConfig(metadata=RichMetadata(id="a", level=2), seed=4, tool_config=LedgerConfig())
    assert list(config.model_dump()) == ["metadata", "seed", "tool_config", "sub_bench_name", "_type"]
    again = TaskConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert type(again.tool_config) is LedgerConfig
    assert again.make().metadata.level == 2
    assert config.task_id == "a"
    assert config.model_copy(update={"sub_bench_name": "outer/inner"}).task_id == "outer/inner/a"


def test_an_abstract_config_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        TaskConfig(metadata=TaskMetadata(id="a"))
