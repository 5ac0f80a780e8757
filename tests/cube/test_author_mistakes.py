"""Mistakes that authors make, each found and told once, beside a twin that is sound and has no findings."""

import itertools
import random
import subprocess
import threading
import types
from typing import Any

import pytest

from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.composite import CompositeBenchmarkConfig
from cube.container import Container, ContainerBackend, ContainerConfig, ContainerStatus
from cube.core import Action, Observation
from cube.seed import AbstractSeedGenerator
from cube.task import Task, TaskConfig, TaskMetadata
from cube.testing import check_benchmark
from cube.tool import AbstractTool, Tool, ToolConfig, tool_action

NUMBERS = itertools.count()


class WordMetadata(TaskMetadata):
    extra: Any = None


class Pen(Tool):
    def __init__(self, container=None):
        self.container = container
        self.words: list[str] = []
        self.locked = False

    def reset(self):
        self.words.clear()
        self.locked = False

    @tool_action
    def write(self, word: str) -> str:
        """Write a word.

        Args:
            word: which
        """
        if not self.locked:
            self.words.append(word)
        return f"{len(self.words)} words"


class PenConfig(ToolConfig):
    def make(self, container=None):
        return Pen(container)


class WordTask(Task[WordMetadata]):
    seed: int | None = None

    def reset(self):
        self.tool.reset()
        return Observation.from_text(f"Write 'a', then '{self.metadata.id}'."), {}

    def evaluate(self, obs=None):
        return float(self.tool.words == ["a", self.metadata.id]), {}

    def finished(self, obs=None):
        return len(self.tool.words) == 2


class WordBenchmark(Benchmark):
    def _setup(self):
        self._runtime_context["kept"] = []

    def close(self):
        pass


def define(name, base, **body):
    """A class that JSON can name: in this module, under a name of its own."""
    made = type(base)(f"{name}{next(NUMBERS)}", (base,), {"__module__": __name__, **body})
    globals()[made.__name__] = made
    return made


def cube(
    *, task=None, tool=None, tool_config=None, config=None, rows=(), tasks=3, metadata=None, benchmark=None, **fields
) -> types.SimpleNamespace:
    """A debug module; every part is a dict of what replaces the sound definitions."""
    task_class = define("Task", WordTask, **(task or {}))
    pen = tool if isinstance(tool, type) else define("Pen", Pen, **(tool or {}))
    pens = tool_config or define("PenConfig", PenConfig, make=lambda self, container=None: pen(container))

    def make(self, runtime_context=None, container_backend=None):
        return task_class(
            metadata=self.metadata,
            tool_config=self.tool_config or pens(),
            runtime_context=runtime_context,
            container_backend=container_backend,
            seed=self.seed,
        )

    configs = define("TaskConfig", TaskConfig[WordMetadata], make=make)
    listed = rows or [WordMetadata(id=f"w{number}") for number in range(tasks)]
    bench = define(
        "BenchmarkConfig",
        BenchmarkConfig[WordMetadata],
        benchmark_metadata=BenchmarkMetadata(
            **{"name": "words", "version": "1", "description": "d", **(metadata or {})}
        ),
        task_metadata={row.id: row for row in listed},
        task_config_class=configs,
        benchmark_class=define("Benchmark", WordBenchmark, **(benchmark or {})),
        **(config or {}),
    )
    return types.SimpleNamespace(
        __name__="words.debug", get_debug_benchmark=lambda: bench(**fields), make_debug_agent=agent
    )


def agent(task_id):
    words = iter(["a", task_id.rpartition("/")[2]])
    return lambda obs, actions: Action(name="write", arguments={"word": next(words)})


# -- containers: plain processes, enough to see whether they were stopped -------------------------------------------

LAUNCHED: list["Process"] = []


class Process(Container):
    def __init__(self):
        self.process = subprocess.Popen(["sleep", "600"])
        LAUNCHED.append(self)

    @property
    def id(self):
        return f"box-{self.process.pid}"

    def exec(self, command, timeout=None, workdir=None, env=None): ...

    def forward_port(self, port): ...

    def get_url(self, port): ...

    def get_status(self):
        return ContainerStatus(running=self.process.poll() is None)

    def stop(self, timeout=10):
        self.process.kill()
        self.process.wait()


class Processes(ContainerBackend):
    def launch(self, config):
        return Process()


@pytest.fixture(autouse=True)
def _nothing_left():
    LAUNCHED.clear()
    yield
    for box in LAUNCHED:
        box.stop()


BOXED = {"rows": [WordMetadata(id=f"w{n}", container_config=ContainerConfig(image="i")) for n in range(3)]}


def rows(**values):
    return {"rows": [WordMetadata(id=f"w{n}", **values) for n in range(3)]}


# -- the mistakes ---------------------------------------------------------------------------------------------------


def forgets_the_tool(self):
    return Observation.from_text("Write."), {}


def resets_the_tool(self):
    self.tool.reset()
    return Observation.from_text("Write."), {}


def writes_down(self):
    self.runtime_context["kept"].append(self.metadata.id)
    return resets_the_tool(self)


def any_goal(self):
    self.tool.reset()
    return Observation.from_text(f"Write {random.random()}."), {}


def seeded_goal(self):
    self.tool.reset()
    return Observation.from_text(f"Write {random.Random(self.seed).random()}."), {}


def locks(self, obs=None):
    self.tool.locked = True
    return WordTask.evaluate(self, obs)


def wears_out(self, obs=None):
    reward, info = WordTask.evaluate(self, obs)
    if reward:
        self.tool.words.append("scored")
    return reward, info


class RandomSeeds(AbstractSeedGenerator):
    def __call__(self, task_metadata):
        return [random.randrange(2**32)]


class HashSeeds(AbstractSeedGenerator):
    def __call__(self, task_metadata):
        return [hash(task_metadata.id) % 2**32]


class LengthSeeds(AbstractSeedGenerator):
    def __call__(self, task_metadata):
        return [len(task_metadata.id)]


class ToldTool(AbstractTool):
    """Not a `Tool`: finds its actions itself."""

    def __init__(self, container=None):
        self.pen = Pen()
        self.words = self.pen.words

    action_set = property(lambda self: self.pen.action_set)

    def reset(self):
        self.pen.reset()

    def execute_action(self, action):
        if action.name != "write":
            raise ValueError("no such action")
        return self.pen.execute_action(action)


class FailingTool(ToldTool):
    def execute_action(self, action):
        return self.pen.execute_action(action) if action.name == "write" else None


def shared_words(self, container=None):
    Pen.__init__(self, container)
    self.words = SHARED


def own_box(self, container=None):
    Pen.__init__(self, container)
    self.box = Processes().launch(ContainerConfig(image="i"))


SHARED: list[str] = []
MISTAKES = {
    "a reset that forgets the tool": (
        {"task": {"reset": forgets_the_tool}},
        {"task": {"reset": resets_the_tool}},
        "reset",
        "does not call self.tool.reset()",
    ),
    "a tool whose reset does nothing": (
        {"tool": {"reset": lambda self: None}},
        {"tool": {"reset": lambda self: self.words.clear()}},
        "reset",
        "after reset() the same actions have different results",
    ),
    "state that tasks share": (
        {"tool": {"__init__": shared_words}},
        {"tool": {"__init__": Pen.__init__}},
        "isolated",
        "a task changes another task of its config",
    ),
    "a task that writes into what all share": (
        {"task": {"reset": writes_down}},
        {"task": {"reset": resets_the_tool}},
        "isolated",
        "tasks change the runtime context, which they share: kept",
    ),
    "an evaluation that locks the tool": (
        {"task": {"evaluate": locks}},
        {"task": {"evaluate": WordTask.evaluate}},
        "evaluate",
        "evaluate() changes the state: step",
    ),
    "an evaluation that uses up what it scores": (
        {"task": {"evaluate": wears_out}},
        {},
        "evaluate",
        "evaluations of the final state differ: 1.0, 0.0, 0.0",
    ),
    "a reward that is not a number": (
        {"task": {"evaluate": lambda self, obs=None: (float("nan"), {})}},
        {},
        "evaluate",
        "not a finite number",
    ),
    "a goal that is drawn anew": (
        {"task": {"reset": any_goal}, "seed_generator": LengthSeeds()},
        {"task": {"reset": seeded_goal}, "seed_generator": LengthSeeds()},
        "reset",
        "a second reset() returns a different observation",
    ),
    "seeds that are drawn anew": (
        {"seed_generator": RandomSeeds()},
        {"seed_generator": LengthSeeds()},
        "seeds",
        "returns different seeds when called again",
    ),
    "seeds that depend on the process": (
        {"seed_generator": HashSeeds()},
        {"seed_generator": LengthSeeds()},
        "seeds",
        "another process gets different seeds",
    ),
    "a wrong number of tasks": (
        {"metadata": {"num_tasks": 4}},
        {"metadata": {"num_tasks": 3}},
        "metadata",
        "num_tasks is 4, but 3 tasks exist",
    ),
    "tasks that are not listed": (
        {"config": {"get_task_configs": lambda self: itertools.islice(BenchmarkConfig.get_task_configs(self), 2)}},
        {"config": {"get_task_configs": lambda self: iter(list(BenchmarkConfig.get_task_configs(self)))}},
        "metadata",
        "does not yield the tasks of tasks()",
    ),
    "metadata that JSON turns into something else": (
        rows(extra=("a", "b")),
        rows(extra=["a", "b"]),
        "json",
        "fields are lost or changed by JSON: extra: ('a', 'b') != ['a', 'b']",
    ),
    "metadata that JSON does not know": (
        rows(extra=float("nan")),
        rows(extra=1.5),
        "json",
        "extra: nan != ",
    ),
    "a close that leaves the container": (
        {"task": {"close": lambda self: None}, "container_backend": Processes(), **BOXED},
        {"task": {"close": Task.close}, "container_backend": Processes(), **BOXED},
        "close",
        "the container is still running after close()",
    ),
    "a tool that leaves a container of its own": (
        {"tool": {"__init__": own_box}},
        {"tool": {"__init__": own_box, "close": lambda self: self.box.stop()}},
        "containers",
        "still running after everything was closed: box-",
    ),
    "a tool that returns nothing for unknown actions": (
        {"tool": FailingTool},
        {"tool": ToldTool},
        "step",
        "ValueError: Unknown result type",
    ),
}


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(name, marks=[pytest.mark.slow] * ("drawn anew" in name or "the process" in name))
        for name in MISTAKES
    ],
)
def test_a_mistake_is_found_and_told_once_and_its_twin_is_sound(mistake):
    SHARED.clear()
    bad, good, check, sentence = MISTAKES[mistake]
    findings = check_benchmark(cube(**bad))
    assert [finding.check for finding in findings] == [check], list(map(str, findings))
    assert sentence in findings[0].message
    SHARED.clear()
    sound = check_benchmark(cube(**good))
    assert list(map(str, sound)) == []
    assert [(played.task_id, played.reward, played.steps) for played in sound.played] == [
        (f"w{number}", 1.0, 2) for number in range(3)
    ]
    assert [box for box in LAUNCHED if box.get_status().running] == [], "nothing outlives a check"


def test_a_mistake_of_all_tasks_names_them_once():
    [finding] = check_benchmark(cube(task={"reset": lambda self: 1 / 0}, tasks=5))
    assert str(finding) == "reset [w0, w1, w2 and 2 more]: ZeroDivisionError: division by zero"
    assert (finding.task_id, finding.also) == ("w0", ("w1", "w2", "w3", "w4"))


def test_a_debug_benchmark_that_is_a_subset_or_a_composite_is_judged_right():
    words, others = cube(), cube(metadata={"name": "others"})
    whole = words.get_debug_benchmark()
    suite = CompositeBenchmarkConfig(
        sub_bench_configs=[whole, others.get_debug_benchmark().subset_from_list(["w2"])], composite_name="suite"
    )
    nested = CompositeBenchmarkConfig(sub_bench_configs=[suite], composite_name="outer")
    expected = [
        (whole.subset_from_list(["w1", "w0"]), ["w1", "w0"]),
        (whole.subset_from_glob("id", "w*").subset_from_list(["w2"]), ["w2"]),
        (suite, ["words/w0", "others/w2", "words/w1", "words/w2"]),
        (nested.subset_from_glob("id", "w2"), ["suite/words/w2", "suite/others/w2"]),
    ]
    for config, played in expected:
        config.tasks()
        config.num_tasks  # noqa: B018  # looked at
        words.get_debug_benchmark = lambda config=config: config
        findings = check_benchmark(words)
        assert list(map(str, findings)) == []
        assert [each.task_id for each in findings.played] == played


def test_of_a_hundred_tasks_with_containers_few_are_started_and_two_run_at_a_time():
    most = 0

    class Counted(Pen):
        def __init__(self, container=None):
            nonlocal most
            most = max(most, sum(box.get_status().running for box in LAUNCHED))
            super().__init__(container)

    listed = [WordMetadata(id=f"w{n}", container_config=ContainerConfig(image="i")) for n in range(100)]
    findings = check_benchmark(cube(rows=listed, tool=Counted, container_backend=Processes()))
    assert list(map(str, findings)) == []
    assert (findings.tasks, len(findings.played)) == (100, 3)
    assert len(LAUNCHED) <= 10
    assert most == 2


def test_tasks_can_be_chosen():
    module = cube(tasks=30)
    assert [each.task_id for each in check_benchmark(module, tasks=["w7"]).played] == ["w7"]
    assert len(check_benchmark(module, live=1).played) == 1
    assert len(check_benchmark(module).played) == 20


def test_a_cube_whose_classes_json_cannot_find_is_told():
    class Hidden(PenConfig):
        pass

    findings = check_benchmark(
        cube(tool_config=Hidden).get_debug_benchmark().model_copy(update={"tool_config": Hidden()})
    )
    assert [finding.check for finding in findings] == ["json"]
    assert "<locals>" in findings[0].message


def test_a_tool_that_allows_one_of_its_kind_per_thread_and_only_there_is_sound():
    """As browsers do that are driven synchronously."""
    open_in: set[int] = set()

    class OnePerThread(Pen):
        def __init__(self, container=None):
            super().__init__(container)
            self.home = threading.get_ident()
            assert self.home not in open_in, "there is one in this thread already"
            open_in.add(self.home)

        def reset(self):
            assert threading.get_ident() == self.home
            super().reset()

        def close(self):
            assert threading.get_ident() == self.home
            open_in.discard(self.home)

    findings = check_benchmark(cube(tool=OnePerThread))
    assert list(map(str, findings)) == []
    assert (len(findings.played), open_in) == (3, set())
